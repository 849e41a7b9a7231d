"""JSON of nccl-tests gives what its text gives; its environment and hosts reach no record."""

import json
from io import BytesIO
from typing import Any

import pytest

from ingest import formats
from ingest.log import Log
from ingest.opening import Unreadable
from verifyscope.records import Finding, Measurement, encoded

DEVICE = {"group": 0, "pid": 4711, "hostname": "node-secret", "device_info": "NVIDIA H200"}


def result(size: int, time_us: float, **more: Any) -> dict[str, Any]:
    row = {"time": time_us, "alg_bw": size / time_us / 1e3, "bus_bw": 1.75 * size / time_us / 1e3}
    return {
        "size": size,
        "count": size // 2,
        "type": "bfloat16",
        "redop": "sum",
        "root": "    -1",
        "out_of_place": {**row, "nwrong": 0.0},
        "in_place": {**row, "nwrong": None},
        **more,
    }


def document(*results: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "version": 2,
        "start_time": "2026-01-05 10:00:00",
        "args": ["/home/alice/build/all_reduce_perf", "-J", "out.json"],
        "env": ["HF_TOKEN=hf_canary", "HOME=/home/alice"],
        "nccl_version": 22907,
        "config": {
            "warmup_iters": 5,
            "iterations": 20,
            "aggregated_iterations": 1,
            "graph": 0,
            "blocking_collectives": "false",
            "devices": [
                DEVICE | {"rank": rank, "device": rank, "device_hex": f"0000:{rank:02x}:00"}
                for rank in range(8)
            ],
        },
        "results": list(results),
        "out_of_bounds": {"count": 0, "okay": "true"},
        "average_bus_bandwidth": {"bandwidth": 2.5, "okay": "unchecked"},
        "errors": [],
        "end_time": "2026-01-05 10:01:00",
        **more,
    }


def read(data: bytes | dict[str, Any]) -> list[Measurement | Finding]:
    data = data if isinstance(data, bytes) else json.dumps(data, separators=(",", ":")).encode()
    (known,) = formats.recognise(data)
    assert known.name == "nccl-tests -J"
    log = Log(file="a.json", lines=iter(()), environment="here", command="x", stream=BytesIO(data))
    return [one for one in known.read(log) if isinstance(one, Measurement | Finding)]


def test_each_direction_of_each_size_is_a_record() -> None:
    found = [
        one
        for one in read(document(result(14336, 28.0), result(28672, 30.5)))
        if isinstance(one, Measurement)
    ]
    assert [(one.case, one.median_s) for one in found] == [
        ("14336B-bfloat16-out-of-place", 28.0e-6),
        ("14336B-bfloat16-in-place", 28.0e-6),
        ("28672B-bfloat16-out-of-place", 30.5e-6),
        ("28672B-bfloat16-in-place", 30.5e-6),
    ]
    first, second = found[:2]
    assert (first.op, first.ranks, first.launch) == ("all_reduce", 8, "eager")
    assert (first.dims["nodes"], first.dims["root"], first.flags) == (1, -1, ())
    assert (first.method["nccl_version"], first.method["iterations"]) == ("2.29.7", 20)
    assert second.flags == ("not-checked",)


def test_single_calls_give_median_and_tail() -> None:
    calls = {"p50_us": 27.0, "p95_us": 30.0, "p99_us": 55.0, "times_us": [27.0, 55.0]}
    found = read(document(result(14336, 28.0, out_of_place_per_iter=calls)))
    assert isinstance(first := found[0], Measurement)
    assert (first.median_s, first.p99_s) == (27.0e-6, 55.0e-6)
    assert first.method["sample"] == "median of single calls"


def test_wrong_values_withhold_the_time() -> None:
    bad = result(14336, 28.0)
    bad["out_of_place"]["nwrong"] = 3.0
    bad["out_of_place_per_iter"] = {"p50_us": 27.0}
    assert isinstance(first := read(document(bad))[0], Measurement)
    assert (first.status, first.median_s) == ("corrupt", None)
    assert "3 wrong values" in str(first.reason)


def test_what_was_not_run_or_is_no_number_is_no_record() -> None:
    nothing = result(14336, 28.0, out_of_place=None)
    nothing["in_place"]["time"] = "nan"
    assert [one for one in read(document(nothing)) if isinstance(one, Measurement)] == []


def test_environment_hosts_and_paths_reach_no_record() -> None:
    whole = b"".join(map(encoded, read(document(result(14336, 28.0))))).decode()
    assert not {"hf_canary", "alice", "node-secret", "4711"} & {
        word for word in ("hf_canary", "alice", "node-secret", "4711") if word in whole
    }


def test_a_cut_document_is_one_line() -> None:
    data = json.dumps(document(result(14336, 28.0)), separators=(",", ":")).encode()
    with pytest.raises(Unreadable, match=r"a.json is no whole JSON .* give it whole"):
        read(data[:-40])
