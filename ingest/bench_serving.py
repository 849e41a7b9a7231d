"""Results of `sglang.bench_serving` (a line a run) and `vllm bench serve` (one object): JSON.

Read are latencies (TTFT, TPOT, ITL, end to end, milliseconds), throughput, load and acceptance;
prompts, answers, hosts and paths in the file are not. With acceptance a, a cycle is TPOT x a: TPOT
is the mean over a request's tokens after the first, so that other requests' prompts are in it.
"""

from collections.abc import Iterator

import msgspec

from ingest import json_documents, serving_records
from ingest.facts import Facts, Read, Steps
from ingest.log import Log
from ingest.named_system import model_of
from ingest.opening import Unreadable
from verifyscope.records import Measurement, Origin, Value
from verifyscope.systems import System

_Ms = float | None


class Result(msgspec.Struct):
    """One run. Milliseconds, tokens a second; absent is None."""

    completed: int
    duration: float | None = None
    backend: str | None = None
    model_id: str | None = None
    endpoint_type: str | None = None
    max_concurrency: int | None = None
    concurrency: float | None = None
    total_output_tokens: int | None = None
    output_throughput: float | None = None
    mean_ttft_ms: _Ms = None
    median_ttft_ms: _Ms = None
    p99_ttft_ms: _Ms = None
    mean_tpot_ms: _Ms = None
    median_tpot_ms: _Ms = None
    p99_tpot_ms: _Ms = None
    mean_itl_ms: _Ms = None
    median_itl_ms: _Ms = None
    p99_itl_ms: _Ms = None
    mean_e2e_latency_ms: _Ms = None
    median_e2e_latency_ms: _Ms = None
    p99_e2e_latency_ms: _Ms = None
    mean_e2el_ms: _Ms = None
    median_e2el_ms: _Ms = None
    p99_e2el_ms: _Ms = None
    accept_length: float | None = None
    spec_decode_acceptance_length: float | None = None
    spec_decode_per_position_acceptance_rates: list[float] | None = None

    @property
    def acceptance(self) -> float | None:
        """Return the tokens a cycle, where the run speculated."""
        found = self.accept_length or self.spec_decode_acceptance_length
        return found if found is not None and 1 <= found <= 128 else None

    @property
    def running(self) -> int | None:
        """Return the requests at once: the limit, where it was what held the run."""
        limit, mean = self.max_concurrency, self.concurrency
        if limit is not None and limit >= 1 and (mean is None or mean > 0.9 * limit):
            return limit
        return round(mean) if mean is not None and 1 <= mean < 1e6 else None

    @property
    def verify_tokens(self) -> int | None:
        """Return the rows of a verify pass a request."""
        rates = self.spec_decode_per_position_acceptance_rates
        return len(rates) + 1 if rates else None


def recognises(head: bytes) -> bool:
    """Say whether a file that begins with `head` is such a result."""
    return head.lstrip()[:1] == b"{" and b'"completed":' in head and b'ttft_ms":' in head


def read(log: Log) -> Iterator[Read]:
    """Yield a run's latencies, then the cycle or step that its TPOT says, and the facts."""
    steps: list[Steps] = []
    model: str | None = None
    for line, result in _results(log):
        model = model or model_of(result.model_id or "")
        yield from _measurements(result, log, line)
        found = _steps(result, line)
        if found is not None:
            steps.append(found)
    if steps:
        facts = Facts(file=log.file, steps=tuple(steps), system=System(model=model))
        yield facts
        yield from serving_records.measurements(facts, log)


def _results(log: Log) -> Iterator[tuple[int, Result]]:
    """Yield the runs of a file: one object over several lines, or an object a line."""
    for line, data in json_documents.lines(log.stream, log.file):
        if line == 1 and data.strip() == b"{":
            rest = json_documents.LARGEST_BYTES
            whole = data + log.stream.read(rest)
            yield 1, json_documents.decoded(whole, log.file, Result)
            return
        yield line, json_documents.decoded(data, f"{log.file}:{line}", Result)


def _steps(result: Result, line: int) -> Steps | None:
    tpot_ms, acceptance = result.median_tpot_ms, result.acceptance
    if tpot_ms is None or not 0 < tpot_ms < 1e5:
        return None
    return Steps(
        line=line,
        engine=_engine(result),
        mode="decode" if acceptance is None else "verify",
        seconds=(tpot_ms * 1e-3 * (acceptance or 1.0),),
        running=result.running,
        verify_tokens=result.verify_tokens,
        acceptance=acceptance,
        acceptances=() if acceptance is None else (acceptance,),
        windows=result.completed,
        flags=(serving_records.FROM_TPOT,),
    )


def _engine(result: Result) -> str:
    name = (result.backend or result.endpoint_type or "").lower()
    return next((known for known in ("sglang", "vllm") if known in name), "server")


def _measurements(result: Result, log: Log, line: int) -> Iterator[Measurement]:
    if result.completed < 1:
        raise Unreadable(f"{log.file}:{line}: no request was completed; give a run that was")
    for op, mean, median, p99 in (
        ("ttft", result.mean_ttft_ms, result.median_ttft_ms, result.p99_ttft_ms),
        ("tpot", result.mean_tpot_ms, result.median_tpot_ms, result.p99_tpot_ms),
        ("itl", result.mean_itl_ms, result.median_itl_ms, result.p99_itl_ms),
        (
            "e2e",
            result.mean_e2e_latency_ms or result.mean_e2el_ms,
            result.median_e2e_latency_ms or result.median_e2el_ms,
            result.p99_e2e_latency_ms or result.p99_e2el_ms,
        ),
    ):
        if median is None or not 0 < median < 1e9:
            continue
        yield Measurement(
            source="imported",
            part="generation",
            op=op,
            implementation=_engine(result),
            kind="baseline-different-work",
            case=f"{result.running or 'not known'} running",
            status="ok",
            dims=_dims(result),
            mode="verify" if result.acceptance is not None else None,
            median_s=median * 1e-3,
            p99_s=p99 * 1e-3 if p99 is not None and p99 >= 0 else None,
            count=result.completed,
            method=_method(mean, result),
            environment=log.environment,
            command=log.command,
            origin=Origin(log.file, line),
        )


def _dims(result: Result) -> dict[str, Value]:
    known: dict[str, Value | None] = {
        "requests": result.running,
        "acceptance": result.acceptance,
        "rows": result.verify_tokens,
        "output_tokens": result.total_output_tokens,
    }
    return {name: value for name, value in known.items() if value is not None}


def _method(mean_ms: float | None, result: Result) -> dict[str, Value]:
    found: dict[str, Value] = {"sample": "a request, as the client sees it"}
    if mean_ms is not None:
        found["mean_s"] = mean_ms * 1e-3
    if result.output_throughput is not None:
        found["output_tok_s"] = result.output_throughput
    return found
