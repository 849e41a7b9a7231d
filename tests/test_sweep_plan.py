"""Which combinations a plan has, with which verdicts and reasons, and what workers are given."""

import subprocess
import sys
from pathlib import Path

import pytest

from collectives import sweep
from collectives._sweep import axes, backend, plan
from collectives._sweep.axes import Axes
from collectives._sweep.combination import Combination
from collectives._sweep.plan import Asked
from verifyscope import cli
from verifyscope.errors import UsageError

ROOT = Path(__file__).resolve().parent.parent


def planned(
    given: Axes | None = None,
    *,
    moved_by: str = "nccl",
    ranks: int = 8,
    local_ranks: int | None = None,
    op: str = "all_reduce",
    allow_ll128: bool = False,
    force: bool = False,
    environment: dict[str, str] | None = None,
) -> dict[str, Combination]:
    found = plan.combinations(
        Asked(
            op=op,
            backend=backend.find(moved_by),
            ranks=ranks,
            local_ranks=local_ranks or ranks,
            axes=given or Axes(),
            allow_ll128=allow_ll128,
            force=force,
            environment=environment or {},
        )
    )
    return {known.label: known for known in found}


def launched(found: dict[str, Combination]) -> list[str]:
    return [label for label, known in found.items() if known.launched]


def test_the_plan_is_the_default_and_ring_and_tree_by_ll_and_simple() -> None:
    found = planned()
    usual = ["nccl", "nccl ring/ll", "nccl ring/simple", "nccl tree/ll", "nccl tree/simple"]
    assert launched(found) == usual
    assert [found[label].environment() for label in usual] == [
        {},
        {"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL"},
        {"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple"},
        {"NCCL_ALGO": "Tree", "NCCL_PROTO": "LL"},
        {"NCCL_ALGO": "Tree", "NCCL_PROTO": "Simple"},
    ]
    assert all(known.reason for known in found.values())


def test_what_a_pcie_machine_has_not_is_listed_with_its_reason_and_run_by_force() -> None:
    listed = {
        "nccl nvls/simple": "NVSwitch",
        "nccl nvlstree/simple": "NVLS",
        "nccl collnetdirect/simple": "CollNet plugin",
        "nccl collnetchain/simple": "CollNet plugin",
        "nccl pat/simple": "all-gather and reduce-scatter only",
    }
    found, forced = planned(), planned(force=True)
    for label, word in listed.items():
        assert found[label].verdict == "unsupported"
        assert word in found[label].reason
        assert forced[label].verdict == "run"
        assert word in forced[label].reason
        assert "--force" in forced[label].reason
    assert forced["nccl ring/ll128"].verdict == "unsupported"


def test_ll128_is_run_only_where_it_is_allowed_and_is_unsafe_then() -> None:
    assert planned()["nccl ring/ll128"].verdict == "unsupported"
    assert "--allow-ll128" in planned()["nccl ring/ll128"].reason
    allowed = planned(allow_ll128=True)
    assert [allowed[f"nccl {name}/ll128"].verdict for name in ("ring", "tree")] == ["unsafe"] * 2
    assert allowed["nccl ring/ll128"].environment()["NCCL_PROTO"] == "LL128"
    assert allowed["nccl ring/ll"].verdict == "run"
    named = axes.parse(protos="ll128")
    assert launched(planned(named)) == ["nccl"]
    assert launched(planned(named, allow_ll128=True)) == [
        "nccl",
        "nccl ring/ll128",
        "nccl tree/ll128",
    ]


def test_no_list_with_a_caret_is_made_but_that_of_ll128() -> None:
    every = planned(
        axes.parse(algos="default,ring,tree,nvls,pat", protos="default,ll,ll128,simple,^ll128"),
        allow_ll128=True,
        force=True,
    )
    values = {value for known in every.values() for value in known.environment().values()}
    assert {value for value in values if "^" in value} == {"^LL128"}


def test_every_axis_varies_the_default_and_each_choice() -> None:
    given = axes.parse(algos="ring", protos="ll", channels="default,4", buffer_bytes="1M")
    assert launched(planned(given)) == [
        "nccl",
        "nccl buffer=1048576",
        "nccl ring/ll buffer=1048576",
        "nccl channels=4 buffer=1048576",
        "nccl ring/ll channels=4 buffer=1048576",
    ]


def test_each_axis_becomes_the_variables_that_nccl_reads(tmp_path: Path) -> None:
    graph = tmp_path / "rings.xml"
    graph.write_text('<graphs version="1"></graphs>')
    given = axes.parse(
        algos="ring",
        protos="simple",
        channels="4",
        buffer_bytes="1M",
        p2p_level="phb",
        p2p="on",
        graph_files=[str(graph)],
        gpu_orders=["1,0"],
        bind="numa",
        launches=["mode=group,graph-mixing=0"],
    )
    *_, known = planned(given, ranks=2).values()
    assert known.environment() == {
        "NCCL_ALGO": "Ring",
        "NCCL_PROTO": "Simple",
        "NCCL_MIN_CTAS": "4",
        "NCCL_MAX_CTAS": "4",
        "NCCL_BUFFSIZE": "1048576",
        "NCCL_P2P_DISABLE": "0",
        "NCCL_P2P_LEVEL": "PHB",
        "NCCL_GRAPH_FILE": str(graph),
        "NCCL_LAUNCH_MODE": "GROUP",
        "NCCL_GRAPH_MIXING_SUPPORT": "0",
    }
    assert known.requested() == known.environment() | {
        "NCCL_GRAPH_FILE": "rings.xml",
        "gpu_order": "1,0",
        "bind": "numa",
    }
    assert known.label == (
        "nccl ring/simple channels=4 buffer=1048576 p2p-level=PHB p2p=on graph=rings.xml gpus=1,0 "
        "bind=numa mode=GROUP graph-mixing=0"
    )
    off = planned(axes.parse(p2p="off,on", p2p_level="SYS"), ranks=2)
    # Without P2P a distance means nothing.
    assert [label for label in off if "p2p=off" in label] == []
    direct = planned(axes.parse(p2p="on,off"))
    assert direct["nccl p2p=on"].environment() == {"NCCL_P2P_DISABLE": "0", "NCCL_P2P_LEVEL": "SYS"}
    assert direct["nccl p2p=off"].environment() == {"NCCL_P2P_DISABLE": "1"}


def test_the_users_own_choice_is_a_combination_of_its_own_and_not_the_default() -> None:
    found = planned(environment={"NCCL_PROTO": "LL,Simple", "NCCL_BUFFSIZE": "1"})
    assert launched(found)[:2] == ["nccl", "nccl as-set"]
    assert found["nccl"].environment() == {}
    assert found["nccl as-set"].environment() == {"NCCL_PROTO": "LL,Simple"}
    trap = planned(environment={"NCCL_PROTO": "^Simple"})["nccl as-set"]
    assert (trap.verdict, "LL128" in trap.reason) == ("unsupported", True)
    assert planned(environment={"NCCL_PROTO": "^Simple"}, allow_ll128=True)[
        "nccl as-set"
    ].verdict == ("unsafe")


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("NCCL_PROTO", "^Simple", "switches LL128 on past its safety gate"),
        ("NCCL_PROTO", "^LL", "switches LL128 on past its safety gate"),
        ("NCCL_PROTO", "^nonsense", "switches LL128 on past its safety gate"),
        ("NCCL_ALGO", "^Tree", "a list with ^: what it leaves over counts as asked for"),
        ("NCCL_PROTO", "^LL128", None),
        ("NCCL_PROTO", "LL,Simple", None),
    ],
)
def test_a_list_with_a_caret_in_the_own_environment_is_warned_of(
    variable: str, value: str, words: str | None
) -> None:
    found = list(plan.warnings({variable: value}))
    assert len(found) == (0 if words is None else 1)
    assert words is None or words in found[0]


def test_gloo_has_nothing_to_choose_and_binds_all_the_same() -> None:
    assert launched(planned(moved_by="gloo")) == ["gloo"]
    named = planned(axes.parse(algos="ring", bind="numa"), moved_by="gloo")
    assert launched(named) == ["gloo", "gloo bind=numa"]
    assert named["gloo ring/ll bind=numa"].reason == "gloo reads no settings of NCCL"
    assert planned(axes.parse(algos="ring"), moved_by="gloo", force=True)["gloo ring/ll"].launched


def test_one_rank_chooses_nothing() -> None:
    assert launched(planned(ranks=1)) == ["nccl"]
    named = planned(axes.parse(algos="ring"), ranks=1)
    assert "one rank" in named["nccl ring/ll"].reason


@pytest.mark.parametrize("op", ["reduce_scatter", "all_gather"])
def test_other_collectives_have_no_tree_and_pat_where_each_machine_has_one_gpu(op: str) -> None:
    found = planned(op=op)
    assert launched(found) == ["nccl", "nccl ring/ll", "nccl ring/simple"]
    for name in ("tree/ll", "tree/simple", "nvlstree/simple", "collnetchain/simple"):
        assert found[f"nccl {name}"].reason.endswith("for all-reduce only")
    assert found["nccl pat/simple"].reason == "NCCL has it with one GPU a machine, here are 8"
    assert "NVSwitch" in found["nccl nvls/simple"].reason
    alone = planned(op=op, ranks=4, local_ranks=1)
    assert launched(alone) == ["nccl", "nccl ring/ll", "nccl ring/simple", "nccl pat/simple"]


def test_an_all_to_all_has_no_algorithm_to_choose() -> None:
    own = {"NCCL_ALGO": "Ring"}
    assert [*planned(op="all_to_all", environment=own)] == ["nccl"]
    found = planned(axes.parse(algos="ring", p2p="off"), op="all_to_all")
    assert launched(found) == ["nccl", "nccl p2p=off"]
    assert "sends and receives" in found["nccl ring/ll p2p=off"].reason


def test_graph_files_of_one_name_and_endless_plans_are_refused(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "g.xml").write_text("<graphs/>")
    alike = axes.parse(graph_files=[str(tmp_path / "a/g.xml"), str(tmp_path / "b/g.xml")])
    with pytest.raises(UsageError, match="two graph files are named alike"):
        planned(alike)
    many = axes.parse(channels=",".join(map(str, range(1, 65))))
    with pytest.raises(UsageError, match="at most 200 are allowed; give fewer values on an axis"):
        planned(many)


def test_no_two_combinations_of_a_plan_share_label_or_folder() -> None:
    found = planned(axes.parse(channels="1,2,default", p2p="on,off"), allow_ll128=True)
    assert len({known.slug for known in found.values()}) == len(found)


def test_a_plan_is_printed_without_a_gpu_and_without_torch(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_PROTO", "^Simple")
    with pytest.raises(SystemExit) as ended:
        cli.run(sweep.application, sweep.PROGRAM, ["--plan"])
    assert ended.value.code == 0
    said = capsys.readouterr()
    rows = [line.split("\t") for line in said.out.splitlines()]
    assert rows[0][:3] == ["nccl", "run", ""]
    assert rows[2] == [
        "nccl ring/ll",
        "run",
        "NCCL_ALGO=Ring NCCL_PROTO=LL",
        "a ring, bandwidth for all sizes; LL has the least latency and sends every byte twice",
    ]
    assert "NCCL_PROTO=^Simple of your environment switches LL128 on" in said.err
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from collectives import sweep; from verifyscope import cli\n"
        "cli.run(sweep.application, sweep.PROGRAM, ['--plan'])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout != "") == (0, True)


def test_a_list_with_a_caret_in_a_configuration_file_is_warned_of_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "nccl.conf").write_text("NCCL_PROTO=^LL\n")
    monkeypatch.setenv("NCCL_CONF_FILE", str(tmp_path / "nccl.conf"))
    monkeypatch.delenv("NCCL_PROTO", raising=False)
    with pytest.raises(SystemExit):
        cli.run(sweep.application, sweep.PROGRAM, ["--plan"])
    assert "NCCL_PROTO=^LL of a configuration file of NCCL switches" in capsys.readouterr().err
