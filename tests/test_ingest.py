"""Output of nccl-tests, old form and new, becomes the right records and findings."""

import gzip
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pytest

from ingest import __main__ as command
from ingest import formats, nccl_findings, nccl_log_records, nccl_records, nccl_tests
from ingest.log import LONGEST_LINE_BYTES, Log, numbered_lines
from ingest.nccl_tests import Table
from verifyscope import cli
from verifyscope.records import Environment, Finding, Measurement, Reader, Record

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "tests" / "data"


def tables(text: str) -> list[Table]:
    return list(nccl_tests.tables(numbered_lines(BytesIO(text.encode()))))


def records(name: str) -> list[Measurement | Finding]:
    with (DATA / name).open("rb") as file:
        log = Log(file=name, lines=numbered_lines(file), environment="here", command="test")
        return list(nccl_records.read(log))


def measurements(name: str) -> dict[tuple[str, str], Measurement]:
    """The measurements of a file by collective and case."""
    found = [known for known in records(name) if isinstance(known, Measurement)]
    return {(known.op, known.case): known for known in found}


def findings(name: str) -> dict[str, Finding]:
    return {known.name: known for known in records(name) if isinstance(known, Finding)}


def ingest(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.run(command.application, command.PROGRAM, arguments)
    return int(ended.value.code or 0)


def test_a_new_table_gives_time_ranks_nodes_versions_and_method() -> None:
    known = measurements("nccl_new.txt")["all_reduce", "4096B-bfloat16-out-of-place"]
    assert known.source == "imported"
    assert known.part == "all_reduce"
    assert known.implementation == "nccl"
    assert known.status == "ok"
    assert known.median_s == 20e-6
    assert known.low_s is None
    assert known.ranks == 4
    assert known.launch == "graph"
    assert known.dims == {
        "bytes": 4096,
        "elements": 2048,
        "dtype": "bfloat16",
        "in_place": False,
        "redop": "sum",
        "root": -1,
        "nodes": 2,
    }
    assert known.method["tool"] == "nccl-tests 2.17.1"
    assert known.method["nccl_version"] == "2.29.7"
    assert known.method["device"] == "NVIDIA Test GPU"
    assert (known.method["warmup"], known.method["iterations"]) == (3, 30)
    assert known.origin is not None
    assert (known.origin.file, known.origin.line) == ("nccl_new.txt", 15)


def test_a_row_that_log_lines_fall_into_is_put_together_again() -> None:
    known = measurements("nccl_new.txt")
    assert known["all_reduce", "8192B-bfloat16-out-of-place"].median_s == 40e-6
    assert known["all_reduce", "8192B-bfloat16-in-place"].median_s == 41e-6
    assert "torn-rows" not in findings("nccl_new.txt")


def test_wrong_values_withhold_the_time_of_that_direction_alone() -> None:
    known = measurements("nccl_new.txt")
    wrong = known["all_reduce", "65536B-bfloat16-out-of-place"]
    assert (wrong.status, wrong.median_s) == ("corrupt", None)
    assert wrong.reason == "3 wrong values in what the file checked"
    assert known["all_reduce", "65536B-bfloat16-in-place"].median_s == 62e-6
    evidence = findings("nccl_new.txt")["corrupt-values"].evidence
    assert [(known.at, known.value) for known in evidence] == [
        (21, "3 wrong values in what the file checked"),
        (1, "Out of bounds values : 3"),
    ]


def test_a_time_that_drops_by_over_a_tenth_is_flagged() -> None:
    flagged = [k for k, known in measurements("nccl_new.txt").items() if known.flags]
    assert ("all_reduce", "16384B-bfloat16-out-of-place") in flagged
    assert ("all_reduce", "16384B-bfloat16-in-place") not in flagged
    assert findings("nccl_new.txt")["non-monotone"].evidence[0].value == "30.0 us"


def test_a_second_table_has_its_own_name_ranks_and_version() -> None:
    known = measurements("nccl_new.txt")["all_to_all", "8192B-float32-in-place"]
    assert known.part == "all_to_all"
    assert known.ranks == 2
    assert known.launch == "eager"
    assert known.method["nccl_version"] == "2.29.7+cuda12.9"
    assert known.flags == ("not-checked",)
    assert known.dims["redop"] == "none"


def test_in_an_old_table_rounding_is_no_corruption_and_an_error_of_one_is() -> None:
    known = measurements("nccl_old.txt")
    rounded = known["all_reduce", "1024B-float32-out-of-place"]
    assert (rounded.status, rounded.median_s) == ("ok", 10e-6)
    wrong = known["all_reduce", "2048B-float32-in-place"]
    assert (wrong.status, wrong.median_s) == ("corrupt", None)
    assert wrong.reason == "relative error 1e+00, rounding explains at most 8e-06"
    assert sum(record.status == "corrupt" for record in known.values()) == 1
    assert rounded.method["nccl_version"] == "2.8.4+cuda11.2"
    assert "root" not in rounded.dims


def test_one_rank_is_named_meaningless() -> None:
    known = measurements("nccl_one_rank.txt")["all_reduce", "8B-float32-in-place"]
    assert known.flags == ("single-rank", "not-checked")
    assert known.median_s == 0.07e-6
    assert findings("nccl_one_rank.txt")["single-rank"].sentence == (
        "busbw is 0: one rank, no communication"
    )
    assert findings("nccl_one_rank.txt")["not-checked"].evidence[0].value == "#wrong N/A"


def test_rank_tags_inside_rows_are_taken_out_and_torn_rows_named() -> None:
    known = measurements("nccl_tagged.txt")
    times = {case: record.median_s for (_, case), record in known.items()}
    assert times == {
        "64B-float32-out-of-place": 11e-6,
        "64B-float32-in-place": 12e-6,
        "256B-float32-out-of-place": 13e-6,
    }
    torn = findings("nccl_tagged.txt")["torn-rows"]
    assert [known.at for known in torn.evidence] == [5, 7]


def test_a_failed_test_and_a_shared_gpu_are_findings_with_their_line() -> None:
    found = findings("nccl_tagged.txt")
    assert found["test-failed"].evidence[0].at == 10
    assert found["test-failed"].evidence[0].value.startswith("Test NCCL failure common.cu:303")
    assert "0000:02:00" in found["shared-gpu"].sentence
    assert "shared-gpu" in next(iter(measurements("nccl_tagged.txt").values())).flags


def test_warnings_lose_addresses_and_folders() -> None:
    with (DATA / "nccl_tagged.txt").open("rb") as file:
        log = Log(file="a", lines=numbered_lines(file), environment="here", command="test")
        known = {found.name: found for found in nccl_log_records.read(log)}
    warning = known["nccl-warnings"].evidence[0]
    assert warning.at == 9
    assert "Connection closed by remote peer" in warning.value
    assert "192.0.2.7" not in warning.value
    assert "secret" not in warning.value


HEAD = "{size:12d}{count:13d}     float     sum      -1"
HALF = "    10.00    1.00    {bus:4.2f}      0"


def line(size: int, bus: float = 1.0, count: int | None = None) -> str:
    half = HALF.format(bus=bus)
    return HEAD.format(size=size, count=size // 4 if count is None else count) + half + half + "\n"


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (line(8, bus=1.75), "all_reduce"),
        (line(8, bus=1.0), "all_reduce"),
        (line(64, bus=0.88, count=2), "reduce_scatter"),
        (line(8).replace("sum      -1", "sum       0"), "reduce"),
        (line(8).replace("sum      -1", "none       0"), "broadcast"),
        (line(64, bus=0.88, count=2).replace(" sum ", "none "), "unknown"),
    ],
)
def test_the_numbers_name_a_collective_that_the_text_does_not(rows: str, expected: str) -> None:
    assert [nccl_records.collective(table) for table in tables(rows)] == [expected]


def test_a_smaller_size_begins_a_new_table_under_the_same_header() -> None:
    header = "#  Rank  0 Pid 1 on a device 0 [0x1] G\n#  Rank  1 Pid 2 on a device 1 [0x2] G\n"
    found = tables(header + line(8) + line(16) + line(8))
    assert [[row.size_bytes for row in table.rows] for table in found] == [[8, 16], [8]]
    assert [table.ranks for table in found] == [2, 2]


def test_a_footer_ends_what_the_header_said() -> None:
    header = "#  Rank  0 Pid 1 on a device 0 [0x1] G\n"
    found = tables(header + line(8) + "# Avg bus bandwidth    : 1\n" + line(16))
    assert [(table.ranks, table.average_gb_s) for table in found] == [(1, 1.0), (None, None)]


def test_a_table_of_any_length_is_read_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl_tests, "LONGEST_TABLE", 3)
    found = tables("".join(line(8 * size) for size in range(1, 9)))
    assert [len(table.rows) for table in found] == [3, 3, 2]
    assert [row.size_bytes for table in found for row in table.rows] == [8 * n for n in range(1, 9)]


def test_a_truncated_table_keeps_its_rows_and_says_that_it_breaks_off() -> None:
    text = (DATA / "nccl_new.txt").read_text(encoding="utf-8")
    cut = text[: text.index("       65536 ") + 70]
    (table,) = tables(cut)
    assert [row.size_bytes for row in table.rows] == [4096, 8192, 16384]
    names = [found.name for found in nccl_findings.suspicions(table, [])]
    assert names == ["torn-rows", "table-breaks-off"]


def test_the_root_of_a_cut_row_is_no_time() -> None:
    (table,) = tables("       16384          8192  bfloat16     sum      -1    30.00    0.55    0")
    assert (table.rows, table.torn) == ((), (1,))


def test_missing_rows_show_in_the_average() -> None:
    text = line(8) + line(16, bus=3.0) + "# Avg bus bandwidth    : 1.0\n"
    (found,) = nccl_findings.suspicions(tables(text)[0], [])
    assert found.name == "average-disagrees"
    assert "average 2.000 GB/s, the footer says 1" in found.sentence


def test_an_average_within_the_rounding_of_its_rows_agrees() -> None:
    text = line(8, bus=0.0) + line(16, bus=0.0) + "# Avg bus bandwidth    : 0.0032\n"
    assert list(nccl_findings.suspicions(tables(text)[0], [])) == []


@pytest.mark.parametrize("code", ["NaN", "nan", "-nan", "inf"])
def test_numbers_that_are_none_are_no_numbers(code: str) -> None:
    text = line(8).replace("1.00", code, 1)
    assert all(row.out_of_place.time_us == 10.0 for table in tables(text) for row in table.rows)


def test_launchers_stamps_colours_and_labels_do_not_hide_a_row() -> None:
    for before in ("0: ", "[1,0]<stdout>:", "2026-03-14T12:00:00.123Z ", "\x1b[32m", "  [0] "):
        (table,) = tables(before + line(8))
        assert table.rows[0].in_place is not None
        assert table.rows[0].in_place.time_us == 10.0


def test_an_overlong_line_is_dropped_and_the_next_is_read() -> None:
    text = "x" * (3 * LONGEST_LINE_BYTES) + "\n" + line(8)
    lines = list(numbered_lines(BytesIO(text.encode())))
    lengths = [(number, len(text)) for number, text in lines]
    assert lengths == [(1, LONGEST_LINE_BYTES), (2, len(line(8)) - 1)]
    assert len(tables(text)[0].rows) == 1


@pytest.mark.parametrize(
    ("code", "version"), [(2804, "2.8.4"), (21003, "2.10.3"), (22907, "2.29.7"), (23007, "2.30.7")]
)
def test_library_numbers_are_versions(code: int, version: str) -> None:
    assert nccl_tests.loaded_version(code) == version


def test_every_format_is_told_by_content() -> None:
    for path in DATA.glob("nccl*.txt"):
        data = path.read_bytes()
        logged = ["nccl-log"] if b" NCCL INFO " in data or b" NCCL WARN " in data else []
        assert [known.name for known in formats.recognise(data)] == ["nccl-tests", *logged]
    assert formats.recognise(b"size,count,type\n8,2,float\n") == ()
    assert formats.recognise(b"# my notes\nabout NCCL and all_reduce_perf\n") == ()


# The command line.


def test_the_command_writes_records_and_says_what_it_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "records.jsonl"
    assert ingest(str(DATA / "nccl_new.txt"), "--records", str(out)) == 0
    printed = capsys.readouterr()
    assert printed.out.splitlines()[2:4] == [
        "nccl_new.txt\tnccl-tests+nccl-log\tall_reduce\t4\t4\t7\t1",
        "nccl_new.txt\tnccl-tests+nccl-log\tall_to_all\t2\t2\t4\t0",
    ]
    assert "nccl_new.txt:20\tnon-monotone\t" in printed.out
    assert str(out) in printed.err
    written: list[Record] = list(Reader(out))
    environment = written[0]
    assert isinstance(environment, Environment)
    times = [known for known in written if isinstance(known, Measurement)]
    assert len(times) == 12
    assert {known.environment for known in times} == {environment.id}


def unreadable(folder: Path) -> Iterator[tuple[Path, str]]:
    yield folder / "missing.txt", "no such file"
    yield folder, "is a folder"
    for name, content, words in (
        ("empty.txt", b"", "is empty"),
        ("binary.txt", b"# nThread 1 nGpus 1 \0\1\2", "is binary"),
        ("packed.txt", b"BZh9 nThread", "is compressed"),
        ("broken.txt", b"\x1f\x8b\x08 nThread", "is no whole gzip file"),
        ("records.jsonl", b'{"type":"environment","schema":1}\n', "holds records already"),
        (
            "other.txt",
            b"hello\nworld\n",
            'no reader knows this: text that begins "hello"; python -m ingest --formats',
        ),
        ("log.txt", b"NCCL version 2.29.7+cuda12.9\n", "without a table of times"),
    ):
        (folder / name).write_bytes(content)
        yield folder / name, words


def test_what_cannot_be_read_is_one_line_and_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "logs"
    folder.mkdir()
    for path, words in unreadable(folder):
        assert ingest(str(path)) == 2
        (said,) = capsys.readouterr().err.splitlines()
        assert words in said
        assert path.name in said
    assert not (tmp_path / "runs").exists()


def test_one_bad_file_among_good_ones_is_named_and_the_others_are_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "r.jsonl"
    arguments = (str(DATA / "nccl_old.txt"), "missing.txt", str(DATA / "nccl_one_rank.txt"))
    assert ingest(*arguments, "--records", str(out)) == 1
    printed = capsys.readouterr()
    assert "missing.txt: no such file" in printed.err
    assert "1 of 3 files could not be read" in printed.err
    assert sum(isinstance(known, Measurement) for known in Reader(out)) == 10


def test_a_records_option_that_cannot_be_written_is_not_blamed_on_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ingest(str(DATA / "nccl_old.txt"), "--records", str(tmp_path)) == 2
    assert "is a folder; name a file in it" in capsys.readouterr().err


FOUNDING = b"Target verify: 29.48 ms/cyc (97.0%)\n" * 3
SENTENCE = (
    "verify 29.48 ms, 97 % of a 30.4 ms cycle; against 12.12 ms plain, acceptance must exceed "
    "2.51 to "
    "pay; acceptance is not in this file"
)


@pytest.mark.parametrize(
    "data",
    [
        FOUNDING,
        gzip.compress(FOUNDING),
        b"\xef\xbb\xbf" + FOUNDING,
        FOUNDING.decode().encode("utf-16"),
        b"\xfe\xff" + FOUNDING.decode().encode("utf-16-be"),
        FOUNDING.replace(b"\n", b"\r\n"),
        FOUNDING.replace(b"\n", b"\r"),
        (b"noise " * 40 + b"\n") * 5000 + FOUNDING,
    ],
    ids=["plain", "gzip", "bom", "utf-16", "utf-16-be", "crlf", "cr", "late"],
)
def test_the_verdict_is_the_first_line_whatever_the_packing(
    data: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, out = tmp_path / "no.name", tmp_path / "r.jsonl"
    log.write_bytes(data)
    assert ingest(str(log), "--plain-ms", "12.12", "--records", str(out)) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[:2] == [SENTENCE, ""]
    assert printed[2].startswith("no.name\tverify\tcomponent table\tTarget verify\t29.5 ms\t")
    names = [known.name for known in Reader(out) if isinstance(known, Finding)]
    assert names[:2] == ["break-even", "share-bound"]


def test_two_files_of_one_name_are_told_apart_without_their_folders(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in (("secret-a", FOUNDING), ("secret-b", b"Plain: 82.5 tok/s\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "server.log").write_bytes(text)
    files = [str(tmp_path / name / "server.log") for name in ("secret-a", "secret-b")]
    assert ingest(*files, "--records", str(tmp_path / "r.jsonl")) == 0
    printed = capsys.readouterr().out
    assert printed.splitlines()[0] == SENTENCE
    assert "server.log (1):1\tbreak-even" in printed
    findings = [known for known in Reader(tmp_path / "r.jsonl") if isinstance(known, Finding)]
    assert not [known for known in findings if "secret" in str(known.evidence) + known.sentence]


def test_a_file_of_two_formats_gives_both(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "both.log"
    log.write_bytes(FOUNDING + (DATA / "nccl_old.txt").read_bytes())
    assert ingest(str(log), "--records", str(tmp_path / "r.jsonl")) == 0
    printed = capsys.readouterr().out
    assert "both.log\tnccl-tests+serving-log\tall_reduce\t" in printed
    assert "both.log\tverify\tcomponent table\t" in printed


def test_a_damaged_gzip_file_is_read_as_far_as_it_goes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "cut.gz"
    log.write_bytes(gzip.compress(FOUNDING * 2000)[:-40])
    assert ingest(str(log), "--records", str(tmp_path / "r.jsonl")) == 0
    assert "\tfile-cut\t" in capsys.readouterr().out


def test_every_format_is_listed_with_an_example_that_it_reads(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert ingest("--formats") == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert {row[0] for row in rows} == {known.name for known in formats.FORMATS}
    serving = [row[1] for row in rows if row[0] == "serving-log"]
    for line in serving:
        assert formats.recognise(line.encode() + b"\n"), line
    assert any("ms/cyc" in line for line in serving)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "no file given; name what to read, or list the formats with --formats"),
        (("x.log", "--plain-ms", "0"), "--plain-ms 0 is no time"),
        (("x.log", "--plain-ms", "nan"), "--plain-ms nan is no time"),
        (("x.log", "--gpu", "voodoo"), "unknown GPU 'voodoo'; known: "),
        (("x.log", "--tp", "0"), "Invalid value for '--tp'"),
    ],
)
def test_a_wrong_call_is_one_line_and_status_2(
    arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ingest(*arguments) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert words in said


@pytest.mark.parametrize("digits", [400, 5000])
def test_a_number_that_no_tool_prints_makes_a_row_none(digits: int) -> None:
    broken = line(8).replace("8", "9" * digits, 1)
    (table,) = tables(broken + line(16))
    assert [row.size_bytes for row in table.rows] == [16]
