"""Any bytes in: no traceback, no hang, records that read back, and no wrong number in silence.

Each sample is a file of one format with known times. Cut, repeated and shuffled lines may lose
times but must not make others, unless a finding says that something is wrong with the file.
Numbers that are written over may be anything; they must only never break the reading.
"""

import contextlib
import gzip
import io
import json
import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ingest import opening, reading
from tests import serving_lines as lines
from tests.test_ingest_host import DMESG, GPU, bridge
from verifyscope.errors import Failure, UsageError
from verifyscope.records import Finding, Measurement, Reader

DATA = Path(__file__).resolve().parent / "data"
CYCLE_MS = 10.0
WARNINGS = {
    "windows-dropped",
    "duplicate-lines",
    "lines-not-read",
    "cut-line",
    "file-cut",
    "rate-disagrees",
    "runs-missing",
    "torn-rows",
    "table-breaks-off",
    "average-disagrees",
}
RUNS = "".join(f"Run {at}/4: 1000 tokens in 10.00s = 100.0 tok/s\n" for at in range(1, 5))
TABLE = "".join(
    "Target verify: 10.00 ms/cyc (80.0%)\nDraft: 2.00 ms/cyc (16.0%)\n" for _ in range(4)
)
TEXTS = (
    "server_args=ServerArgs(tp_size=8, speculative_num_draft_tokens=4)\n"
    + lines.steady(CYCLE_MS, accept=2.0, windows=8),
    "".join(lines.vllm(CYCLE_MS, second=at) for at in range(6)),
    TABLE + RUNS,
    "label  n  gpu_total  gpu_avg  cpu_total  cpu_avg\nbuild  50  500.0  10.0  500.0  10.0\n",
    "aggregate tok/s\nconc no_mtp mtp3\n1 100.0 100.0\n2 200.0 200.0\n4 400.0 400.0\n",
    (DATA / "nccl_new.txt").read_text(encoding="utf-8"),
    json.dumps(
        {
            "backend": "vllm",
            "completed": 9,
            "max_concurrency": 1,
            "mean_ttft_ms": 10.0,
            "median_ttft_ms": 10.0,
            "median_tpot_ms": 10.0,
        }
    )
    + "\n",
    json.dumps(
        {"machine_info": {}, "benchmarks": [{"name": "t", "stats": {"median": 0.01, "rounds": 3}}]}
    ),
    json.dumps(
        {
            "model_type": "llama",
            "hidden_size": 64,
            "draft_vocab_size": 9,
            "vocab_size": 99,
            "intermediate_size": 128,
            "num_attention_heads": 4,
        }
    ),
    "timestamp, index, utilization.gpu [%], power.draw [W], power.limit [W]\n"
    + "2026/01/05 10:00:00.000, 0, 100 %, 90.00 W, 600.00 W\n" * 3,
    "==============NVSMI LOG==============\nGPU 00000000:01:00.0\n    Product Name : X\n    "
    "Utilization\n"
    "        GPU : 100 %\n    Power Readings\n        Power Draw : 90.00 W\n",
    "<nvidia_smi_log><gpu><product_name>X</product_name></gpu></nvidia_smi_log>\n",
    "\tGPU0\tGPU1\nGPU0\t X \tPIX\nGPU1\tPIX\t X \n",
    bridge() + GPU.format(address="c2:00.0"),
    DMESG,
    "system,fw,ver,kernel_source,moe_dtype,num_experts,distribution,num_tokens,latency_us\n"
    + "h200_sxm,vllm,0.19.0,marlin,int4_wo,384,balanced,4,60.0\n" * 3,
    "op_name,nccl_dtype,num_gpus,message_size,latency_us\n"
    "all_reduce,half,8,256,10.0\nall_reduce,half,8,512,10.0\n",
)
ODD = (
    "NaN",
    "nan",
    "inf",
    "-1",
    "1e999",
    "9" * 400,
    "0",
    "0.0",
    "[" * 3000,
    "{" * 3000 + "}" * 3000,
    "\x00",
    "\ud7ff\u202e",
    "<a>" * 500,
    "Decode batch, ",
    "=" * 500,
)
THOROUGHLY = settings(
    deadline=None,
    derandomize=True,
    max_examples=150,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def ingested(*files: bytes) -> list[Measurement | Finding] | None:
    """The records of files; None where a line says that they cannot be read."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        paths = [Path(folder, f"{at}.log") for at in range(len(files))]
        for path, data in zip(paths, files, strict=True):
            path.write_bytes(data)
        out = Path(folder, "records.jsonl")
        with contextlib.redirect_stderr(io.StringIO()):
            try:
                reading.read_files(paths, out)
            except (UsageError, Failure):
                if not out.exists():
                    return None
        return [one for one in Reader(out) if isinstance(one, Measurement | Finding)]


def times_ms(records: list[Measurement | Finding]) -> set[float]:
    """The times of records in milliseconds, three digits."""
    found = [one.median_s for one in records if isinstance(one, Measurement)]
    return {float(f"{seconds * 1e3:.3g}") for seconds in found if seconds is not None}


def warned(records: list[Measurement | Finding]) -> bool:
    return any(isinstance(one, Finding) and one.name in WARNINGS for one in records)


def test_the_samples_themselves_are_read() -> None:
    for text in TEXTS:
        records = ingested(text.encode())
        assert records, text[:40]
    for text in TEXTS[:5]:
        records = ingested(text.encode())
        assert records is not None
        assert times_ms(records) <= {CYCLE_MS, 2.0}


@st.composite
def damaged_lines(draw: st.DrawFn) -> tuple[str, str]:
    """A sample, and the same with lines cut out, repeated or shuffled, and its end cut off."""
    text = draw(st.sampled_from(TEXTS[:6]))
    whole = text.splitlines(keepends=True)
    kept = draw(st.lists(st.integers(0, len(whole) - 1), min_size=1, max_size=24))
    if draw(st.booleans()):
        kept = sorted(set(range(len(whole))) - set(kept)) or kept
    damaged = "".join(whole[at] for at in kept)
    return text, damaged[: draw(st.integers(1, len(damaged)))]


@THOROUGHLY
@given(damaged_lines())
def test_lines_that_are_lost_repeated_or_moved_make_no_new_times_in_silence(
    sample: tuple[str, str],
) -> None:
    text, damaged = sample
    records = ingested(damaged.encode())
    if records is None or warned(records):
        return
    original = ingested(text.encode())
    assert original is not None
    assert times_ms(records) <= times_ms(original) | {CYCLE_MS}


@st.composite
def damaged_bytes(draw: st.DrawFn) -> bytes:
    """A sample with odd text put in or bytes changed, in some encoding, perhaps packed."""
    text = draw(st.sampled_from(TEXTS))
    for _ in range(draw(st.integers(0, 3))):
        at, end = sorted((draw(st.integers(0, len(text))), draw(st.integers(0, len(text)))))
        end = min(end, at + draw(st.integers(0, 12)))
        text = text[:at] + draw(st.sampled_from(ODD)) + text[end:]
    data = text.encode(draw(st.sampled_from(["utf-8", "utf-16", "utf-16-be", "utf-32"])), "replace")
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        data = data[:at] + bytes([draw(st.integers(0, 255))]) + data[at + 1 :]
    if draw(st.booleans()):
        data = gzip.compress(data, 1)
        data = data[: draw(st.integers(1, len(data)))]
    return data


@THOROUGHLY
@given(st.lists(damaged_bytes(), min_size=1, max_size=2))
@example([b"\x1f\x8b"])
@example([b"\xff\xfe"])
@example([b"\xef\xbb\xbf"])
@example([b"\r\r\r\n\n"])
def test_any_bytes_are_read_or_refused_in_a_line(files: list[bytes]) -> None:
    for one in ingested(*files) or []:
        if isinstance(one, Measurement) and one.median_s is not None:
            assert 0 <= one.median_s < 1e9


@pytest.mark.parametrize("seed", range(4))
def test_lines_made_to_be_slow_to_match_end(seed: int) -> None:
    pieces = [
        "a",
        " ",
        "1",
        ":",
        "=",
        "ms/cyc",
        "Run 1/2: ",
        "tok",
        ", ",
        "NaN",
        "--tp ",
        "GPU0 ",
        "(",
    ]
    dice = random.Random(seed)
    long = ["".join(dice.choices(pieces[:3], k=60_000)), (dice.choice(pieces) * 60_000)[:60_000]]
    signs = "Decode batch, ms/cyc label n gpu_avg SpecDecoding metrics: Run 1/2: tok/s --tp 8"
    text = "".join(f"{signs} {line} {signs}\n" for line in [*long, *pieces])
    assert ingested(text.encode()) is not None


def test_a_zip_bomb_is_refused_before_it_fills_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "UNPACKED_FREELY", 2**20)
    bomb = gzip.compress(TEXTS[2].encode() + b"0" * 2**23, 9)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "bomb.gz")
        path.write_bytes(bomb)
        with pytest.raises(UsageError, match=r"bomb\.gz unpacks to over 400 times its size"):
            reading.read_files([path], Path(folder, "records.jsonl"))


def test_a_well_packed_log_is_no_bomb() -> None:
    records = ingested(gzip.compress((TABLE * 500).encode(), 9))
    assert records is not None
    assert times_ms(records) == {10.0, 2.0}


def test_gzip_inside_gzip_is_refused() -> None:
    assert ingested(gzip.compress(gzip.compress(TEXTS[0].encode()))) is None
