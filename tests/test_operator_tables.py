"""Tables of single operators become records: elements are bytes, a step is a token of context."""

from io import BytesIO
from pathlib import Path

import pytest

from ingest import operator_tables, reading
from ingest.formats import recognise
from ingest.log import Log, numbered_lines
from verifyscope import environment, published
from verifyscope.errors import UsageError
from verifyscope.records import Finding, Measurement

NCCL, FRAMEWORKS, MLA, GEMM, OWN = operator_tables.EXAMPLES


def read(header: str, *rows: str) -> list[Measurement | Finding]:
    data = "\n".join((header, *rows, "")).encode()
    assert [one.name for one in recognise(data)] == ["operator-table"]
    log = Log(
        file="t.csv",
        lines=numbered_lines(BytesIO(data)),
        environment="e",
        command="c",
    )
    found = list(operator_tables.read(log))
    assert all(isinstance(one, Measurement | Finding) for one in found)
    return [one for one in found if isinstance(one, Measurement | Finding)]


def one(header: str, row: str) -> Measurement:
    (found,) = read(header, row)
    assert isinstance(found, Measurement)
    assert (found.source, found.kind, found.cache) == ("imported", "baseline-direct", None)
    assert found.origin is not None
    assert found.origin.line == 2
    return found


def test_elements_of_a_collective_become_bytes() -> None:
    reduce = one(NCCL, "all_reduce,half,8,32768,34.21")
    assert (reduce.part, reduce.ranks, reduce.dims["bytes"]) == ("all_reduce", 8, 65_536)
    assert reduce.median_s == pytest.approx(34.21e-6)
    assert one(NCCL, "alltoall,int8,4,256,9.5").dims["bytes"] == 256
    eager = one(FRAMEWORKS, "vLLM,0.24.0,vllm_eager,8,16384,31.25")
    assert (eager.launch, eager.implementation) == ("eager", "vLLM 0.24.0")
    assert eager.dims["bytes"] == 32_768
    assert one(FRAMEWORKS, "TRTLLM,1.3.0rc20,trtllm,8,4096,26.5").launch is None


def test_cells_may_be_quoted_and_spaced() -> None:
    header, row = NCCL.replace(",", ", "), '"all_reduce" , half, "8",32768, 34.21 '
    assert one(f'"{header.replace(", ", chr(34) + ", " + chr(34))}"', row).ranks == 8
    assert one(header, row).median_s == pytest.approx(34.21e-6)


def test_a_step_of_latent_attention_is_one_token_less_than_its_context() -> None:
    found = one(MLA, "rtx_pro_6000_server,sglang,0.5.14,triton,bfloat16,8,4,8191,49.36")
    assert found.dims["context"] == 8192
    assert (found.dims["heads"], found.dims["requests"], found.dims["rows"]) == (8, 4, 1)
    assert found.dims["gpu"] == "rtx-pro-6000-server"
    assert found.implementation == "sglang 0.5.14 triton"


def test_a_product_touches_its_weights() -> None:
    found = one(GEMM, "bfloat16,sglang_torch_linear,4,65536,16384,1403.1")
    assert (found.part, found.touched_bytes) == ("dense_gemm", 2.0 * 65_536 * 16_384)
    assert found.dims == {"rows": 4, "inputs": 16_384, "outputs": 65_536, "format": "bfloat16"}


def test_our_own_table_is_read_like_one_that_a_user_writes() -> None:
    header, *rows = published.FILE.read_text(encoding="utf-8").splitlines()
    found = read(header, *rows)
    assert len(found) == len(published.rows())
    for record, row in zip(found, published.rows(), strict=True):
        assert isinstance(record, Measurement)
        assert record.median_s == pytest.approx(row.median_s)
        assert (record.part, record.ranks) == (row.part, row.ranks)
        assert record.dims == {"gpu": row.gpu, **row.dims}
        assert record.method["source"] == row.source


@pytest.mark.parametrize(
    ("header", "row"),
    [
        (NCCL, "all_reduce,half,8,32768,nan"),
        (NCCL, "all_reduce,half,8,32768,0"),
        (NCCL, "all_reduce,half,8,32768,-3"),
        (NCCL, "all_reduce,half,8,-1,34.21"),
        (NCCL, "all_reduce,half,8,32768"),
        (NCCL, "all_reduce,complex,8,32768,34.21"),
        (NCCL, "all_reduction,half,8,32768,34.21"),
        (MLA, "h200_sxm,sglang,0.5.14,fa,bfloat16,8,0,8191,49.36"),
        (GEMM, "bfloat16,x,4,1e6,16384,1403.1"),
        (OWN, ",".join(["attentoin", *["1"] * (len(published.COLUMNS) - 1)])),
    ],
)
def test_a_row_that_holds_no_time_or_size_is_named_and_makes_none(header: str, row: str) -> None:
    (found,) = read(header, row)
    assert isinstance(found, Finding)
    assert found.name == "lines-not-read"
    assert [seen.at for seen in found.evidence] == [2]


def test_a_table_without_a_time_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(NCCL + "\n", encoding="utf-8")
    with pytest.raises(UsageError, match="a table of operators without a row that holds a time"):
        list(reading.measurements(path, environment.current()))


def test_a_file_of_times_is_read_without_writing_anything(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"{NCCL}\nall_reduce,half,8,32768,34.21\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    (found,) = reading.measurements(path, environment.current())
    assert found.median_s == pytest.approx(34.21e-6)
    assert [each.name for each in tmp_path.iterdir()] == ["t.csv"]
    assert capsys.readouterr() == ("", "")


def test_the_columns_of_our_table_are_those_of_its_file() -> None:
    first = published.FILE.read_text(encoding="utf-8").partition("\n")[0]
    assert tuple(first.split(",")) == published.COLUMNS
