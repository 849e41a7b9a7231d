"""The section of the compile gate: what each kernel takes on each architecture, at its worst."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from reports import _text
from reports._markdown import code, table, text
from reports._text import NOT_KNOWN
from verifyscope.records import Compiled

MOST_FAILURES = 50


@dataclass(frozen=True, slots=True)
class Kernel:
    """Everything that was compiled of one kernel."""

    op: str
    implementation: str
    name: str
    builds: tuple[Compiled, ...]

    def on(self, capability: int) -> list[Compiled]:
        """Return the builds for one architecture."""
        return [build for build in self.builds if build.capability == capability]


def latest(compiled: Iterable[Compiled]) -> list[Compiled]:
    """Return the last build of each kernel, case and architecture in each environment."""
    return list(
        {
            (b.op, b.implementation, b.kernel, b.case, b.capability, b.environment): b
            for b in compiled
        }.values()
    )


def kernels(compiled: Iterable[Compiled]) -> list[Kernel]:
    """Gather the builds by kernel."""
    groups: dict[tuple[str, str, str], list[Compiled]] = {}
    for build in compiled:
        groups.setdefault((build.op, build.implementation, build.kernel), []).append(build)
    return [Kernel(*names, tuple(builds)) for names, builds in groups.items()]


def capabilities(compiled: Iterable[Compiled]) -> list[int]:
    """Return the architectures, ascending."""
    return sorted({build.capability for build in compiled})


def compiled_table(compiled: Sequence[Compiled]) -> str:
    """Return a row a kernel and a column an architecture: registers, spills, shared, occupancy."""
    columns = capabilities(compiled)
    lines = []
    for kernel in kernels(compiled):
        cells = [_cell(kernel.on(capability)) for capability in columns]
        who = code(f"{kernel.op}/{kernel.implementation}")
        lines.append((who, code(kernel.name), _classes(kernel), *cells))
    header = ("implementation", "kernel", "instructions", *(f"sm_{c}" for c in columns))
    return table(header, lines, align="lll" + "r" * len(columns))


def failures(compiled: Iterable[Compiled]) -> list[Compiled]:
    """Return the builds that the gate refused."""
    return [build for build in compiled if build.failure is not None]


def failures_table(failed: Sequence[Compiled]) -> str:
    """Return what failed, and why."""
    lines = [
        (
            code(f"{build.op}/{build.implementation}"),
            code(build.kernel),
            code(build.case),
            f"sm_{build.capability}",
            text(build.failure or ""),
        )
        for build in failed[:MOST_FAILURES]
    ]
    return table(("implementation", "kernel", "case", "GPU", "failure"), lines, align="lllll")


def _cell(builds: Sequence[Compiled]) -> str:
    if not builds:
        return NOT_KNOWN
    registers = _worst(build.registers for build in builds)
    spilled = _worst(build.spilled_bytes for build in builds)
    shares = [
        build.shared_bytes / build.shared_limit_bytes
        for build in builds
        if build.shared_bytes is not None and build.shared_limit_bytes
    ]
    cell = (
        f"{NOT_KNOWN if registers is None else registers} / "
        f"{NOT_KNOWN if spilled is None else spilled} / "
        f"{_text.share(max(shares), 1.0) if shares else NOT_KNOWN}"
        f"{_occupancy(builds)}"
    )
    failed = len(failures(builds))
    return f"{cell} **{failed} of {len(builds)} failed**" if failed else cell


def _occupancy(builds: Sequence[Compiled]) -> str:
    """Return the least occupancy, its blocks and what limits it; nothing where it is not known."""
    known = [build for build in builds if build.occupancy is not None]
    if not known:
        return ""
    least = min(known, key=lambda build: build.occupancy or 0.0)
    share = "0 %" if not least.occupancy else _text.share(least.occupancy, 1.0)
    return f" / {share}, {least.resident_blocks} by {least.limited_by}"


def _worst(numbers: Iterable[int | None]) -> int | None:
    return max((number for number in numbers if number is not None), default=None)


def _classes(kernel: Kernel) -> str:
    """Return the instruction classes found, and on which architectures they were not."""
    found = dict.fromkeys(name for build in kernel.builds for name in build.found)
    words = []
    for name in found:
        lacking = [
            capability
            for capability in capabilities(kernel.builds)
            if not any(name in build.found for build in kernel.on(capability))
        ]
        where = f" (not on {_text.listed(f'sm_{c}' for c in lacking)})" if lacking else ""
        words.append(text(name) + where)
    return ", ".join(words) or NOT_KNOWN
