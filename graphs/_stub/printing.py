"""What a person sees of measured passes: modes, parts with the closure, classes.

Lines that begin with # are no rows of a table, as in nccl-tests. Where stdout is no terminal, rows
are tab-separated and begin with the case's rows and context.
"""

import sys
from collections.abc import Iterator, Sequence

from graphs._stub.asked import Case
from graphs._stub.messages import Ablated, Built, Graphed, Passed, Planned, Profiled, Replayed
from graphs.ablation import Account, Closure, PartCost
from verifyscope import cli, units
from verifyscope.parts import UNEXPLAINED, class_of
from verifyscope.stats import Summary, summarise

_PARTS = ("isolated", "marginal", "95 %", "in context")


def begin(case: Case, *, device: str, ranks: int) -> None:
    """Say what is measured now."""
    size = ", shrunk to fit a CPU: no time of the real model" if case.shrunk else ""
    cli.print_remark(
        f"measured on {ranks} {device} rank{'s' if ranks > 1 else ''}: {case.model.name}{size}, "
        f"tp {case.tp}, layers {case.model.layers}, rows {case.rows}, requests {case.requests}, "
        f"context {case.context}, tree {case.tree}, attention {case.attention}, "
        f"all-reduce {case.reduce}"
    )


def built(found: Built) -> None:
    """Say what the stub was built of."""
    used = [
        f"{name.removeprefix('impl_')} {value}"
        for name, value in found.facts.items()
        if name.startswith("impl_")
    ]
    held = found.facts.get("held_bytes", 0)
    cli.print_remark(
        f"{found.facts.get('weight_sets')} distinct layers, "
        f"{units.bytes_(float(held))} of weights and cache a rank; {', '.join(used)}"
    )
    if "copied_into" in found.facts:
        cli.print_remark(
            f"inputs are copied into {found.facts['copied_into']}, which no engine does"
        )


def passed(case: Case, found: Passed) -> None:
    """Print the time of a mode."""
    summary = summarise(found.samples)
    cells = [
        found.mode,
        units.seconds(summary.median),
        _range(summary),
        "-" if found.host_s is None else units.seconds(found.host_s.median),
        "-" if found.launches is None else str(found.launches),
        found.cache,
    ]
    _rows(case, "pass", [cells], ("mode", "time", "95 %", "host launch", "launches", "cache"))


def taken_apart(case: Case, found: Ablated) -> None:
    """Print the parts of a pass, their sum, and what is left unexplained."""
    account = found.account
    rows = [*map(list, _parts(account)), *map(list, _closures(account))]
    _rows(case, f"part, {found.mode}", rows, ("part", "class", *_PARTS))
    if len(found.reduce_by_rank_s) > 1:
        skew = max(found.reduce_by_rank_s) - min(found.reduce_by_rank_s)
        cli.print_remark(
            f"all-reduces, between the rank that waits least and most: {units.seconds(skew)}"
        )


def profiled(case: Case, found: Profiled, account: Account | None) -> None:
    """Print the classes as the profiler saw them, beside the parts where they stand and taken out.

    account: of the same mode, if it was taken apart.
    """
    costs = () if account is None else account.parts
    rows = []
    for name, seconds in found.by_class_s.items():
        mine = [cost for cost in costs if class_of(cost.part) == name]
        context = _added([cost.in_context for cost in mine])
        marginal = _added([cost.marginal for cost in mine])
        beside = ["-" if one is None else _signed(one) for one in (context, marginal)]
        off = "-" if context is None else _signed(seconds - context)
        rows.append([name, units.seconds(seconds), *beside, off])
    if found.idle_s is not None:
        rows.append(["idle between kernels", units.seconds(found.idle_s), "-", "-", "-"])
    header = ("class", f"by {found.by}", "in context", "marginal", "apart")
    _rows(case, f"class, {found.mode}", rows, header)


def _added(costs: Sequence[Summary | None]) -> float | None:
    """Return the sum of medians; None where one lacks, or there is none."""
    known = [one.median for one in costs if one is not None]
    return sum(known) if known and len(known) == len(costs) else None


def graphed(found: Graphed) -> None:
    """Say what a captured graph holds and what it costs once."""
    kinds = ", ".join(f"{count} {kind}" for kind, count in found.kinds.items())
    upload = "" if found.upload_s is None else f", upload {units.seconds(found.upload_s)}"
    cli.print_remark(
        f"{found.mode}: {found.graphs} graph{'s' if found.graphs > 1 else ''}, "
        f"nodes: {kinds or found.not_opened}; instantiate {units.seconds(found.instantiate_s)}"
        f"{upload}, first launch {units.seconds(found.first_launch_s)}"
    )


def replayed(found: Replayed) -> None:
    """Say whether a replay equals an eager pass."""
    how = "bit for bit" if found.bitwise else f"within {found.error:.1e}"
    where = f" with another {found.changed}" if found.changed else ""
    cli.print_remark(f"{found.mode}{where}: {found.problem or f'equals eager {how}'}")


def planned(found: Planned) -> None:
    """Say what attention plans on the host for each step."""
    cli.print_remark(f"attention plans {units.seconds(found.summary.median)} a step on the host")


def _parts(account: Account) -> Iterator[Sequence[str]]:
    for cost in account.parts:
        yield (cost.part, class_of(cost.part), *_cells(cost))
    if account.nothing is not None:
        yield ("nothing", "", units.seconds(account.nothing.median), "-", "-", "-")


def _cells(cost: PartCost) -> Iterator[str]:
    yield "-" if cost.isolated is None else units.seconds(cost.isolated.median)
    yield "-" if cost.marginal is None else _signed(cost.marginal.median)
    yield "-" if cost.marginal is None else _range(cost.marginal)
    yield "-" if cost.in_context is None else units.seconds(cost.in_context.median)


def _closures(account: Account) -> Iterator[Sequence[str]]:
    closures = (account.isolated, account.marginal, account.in_context)
    sums = ["-" if one is None else _signed(one.sum.median) for one in closures]
    left = [_left(one) for one in closures]
    whole = units.seconds(account.whole.median)
    yield ("sum", "", sums[0], sums[1], "-", sums[2])
    yield ("whole", "", whole, whole, _range(account.whole), whole)
    between = "-" if account.marginal is None else _range(account.marginal.unexplained)
    yield (UNEXPLAINED, "", left[0], left[1], between, left[2])


def _left(closure: Closure | None) -> str:
    if closure is None:
        return "-"
    return f"{_signed(closure.unexplained.median)} ({units.percent(closure.share)})"


def _signed(seconds: float) -> str:
    return f"-{units.seconds(-seconds)}" if seconds < 0 else units.seconds(seconds)


def _range(summary: Summary) -> str:
    return f"{_signed(summary.low)} to {_signed(summary.high)}"


def _rows(case: Case, what: str, rows: Sequence[Sequence[str]], header: Sequence[str]) -> None:
    if cli.is_terminal(sys.stdout):
        cli.print_remark(f"{what}")
        cli.print_rows(rows, header)
        return
    print("\t".join(("# rows", "context", "what", *header)))
    head = (str(case.rows), str(case.context), what)
    cli.print_rows([(*head, *row) for row in rows], ())
