"""The options of --predict, parsed: each mistake is one line that says what is allowed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from graphs import collective_times
from graphs._predicted import launches, measured_files, played, points
from graphs._predicted.forecast import Question, Spoken
from graphs._predicted.levers import Sizes
from graphs._predicted.played import Uneven
from graphs.collective_times import Times
from graphs.layers import forward
from graphs.prediction import Bandwidth
from verifyscope import hardware, published, units
from verifyscope.errors import UsageError, choose
from verifyscope.models import find_model
from verifyscope.records import Launch


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What stands on the command line, as it stands there; None where it is left out."""

    model: str
    tp: str
    requests: str
    rows: str
    context: str
    predict: str
    bandwidth: str | None = None
    all_reduce_us: str | None = None
    sweep: Path | None = None
    measured: Sequence[Path] = ()
    launch: str = "eager"
    launches: str = "1"
    launch_us: str | None = None
    graph_launch_us: str | None = None
    node_us: str | None = None
    jitter_us: str | None = None
    slow_rank: str | None = None
    observed_ms: str | None = None
    earlier_ms: str | None = None
    plain_ms: str | None = None
    share: str | None = None
    accepted: str | None = None
    protocol_us: str | None = None
    one_shot_us: str | None = None
    fewer_rows: str | None = None
    higher_accepted: str | None = None


def question(given: Given) -> Question:
    """Return what is asked, with the files read; `UsageError` for what cannot be meant."""
    gpu = hardware.find_gpu(given.predict)
    model, tp = find_model(given.model), units.parse_count(given.tp)
    requests = units.parse_count(given.requests)
    ops = [op for op, _ in forward(model, tp=tp, rows=1, context=1, requests=requests).calls()]
    bandwidth = _bandwidth(given.bandwidth, gpu)
    times, uneven = _times(given, tp), _uneven(given, tp)
    split = launches.parse(given.launches, ops)
    spoken, sizes = _spoken(given), _sizes(given, tp)
    measured = measured_files.read(given.measured, gpu=gpu)
    return Question(
        model=model,
        tp=tp,
        requests=requests,
        gpu=gpu,
        bandwidth=bandwidth,
        times=times,
        points=(*measured.points, *points.public(gpu.name)),
        measured=measured,
        costs=launches.costs(
            launch_s=_seconds("--launch-us", given.launch_us, 1e6, from_zero=True),
            graph_launch_s=_seconds(
                "--graph-launch-us", given.graph_launch_us, 1e6, from_zero=True
            ),
            node_s=_seconds("--node-us", given.node_us, 1e6, from_zero=True),
            points=measured.points,
        ),
        launches=split,
        uneven=uneven,
        spoken=spoken,
        sizes=sizes,
    )


def cases(given: Given) -> list[tuple[int, int]]:
    """Return rows and context of each case; `UsageError` if a lever does not fit one of them."""
    rows = units.parse_list(given.rows, units.parse_count)
    contexts = units.parse_list(given.context, units.parse_count)
    for option, text in (
        ("--accepted", given.accepted),
        ("--higher-accepted", given.higher_accepted),
    ):
        tokens = _number(option, text, least=1, example="1.8")
        if tokens is not None and tokens > min(rows):
            raise UsageError(
                f"{option} {text}: a pass of {min(rows)} rows yields at most {min(rows)} tokens; "
                f"give fewer, or more --rows"
            )
    fewer = None if given.fewer_rows is None else units.parse_count(given.fewer_rows)
    if fewer is not None and fewer >= min(rows):
        raise UsageError(f"--fewer-rows {fewer} is not fewer than --rows {min(rows)}")
    several = len(rows) * len(contexts) > 1
    if several and (given.observed_ms is not None or given.earlier_ms is not None):
        raise UsageError("--observed-ms is of one pass; give one --rows and one --context")
    return [(some, cached) for cached in contexts for some in rows]


def _bandwidth(given: str | None, gpu: hardware.Gpu) -> Bandwidth:
    if given is not None:
        return Bandwidth(bytes_per_s=units.parse_rate(given), source="given by --bandwidth")
    if gpu.dram_bytes_per_s is None:
        raise UsageError(f"the bandwidth of {gpu.name} is not known; give --bandwidth 1.50T")
    nominal = f"{units.whole_rate(gpu.dram_bytes_per_s)} ({gpu.source_of('dram_bytes_per_s')})"
    reached = published.reached(gpu.name)
    if reached is None:
        return Bandwidth(
            bytes_per_s=gpu.dram_bytes_per_s, source=f"nominal, {nominal}; what it reaches is less"
        )
    return Bandwidth(
        bytes_per_s=reached.bytes_per_s,
        source=f"reached by others, {units.rate(reached.low)} to {units.rate(reached.high)} in "
        f"{reached.count} cases ({reached.source}); nominal {nominal}",
    )


def _times(given: Given, ranks: int) -> Times:
    all_reduce_us, sweep = given.all_reduce_us, given.sweep
    if all_reduce_us is not None and sweep is not None:
        raise UsageError("give --all-reduce-us or --sweep, not both")
    if ranks == 1 and (all_reduce_us is not None or sweep is not None):
        raise UsageError("--tp 1 has no all-reduce; leave out --all-reduce-us and --sweep")
    if sweep is not None:
        return collective_times.from_sweep(sweep, ranks=ranks)
    return Times(all_reduce_s=_seconds("--all-reduce-us", all_reduce_us, 1e6))


def _uneven(given: Given, ranks: int) -> Uneven:
    if given.slow_rank is None and given.jitter_us is None:
        return Uneven(ranks=ranks, slow_rank=played.ASSUMED_SLOW_RANK, assumed=True)
    if ranks == 1:
        raise UsageError("--tp 1 waits for no other rank; leave out --slow-rank and --jitter-us")
    slow = _number("--slow-rank", given.slow_rank, least=1, example="1.1")
    jitter_s = _seconds("--jitter-us", given.jitter_us, 1e6, from_zero=True)
    return Uneven(ranks=ranks, slow_rank=slow or 1.0, jitter_s=jitter_s or 0.0)


def _spoken(given: Given) -> Spoken:
    share = _number("--share", given.share, least=0, example="0.97")
    if share is not None and not 0 < share <= 1:
        raise UsageError(f"--share {given.share} is no share of a cycle; give one like 0.97")
    observed_s = _seconds("--observed-ms", given.observed_ms, 1e3)
    if observed_s is None and given.earlier_ms is not None:
        raise UsageError("--earlier-ms is held against an observed pass; give --observed-ms too")
    return Spoken(
        launch=cast(Launch, choose("launch", given.launch, list(played.MODES))),
        observed_s=observed_s,
        earlier_s=_seconds("--earlier-ms", given.earlier_ms, 1e3),
        plain_s=_seconds("--plain-ms", given.plain_ms, 1e3),
        share=share,
        accepted=_number("--accepted", given.accepted, least=1, example="1.8"),
    )


def _sizes(given: Given, ranks: int) -> Sizes:
    if ranks == 1 and (given.protocol_us is not None or given.one_shot_us is not None):
        raise UsageError("--tp 1 has no all-reduce; leave out --protocol-us and --one-shot-us")
    return Sizes(
        protocol_s=_seconds("--protocol-us", given.protocol_us, 1e6),
        one_shot_s=_seconds("--one-shot-us", given.one_shot_us, 1e6),
        fewer_rows=None if given.fewer_rows is None else units.parse_count(given.fewer_rows),
        accepted=_number("--higher-accepted", given.higher_accepted, least=1, example="2.4"),
    )


def _seconds(
    option: str, text: str | None, per_second: float, *, from_zero: bool = False
) -> float | None:
    """Return the seconds of an option whose unit is `per_second` in a second."""
    if text is None:
        return None
    value = _float(text)
    if not (value >= 0 if from_zero else value > 0) or value == math.inf:
        allowed = "of zero or more" if from_zero else "above zero"
        raise UsageError(f"{option} {text!r} is not a time {allowed}; give one like 33.5")
    return value / per_second


def _number(option: str, text: str | None, *, least: float, example: str) -> float | None:
    if text is None:
        return None
    value = _float(text)
    if not least <= value < math.inf:
        raise UsageError(
            f"{option} {text!r} is not a number of at least {least:g}; give one like {example}"
        )
    return value


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
