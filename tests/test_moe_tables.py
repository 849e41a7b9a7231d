"""Tables of expert times by others: what a row is, what its bytes are, and what cannot be cold."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ingest import formats, moe_tables, reading
from ingest.facts import Read
from ingest.log import Log
from verifyscope import environment
from verifyscope.records import Finding, Measurement

SHARED = Path(__file__).resolve().parent.parent.parent / "shared" / "data" / "reference"
TABLE = SHARED / "moe_dsv3_kimik2_tp8_small_batch.csv"
SHORT = "system,fw,ver,kernel_source,moe_dtype,num_experts,distribution,num_tokens,latency_us\n"
LONG = (
    "framework,version,device,op_name,kernel_source,moe_dtype,num_tokens,hidden_size,inter_size,"
    "topk,num_experts,moe_tp_size,moe_ep_size,distribution,latency\n"
)
KIMI_INT4_BYTES = 3_096_576  # an expert of a rank of TP 8: 2,752,512 of nibbles, 344,064 of scales


def short(
    tokens: int = 4,
    us: float = 39.0,
    *,
    system: str = "rtx_pro_6000_server",
    form: str = "int4_wo",
    experts: int = 384,
    routing: str = "balanced",
    kernel: str = "sglang_marlin_moe",
) -> str:
    return f"{system},sglang,0.5.14,{kernel},{form},{experts},{routing},{tokens},{us}\n"


def long(
    tokens: int = 4,
    ms: float = 0.05,
    *,
    device: str = "NVIDIA H200",
    form: str = "bfloat16",
    sizes: str = "2048,768,8,128,4,1",
) -> str:
    hidden, inner, top_k, experts, tp, ep = sizes.split(",")
    who = f"VLLM,0.19.0,{device},moe,vllm_fused_moe,{form},{tokens},{hidden},{inner},{top_k}"
    return f"{who},{experts},{tp},{ep},balanced,{ms}\n"


def read(text: str, file: str = "moe.csv") -> list[Read]:
    (known,) = formats.recognise(text.encode())
    assert known.name == "expert times"
    lines = enumerate(text.splitlines(), 1)
    return list(known.read(Log(file=file, lines=lines, environment="here", command="test")))


def times(found: list[Read]) -> list[Measurement]:
    return [one for one in found if isinstance(one, Measurement)]


def findings(found: list[Read]) -> dict[str, Finding]:
    return {one.name: one for one in found if isinstance(one, Finding)}


def test_a_row_is_an_imported_time_with_the_dims_of_our_own() -> None:
    (row,) = times(read(SHORT + short()))
    assert (row.source, row.part, row.op) == ("imported", "routed_experts", "fused_moe")
    assert (row.kind, row.status) == ("baseline-different-work", "ok")
    assert row.implementation == "sglang_marlin_moe"
    assert row.median_s == pytest.approx(39e-6)
    assert row.case == "t4-e384k8-h7168-i256-int4-balanced"
    assert row.dims == {
        "rows": 4,
        "experts": 384,
        "top_k": 8,
        "hidden": 7168,
        "intermediate": 256,
        "format": "int4",
        "routing": "balanced",
        "tp": 8,
        "ep": 1,
        "gpu": "rtx-pro-6000-server",
        "framework": "sglang 0.5.14",
        "distinct_experts": 32,
    }
    assert row.touched_bytes == 32 * KIMI_INT4_BYTES
    assert row.method["sizes_from"] == "the table's description"
    assert row.method["stored"] == "int4 group 32"
    assert (row.cache, row.launch, row.count) == (None, None, None)
    assert row.origin is not None
    assert (row.origin.file, row.origin.line) == ("moe.csv", 2)


def test_the_collector_s_own_columns_name_the_sizes_and_give_milliseconds() -> None:
    (row,) = times(read(LONG + long()))
    assert row.median_s == pytest.approx(50e-6)
    names = ("rows", "experts", "top_k", "hidden", "intermediate", "tp", "gpu", "framework")
    assert [row.dims[name] for name in names] == [4, 128, 8, 2048, 192, 4, "h200", "vllm 0.19.0"]
    assert row.method["sizes_from"] == "the row"
    assert row.touched_bytes == 32 * 3 * 2048 * 192 * 2


@pytest.mark.parametrize(
    ("form", "name", "bytes_a_weight"),
    [
        ("int4_wo", "int4", 0.5 + 2 / 32),
        ("fp8_block", "fp8", 1 + 4 / 16384),
        ("fp8", "fp8 per tensor", 1.0),
        ("bfloat16", "bf16", 2.0),
        ("nvfp4", "nvfp4", 0.5 + 1 / 16),
        ("w4a8_new", "w4a8_new", None),
    ],
)
def test_bytes_are_those_of_the_format_and_unknown_where_it_is(
    form: str, name: str, bytes_a_weight: float | None
) -> None:
    (row,) = times(read(SHORT + short(1, 500.0, form=form)))
    assert row.dims["format"] == name
    want = None if bytes_a_weight is None else 8 * 3 * 7168 * 256 * bytes_a_weight
    assert row.touched_bytes == (None if want is None else pytest.approx(want))


@pytest.mark.parametrize(
    ("tokens", "experts", "distinct"),
    [(1, 384, 8), (2, 384, 16), (5, 384, 40), (16, 384, 128), (48, 384, 384), (128, 384, 384)],
)
def test_balanced_routing_gives_each_token_experts_of_its_own(
    tokens: int, experts: int, distinct: int
) -> None:
    assert moe_tables.distinct_balanced(tokens, experts=experts, top_k=8) == distinct


def test_a_share_of_experts_that_top_k_does_not_divide_is_counted_as_it_is_drawn() -> None:
    # E 10, k 4: a stride of 3, so choice 3 of token 1 is (1 + 9) mod 10, the first of token 0.
    assert moe_tables.distinct_balanced(2, experts=10, top_k=4) == len(
        {0, 3, 6, 9} | {1, 4, 7, (1 + 9) % 10}
    )


def test_a_table_of_very_many_tokens_is_counted_at_once() -> None:
    # Each row counted anew took 1.3 ms three times over: a minute for 60,000 rows.
    before = moe_tables._distinct_balanced.cache_info().misses
    rows = "".join(short(tokens) for tokens in range(1000, 4000))
    found = times(read(SHORT + rows))
    assert {row.dims["distinct_experts"] for row in found} == {384}
    assert moe_tables._distinct_balanced.cache_info().misses <= before + 1


@pytest.mark.parametrize(
    "row",
    [
        short(routing="power_law_1.2"),
        short(experts=256),  # DeepSeek-V3's are chosen in groups
        short(experts=100),  # no model that is known
    ],
)
def test_where_nobody_knows_who_was_chosen_there_are_no_bytes(row: str) -> None:
    (found,) = times(read(SHORT + row))
    assert found.touched_bytes is None
    assert "distinct_experts" not in found.dims


def test_experts_that_are_spread_over_ranks_are_not_counted() -> None:
    (row,) = times(read(LONG + long(sizes="7168,2048,8,384,1,8")))
    assert row.dims["ep"] == 8
    assert row.touched_bytes is None


def test_times_below_what_dram_gives_are_a_finding_and_the_worst_stands_first() -> None:
    found = read(SHORT + short(4, 45.73) + short(4, 39.0) + short(16, 286.21) + short(1, 23.07))
    warm = findings(found)["warm-benchmark"]
    assert warm.sentence == (
        "2 of 4 times whose experts are known are shorter than DRAM needs for them: 32 experts of "
        "int4 for 4 rows are 99.1 MB, at least 62.0 us on RTX PRO 6000 Blackwell Server Edition, "
        "and the table says 39.0 us: they stay in the L2 from call to call, and a model's will not"
    )
    assert [(one.at, one.value) for one in warm.evidence] == [
        (3, "39.0 us, cold 62.0 us"),
        (2, "45.7 us, cold 62.0 us"),
    ]
    assert "warm-benchmark" not in findings(read(SHORT + short(4, 62.1)))
    assert "warm-benchmark" not in findings(read(SHORT + short(4, 39.0, system="voodoo")))


def test_a_point_that_stands_twice_is_kept_and_its_spread_is_said() -> None:
    found = read(SHORT + short(8, 150.0) + short(8, 165.0) + short(8, 156.0))
    assert len(times(found)) == 3
    twice = findings(found)["rows-repeated"]
    assert twice.sentence.startswith("2 rows repeat the point of a row before, up to 10 % apart")
    assert [(one.at, one.value) for one in twice.evidence] == [(2, "first"), (3, "again")]


@pytest.mark.parametrize(
    "broken",
    [
        "rtx_pro_6000_server,sglang,0.5.14,marlin,int4_wo,384,balanced,4\n",  # a cell short
        short(us=0.0),
        short().replace("39.0", "nan"),
        short().replace("39.0", "-39.0"),
        short().replace("39.0", "1e3"),
        short(tokens=0),
        short(experts=4),  # fewer than are chosen
        short(kernel="a/b"),
        short(routing="x" * 200),
    ],
)
def test_a_row_that_is_none_is_named_and_gives_no_time(broken: str) -> None:
    found = read(SHORT + broken + short(8, 151.82))
    assert [row.dims["rows"] for row in times(found)] == [8]
    unread = findings(found)["lines-not-read"]
    assert [one.at for one in unread.evidence] == [2]


def test_a_table_that_names_half_of_the_sizes_is_not_guessed_at() -> None:
    header = SHORT.replace("ver,", "ver,hidden_size,")
    row = short().replace("0.5.14,", "0.5.14,7168,")
    found = read(header + row)
    assert times(found) == []
    assert "lines-not-read" in findings(found)


@pytest.mark.parametrize(
    ("header", "row"),
    [
        pytest.param(SHORT.replace("us\n", "us,latency_us\n"), "39.0,9.0\n", id="one-twice"),
        pytest.param(SHORT.replace("us\n", "us,latency\n"), "39.0,0.039\n", id="two-units"),
    ],
)
def test_of_two_times_in_a_row_none_is_chosen(header: str, row: str) -> None:
    found = read(header + short().replace("39.0\n", row))
    assert times(found) == []
    assert [one.at for one in findings(found)["lines-not-read"].evidence] == [2]


@pytest.mark.parametrize(
    "written",
    [
        pytest.param(lambda line: line, id="as-the-collector"),
        pytest.param(lambda line: f'"{line.replace(",", chr(34) + "," + chr(34))}"', id="quoted"),
        pytest.param(lambda line: line.replace(",", ", "), id="spaced"),
    ],
)
def test_cells_may_be_quoted_and_spaced(written: Callable[[str], str]) -> None:
    text = "".join(written(line) + "\r\n" for line in (SHORT.strip(), short().strip()))
    (row,) = times(read(text))
    assert row.median_s == pytest.approx(39e-6)
    assert (row.implementation, row.dims["rows"]) == ("sglang_marlin_moe", 4)


def test_a_file_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    file = tmp_path / "moe.csv"
    file.write_bytes(b"\xef\xbb\xbf" + (SHORT + short()).encode())
    (told,) = reading.measurements(file, environment.current())
    assert told.median_s == pytest.approx(39e-6)


def test_columns_may_stand_in_any_order_and_a_second_header_begins_again() -> None:
    turned = "latency_us,num_tokens,distribution,num_experts,moe_dtype,kernel_source,ver,fw,system"
    row = "39.0,4,balanced,384,int4_wo,sglang_marlin_moe,0.5.14,sglang,rtx_pro_6000_server"
    found = times(read(SHORT + short(8, 150.0) + f"{turned}\n{row}\n\n"))
    assert [one.dims["rows"] for one in found] == [8, 4]
    assert found[1].median_s == pytest.approx(39e-6)


@pytest.mark.parametrize("text", ["num_tokens,latency\n1,2\n", "moe_dtype num_experts latency\n"])
def test_other_tables_are_not_taken_for_one(text: str) -> None:
    assert not moe_tables.recognises(text.encode())


@pytest.fixture(scope="module")
def shared() -> list[Read]:
    if not TABLE.is_file():
        pytest.skip(f"no {TABLE.name} beside the checkout")
    return read(TABLE.read_text(encoding="utf-8"), TABLE.name)


def of(shared: list[Read], **dims: object) -> Iterator[Measurement]:
    for one in times(shared):
        if all(one.dims.get(name) == value for name, value in dims.items()):
            yield one


def test_the_shared_table_is_read_whole(shared: list[Read]) -> None:
    assert len(times(shared)) == 3333
    assert set(findings(shared)) == {"rows-repeated", "warm-benchmark"}
    assert findings(shared)["rows-repeated"].sentence.startswith("495 rows")


def test_of_the_shared_table_the_four_rows_that_fit_the_l2_cannot_have_been_cold(
    shared: list[Read],
) -> None:
    card = {"gpu": "rtx-pro-6000-server", "format": "int4", "experts": 384, "routing": "balanced"}
    (four,) = of(shared, **card, rows=4, framework="sglang 0.5.14")
    assert four.median_s == pytest.approx(39e-6)
    assert four.touched_bytes == 99_090_432
    warm = findings(shared)["warm-benchmark"]
    assert warm.sentence.startswith("3 of 671 times")
    assert [one.value for one in warm.evidence] == [
        "39.0 us, cold 62.0 us",
        "45.7 us, cold 62.0 us",
        "30.4 us, cold 31.0 us",
    ]
