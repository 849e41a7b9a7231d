"""An sqlite export of Nsight Systems becomes the right times, and runs nothing of its author's."""

import sqlite3
from pathlib import Path

import pytest

from ingest import nsys, trace_findings
from ingest.conclusions import Conclusion
from ingest.facts import Facts
from ingest.kernel_classes import ours
from ingest.log import Log
from ingest.opening import Unreadable
from ingest.trace import Trace
from ingest.trace_facts import TraceFacts, facts_of
from tests import trace_files
from tests.test_traces import ingest
from tests.trace_files import packed

SECRET = "PLACEHOLDER-MUST-NOT-BE-PRINTED"


def traces(path: Path) -> list[Trace]:
    with path.open("rb") as file:
        log = Log(
            file=path.name,
            lines=iter(()),
            environment="here",
            command="test",
            stream=file,
            path=path,
        )
        return nsys.traces(log)[0]


def facts(path: Path) -> TraceFacts:
    (trace,) = traces(path)
    return facts_of(trace, ours())


def concluded(path: Path) -> dict[str, Conclusion]:
    told = Facts(file=path.name, traces=(facts(path),))
    return {one.name: one for one in trace_findings.conclusions([told])}


def test_an_export_with_few_tables_gives_busy_span_and_classes(tmp_path: Path) -> None:
    told = facts(trace_files.nsys(tmp_path / "a.sqlite", kernels=400)).breakdown
    assert told.kernel_count == 400
    assert told.busy_s == pytest.approx(0.4)
    assert told.span_s == pytest.approx(0.40399)
    assert {one.name: one.calls for one in told.classes} == {
        "dense_gemm": 200,
        "norm_elementwise": 200,
    }


def test_device_names_calls_and_graphs_are_read_where_they_are(tmp_path: Path) -> None:
    path = trace_files.nsys(
        tmp_path / "a.sqlite",
        kernels=40,
        TARGET_INFO_GPU=[(0, "NVIDIA H100 80GB HBM3")],
        CUPTI_ACTIVITY_KIND_RUNTIME=[
            (n * 1_010_000 - 5000, n * 1_010_000 - 1000, n, 4) for n in range(40)
        ],
    )
    told = facts(path)
    assert told.device_name == "NVIDIA H100 80GB HBM3"
    assert (told.launches, told.graph_launches) == (40, 0)
    assert told.idle.launch_s == pytest.approx(39 * 10e-6)


def test_a_capture_of_whole_graphs_tells_no_gaps_and_names_the_flag(tmp_path: Path) -> None:
    hidden = trace_files.nsys(
        tmp_path / "a.sqlite",
        kernels=20,
        CUPTI_ACTIVITY_KIND_GRAPH_TRACE=[(0, 500_000, 0, 1), (600_000, 900_000, 0, 1)],
    )
    found = concluded(hidden)
    assert "2 of 2 graph launches" in found["graph-nodes-hidden"].sentence
    assert "nsys profile --cuda-graph-trace=node" in str(found["graph-nodes-hidden"].next_action)
    assert "busy" not in found["trace-breakdown"].sentence
    shown = trace_files.nsys(
        tmp_path / "b.sqlite",
        kernels=20,
        CUPTI_ACTIVITY_KIND_RUNTIME=[(0, 10_000, n, 3) for n in range(20)],
    )
    assert "graph-nodes-hidden" not in concluded(shown)


def test_a_capture_of_graphs_alone_is_no_trace_without_kernels(tmp_path: Path) -> None:
    path = trace_files.nsys(
        tmp_path / "a.sqlite", CUPTI_ACTIVITY_KIND_GRAPH_TRACE=[(0, 500_000, 0, 1)]
    )
    assert list(concluded(path)) == ["graph-nodes-hidden", "trace-breakdown"]


def test_an_environment_in_an_export_reaches_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = trace_files.nsys(
        tmp_path / "a.sqlite", kernels=20, TARGET_INFO_SYSTEM_ENV=[("HF_TOKEN", SECRET)]
    )
    records = tmp_path / "r.jsonl"
    assert ingest(str(path), "--records", str(records)) == 0
    assert SECRET not in "".join(capfd.readouterr()) + records.read_text()


def test_a_gzipped_export_is_read_and_nothing_is_written_beside_one(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    path = trace_files.nsys(folder / "a.sqlite", kernels=20)
    before = path.read_bytes()
    assert ingest(str(path), "--records", str(tmp_path / "r")) == 0
    assert [one.name for one in folder.iterdir()] == ["a.sqlite"]
    assert path.read_bytes() == before
    gz = tmp_path / "a.sqlite.gz"
    gz.write_bytes(packed(before))
    assert ingest(str(gz), "--records", str(tmp_path / "r")) == 0


def test_a_view_in_place_of_a_table_is_not_run(tmp_path: Path) -> None:
    path = trace_files.nsys(tmp_path / "a.sqlite", kernels=20)
    with sqlite3.connect(path) as database:
        database.execute("DROP TABLE StringIds")
        database.execute(
            "CREATE VIEW StringIds AS WITH RECURSIVE n(id) AS (SELECT 1 UNION ALL SELECT id + 1 "
            "FROM n) SELECT id, 'x' AS value FROM n"
        )
    database.close()
    told = facts(path).breakdown
    assert told.kernel_count == 20
    assert [one.name for one in told.classes] == ["unclassified"]


def test_a_database_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
    database.close()
    with pytest.raises(Unreadable, match="without CUPTI_ACTIVITY_KIND_KERNEL; give nsys export"):
        traces(path)


@pytest.mark.parametrize("keep", [100, 4096, 9000])
def test_a_damaged_export_is_refused_in_a_line(keep: int, tmp_path: Path) -> None:
    whole = trace_files.nsys(tmp_path / "a.sqlite", kernels=400).read_bytes()
    path = tmp_path / "b.sqlite"
    path.write_bytes(whole[:keep])
    with pytest.raises(Unreadable, match="export it again, whole"):
        traces(path)
