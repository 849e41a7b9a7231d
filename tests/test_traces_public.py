"""Public traces, where they lie beside the checkout, give the facts that are known of them."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from ingest import kineto, nsys, rank_findings
from ingest.facts import Facts
from ingest.kernel_classes import ours, short_name
from ingest.log import Log
from ingest.opening import opened
from ingest.trace_facts import TraceFacts, facts_of

FOLDER = Path(__file__).resolve().parent.parent.parent / "shared" / "data" / "traces"
pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="the public traces are not here")


def _expected() -> list[dict[str, Any]]:
    path = FOLDER / "expected.json"
    return json.loads(path.read_text()) if path.is_file() else []


def facts(name: str) -> TraceFacts:
    with opened(FOLDER / name) as (stream, _):
        log = Log(
            file=name,
            lines=iter(()),
            environment="here",
            command="test",
            stream=stream,
            path=FOLDER / name,
        )
        read = nsys.traces if name.endswith(".sqlite") else kineto.traces
        traces, faults = read(log)
    assert (faults.undecoded, faults.untimed, faults.cut, faults.headless) == (0, 0, False, False)
    (trace,) = traces
    assert (trace.duplicates, trace.overlapping) == (0, 0)
    return facts_of(trace, ours())


@pytest.mark.parametrize("known", _expected(), ids=lambda known: known["file"])
def test_a_trace_gives_its_expected_facts(known: dict[str, Any]) -> None:
    told = facts(known["file"])
    whole = told.breakdown
    assert whole.kernel_count == known["kernels"]
    assert len({one.name for one in whole.kernels if one.what == 0}) == known["uniq"]
    for value, name in (
        (whole.busy_s, "busy_us"),
        (whole.span_s, "span_us"),
        (whole.sum_s, "sum_us"),
    ):
        assert value * 1e6 == pytest.approx(known[name], abs=0.051)
    assert (told.rank, told.world) == (known.get("rank"), known.get("world"))
    assert told.graph_launches == sum(known.get("graphLaunch", {}).values())
    launches = known.get("launch") or known.get("runtime_calls") or {}
    assert told.launches == sum(launches.values())
    names = [*known.get("dev", []), known.get("device", "")]
    assert (told.device_name or "") in names
    assert whole.share("unclassified") < 0.02
    inside = known.get("kernels_with_the_correlation_of_a_graph_launch")
    inside = known.get("kernels_with_the_correlation_of_the_graph_launch", inside)
    assert told.graph_kernels == (inside or 0)
    if "layers" in known:
        assert told.steps is not None
        assert told.steps.layers == known["layers"]
    for name, count in known.get("names", {}).items():
        assert sum(one.calls for one in whole.kernels if short_name(one.name) == name) == count


@pytest.mark.parametrize("table", sorted(FOLDER.glob("*.kernels.csv")), ids=lambda path: path.name)
def test_each_kernel_has_its_count_and_sum(table: Path) -> None:
    name = table.name.replace(".kernels.csv", ".json.gz")
    found = {one.name: (one.calls, one.sum_s * 1e6) for one in facts(name).breakdown.kernels}
    with table.open(newline="") as file:
        rows = {row["name"]: row for row in csv.DictReader(file)}
    assert set(found) == set(rows)
    for kernel, (calls, sum_us) in found.items():
        assert calls == int(rows[kernel]["count"])
        assert sum_us == pytest.approx(float(rows[kernel]["total_us"]), abs=0.01)


def test_the_all_reduces_of_the_b200_trace_are_found_under_their_name() -> None:
    told = facts("tl_b200_vllm_gptoss_tp8_eager_rank0.json.gz")
    assert told.breakdown.share("all_reduce") == pytest.approx(0.183, abs=5e-4)
    (one,) = (x for x in told.breakdown.classes if x.name == "all_reduce")
    assert one.kernels_s / told.breakdown.sum_s == pytest.approx(0.195, abs=5e-4)
    assert told.steps is not None
    assert (told.steps.all_reduces, told.steps.layers) == (73, 36)
    assert told.breakdown.idle_s / told.breakdown.span_s == pytest.approx(0.863, abs=5e-4)


def test_the_classes_of_the_mi300_trace_are_those_known() -> None:
    told = facts("tl_mi300_vllm_moe_decode_fullgraph.json.gz").breakdown
    known = next(x for x in _expected() if "mi300" in x["file"])["classes_us"]
    sums = {one.name: one.sum_s * 1e6 for one in told.classes}
    assert sums["moe"] == pytest.approx(known["moe"], abs=0.1)
    assert sums["dense_gemm"] == pytest.approx(known["gemm"], abs=0.1)
    assert sums["attention"] == pytest.approx(known["attention"], abs=0.1)
    assert told.kinds("copy")["KV write"] * 1e6 == pytest.approx(known["kv_write"], abs=0.1)
    kinds = told.kinds("norm_elementwise")
    assert kinds["rope"] * 1e6 == pytest.approx(known["rope"], abs=0.1)
    assert kinds["norm"] * 1e6 == pytest.approx(known["norm"], abs=0.1)
    rest = sum(value for kind, value in kinds.items() if kind not in ("rope", "norm"))
    assert rest * 1e6 == pytest.approx(known["elementwise"], abs=0.1)


def test_the_products_of_the_bert_trace_agree_with_another_tool() -> None:
    told = facts("tl_h100_bert_small_launchbound.json.gz").breakdown
    known = next(x for x in _expected() if "bert" in x["file"])["tracelens_ms"]
    products = next(one for one in told.classes if one.name == "dense_gemm")
    assert [products.calls, products.sum_s * 1e3] == pytest.approx(
        known["by_category"]["GEMM"], abs=1e-4
    )
    assert told.busy_s * 1e3 == pytest.approx(known["busy"], abs=1e-4)
    assert told.kinds("norm_elementwise")["norm"] * 1e3 == pytest.approx(0.0309, abs=1e-4)


def test_eight_ranks_together_say_who_came_last() -> None:
    ranks = [
        Facts(file=f"rank{n}", traces=(facts(f"param_dlrm_v100_rank{n}of8.json.gz"),))
        for n in range(8)
    ]
    known = {x["rank"]: x for x in _expected() if x["file"].startswith("param")}
    for rank in ranks:
        (trace,) = rank.traces
        for name, one in trace.collectives.items():
            which = "sendrecv" if "SendRecv" in name else "allreduce"
            assert trace.rank is not None
            assert one.sum_s * 1e6 == pytest.approx(known[trace.rank][f"{which}_us"])
            assert one.calls == known[trace.rank][f"{which}_calls"]
    first, second = rank_findings.conclusions(ranks)
    assert first.sentence.startswith("rank 7 came last to ncclKernel_SendRecv")
    assert "at most 0.389 ms, and rank 1 waited at least 9.12 ms" in first.sentence
    assert second.sentence.startswith("rank 4 and 5 came last to ncclKernel_AllReduce")
    assert "at most 0.195 ms" in second.sentence
