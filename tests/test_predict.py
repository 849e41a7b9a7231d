"""`python -m collectives.predict`: what it asks, what it prints, what it keeps, and its fits."""

from pathlib import Path

import msgspec
import pytest

from collectives import predict
from collectives._model import measured, topology
from collectives._model.cost import cost_table
from ingest.nccl_log import read_log
from verifyscope import cli, environment
from verifyscope.records import Launch, Measurement, Reader
from verifyscope.runs import Run

P = "a:1:1 [0] NCCL INFO "
VERSION = P + "NCCL version 2.29.7+cuda12.9"
START = P + "comm 0xa rank 0 nranks 8 cudaDev 0 nvmlDev 0 busId 1 commId 0x9 - Init START"
NODES = P + "comm 0xa rank 0 nRanks 8 nNodes 1 localRanks 8 localRank 0 MNNVL 0"
PATTERN = "Pattern {p}, crossNic 0, nChannels {c}, bw {b}/{b}, type {t}/PIX, sameChannels 1"
RING, TREE = (
    PATTERN.format(p=4, c=2, b="24.0", t="PHB"),
    PATTERN.format(p=3, c=1, b="12.0", t="SYS"),
)
TABLE = (
    "  Algorithm   |  Tree  |  Ring  |",
    "    AllReduce | 20.8/ 5.8 | 40.6/ 0.0 | 64.4/22.1 | 20.6/13.7 | 49.0/ 0.0 | 88.2/27.4 |",
)
CHOICE = "AllReduce: 57344 Bytes -> Algo RING proto {} channel{{Lo..Hi}}={{0..3}}"
GIVEN = ("--ranks", "8", "--graph-bw", "24", "--channels", "2", "--nccl", "2.29")
FEW = ("--min-bytes", "64K", "--max-bytes", "64K")
US = 1e-6


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.run(predict.application, predict.PROGRAM, arguments)
    return int(ended.value.code or 0)


@pytest.fixture
def out(tmp_path: Path) -> tuple[str, str]:
    return "--records", str(tmp_path / "predicted.jsonl")


def rows(text: str, kind: str) -> list[list[str]]:
    found = [line.split("\t") for line in text.splitlines()]
    return [cells[1:] for cells in found if cells[0] == kind]


def log_of(path: Path, *lines: str) -> str:
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def measured_run(
    path: Path,
    times: dict[int, float],
    *,
    ranks: int = 8,
    effective: dict[str, str] | None = None,
    requested: dict[str, str] | None = None,
    launch: Launch = "graph",
) -> None:
    with Run(path, environment.current()) as run:
        for size, seconds in times.items():
            run.append(
                Measurement(
                    source="measured",
                    part="all_reduce",
                    op="all_reduce",
                    implementation="nccl",
                    kind="baseline-direct",
                    case=f"{size}B",
                    status="ok",
                    dims={"bytes": size, "dtype": "bfloat16", "in_place": True},
                    launch=launch,
                    requested=requested or {},
                    effective=effective or {},
                    median_s=seconds,
                    ranks=ranks,
                    environment=run.environment.id,
                    command="test",
                )
            )


def test_a_given_graph_gives_cells_crossover_and_choice_by_size(
    out: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*GIVEN, *FEW, *out) == 0
    text = capsys.readouterr().out
    assert rows(text, "model")[:3] == [
        ["NCCL", "2.29"],
        ["ranks", "8 on one node"],
        ["ring", "2 x 24 GB/s over PHB"],
    ]
    cells = {cells[0]: cells[1:] for cells in rows(text, "cell")}
    assert cells["ring/ll"] == ["20.6/13.7", "on"]
    assert cells["ring/ll128"] == ["49.0/25.2", "off: LL128 is unsafe over PHB: it needs NVLink"]
    assert rows(text, "range") == [
        ["1", "ring/ll", "20.6 us"],
        ["1854172", "ring/simple", "156 us"],
    ]
    assert rows(text, "size") == [["65536", "-", "ring/ll", "25.4 us", "-", "-", "-"]]


def test_a_failed_search_is_named_and_its_crossover_printed_in_bytes(
    out: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    failed = ("--ranks", "8", "--graph-bw", "0.1", "--channels", "1", "--path", "sys")
    assert run(*failed, *FEW, *out) == 0
    printed = capsys.readouterr()
    assert [cells[:2] for cells in rows(printed.out, "range")] == [
        ["1", "ring/ll"],
        ["3863", "ring/simple"],
    ]
    assert ["ring", "1 x 0.1 GB/s over SYS, simple order: the search failed"] in rows(
        printed.out, "model"
    )
    assert "its times mean nothing" in printed.err
    records = [one for one in Reader(Path(out[1])) if isinstance(one, Measurement)]
    assert all("graph-simple-order" in one.flags for one in records)


def test_sizes_of_a_model_carry_their_tokens(
    out: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*GIVEN, "--model", "kimi-k2.5", "--tokens", "1,4", *out) == 0
    found = rows(capsys.readouterr().out, "size")
    assert [cells[:4] for cells in found] == [
        ["14336", "1", "ring/ll", "21.6 us"],
        ["57344", "4", "ring/ll", "24.8 us"],
    ]


def test_a_version_after_2_30_is_unverified_and_says_so(
    out: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*GIVEN[:-1], "2.32.6", *FEW, *out) == 0
    (version,) = [
        cells[1] for cells in rows(capsys.readouterr().out, "model") if cells[0] == "NCCL"
    ]
    assert version.startswith("2.32.6: unverified for this version")
    records = [one for one in Reader(Path(out[1])) if isinstance(one, Measurement)]
    assert {one.method["unverified"] for one in records} == {True}


def test_settings_restrict_the_cells_and_an_inverted_list_turns_ll128_on(
    out: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*GIVEN, "--proto", "^Simple", "--algo", "ring", *FEW, *out) == 0
    printed = capsys.readouterr()
    cells = {cells[0]: cells[2] for cells in rows(printed.out, "cell")}
    assert cells["ring/ll128"] == "on"
    assert cells["ring/simple"] == "off: NCCL_PROTO=^Simple"
    assert cells["tree/ll"] == "off: NCCL_ALGO=ring"
    assert "past its safety gate" in printed.err


def test_the_records_are_predicted_one_a_size_and_cell_with_the_choice_marked(
    out: tuple[str, str],
) -> None:
    assert run(*GIVEN, *FEW, *out) == 0
    found = [one for one in Reader(Path(out[1])) if isinstance(one, Measurement)]
    assert {one.source for one in found} == {"predicted"}
    assert {(one.op, one.part, one.ranks) for one in found} == {("all_reduce", "all_reduce", 8)}
    times = {f"{one.dims['algorithm']}/{one.dims['protocol']}": one for one in found}
    assert set(times) == {"tree/ll", "tree/simple", "ring/ll", "ring/simple"}
    assert [name for name, one in times.items() if "chosen" in one.flags] == ["ring/ll"]
    assert times["ring/ll"].median_s == pytest.approx(20.6 * US + 65536 / (48e9 * 0.5 * 8 / 14))
    assert times["ring/ll"].method["from"] == "NCCL's cost model"
    assert times["ring/ll"].dims["bytes"] == 65536


def test_a_log_gives_ranks_version_graphs_settings_and_choices(
    tmp_path: Path, out: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    log = log_of(
        tmp_path / "nccl.log",
        *(VERSION, START, NODES, P + RING, P + TREE),
        P + "NCCL_PROTO set by environment to LL,Simple",
        P + CHOICE.format("LL"),
    )
    assert run("--log", log, *FEW, *out) == 0
    printed = capsys.readouterr()
    model = dict(cells[:2] for cells in rows(printed.out, "model"))
    assert model["NCCL"] == "2.29.7+cuda12.9"
    assert model["ranks"] == "8 on one node"
    assert model["ring"] == "2 x 24 GB/s over PHB"
    assert model["tree"] == "1 x 12 GB/s over SYS, plain"
    assert model["NCCL_PROTO"] == "LL,Simple"
    assert [cells[0] for cells in rows(printed.out, "size")] == ["57344", "65536"]
    assert rows(printed.out, "size")[0][2:5] == ["ring/ll", "24.8 us", "ring/ll"]
    assert "another choice" not in printed.err


def test_a_choice_that_is_not_the_model_s_is_told(
    tmp_path: Path, out: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    log = log_of(tmp_path / "nccl.log", START, P + RING, P + CHOICE.format("SIMPLE"))
    assert run("--log", log, *FEW, *out) == 0
    assert "at 1 sizes, first at 57344 B: ring/simple, not ring/ll" in capsys.readouterr().err


def test_the_log_s_own_table_is_held_against_the_model(
    tmp_path: Path, out: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    tree = PATTERN.format(p=1, c=2, b="24.0", t="PHB")
    lines = (VERSION, START, P + RING, P + tree, *(P + line for line in TABLE))
    assert run("--log", log_of(tmp_path / "a.log", *lines), *FEW, *out) == 0
    assert ["the log's table", "6 of 6 cells as the model says"] in rows(
        capsys.readouterr().out, "model"
    )
    other = [line.replace("20.6/13.7", "25.0/13.7") for line in lines]
    assert run("--log", log_of(tmp_path / "b.log", *other), *FEW, *out) == 0
    model = rows(capsys.readouterr().out, "model")
    assert ["the log's table", "5 of 6 cells as the model says"] in model
    assert ["differs", "ring/ll 20.6/13.7, printed 25.0/13.7"] in model


def test_without_a_graph_the_printed_table_is_the_model(
    tmp_path: Path, out: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    log = log_of(tmp_path / "nccl.log", *TABLE)
    assert run("--log", log, *FEW, *out) == 0
    text = capsys.readouterr().out
    assert ["cells", "as the log prints them, with one decimal"] in rows(text, "model")
    assert [cells[:2] for cells in rows(text, "range")] == [
        ["1", "ring/ll"],
        ["1852241", "ring/simple"],
    ]


def test_the_worst_rank_decides_as_in_nccl() -> None:
    lines = (
        START,
        P + RING,
        P + PATTERN.format(p=4, c=4, b="12.0", t="SYS"),
        P + PATTERN.format(p=1, c=2, b="24.0", t="PHB"),
    )
    found = topology.from_log(read_log(enumerate(lines, 1)), ranks=None, capability=120)
    assert found is not None
    assert (found.ring.channels, found.ring.channel_gb_s) == (2, 12.0)
    assert found.ring.path == "SYS"
    assert not found.tree.plain_tree


def test_measured_rows_stand_beside_what_nccl_believes(
    tmp_path: Path, out: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    measured_run(
        tmp_path / "a.jsonl", {65536: 50 * US}, effective={"NCCL_ALGO": "RING", "NCCL_PROTO": "LL"}
    )
    measured_run(
        tmp_path / "a.jsonl", {65536: 40 * US}, requested={"NCCL_ALGO": "Tree", "NCCL_PROTO": "LL"}
    )
    measured_run(tmp_path / "a.jsonl", {65536: 60 * US}, launch="eager")
    assert run(*GIVEN, *FEW, "--sweep", str(tmp_path / "a.jsonl"), *out) == 0
    text = capsys.readouterr().out
    assert rows(text, "measured") == [
        ["65536", "eager", "default", "25.4 us", "60.0 us", "2.36"],
        ["65536", "graph", "tree/ll (requested)", "39.6 us", "40.0 us", "1.01"],
        ["65536", "graph", "ring/ll", "25.4 us", "50.0 us", "1.97"],
    ]
    assert rows(text, "size")[0][-2:] == ["tree/ll", "40.0 us"]
    assert ["default", "eager", "8", "NCCL's own choice changes with the size: no one line"] in [
        cells[:4] for cells in rows(text, "no fit")
    ]


def test_a_line_is_fitted_to_each_combination_and_carried_to_other_ranks(
    tmp_path: Path, out: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    line = {size: 30 * US + size / 10e9 for size in (8192, 65536, 262144, 1048576)}
    measured_run(tmp_path / "a.jsonl", line, effective={"algorithm": "ring", "protocol": "ll"})
    source = ("--sweep", str(tmp_path / "a.jsonl"))
    assert run(*GIVEN, *FEW, *source, *out) == 0
    text = capsys.readouterr().out
    (fit,) = rows(text, "fit")
    assert fit[:3] == ["ring/ll", "graph", "8"]
    assert fit[3].startswith("30.0 us +- ")
    assert fit[4].startswith("10.0 GB/s (10.0 GB/s to 10.0 GB/s)")
    assert [cells[:4] for cells in rows(text, "fitted")] == [
        ["65536", "ring/ll", "graph", "36.6 us"]
    ]
    four = ("--ranks", "4", *GIVEN[2:])
    assert run(*four, *FEW, *source, *out) == 0
    printed = capsys.readouterr()
    (carried,) = rows(printed.out, "fit")
    # NCCL's model: 12.6 us for 20.6 us of latency, 6/4 for 14/8 of the bytes.
    alpha, slope = 30 * 12.6 / 20.6, 0.1 * (6 / 4) / (14 / 8)
    assert carried[2] == "8 to 4"
    assert carried[3].startswith(f"{alpha:.1f} us")
    assert rows(printed.out, "fitted")[0][3] == f"{alpha + slope * 65.536:.1f} us"
    assert "measured rows of 8 ranks count for the fit alone" in printed.err
    kept = [one for one in Reader(Path(out[1])) if isinstance(one, Measurement)]
    fits = [one for one in kept if one.method["from"] == "a fit of measured rows"]
    assert [one.ranks for one in fits] == [8, 4]
    assert [one.flags for one in fits] == [(), ("extrapolated",)]
    assert fits[0].median_s == pytest.approx(36.5536 * US)


def test_rows_of_predictions_of_others_and_without_a_time_do_not_count() -> None:
    known = Measurement(
        source="measured",
        part="all_reduce",
        op="all_reduce",
        implementation="nccl",
        case="a",
        status="ok",
        dims={"bytes": 1024},
        median_s=1e-5,
        ranks=8,
        environment="e",
        command="c",
    )
    others = [
        msgspec.structs.replace(known, source="predicted"),
        msgspec.structs.replace(known, op="all_gather"),
        msgspec.structs.replace(known, implementation="gloo"),
        msgspec.structs.replace(known, implementation="cupy_nccl"),
        msgspec.structs.replace(known, dims={}),
        msgspec.structs.replace(known, ranks=None),
        msgspec.structs.replace(known, status="error", reason="lost", median_s=None),
    ]
    assert [row.size_bytes for row in measured.rows([known, *others], "all_reduce")] == [1024]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "give --graph-bw and --channels"),
        (("--ranks", "8", "--graph-bw", "24"), "belong together"),
        (("--ranks", "1", *GIVEN[2:]), "--ranks 1 is out of range"),
        ((*GIVEN, "--nodes", "3"), "do not fill --nodes 3 alike"),
        ((*GIVEN[:-1], "2.17"), "NCCL 2.17 is before 2.18"),
        ((*GIVEN[:-1], "new"), "'new' is no version"),
        ((*GIVEN, "--path", "XYZ"), "unknown path 'XYZ'"),
        ((*GIVEN, "--op", "gossip"), "unknown operation 'gossip'"),
        ((*GIVEN, "--proto", "LL,Fast"), "'fast' is none of ll, ll128, simple"),
        ((*GIVEN, "--algo", "nvls"), "every algorithm and protocol is off"),
        (
            ("--ranks", "8", "--graph-bw", "nan", "--channels", "2"),
            "--graph-bw nan is out of range",
        ),
        (("--ranks", "8", "--graph-bw", "24", "--channels", "99"), "--channels 99 is out of range"),
        (("--tree-bw", "24", "--ranks", "8"), "need --graph-bw"),
        (("--log", "missing.log"), "no such file"),
        ((*GIVEN, "--sweep", "missing.jsonl"), "missing.jsonl does not exist"),
        ((*GIVEN, "--records", "."), "holds no *.jsonl"),
        ((*GIVEN, "--gpu", "abacus"), "unknown GPU 'abacus'"),
    ],
)
def test_a_wrong_question_is_one_line_and_status_2(
    arguments: tuple[str, ...],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(*arguments) == 2
    printed = capsys.readouterr()
    assert words in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""
    assert list(tmp_path.iterdir()) == []


def test_a_log_without_graph_table_or_choice_is_refused_with_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--log", log_of(tmp_path / "a.log", VERSION)) == 2
    assert "NCCL_DEBUG_SUBSYS=INIT,ENV,GRAPH,TUNING" in capsys.readouterr().err
    assert run("--log", log_of(tmp_path / "b.log", P + RING)) == 2
    assert "does not say how many ranks there are; give --ranks" in capsys.readouterr().err
    alone = START.replace("nranks 8", "nranks 1")
    assert run("--log", log_of(tmp_path / "c.log", alone, P + RING)) == 2
    assert "one rank: there is nothing to choose" in capsys.readouterr().err


def test_a_graph_without_bandwidth_is_off_and_divides_nothing(
    tmp_path: Path, out: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    tree = PATTERN.format(p=1, c=1, b="0.0", t="XXX")
    assert run("--log", log_of(tmp_path / "a.log", START, P + RING, P + tree), *FEW, *out) == 0
    cells = {cells[0]: cells[2] for cells in rows(capsys.readouterr().out, "cell")}
    assert cells["tree/ll"] == "off: no bandwidth"
    assert cells["ring/ll"] == "on"


def test_a_run_that_is_named_is_compared_with_and_added_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measured_run(tmp_path / "records.jsonl", {65536: 50 * US}, effective={"NCCL_PROTO": "LL"})
    assert run(*GIVEN, *FEW, "--records", str(tmp_path)) == 0
    assert rows(capsys.readouterr().out, "measured")[0][4] == "50.0 us"
    added = [
        one.source for one in Reader(tmp_path / "predicted.jsonl") if isinstance(one, Measurement)
    ]
    assert added == ["predicted"] * 4
    before = (tmp_path / "records.jsonl").read_bytes()
    assert run(*GIVEN, *FEW, "--records", str(tmp_path / "records.jsonl")) == 0
    assert rows(capsys.readouterr().out, "measured")[0][4] == "50.0 us"
    assert (tmp_path / "records.jsonl").read_bytes().startswith(before)


def test_a_sweep_without_rows_of_the_operation_is_refused(
    tmp_path: Path, out: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    measured_run(tmp_path / "a.jsonl", {65536: 50 * US})
    assert run(*GIVEN, "--op", "all_gather", "--sweep", str(tmp_path / "a.jsonl"), *out) == 2
    assert "holds no measured all_gather of NCCL" in capsys.readouterr().err


def test_a_run_goes_under_runs_where_no_file_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(*GIVEN, *FEW) == 0
    (made,) = (tmp_path / "runs").glob("*-predict/records.jsonl")
    assert made.name in capsys.readouterr().err


def test_a_combination_that_is_off_still_has_a_belief() -> None:
    lines = (START, P + RING)
    found = topology.from_log(read_log(enumerate(lines, 1)), ranks=8, capability=120)
    assert found is not None
    ll128 = [cell for cell in cost_table(found, (2, 30)) if cell.name == "ring/ll128"]
    assert ll128[0].bandwidth_gb_s == pytest.approx(48 * 0.92 * 8 / 14)
