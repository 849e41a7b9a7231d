"""One op of a forward pass, and how each kind of op is counted.

    linear: weights inputs x outputs, flops 2 rows x inputs x outputs
    attention: flops 2 pairs x heads x (query_dim + value_dim)

Bytes and flops are of one call on one rank; activations and cached elements are bf16. Weights are
read once a call, cached entries once a request. Entries of new rows, and all activations, count in
`read_bytes` and `written_bytes`, though most of them stay in the L2. flops are those of matrix
products, with a few per element for norms, rope and activations; softmax is left out.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from verifyscope.models import BF16, Arithmetic, Moe, WeightFormat
from verifyscope.roofline import Cost

ELEMENT_BYTES = 2
_INDEX_BYTES = 4
_NORM_FLOPS, _ROPE_FLOPS, _SWIGLU_FLOPS = 4, 3, 5  # per element


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One call on one rank. `shape` are the numbers that a stub builds it from.

    `message_bytes` is set for a collective alone: the buffer of an all-reduce, the gathered whole
    of an all-gather. Its time is that of the ranks together and not of its bytes.
    """

    part: str
    name: str
    shape: Mapping[str, float]
    weight_bytes: float = 0.0
    kv_bytes: float = 0.0
    read_bytes: float = 0.0
    written_bytes: float = 0.0
    flops: float = 0.0
    arithmetic: Arithmetic = "bf16"
    message_bytes: int | None = None

    @property
    def activation_bytes(self) -> float:
        """Return what is read and written besides weights and cached entries."""
        return self.read_bytes + self.written_bytes

    @property
    def cost(self) -> Cost:
        """Return the cost of one call, for the roofline."""
        read = self.weight_bytes + self.kv_bytes + self.read_bytes
        return Cost(flops=self.flops, read_bytes=read, written_bytes=self.written_bytes)


def expected_distinct_experts(moe: Moe, *, rows: int) -> float:
    """Return E (1 - (1 - k / E)^rows): each row takes k of E experts, all alike and on its own.

    Uniform routing gives the most distinct experts; the rows of a real block share more.
    """
    return moe.experts * (1 - (1 - moe.top_k / moe.experts) ** rows)


def linear(
    part: str,
    name: str,
    *,
    rows: int,
    inputs: int,
    outputs: int,
    format_: WeightFormat = BF16,
    batch: int = 1,
    cached_bytes: float = 0,
) -> Op:
    """Return `batch` products [rows, inputs] x [inputs, outputs]; some inputs may be cached."""
    return Op(
        part=part,
        name=name,
        shape={"batch": batch, "rows": rows, "inputs": inputs, "outputs": outputs},
        weight_bytes=format_.bytes_of(batch * inputs * outputs),
        kv_bytes=cached_bytes,
        read_bytes=batch * rows * inputs * ELEMENT_BYTES - cached_bytes,
        written_bytes=batch * rows * outputs * ELEMENT_BYTES,
        flops=2 * batch * rows * inputs * outputs,
        arithmetic=format_.arithmetic,
    )


def experts(
    name: str,
    moe: Moe,
    *,
    rows: int,
    inputs: int,
    outputs: int,
    format_: WeightFormat,
    gathers: bool,
) -> Op:
    """Return the product of each row by its top_k experts, of which only distinct ones are read.

    With `gathers` each row is read once and written top_k times; else the reverse, and summed.
    """
    distinct, chosen = expected_distinct_experts(moe, rows=rows), rows * moe.top_k
    read_rows, written_rows = (rows, chosen) if gathers else (chosen, rows)
    return Op(
        part="routed_experts",
        name=name,
        shape={
            "rows": rows,
            "experts": moe.experts,
            "top_k": moe.top_k,
            "distinct": distinct,
            "inputs": inputs,
            "outputs": outputs,
        },
        weight_bytes=distinct * format_.bytes_of(inputs * outputs),
        read_bytes=read_rows * inputs * ELEMENT_BYTES,
        written_bytes=written_rows * outputs * ELEMENT_BYTES,
        flops=2 * chosen * inputs * outputs,
        arithmetic=format_.arithmetic,
    )


def routing(moe: Moe, *, rows: int) -> Op:
    """Return scores to chosen experts and their weights."""
    return Op(
        part="routing",
        name="routing",
        shape={"rows": rows, "experts": moe.experts, "top_k": moe.top_k},
        weight_bytes=moe.experts * 4 if moe.correction_bias else 0,  # float32
        read_bytes=rows * moe.experts * ELEMENT_BYTES,
        written_bytes=rows * moe.top_k * (_INDEX_BYTES + 4),  # an expert and a float32 weight
    )


def align(moe: Moe, *, rows: int) -> Op:
    """Return the sort of (row, expert) pairs by expert, with each expert's offset."""
    chosen = rows * moe.top_k
    return Op(
        part="align",
        name="align",
        shape={"rows": rows, "experts": moe.experts, "top_k": moe.top_k},
        read_bytes=chosen * _INDEX_BYTES,
        written_bytes=(chosen + moe.experts) * _INDEX_BYTES,
    )


def attention(
    *,
    requests: int,
    rows: int,
    context: int,
    heads: int,
    query_dim: int,
    value_dim: int,
    entry: int,
    unfolded_bytes: float = 0,
) -> Op:
    """Return attention of `rows` new tokens a request over `context` cached ones and themselves.

    entry: elements that this rank's cache holds a token. A new row sees the new rows before it and
    itself, as in a chain. unfolded_bytes: keys and values that are read besides the cache.
    """
    pairs = requests * (rows * context + rows * (rows + 1) // 2)
    moved_rows = requests * rows
    return Op(
        part="attention",
        name="attention",
        shape={
            "requests": requests,
            "rows": rows,
            "context": context,
            "heads": heads,
            "query_dim": query_dim,
            "value_dim": value_dim,
            "entry": entry,
        },
        kv_bytes=requests * context * entry * ELEMENT_BYTES,
        read_bytes=moved_rows * (heads * query_dim + entry) * ELEMENT_BYTES + unfolded_bytes,
        written_bytes=moved_rows * heads * value_dim * ELEMENT_BYTES,
        flops=2 * pairs * heads * (query_dim + value_dim),
    )


def norm(
    name: str, *, rows: int, width: int, residual: bool = False, weights: int | None = None
) -> Op:
    """Return an RMSNorm; with `residual` it also adds to the residual stream and stores that."""
    moved = (2 if residual else 1) * rows * width * ELEMENT_BYTES
    return Op(
        part="norms",
        name=name,
        shape={"rows": rows, "width": width},
        weight_bytes=BF16.bytes_of(weights or width),
        read_bytes=moved,
        written_bytes=moved,
        flops=_NORM_FLOPS * rows * width,
    )


def rope(*, rows: int, width: int, cached: int) -> Op:
    """Return the rotation of queries and keys, and the store of `cached` elements a new row."""
    return Op(
        part="rope",
        name="rope",
        shape={"rows": rows, "width": width, "cached": cached},
        read_bytes=rows * (width + cached) * ELEMENT_BYTES,
        written_bytes=rows * (width + cached) * ELEMENT_BYTES,
        flops=_ROPE_FLOPS * rows * width,
    )


def activation(name: str, *, rows: int, width: int) -> Op:
    """Return silu(gate) x up."""
    return Op(
        part="activation",
        name=name,
        shape={"rows": rows, "width": width},
        read_bytes=2 * rows * width * ELEMENT_BYTES,
        written_bytes=rows * width * ELEMENT_BYTES,
        flops=_SWIGLU_FLOPS * rows * width,
    )


def embedding(*, rows: int, width: int, vocab: int, share: float) -> Op:
    """Return the look-up of rows; `share` of them lie on this rank, the others are zeros."""
    return Op(
        part="embedding",
        name="embedding",
        shape={"rows": rows, "width": width, "vocab": vocab},
        weight_bytes=share * rows * BF16.bytes_of(width),
        written_bytes=rows * width * ELEMENT_BYTES,
    )


def collective(part: str, name: str, *, rows: int, width: int) -> Op:
    """Return an exchange of [rows, width] between the ranks; it has a message, no bytes of DRAM."""
    return Op(
        part=part,
        name=name,
        shape={"rows": rows, "width": width},
        message_bytes=rows * width * ELEMENT_BYTES,
    )
