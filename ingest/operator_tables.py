"""CSV tables of what single operators took: those of aiconfigurator's database, and our own kind.

Told apart by their header. A row is an imported time of one call:

    op_name,nccl_dtype,num_gpus,message_size,latency_us              collectives
    framework,version,impl,num_gpus,message_size,latency_us          all-reduce of frameworks, bf16
    system,fw,ver,kernel_source,kv_cache_dtype,num_heads,batch_size,step,latency_us    MLA decode
    gemm_dtype,kernel_source,m,n,k,latency_us                        products
    part,gpu,ranks,implementation,...,median_us,...,source           verifyscope/published.csv

message_size counts elements, and of an all-gather the gathered whole: read as bytes, or as one
rank's share, the largest sizes would exceed the bus. MLA: `step` + 1 tokens. Tables of experts are
those of `ingest.moe_tables`.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import cast, get_args

import msgspec

from ingest.cells import cells
from ingest.facts import Read
from ingest.log import Log
from ingest.reading_faults import Fault, findings_on
from verifyscope import published
from verifyscope.parts import PARTS
from verifyscope.privacy import redacted
from verifyscope.records import Launch, Measurement, Origin, Value

EXAMPLES = (
    "op_name,nccl_dtype,num_gpus,message_size,latency_us",
    "framework,version,impl,num_gpus,message_size,latency_us",
    "system,fw,ver,kernel_source,kv_cache_dtype,num_heads,batch_size,step,latency_us",
    "gemm_dtype,kernel_source,m,n,k,latency_us",
    ",".join(published.COLUMNS),
)
NOTHING = "a table of operators without a row that holds a time; give it whole"
_BETWEEN = r'"?[ \t]*,[ \t]*"?'
_SIGN = re.compile("|".join(rf'\A\s*"?{one.replace(",", _BETWEEN)}' for one in EXAMPLES).encode())
_GPUS = {
    "rtx_pro_6000_server": "rtx-pro-6000-server",
    "h100_sxm": "h100-sxm",
    "h200_sxm": "h200",
    "b200_sxm": "b200",
}
_TYPE_BYTES = {"half": 2, "float16": 2, "bfloat16": 2, "int8": 1, "float": 4}
_DTYPES = {"half": "float16"}
_MOST_WORDS = 60

Cells = Mapping[str, str]


class _Unreadable(Exception):
    """A row that holds no number where one must stand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """What a row says beside its time."""

    part: str
    op: str
    implementation: str
    dims: dict[str, Value]
    launch: Launch | None = None
    ranks: int | None = None
    touched_bytes: float | None = None
    method: dict[str, Value] = field(default_factory=dict)


def recognises(head: bytes) -> bool:
    """Say whether a file begins with the header of such a table."""
    return _SIGN.match(head) is not None


def read(log: Log) -> Iterator[Read]:
    """Yield a measurement a row; rows that cannot be read are counted and named."""
    columns: list[str] = []
    unread: list[int] = []
    unread_count = 0
    for line, text in log.lines:
        found = cells(text)
        if ",".join(found) in EXAMPLES:
            columns = found
        elif columns and text.strip():
            try:
                yield _measurement(columns, found, log, line)
            except (_Unreadable, ValueError, msgspec.MsgspecError):
                unread_count += 1
                unread = [*unread, line][:10]
    fault = Fault.unread("rows of a table of operators", unread, count=unread_count)
    yield from findings_on([fault] if unread_count else [], log)


def _measurement(columns: list[str], found: list[str], log: Log, line: int) -> Measurement:
    if len(found) != len(columns):
        raise _Unreadable
    row = dict(zip(columns, found, strict=True))
    case = _CASES[",".join(columns)](row)
    seconds = _above_zero(row.get("median_us") or row.get("latency_us", "")) / 1e6
    return Measurement(
        source="imported",
        part=case.part,
        op=case.op,
        implementation=case.implementation,
        kind="baseline-direct",
        case=_name(case.dims),
        status="ok",
        dims=case.dims,
        launch=case.launch,
        median_s=seconds,
        touched_bytes=case.touched_bytes,
        ranks=case.ranks,
        method={"sample": "one figure of somebody's table", **case.method},
        environment=log.environment,
        command=log.command,
        origin=Origin(log.file, line),
    )


def _name(dims: Mapping[str, Value]) -> str:
    """Return "h200-heads8-context8192" and so on: a number behind its name, a word alone."""
    return "-".join(
        value if isinstance(value, str) else f"{name}{value}" for name, value in dims.items()
    )


def _collective(row: Cells) -> _Case:
    op = {"alltoall": "all_to_all"}.get(row["op_name"], row["op_name"])
    if op not in PARTS:
        raise _Unreadable
    return _Case(
        part=op,
        op=op,
        implementation="nccl",
        dims=_message(row, row["nccl_dtype"]),
        ranks=_count(row["num_gpus"]),
    )


def _framework(row: Cells) -> _Case:
    launch = row["impl"].rpartition("_")[2]
    return _Case(
        part="all_reduce",
        op="all_reduce",
        implementation=f"{_word(row['framework'])} {_word(row['version'])}",
        dims=_message(row, "bfloat16"),
        launch=cast(Launch, launch) if launch in get_args(Launch) else None,
        ranks=_count(row["num_gpus"]),
    )


def _message(row: Cells, dtype: str) -> dict[str, Value]:
    if dtype not in _TYPE_BYTES:
        raise _Unreadable
    elements = _count(row["message_size"])
    named = _DTYPES.get(dtype, dtype)
    return {"bytes": elements * _TYPE_BYTES[dtype], "elements": elements, "dtype": named}


def _latent_attention(row: Cells) -> _Case:
    return _Case(
        part="attention",
        op="mla_generation",
        implementation=_who(row),
        dims={
            "gpu": _gpu(row),
            "heads": _count(row["num_heads"]),
            "latent": 512,
            "rope": 64,
            "rows": 1,
            "requests": _count(row["batch_size"]),
            "context": _count(row["step"]) + 1,
            "kv": _word(row["kv_cache_dtype"]),
        },
    )


def _product(row: Cells) -> _Case:
    rows, outputs, inputs = (_count(row[name]) for name in "mnk")
    form = row["gemm_dtype"]
    size = _TYPE_BYTES.get(form)
    return _Case(
        part="dense_gemm",
        op="gemm",
        implementation=_word(row["kernel_source"]),
        dims={"rows": rows, "inputs": inputs, "outputs": outputs, "format": _word(form)},
        touched_bytes=None if size is None else float(inputs * outputs * size),
    )


def _published(row: Cells) -> _Case:
    cells = {name: cell for name, cell in row.items() if cell}
    one = msgspec.convert(cells, published.Row, strict=False)
    return _Case(
        part=one.part,
        op=_OPS.get(one.part, one.part),
        implementation=_word(one.implementation),
        dims={"gpu": _word(one.gpu), **one.dims},
        launch=cast(Launch, one.launch) if one.launch in get_args(Launch) else None,
        ranks=one.ranks,
        touched_bytes=one.touched_bytes,
        method={"source": redacted(one.source)[:200]},
    )


_OPS = {"attention": "mla_generation", "routed_experts": "fused_moe", "dense_gemm": "gemm"}
_CASES: Mapping[str, Callable[[Cells], _Case]] = dict(
    zip(
        EXAMPLES,
        (_collective, _framework, _latent_attention, _product, _published),
        strict=True,
    )
)


def _who(row: Cells) -> str:
    return " ".join(_word(row[name]) for name in ("fw", "ver", "kernel_source"))


def _gpu(row: Cells) -> str:
    return _GPUS.get(row["system"], _word(row["system"]).replace("_", "-"))


def _word(text: str) -> str:
    return redacted(text)[:_MOST_WORDS]


def _count(text: str) -> int:
    if re.fullmatch(r"\d{1,12}", text) is None or int(text) == 0:
        raise _Unreadable
    return int(text)


def _above_zero(text: str) -> float:
    if re.fullmatch(r"\d{1,12}(?:\.\d{1,12})?", text) is None or not float(text) > 0:
        raise _Unreadable
    return float(text)
