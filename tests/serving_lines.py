"""Lines of serving logs with chosen numbers, and what is read from them and concluded."""

from collections.abc import Iterable
from io import BytesIO

from ingest import server_log
from ingest.conclusions import Conclusion
from ingest.facts import Facts
from ingest.log import Log, numbered_lines
from ingest.verdict import conclusions
from verifyscope.records import Finding, Measurement


def sglang(
    rate: float,
    *,
    running: int = 1,
    tokens: int | None = None,
    accept: float | None = None,
    graph: str | None = "True",
    second: int = 0,
    tag: str = "TP0",
) -> str:
    """One decode line, as SGLang prints it."""
    stamp = f"2026-01-05 10:{second // 60:02d}:{second % 60:02d}"
    fields = [f"#running-req: {running}"]
    fields += [] if tokens is None else [f"#token: {tokens}", "token usage: 0.10"]
    fields += [] if accept is None else [f"accept len: {accept:.2f}"]
    fields += [] if graph is None else [f"cuda graph: {graph}"]
    fields += [f"gen throughput (token/s): {rate:.2f}", "#queue-req: 0"]
    return f"[{stamp} {tag}] Decode batch, {', '.join(fields)}"


def steady(
    cycle_ms: float,
    *,
    accept: float | None = None,
    running: int = 1,
    windows: int = 6,
    graph: str | None = "True",
    start: int = 1000,
    jitter: Iterable[float] = (0.0,),
) -> str:
    """Windows of 40 steps at one load, whose tokens grow as they must."""
    made, tokens, lines = accept or 1.0, start, []
    offsets = list(jitter)
    for window in range(windows):
        tokens += round(40 * made * running)
        cycle = cycle_ms * (1 + offsets[window % len(offsets)])
        rate = 1000 * made * running / cycle
        lines.append(
            sglang(rate, running=running, tokens=tokens, accept=accept, graph=graph, second=window)
        )
    return "\n".join(lines) + "\n"


def vllm(
    cycle_ms: float,
    *,
    running: int = 1,
    accepted: float = 1.5,
    k: int = 3,
    prompt: float = 0.0,
    generated: float | None = None,
    second: int = 0,
) -> str:
    """An engine line and its drafts: 1,000 cycles of k tokens, of which `accepted` are taken."""
    length = 1 + accepted
    rate = 1000 * length * running / cycle_ms if generated is None else generated
    drafted_rate = 1000 * k * running / cycle_ms
    stamp = f"INFO 01-05 09:{second // 60:02d}:{second % 60:02d}"
    each = ", ".join(f"{accepted / k:.3f}" for _ in range(k))
    return (
        f"(APIServer pid=1) {stamp} [loggers.py:271] Engine 000: Avg prompt throughput: "
        f"{prompt:.1f} "
        f"tokens/s, Avg generation throughput: {rate:.1f} tokens/s, Running: {running} reqs, "
        f"Waiting: 0 reqs, GPU KV cache usage: 0.6%, Prefix cache hit rate: 0.0%\n"
        f"(APIServer pid=1) {stamp} [metrics.py:101] SpecDecoding metrics: Mean acceptance length: "
        f"{length:.2f}, Accepted throughput: {drafted_rate * accepted / k:.2f} tokens/s, Drafted "
        f"throughput: {drafted_rate:.2f} tokens/s, Accepted: {accepted * 1000:.0f} tokens, "
        f"Drafted: "
        f"{k * 1000} tokens, Per-position acceptance rate: {each}, Avg Draft acceptance rate: "
        f"50.0%\n"
    )


def plain_vllm(step_ms: float, *, running: int = 1, second: int = 0, prompt: float = 0.0) -> str:
    """An engine line without speculation."""
    return (
        f"INFO 01-05 09:00:{second:02d} [loggers.py:271] Engine 000: Avg prompt throughput: "
        f"{prompt:.1f} tokens/s, Avg generation throughput: {1000 * running / step_ms:.1f} "
        f"tokens/s, "
        f"Running: {running} reqs, Waiting: 0 reqs, GPU KV cache usage: 0.6%\n"
    )


def read(text: str, file: str = "a.log") -> list[Facts | Measurement | Finding]:
    """Everything that a log gives."""
    stream = BytesIO(text.encode())
    log = Log(file=file, lines=numbered_lines(stream), environment="here", command="test")
    return list(server_log.read(log))


def facts_of(text: str, file: str = "a.log") -> Facts:
    """What a log says."""
    return next((one for one in read(text, file) if isinstance(one, Facts)), Facts(file=file))


def findings_of(text: str) -> dict[str, Finding]:
    """What was not read of a log, by name."""
    return {one.name: one for one in read(text) if isinstance(one, Finding)}


def times_of(text: str) -> list[Measurement]:
    """The records of a log."""
    return [one for one in read(text) if isinstance(one, Measurement)]


def concluded(*texts: str, plain_ms: float | None = None) -> dict[str, Conclusion]:
    """What logs say alone and together, by name; the first of each name."""
    found = [facts_of(text, f"{letter}.log") for letter, text in zip("abcd", texts, strict=False)]
    plain_s = None if plain_ms is None else plain_ms * 1e-3
    names: dict[str, Conclusion] = {}
    for one in conclusions(found, plain_s=plain_s):
        names.setdefault(one.name, one)
    return names
