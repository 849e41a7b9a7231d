"""nvidia-smi in its four forms: what is read, and each finding by its case and a near miss."""

from io import BytesIO
from typing import Any

import pytest

from ingest import formats
from ingest.log import Log, numbered_lines
from ingest.opening import Unreadable
from verifyscope.records import Finding


def query(
    *,
    use: int = 0,
    power: float = 22.0,
    limit: float = 600.0,
    generation: int = 5,
    width: int = 16,
    clock: int = 2400,
    bus: str = "01",
    reasons: str = "Not Active",
) -> str:
    """The block of one GPU, as nvidia-smi -q prints it; only some of its lines."""
    return f"""\
GPU 00000000:{bus}:00.0
    Product Name                          : NVIDIA Test GPU
    GPU UUID                              : GPU-secret-uuid
    Performance State                     : P0
    PCI
        Bus Id                            : 00000000:{bus}:00.0
        GPU Link Info
            PCIe Generation
                Max                       : 5
                Current                   : {generation}
                Device Current            : {generation}
            Link Width
                Max                       : 16x
                Current                   : {width}x
    Clocks Event Reasons
        Idle                              : Active
        SW Power Cap                      : {reasons}
    Utilization
        GPU                               : {use} %
        Memory                            : 3 %
    GPU Power Readings
        Average Power Draw                : N/A
        Instantaneous Power Draw          : {power:.2f} W
        Current Power Limit               : {limit:.2f} W
        Default Power Limit               : 600.00 W
    Clocks
        Graphics                          : 300 MHz
        SM                                : {clock} MHz
    Max Clocks
        SM                                : 3000 MHz
    Processes
        Process ID                        : 4242
            Name                          : /home/alice/secret/python
"""


def xml(
    *,
    use: int = 0,
    power: float = 22.0,
    limit: float = 600.0,
    generation: int = 5,
    width: int = 16,
    reasons: str = "Not Active",
) -> str:
    """The same GPU, as nvidia-smi -q -x prints it."""
    return f"""<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log><gpu id="00000000:01:00.0">
<product_name>NVIDIA Test GPU</product_name><uuid>GPU-secret-uuid</uuid>
<performance_state>P0</performance_state>
<pci><pci_gpu_link_info><pcie_gen><max_link_gen>5</max_link_gen>
<current_link_gen>{generation}</current_link_gen></pcie_gen>
<link_widths><max_link_width>16x</max_link_width><current_link_width>{width}x</current_link_width>
</link_widths></pci_gpu_link_info></pci>
<clocks_event_reasons><clocks_event_reason_gpu_idle>Active</clocks_event_reason_gpu_idle>
<clocks_event_reason_sw_power_cap>{reasons}</clocks_event_reason_sw_power_cap>
</clocks_event_reasons>
<utilization><gpu_util>{use} %</gpu_util></utilization>
<gpu_power_readings><average_power_draw>N/A</average_power_draw>
<instant_power_draw>{power:.2f} W</instant_power_draw>
<current_power_limit>{limit:.2f} W</current_power_limit>
<default_power_limit>600.00 W</default_power_limit></gpu_power_readings>
<clocks><graphics_clock>300 MHz</graphics_clock><sm_clock>2400 MHz</sm_clock></clocks>
<processes><process_info><process_name>/home/alice/secret</process_name></process_info></processes>
</gpu></nvidia_smi_log>
"""


def findings(text: str, name: str | None = None) -> dict[str, Finding]:
    """What a file says, by name, and that it was recognised as what it is."""
    data = text.encode()
    (known,) = formats.recognise(data)
    if name is not None:
        assert known.name == name
    log = Log(
        file="gpu.txt",
        lines=numbered_lines(BytesIO(data)),
        environment="here",
        command="test",
        stream=BytesIO(data),
    )
    return {one.name: one for one in known.read(log) if isinstance(one, Finding)}


def text(*blocks: str) -> str:
    return "\n==============NVSMI LOG==============\n\nAttached GPUs : 1\n" + "".join(blocks)


CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("collective-spin", {"use": 100, "power": 140}, {"use": 100, "power": 450}),
    ("collective-spin", {"use": 99, "power": 95}, {"use": 60, "power": 95}),
    ("idle-link-is-not-a-fault", {"generation": 1}, {"generation": 5}),
    ("narrow-link", {"width": 4}, {"generation": 1}),
    ("narrow-link", {"generation": 1, "use": 90, "power": 400}, {"use": 90, "power": 400}),
    ("power-limit-lowered", {"limit": 300}, {}),
    ("throttled", {"reasons": "Active"}, {}),
]


@pytest.mark.parametrize(("name", "case", "near"), CASES)
def test_a_finding_is_raised_by_its_case_and_not_by_a_near_miss(
    name: str, case: dict[str, Any], near: dict[str, Any]
) -> None:
    assert name in findings(text(query(**case)), "nvidia-smi -q")
    assert name not in findings(text(query(**near)), "nvidia-smi -q")
    assert name in findings(xml(**case), "nvidia-smi -q -x")
    assert name not in findings(xml(**near), "nvidia-smi -q -x")


def test_a_slow_busy_gpu_among_busy_ones_is_the_straggler() -> None:
    fast = [query(use=95, power=400, bus=f"0{at}") for at in (1, 2, 3)]
    slow = query(use=95, power=400, clock=1200, bus="04")
    found = findings(text(*fast, slow))["straggler-rank"]
    assert found.sentence.startswith("GPU 3 runs at 1200 MHz and the other busy ones at 2400")
    assert "straggler-rank" not in findings(text(*fast, query(clock=300, bus="04")))


def test_gpus_are_described_and_nothing_private_is() -> None:
    for form in (text(query(), query(bus="02")), xml()):
        found = findings(form)
        whole = " ".join(f"{one}" for one in found.values())
        assert "NVIDIA Test GPU, PCIe 5 x16, 600 W" in found["gpus"].sentence
        for word in ("secret", "alice", "00000000", "4242"):
            assert word not in whole


HEADER = (
    "timestamp, index, name, utilization.gpu [%], power.draw [W], power.limit [W], "
    "clocks.current.sm [MHz]\n"
)


def telemetry(
    use: int, power: float, *, gpus: int = 2, slow: int = 2400, step_s: float = 1.0
) -> str:
    rows = [
        f"2026/01/05 10:00:{at * step_s:06.3f}, {gpu}, NVIDIA Test GPU, {use} %, {power} W, "
        f"600.00 W, "
        f"{slow if gpu == 1 else 2400} MHz\n"
        for at in range(8)
        for gpu in range(gpus)
    ]
    return HEADER + "".join(rows)


@pytest.mark.parametrize(
    ("name", "case", "near"),
    [
        ("collective-spin", telemetry(100, 140.1), telemetry(100, 500.1)),
        ("straggler-rank", telemetry(95, 500.0, slow=1500), telemetry(95, 500.0, slow=2300)),
        ("interval-too-small", telemetry(95, 500.0, step_s=0.02), telemetry(95, 500.0)),
        ("lines-not-read", telemetry(95, 500.0)[:-20] + "\n", telemetry(95, 500.0)),
    ],
)
def test_telemetry_gives_findings_over_all_its_rows(name: str, case: str, near: str) -> None:
    assert name in findings(case, "nvidia-smi telemetry")
    assert name not in findings(near, "nvidia-smi telemetry")


def test_a_spin_over_many_rows_is_likelier_than_one_in_a_snapshot() -> None:
    assert findings(telemetry(100, 140.0))["collective-spin"].confidence == "likely"
    assert findings(text(query(use=100, power=140)))["collective-spin"].confidence == "hint"


def test_a_topology_is_counted_by_class() -> None:
    matrix = (
        "\x1b[4mGPU0\tGPU1\tGPU2\tCPU Affinity\x1b[0m\nGPU0\t X \tPIX\tSYS\t0-23\t0\n"
        "GPU1\tPIX\t X \tSYS\t0-23\t0\nGPU2\tSYS\tSYS\t X \t24-47\t1\n\nLegend:\n"
    )
    assert findings(matrix, "nvidia-smi topo -m")["topology"].sentence == (
        "3 GPUs, pairs by path: 1 PIX and 2 SYS: no NVLink, every all-reduce crosses PCIe, some "
        "of it "
        "between sockets"
    )
    linked = "        GPU0    GPU1\nGPU0     X      NV12\nGPU1    NV12     X \n"
    assert findings(linked)["topology"].sentence == "2 GPUs, pairs by path: 1 NVLink"


@pytest.mark.parametrize(
    "bad",
    [
        '<nvidia_smi_log><!DOCTYPE a [<!ENTITY x "y">]></nvidia_smi_log>',
        "<nvidia_smi_log><gpu>",
        "<nvidia_smi_log>" + "<gpu>" * 3000,
    ],
)
def test_bad_xml_is_one_line(bad: str) -> None:
    with pytest.raises(Unreadable):
        findings(bad)


def test_deep_xml_ends() -> None:
    deep = "<nvidia_smi_log>" + "<gpu>" + "<a>" * 500 + "</a>" * 500 + "</gpu></nvidia_smi_log>"
    assert set(findings(deep)) == {"gpus"}
