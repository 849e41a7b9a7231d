"""JSON of serving benchmarks and of pytest-benchmark becomes records; what is none, one line."""

import json
from io import BytesIO
from typing import Any

import pytest

from ingest import formats
from ingest.facts import Facts
from ingest.log import Log
from ingest.opening import Unreadable
from ingest.verdict import conclusions
from verifyscope.records import Finding, Measurement, encoded

RESULT: dict[str, Any] = {
    "date": "20260105",
    "backend": "vllm",
    "model_id": "/home/alice/model",
    "max_concurrency": 4,
    "request_rate": "inf",
    "completed": 100,
    "duration": 60.0,
    "total_output_tokens": 51_200,
    "output_throughput": 853.3,
    "mean_ttft_ms": 220.0,
    "median_ttft_ms": 210.0,
    "p99_ttft_ms": 400.0,
    "mean_tpot_ms": 12.5,
    "median_tpot_ms": 12.0,
    "p99_tpot_ms": 20.0,
    "median_itl_ms": 30.0,
    "median_e2el_ms": 6300.0,
    "generated_texts": ["a secret answer"],
}
SPECULATIVE = RESULT | {
    "spec_decode_acceptance_length": 2.5,
    "spec_decode_per_position_acceptance_rates": [0.8, 0.5, 0.2],
}


def read(data: bytes | dict[str, Any], name: str, file: str = "a.json") -> list[Any]:
    data = data if isinstance(data, bytes) else json.dumps(data).encode()
    (known,) = formats.recognise(data)
    assert known.name == name
    log = Log(file=file, lines=iter(()), environment="here", command="test", stream=BytesIO(data))
    return list(known.read(log))


def facts(*results: dict[str, Any]) -> list[Facts]:
    return [
        one
        for letter, result in zip("abc", results, strict=False)
        for one in read(result, "bench-serving", f"{letter}.json")
        if isinstance(one, Facts)
    ]


def test_a_serving_benchmark_gives_its_latencies_and_no_texts() -> None:
    found = [one for one in read(RESULT, "bench-serving") if isinstance(one, Measurement)]
    times = {one.op: (one.median_s, one.p99_s) for one in found}
    assert times["ttft"] == (0.21, 0.4)
    assert times["tpot"] == (0.012, 0.02)
    assert times["e2e"] == (6.3, None)
    assert found[0].dims["requests"] == 4
    whole = b"".join(map(encoded, found)).decode()
    assert "alice" not in whole
    assert "secret" not in whole


def test_with_acceptance_tpot_gives_the_cycle_and_against_a_plain_run_the_break_even() -> None:
    (steps,) = facts(SPECULATIVE)[0].steps
    assert (steps.mode, steps.running, steps.rows) == ("verify", 4, 16)
    assert steps.cycle_s == pytest.approx(0.030)
    found = {one.name: one.sentence for one in conclusions(facts(SPECULATIVE, RESULT))}
    assert "against 12.00 ms plain, acceptance must exceed 2.50 to pay" in found["break-even"]


def test_every_line_of_sglangs_results_is_a_run() -> None:
    line = {"backend": "sglang", "completed": 10, "median_ttft_ms": 5.0, "median_tpot_ms": 10.0,
            "max_concurrency": None, "concurrency": 7.9, "accept_length": None}  # fmt: skip
    data = b"".join(json.dumps(line | {"concurrency": at}).encode() + b"\n" for at in (1.0, 7.9))
    (found,) = [one for one in read(data, "bench-serving") if isinstance(one, Facts)]
    assert [(one.mode, one.running) for one in found.steps] == [("decode", 1), ("decode", 8)]


def test_nan_is_absent_and_an_indented_file_is_one_run() -> None:
    data = json.dumps(RESULT | {"median_tpot_ms": float("nan")}, indent=2).encode()
    ops = [one.op for one in read(data, "bench-serving") if isinstance(one, Measurement)]
    assert ops == ["ttft", "itl", "e2e"]


def benchmark(**more: Any) -> dict[str, Any]:
    return {
        "machine_info": {"node": "secret-host", "cpu": {"brand_raw": "x"}},
        "benchmarks": [
            {
                "name": "test_attention[4x8192]",
                "fullname": "/home/alice/suites/test_attention.py::test_attention[4x8192]",
                "params": {"rows": 4, "dtype": "bfloat16", "odd": [1]},
                "stats": {"median": 2e-5, "mean": 2.1e-5, "rounds": 5, "iterations": 10,
                          "data": [2e-5, 1.9e-5, 2.1e-5, 2e-5, 2.2e-5]},
            } | more
        ],
    }  # fmt: skip


def test_a_pytest_benchmark_gives_median_interval_and_scalar_parameters() -> None:
    (one,) = read(benchmark(), "pytest-benchmark")
    assert isinstance(one, Measurement)
    assert (one.op, one.case, one.median_s, one.count) == ("attention", "4x8192", 2e-5, 5)
    assert one.low_s is not None
    assert one.high_s is not None
    assert one.low_s <= 2e-5 <= one.high_s
    assert one.dims == {"rows": 4, "dtype": "bfloat16"}
    whole = encoded(one).decode()
    assert "secret-host" not in whole
    assert "alice" not in whole


@pytest.mark.parametrize(
    ("extra", "warm"),
    [
        ({"bytes": 90e6, "gpu": "NVIDIA RTX PRO 6000 Blackwell Server Edition"}, True),
        ({"bytes": 30e6, "gpu": "NVIDIA RTX PRO 6000 Blackwell Server Edition"}, False),
        ({"bytes_per_s": 9e12}, True),
        ({"bytes_per_s": 7e12}, False),
        ({"bytes_per_s": 9e12, "cache": "warm"}, False),
    ],
)
def test_more_than_the_bandwidth_is_a_warm_benchmark(extra: dict[str, Any], warm: bool) -> None:
    found = read(benchmark(extra_info=extra), "pytest-benchmark")
    names = [one.name for one in found if isinstance(one, Finding)]
    assert names == (["warm-benchmark"] if warm else [])


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (json.dumps(RESULT).encode()[:-40], "bench-serving"),
        (b'{"completed": "x", "mean_ttft_ms": 1}', "bench-serving"),
        (b'{"completed": 0, "mean_ttft_ms": 1}', "bench-serving"),
        (b'{"machine_info": {}, "benchmarks": 1e999}', "pytest-benchmark"),
        (b'{"machine_info": {}, "benchmarks": ' + b"[" * 100_000, "pytest-benchmark"),
    ],
)
def test_what_is_no_whole_document_is_one_line(data: bytes, name: str) -> None:
    with pytest.raises(Unreadable):
        read(data, name)
