"""The section of experts: time by T with the distinct experts, cold and warm side by side.

Bytes are those of the experts that the tokens of a case chose, each once: an expert that nobody
chose costs nothing, and a tensor's size says nothing. So the distinct experts stand beside each
time, and the cold floor is theirs. `path` is the way that the rule chose (kernels/moe/_paths.py).

Times of others for such a layer are often taken with the weights of the call before still in the
L2. One that is below the cold floor of its own bytes cannot have come from DRAM, and no verify pass
will see it, for its other layers evict each other.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from reports import _growth, _kernels, _marks, _text
from reports._collected import Collected
from reports._growth import Folded, marked, merged, predicted_ops, who
from reports._kernels import Op, known_columns
from reports._markdown import code, text
from reports._points import Row
from reports._text import NOT_KNOWN, plural
from verifyscope import published
from verifyscope.hardware import TABLE
from verifyscope.records import Compiled, Measurement

ABOVE_ROOFLINE = 1.2
EXPERTS = "routed_experts"
_PARTS = ("routing", "align", EXPERTS, "shared_expert")
_OPS = ("moe_routing", "moe_align", "fused_moe", "shared_expert")
_FOLLOWS_TOKENS = ("rows", "distinct_experts")
_MOST_OTHERS = 60


@dataclass(frozen=True, slots=True)
class Moe:
    """What the section shows.

    ops: the routed experts; beside: routing, sorting and the shared expert; predicted: those of
    both whose own kernels nobody has timed on a GPU; builds: their compiled kernels; others: rows
    imported from tables of others.
    """

    ops: tuple[Op, ...]
    beside: tuple[Op, ...]
    predicted: tuple[Op, ...]
    builds: tuple[Compiled, ...]
    others: tuple[Measurement, ...]

    @property
    def all_ops(self) -> tuple[Op, ...]:
        """Return the measured ops."""
        return (*self.ops, *self.beside)

    @property
    def is_there(self) -> bool:
        """Say whether there is anything to show."""
        return bool(self.all_ops or self.predicted or self.others)


def belongs(op: Op) -> bool:
    """Say whether an op is of experts, or the planning of one that is; imported ones are too."""
    first = op.cases[0].first
    if first.part == "metadata":
        return op.name.startswith(tuple(f"{name}_plan" for name in _OPS))
    return first.part in _PARTS and first.op in _OPS


def moe(found: Collected, ops: Sequence[Op], builds: Iterable[Compiled]) -> Moe:
    """Sort out what belongs to experts; the rest of `ops` and `builds` is shown elsewhere."""
    mine = [
        Op(op.name, measured)
        for op in ops
        if belongs(op)
        and (measured := tuple(case for case in op.cases if case.first.source == "measured"))
    ]
    predicted = tuple(op for op in predicted_ops(found, _PARTS) if belongs(op))
    others = tuple(one for one in found.kernels if one.source == "imported" and one.part == EXPERTS)
    return Moe(
        ops=tuple(op for op in mine if _is_experts(op)),
        beside=tuple(op for op in mine if not _is_experts(op)),
        predicted=predicted,
        builds=tuple(build for build in builds if build.op in _OPS),
        others=others,
    )


def _is_experts(op: Op) -> bool:
    return op.cases[0].first.part == EXPERTS


def _experts(moe: Moe) -> list[Op]:
    return [op for op in (*moe.ops, *moe.predicted) if _is_experts(op)]


# ---- Time by T ----


def tables(moe: Moe, found: Collected) -> list[tuple[str, Folded]]:
    """Return a table of each shape and format, the one of most rows first and the others folded."""
    groups: dict[str, list[Row]] = {}
    for op in _experts(moe):
        for row in op.rows:
            groups.setdefault(_shape(row.point.main), []).append(row)
    ordered = sorted(groups.items(), key=lambda item: -len(item[1]))
    return [
        (
            name,
            Folded(_table(of_shape, found), "") if at == 0 else Folded("", _table(of_shape, found)),
        )
        for at, (name, of_shape) in enumerate(ordered)
    ]


def _shape(one: Measurement) -> str:
    """Return the words for which experts these are: a model's, or their sizes."""
    dims = one.dims
    if "model" in dims:
        who_ = f"{dims['model']}, TP {dims.get('tp', '?')}"
    else:
        who_ = (
            f"{dims.get('experts', '?')} experts of {dims.get('hidden', '?')} x "
            f"{dims.get('intermediate', '?')}, top {dims.get('top_k', '?')}"
        )
    shared = ", with the shared expert" if dims.get("shared") else ""
    return f"{who_}, {dims.get('format', '?')}{shared}"


def _table(of_shape: Sequence[Row], found: Collected) -> str:
    lines = []
    for row in sorted(of_shape, key=lambda row: _order(row.point.main)):
        main, warm = row.point.main, row.point.warm
        name, where = who(main, found)
        mark = marked(main)
        cells = (
            mark(_growth.time(main)),
            _text.median(warm),
            _of_floor(main),
            NOT_KNOWN if row.ratio is None else f"{_kernels.ratio(row)} {row.ratio.verdict}",
        )
        path = main.effective.get("path", main.method.get("path", NOT_KNOWN))
        lines.append((name, *_case_cells(main), where, str(path), *cells))
    joined = [
        (*case, names, *rest) for names, *line in merged(lines) for case, rest in [_split(line)]
    ]
    header = (
        *("T", "routing", "distinct experts", "touches", "floor", "implementation", "on"),
        *("path", "cold", "warm", "of floor", "to baseline"),
    )
    return known_columns(header, _without_repeats(joined), always=5, align="rlrrrlllrrrr")


def _of_floor(one: Measurement) -> str:
    """Return the floor's share of a time; a prediction is made of its floor, and has none."""
    return NOT_KNOWN if one.source == "predicted" else _text.of_floor(one)


_CASE_CELLS = 5


def _case_cells(one: Measurement) -> tuple[str, ...]:
    dims = one.dims
    distinct = dims.get("distinct_experts")
    return (
        str(dims.get("rows", NOT_KNOWN)),
        text(str(dims.get("routing", NOT_KNOWN))),
        NOT_KNOWN if distinct is None else f"{distinct} of {dims.get('experts', '?')}",
        _text.size(one.touched_bytes),
        _text.floor(one),
    )


def _split(line: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    return line[:_CASE_CELLS], line[_CASE_CELLS:]


def _without_repeats(lines: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Leave the case's cells empty where they repeat those of the line before."""
    shown: list[tuple[str, ...]] = []
    before: list[str] = []
    for line in lines:
        case, rest = _split(line)
        seen = [_marks.removed(cell) for cell in case]
        shown.append((*([""] * _CASE_CELLS if seen == before else case), *rest))
        before = seen
    return shown


def _order(one: Measurement) -> tuple[int, str, float]:
    rows = one.dims.get("rows")
    return rows if isinstance(rows, int) else 0, str(one.dims.get("routing")), one.median_s or 0.0


# ---- Growth, what is beside, what unpacking costs ----


def axes(moe: Moe, found: Collected) -> dict[str, Folded]:
    """Return time(T) of each op of experts, and its growth against the roofline's."""
    names = list(dict.fromkeys(op.name for op in _experts(moe)))
    return {
        name: _growth.axis(
            [op for op in _experts(moe) if op.name == name], found, above=ABOVE_ROOFLINE
        )
        for name in names
    }


def beside_table(moe: Moe, found: Collected) -> str:
    """Return what routing, sorting and the shared expert take, quickest to slowest case."""
    predicted = (op for op in moe.predicted if not _is_experts(op))
    return _growth.beside_table([*moe.beside, *predicted], found)


def unpacking_table(moe: Moe) -> str:
    """Return the instructions a loaded byte of each format, in the loops that load the weights.

    Of the kernels of an implementation that one counts whose loop loads most.
    """
    found: dict[tuple[str, str], dict[int, Compiled]] = {}
    for build in moe.builds:
        if build.instructions_per_byte is None or build.op != "fused_moe":
            continue
        cells = found.setdefault((build.implementation, _format(build.case)), {})
        known = cells.get(build.capability)
        if known is None or (known.loop_loaded_bytes or 0) < (build.loop_loaded_bytes or 0):
            cells[build.capability] = build
    columns = sorted({capability for cells in found.values() for capability in cells})
    lines = [
        (code(name), text(form), *(_per_byte(cells.get(column)) for column in columns))
        for (name, form), cells in sorted(found.items())
    ]
    header = ("implementation", "format", *(f"sm_{column}" for column in columns))
    return known_columns(header, lines, always=2, align="ll" + "r" * len(columns)) if lines else ""


def _format(case: str) -> str:
    """Return the format that the name of a case says."""
    return next((word for word in case.split("-") if word in ("bf16", "fp8", "int4")), "?")


def _per_byte(build: Compiled | None) -> str:
    if build is None or build.instructions_per_byte is None:
        return NOT_KNOWN
    return _text.ratio(build.instructions_per_byte)


# ---- Tables of others ----


@dataclass(frozen=True, slots=True)
class Claim:
    """A time that others give, and what the bytes of its experts take at least from DRAM.

    reached_s: what they take at the rate that large products are known to reach there, if it is.
    """

    row: Measurement
    cold_s: float
    reached_s: float | None
    fits_l2: bool | None

    @property
    def is_impossible(self) -> bool:
        """Say whether it is too quick to have come from DRAM."""
        return (self.row.median_s or 0.0) < self.cold_s


def claims(moe: Moe) -> list[Claim]:
    """Hold each imported row to its cold floor; rows of an unknown GPU or of no bytes are left."""
    found = []
    for one in moe.others:
        gpu = TABLE.get(str(one.dims.get("gpu", "")))
        if gpu is None or gpu.dram_bytes_per_s is None or one.touched_bytes is None:
            continue
        fits = None if gpu.l2_bytes is None else one.touched_bytes <= gpu.l2_bytes
        known = published.reached(gpu.name)
        reached_s = one.touched_bytes / known.bytes_per_s if known else None
        found.append(Claim(one, one.touched_bytes / gpu.dram_bytes_per_s, reached_s, fits))
    return found


def claims_sentence(held: Sequence[Claim]) -> str:
    """Say how many of the rows cannot be cold."""
    if not held:
        return ""
    wrong = sum(claim.is_impossible for claim in held)
    within = sum(claim.is_impossible and claim.fits_l2 is True for claim in held)
    words = f"Of {plural(len(held), 'row')} that others measured, {wrong:,} cannot have been cold"
    if wrong:
        words += f"; of these, {within:,} touch no more experts than fit in the L2"
    return f"{words}."


def claims_table(held: Sequence[Claim]) -> Folded:
    """Return the impossible rows first, then the others, both in the order of GPU, format and T."""
    ordered = sorted(held, key=lambda claim: _claim_order(claim.row))
    wrong = [claim for claim in ordered if claim.is_impossible]
    fine = [claim for claim in ordered if not claim.is_impossible]
    left_out = max(0, len(wrong) - _MOST_OTHERS) + max(0, len(fine) - _MOST_OTHERS)
    return Folded(
        _claims_table(wrong[:_MOST_OTHERS]), _claims_table(fine[:_MOST_OTHERS]), left_out=left_out
    )


def _claims_table(held: Sequence[Claim]) -> str:
    lines = [
        (
            text(str(claim.row.dims.get("gpu"))),
            text(f"{claim.row.dims.get('format')}, {claim.row.dims.get('experts')} experts"),
            *_case_cells(claim.row)[:4],
            code(claim.row.implementation),
            _text.median(claim.row),
            _held(claim, claim.cold_s, "DRAM bandwidth of that GPU"),
            _held(claim, claim.reached_s, "rate that large products reach there"),
            _text.bandwidth(claim.row),
            _verdict(claim),
        )
        for claim in held
    ]
    header = (
        *("GPU", "weights", "T", "routing", "distinct experts", "touches", "by"),
        *("they measured", "cold floor", "as reached", "would be", "so"),
    )
    return known_columns(header, lines, always=3, align="llrlrrlrrrrl") if lines else ""


def _held(claim: Claim, seconds: float | None, rate: str) -> str:
    words = _text.duration(seconds)
    return _marks.derived(words, [claim.row], f"touched bytes / {rate}", predicted=True)


def _verdict(claim: Claim) -> str:
    if not claim.is_impossible:
        reached = claim.reached_s is None or (claim.row.median_s or 0.0) >= claim.reached_s
        return "may be cold" if reached else "quicker than DRAM is known to be"
    if claim.fits_l2:
        return "**not cold**: it fits in the L2"
    return "**not cold**"


def _claim_order(one: Measurement) -> tuple[str, str, str, int, str]:
    dims = one.dims
    rows = dims.get("rows")
    return (
        str(dims.get("gpu")),
        str(dims.get("format")),
        str(dims.get("routing")),
        rows if isinstance(rows, int) else 0,
        one.implementation,
    )


def missing(moe: Moe) -> list[str]:
    """Return what is not in the records, and how to get it."""
    if not moe.is_there:
        command = code("pytest suites/ --benchmark-only -k moe")
        return [f"**MoE**: no kernel was timed, built or predicted: {command}."]
    lines = []
    if not any(row.point.main.kind == "own" for op in moe.ops for row in op.rows):
        command = code("pytest suites/ --benchmark-only -k fused_moe")
        lines.append(f"**MoE**: no own kernel of the experts was timed: on a GPU, {command}.")
    if not moe.builds:
        command = code("python -m kernels --compile --op fused_moe --records FILE")
        lines.append(f"**MoE**: no kernel was built: {command}; no GPU is needed.")
    if not moe.others:
        lines.append(
            f"**MoE**: no tables of others: {code('python -m ingest FILE --records FILE')} "
            f"reads them."
        )
    return lines
