"""Tables of expert times by others, CSV as aiconfigurator collects it: a row is a `fused_moe`.

    framework,version,device,op_name,kernel_source,moe_dtype,num_tokens,hidden_size,inter_size,topk,
    num_experts,moe_tp_size,moe_ep_size,distribution,latency                        latency in ms
    system,fw,ver,kernel_source,moe_dtype,num_experts,distribution,num_tokens,latency_us

Columns are told by their names, in any order. The second form is of tables that name no sizes:
theirs are those of DeepSeek-V3 and Kimi-K2 (hidden 7168, intermediate 2048, top 8) under TP 8, as
their description says, and the records say so.

A row takes one rank's experts; `intermediate` is that of a rank. Distinct experts are known where
routing is `balanced`, which the collector draws by a rule (`distinct_balanced`), and the known
model of these sizes chooses among all experts. DeepSeek-V3's are in groups: what frameworks that
route so choose of balanced logits is not known, and rows of some are too quick for all 256. From
the distinct experts come the touched bytes: weights and scales, once. int4 has groups as wide as
the known model of these sizes has them, else 128.

The collector calls a layer again and again with the same experts, does not flush, and chooses the
experts within what it times. So a row is warm where they fit in the L2: times below what DRAM gives
for their bytes are a finding. Source: collector/sglang/collect_moe.py and collector/helper.py of
ai-dynamo/aiconfigurator.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache

from ingest.cells import cells
from ingest.conclusions import MOST_EVIDENCE, Conclusion, Seen, percent
from ingest.facts import Read
from ingest.log import Log
from ingest.number import count, number
from ingest.reading_faults import Fault, findings_on
from verifyscope import hardware, models, units
from verifyscope.records import Finding, Measurement, Origin, Value

EXAMPLE = (
    "framework,version,device,op_name,kernel_source,moe_dtype,num_tokens,hidden_size,inter_size,"
    "topk,num_experts,moe_tp_size,moe_ep_size,distribution,latency",
    "system,fw,ver,kernel_source,moe_dtype,num_experts,distribution,num_tokens,latency_us",
)
NOTHING = "a table of expert times without a row that can be read; give it with its header, whole"
_SIGN = re.compile(
    rb"^(?=[^\n]*\bmoe_dtype\b)(?=[^\n]*\bnum_experts\b)(?=[^\n]*\bnum_tokens\b)"
    rb"(?=[^\n]*\blatency(?:_us)?\b)[\w,\" \t]{1,600}\r?$",
    re.MULTILINE,
)
_NAMES = {"system": "device", "fw": "framework", "ver": "version"}
_WORDS = ("device", "framework", "kernel_source", "moe_dtype", "distribution")
_SIZES = ("hidden_size", "inter_size", "topk", "moe_tp_size")
_WHOLES = (*_SIZES, "num_experts", "num_tokens", "moe_ep_size")
_DESCRIBED = {"hidden_size": "7168", "inter_size": "2048", "topk": "8", "moe_tp_size": "8"}
_WORD = re.compile(r"[A-Za-z][\w .+-]{0,95}")
_VERSION = re.compile(r"\d[\w.+-]{0,31}")
_FORMATS = {
    "int4_wo": "int4",
    "fp8_block": "fp8",
    "fp8": "fp8 per tensor",
    "bfloat16": "bf16",
    "float16": "fp16",
    "nvfp4": "nvfp4",
}
_STORED = {
    "int4": models.integer_groups(4, 128),
    "fp8": models.fp8_blocks(),
    "fp8 per tensor": models.WeightFormat(name="fp8", bits=8),
    "bf16": models.BF16,
    "fp16": models.WeightFormat(name="fp16", bits=16),
    "nvfp4": models.WeightFormat(name="nvfp4", bits=4, elements_per_scale=16, scale_bytes=1),
}
_LATENCIES = {"latency_us": 1e-6, "latency": 1e-3}
_MOST_KEYS = 100_000
_LARGEST = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One time: of `tokens` rows, by one rank's experts; `experts` are those of all ranks."""

    line: int
    gpu: str
    framework: str
    kernel: str
    form: str
    routing: str
    tokens: int
    experts: int
    top_k: int
    hidden: int
    intermediate: int
    tp: int
    ep: int
    seconds: float
    described: bool

    @property
    def key(self) -> tuple[object, ...]:
        """Return what makes it another point than others."""
        who = (self.gpu, self.framework, self.kernel, self.form, self.routing, self.tokens)
        return (*who, self.experts, self.top_k, self.hidden, self.intermediate, self.tp, self.ep)

    @property
    def known(self) -> tuple[models.Model, ...]:
        """Return the known models of these experts."""
        sizes = (self.experts, self.top_k, self.hidden, self.intermediate * self.tp)
        return tuple(
            known
            for known in models.TABLE.values()
            if known.moe is not None
            and sizes == (known.moe.experts, known.moe.top_k, known.hidden, known.moe.intermediate)
        )

    @property
    def distinct(self) -> int | None:
        """Return how many experts these tokens choose; None where that is not known."""
        groups = {known.moe.groups for known in self.known if known.moe is not None}
        if self.routing != "balanced" or self.ep != 1 or groups != {1}:
            return None
        return distinct_balanced(self.tokens, experts=self.experts, top_k=self.top_k)

    @property
    def stored(self) -> models.WeightFormat | None:
        """Return how a weight is stored; int4 as the known model has it."""
        own = [known.formats.routed_experts for known in self.known]
        fits = [one for one in own if one.name.split()[0] == self.form == "int4"]
        return fits[0] if fits else _STORED.get(self.form)

    @property
    def touched_bytes(self) -> float | None:
        """Return the bytes of the distinct experts, scales included; None where not known."""
        if self.distinct is None or self.stored is None:
            return None
        return self.stored.bytes_of(self.distinct * 3 * self.hidden * self.intermediate)


def distinct_balanced(tokens: int, *, experts: int, top_k: int) -> int:
    """Return the distinct experts of aiconfigurator's balanced routing.

    Choice i of token t is expert (s + i ceil(E / k)) mod E, s = t where there are as many tokens
    as ceil(E / k), else the whole part of t ceil(E / k) / T. So more tokens than experts choose
    what as many as those do.
    """
    return _distinct_balanced(min(tokens, experts), experts, top_k)


@cache  # of at most as many numbers of tokens as a known model has experts
def _distinct_balanced(tokens: int, experts: int, top_k: int) -> int:
    stride = math.ceil(experts / top_k)
    starts = {
        token if tokens >= stride else int(token * stride / tokens) for token in range(tokens)
    }
    return len({(start + i * stride) % experts for start in starts for i in range(top_k)})


def recognises(head: bytes) -> bool:
    """Say whether a file that begins with `head` is such a table, with its header."""
    return _SIGN.search(head) is not None


def read(log: Log) -> Iterator[Read]:
    """Yield a measurement a row, then what looks wrong in them."""
    reader = _Reader()
    for line, text in log.lines:
        row = reader.take(line, text)
        if row is not None:
            yield _measurement(row, log)
    yield from reader.findings(log)


@dataclass(slots=True)
class _Reader:
    """Reads rows under the last header, and remembers what findings need."""

    columns: list[str] = field(default_factory=list)
    unread: list[int] = field(default_factory=list)
    unread_count: int = 0
    seen: dict[tuple[object, ...], tuple[int, float]] = field(default_factory=dict)
    twice: int = 0
    widest: tuple[float, int, int] = (0.0, 0, 0)
    held: int = 0
    warm: list[tuple[float, Row, float]] = field(default_factory=list)
    warm_count: int = 0

    def take(self, line: int, text: str) -> Row | None:
        """Read one line; None if it is no row."""
        if not text.strip():
            return None
        found = cells(text)
        if "moe_dtype" in found and "num_experts" in found:
            self.columns = [_NAMES.get(cell, cell) for cell in found]
            return None
        if not self.columns:
            return None
        row = None
        if len(found) == len(self.columns) == len(set(self.columns)):
            row = _row(line, dict(zip(self.columns, found, strict=True)))
        if row is None:
            self.unread_count += 1
            self.unread = [*self.unread, line][:MOST_EVIDENCE]
            return None
        self._remember(row)
        return row

    def _remember(self, row: Row) -> None:
        before = self.seen.get(row.key)
        if before is not None:
            self.twice += 1
            apart = max(before[1], row.seconds) / min(before[1], row.seconds) - 1
            self.widest = max(self.widest, (apart, before[0], row.line))
        elif len(self.seen) < _MOST_KEYS:
            self.seen[row.key] = (row.line, row.seconds)
        gpu, touched = hardware.TABLE.get(row.gpu), row.touched_bytes
        if gpu is None or gpu.dram_bytes_per_s is None or touched is None:
            return
        self.held += 1
        cold_s = touched / gpu.dram_bytes_per_s
        if cold_s > row.seconds:
            self.warm_count += 1
            found = (cold_s / row.seconds, row, cold_s)
            self.warm = sorted([*self.warm, found], key=lambda one: -one[0])[:MOST_EVIDENCE]

    def findings(self, log: Log) -> Iterator[Finding]:
        """Yield what was not read, what stands twice, and what cannot have been cold."""
        unread = Fault.unread("rows", self.unread, count=self.unread_count)
        yield from findings_on([unread] if unread.count else [], log)
        if self.twice:
            apart, one, other = self.widest
            repeated = Fault(
                "rows-repeated",
                self.twice,
                f"{self.twice:,} rows repeat the point of a row before, up to {percent(apart)} "
                f"apart: that is the noise of these times; all are kept",
                ((one, "first"), (other, "again")),
            )
            yield from findings_on([repeated], log)
        if self.warm:
            yield self._warm(log.file).finding(environment=log.environment, command=log.command)

    def _warm(self, file: str) -> Conclusion:
        _, worst, cold_s = self.warm[0]
        title = hardware.TABLE[worst.gpu].title
        return Conclusion(
            name="warm-benchmark",
            sentence=f"{self.warm_count:,} of {self.held:,} times whose experts are known are "
            f"shorter than DRAM needs for them: {worst.distinct} experts of {worst.form} for "
            f"{worst.tokens} rows are {units.bytes_(worst.touched_bytes or 0.0)}, at least "
            f"{units.seconds(cold_s)} on {title}, and the table says "
            f"{units.seconds(worst.seconds)}: they stay in the L2 from call to call, and a "
            f"model's will not",
            seen=tuple(
                Seen(file, row.line, f"{units.seconds(row.seconds)}, cold {units.seconds(least_s)}")
                for _, row, least_s in self.warm
            ),
            next_action="hold cold kernels to the cold floor of the report, not to these times",
        )


def _row(line: int, named: Mapping[str, str]) -> Row | None:
    """Return the row of these cells; None where one is missing or no such value."""
    described = not any(name in named for name in _SIZES)
    known = {"moe_ep_size": "1", "version": "0", **(_DESCRIBED if described else {}), **named}
    if any(name not in known for name in (*_WORDS, *_WHOLES)):
        return None
    words = {name: known[name] for name in _WORDS}
    wholes = {name: count(known[name]) or 0 for name in _WHOLES}
    tokens, experts, tp = wholes["num_tokens"], wholes["num_experts"], wholes["moe_tp_size"]
    seconds = _seconds(known)
    if (
        seconds is None
        or not all(_WORD.fullmatch(word) for word in words.values())
        or not _VERSION.fullmatch(known["version"])
        or not all(1 <= whole <= _LARGEST for whole in wholes.values())
        or wholes["topk"] > experts
        or wholes["inter_size"] % tp
    ):
        return None
    return Row(
        line=line,
        gpu=_gpu(words["device"]),
        framework=f"{words['framework'].lower()} {known['version']}",
        kernel=words["kernel_source"],
        form=_FORMATS.get(words["moe_dtype"], words["moe_dtype"]),
        routing=words["distribution"],
        tokens=tokens,
        experts=experts,
        top_k=wholes["topk"],
        hidden=wholes["hidden_size"],
        intermediate=wholes["inter_size"] // tp,
        tp=tp,
        ep=wholes["moe_ep_size"],
        seconds=seconds,
        described=described,
    )


def _seconds(named: Mapping[str, str]) -> float | None:
    """Return the time, whose column says its unit; None where there is none, or there are two."""
    (scale, *more) = [scale for name, scale in _LATENCIES.items() if name in named] or [0.0]
    value = number(next((named[name] for name in _LATENCIES if name in named), ""))
    return value * scale if value and not more else None


def _gpu(word: str) -> str:
    """Return the name in the table of GPUs, of a system ("h200_sxm") or of a device, if known."""
    known = hardware.match(word)
    plain = re.sub(r"[^a-z0-9]+", "-", word.lower()).strip("-")
    for name in (known.name if known else plain, plain.removesuffix("-sxm")):
        if name in hardware.TABLE:
            return name
    return plain


def _measurement(row: Row, log: Log) -> Measurement:
    who = f"e{row.experts}k{row.top_k}-h{row.hidden}-i{row.intermediate}"
    dims: dict[str, Value] = {
        "rows": row.tokens,
        "experts": row.experts,
        "top_k": row.top_k,
        "hidden": row.hidden,
        "intermediate": row.intermediate,
        "format": row.form,
        "routing": row.routing,
        "tp": row.tp,
        "ep": row.ep,
        "gpu": row.gpu,
        "framework": row.framework,
    }
    method: dict[str, Value] = {
        "sample": "a mean over calls that repeat the same experts, nothing flushed between them",
        "includes": "the choice of the experts",
        "sizes_from": "the table's description" if row.described else "the row",
    }
    if row.distinct is not None:
        dims["distinct_experts"] = row.distinct
    if row.stored is not None:
        method["stored"] = row.stored.name
    return Measurement(
        source="imported",
        part="routed_experts",
        op="fused_moe",
        implementation=row.kernel,
        kind="baseline-different-work",
        case=f"t{row.tokens}-{who}-{row.form.replace(' ', '-')}-{row.routing}",
        status="ok",
        dims=dims,
        median_s=row.seconds,
        touched_bytes=row.touched_bytes,
        method=method,
        environment=log.environment,
        command=log.command,
        origin=Origin(log.file, row.line),
    )
