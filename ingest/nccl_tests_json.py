"""JSON of nccl-tests (`-J FILE`, version 2.17 on) becomes the tables that its text becomes.

One document a run: what was asked, the devices, and a result a size with both directions. `time` is
microseconds, mean over back-to-back calls; with `--per_iter` the calls are there one by one, and a
row's time is their median. The tool writes its whole environment, host names and process ids into
the file: they are not read, hosts but to be counted.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import PurePath

import msgspec

from ingest import json_documents, nccl_records
from ingest.log import Log
from ingest.nccl_tests import TYPE_BYTES, Device, Row, Table, Timing, loaded_version
from verifyscope.records import Finding, Measurement

EXAMPLE = '{"version":2,"start_time":"2026-01-05 10:00:00","args":["all_reduce_perf", ...], ...'
_HEAD = re.compile(rb'\s*\{\s*"version"\s*:\s*\d+\s*,\s*"start_time"\s*:\s*"[^"]*"\s*,\s*"args"')
_TEST = re.compile(r"\w+_perf(?:_mpi)?")
_OPTIONS = {
    "iterations": "iters",
    "warmup_iters": "warmup iters",
    "aggregated_iterations": "agg iters",
    "graph": "graph",
}

Number = float | str | None  # "nan" is how the tool writes one that is none


class _Device(msgspec.Struct):
    rank: int
    hostname: str = ""
    device: int = 0
    device_hex: str = ""
    device_info: str = ""


class _Config(msgspec.Struct):
    devices: list[_Device] = []
    iterations: int | None = None
    warmup_iters: int | None = None
    aggregated_iterations: int | None = None
    graph: int | None = None


class _Timing(msgspec.Struct):
    time: Number = None
    alg_bw: Number = None
    bus_bw: Number = None
    nwrong: Number = None


class _Calls(msgspec.Struct):
    p50_us: Number = None
    p99_us: Number = None


class _Result(msgspec.Struct):
    size: int
    count: int
    type: str
    redop: str | None = None
    root: str | int | None = None
    out_of_place: _Timing | None = None
    in_place: _Timing | None = None
    out_of_place_per_iter: _Calls | None = None
    in_place_per_iter: _Calls | None = None


class _Bounds(msgspec.Struct):
    count: int | None = None


class _Average(msgspec.Struct):
    bandwidth: Number = None


class _File(msgspec.Struct):
    args: list[str] = []
    nccl_version: int | None = None
    config: _Config = msgspec.field(default_factory=_Config)
    results: list[_Result] = []
    out_of_bounds: _Bounds | None = None
    average_bus_bandwidth: _Average | None = None
    end_time: str | None = None


def recognises(head: bytes) -> bool:
    """Say whether a file that begins with `head` is JSON of nccl-tests."""
    return _HEAD.match(head) is not None


def read(log: Log) -> Iterator[Measurement | Finding]:
    """Yield the measurements of the run, then the findings on it."""
    found = json_documents.whole(log.stream, log.file, _File)
    yield from nccl_records.told(table(found), log, medians=_medians(found))


def table(found: _File) -> Table:
    """Return the document as the table that the same run prints."""
    program = PurePath(found.args[0]).name if found.args else ""
    devices = tuple(
        Device(
            rank=one.rank,
            host=one.hostname,
            index=one.device,
            bus=one.device_hex,
            name=one.device_info,
        )
        for one in found.config.devices
    )
    made = Table(
        line=1,
        tool="nccl-tests",
        nccl_version=loaded_version(found.nccl_version) if found.nccl_version else None,
        name=program if _TEST.fullmatch(program) else None,
        options=tuple(
            (name, value)
            for key, name in _OPTIONS.items()
            if (value := getattr(found.config, key)) is not None
        ),
        rows=tuple(_row(one) for one in found.results if one.type in TYPE_BYTES),
        out_of_bounds=found.out_of_bounds.count if found.out_of_bounds else None,
        average_gb_s=_number(
            found.average_bus_bandwidth.bandwidth if found.average_bus_bandwidth else None
        ),
        concluded=found.end_time is not None,
    )
    if not devices:
        return made
    hosts = len({device.host for device in devices})
    return replace(made, devices=devices, ranks=len(devices), nodes=hosts)


def _row(one: _Result) -> Row:
    nothing = Timing(time_us=None, algorithm_gb_s=None, bus_gb_s=None)
    return Row(
        line=1,
        size_bytes=one.size,
        elements=one.count,
        dtype=one.type,
        redop=one.redop,
        root=int(one.root) if one.root is not None and _whole(one.root) else None,
        out_of_place=_timing(one.out_of_place) or nothing,
        in_place=_timing(one.in_place),
    )


def _timing(one: _Timing | None) -> Timing | None:
    if one is None:
        return None
    time_us, wrong = _number(one.time), _number(one.nwrong)
    return Timing(
        time_us=time_us if time_us is not None and time_us >= 0 else None,
        algorithm_gb_s=_number(one.alg_bw),
        bus_gb_s=_number(one.bus_bw),
        wrong=None if wrong is None else int(wrong),
    )


def _medians(found: _File) -> dict[tuple[int, bool], tuple[float, float | None]]:
    """Return median and 99th percentile in microseconds by row and direction, where they are."""
    known = {}
    rows = [one for one in found.results if one.type in TYPE_BYTES]
    for at, one in enumerate(rows):
        for in_place, calls in ((False, one.out_of_place_per_iter), (True, one.in_place_per_iter)):
            median_us = _number(calls.p50_us) if calls else None
            if calls and median_us is not None and median_us >= 0:
                known[at, in_place] = (median_us, _number(calls.p99_us))
    return known


def _whole(value: str | int) -> bool:
    return re.fullmatch(r"\s*-?\d{1,9}\s*", str(value)) is not None


def _number(value: Number) -> float | None:
    return float(value) if isinstance(value, int | float) and abs(value) < 1e15 else None
