"""What the state of GPUs means: a spinning collective, a narrow link, a slow GPU.

- collective-spin: every multiprocessor busy (SPIN_USE) at under SPIN_POWER of the power limit: a
kernel
  that waits, as an all-reduce does for a peer that does not come. Products of matrices draw power.
- a link below its generation at idle is no fault: it is trained down to save power; a width below
its
  most is one, idle or not.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from ingest.conclusions import Conclusion, Seen, listed, percent
from ingest.facts import Facts, Read
from ingest.log import Log
from verifyscope import hardware
from verifyscope.privacy import redacted
from verifyscope.records import Confidence

MOST_GPUS = 256
SPIN_USE = 98.0
SPIN_POWER = 0.35
BUSY_USE = 50.0
SLOW_CLOCK = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """Percent of the time with a kernel, watts, MHz: one reading, or medians over `count`."""

    use: float | None = None
    power_w: float | None = None
    limit_w: float | None = None
    clock_mhz: float | None = None
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU; `line` is where the file begins to speak of it. None is not said.

    bus: its PCI address; loaded: the link was read while a transfer ran.
    """

    index: int
    line: int | None
    bus: str | None = None
    name: str | None = None
    generation: float | None = None
    generation_most: float | None = None
    width: float | None = None
    width_most: float | None = None
    loaded: bool = False
    state: str | None = None
    readings: Readings = Readings()
    default_limit_w: float | None = None
    slowed: tuple[str, ...] = ()

    @property
    def limit_w(self) -> float | None:
        """Return the power limit, else that of the data sheet."""
        known = hardware.match(self.name) if self.name else None
        return self.readings.limit_w or (known.power_w if known else None)

    @property
    def power_share(self) -> float | None:
        """Return power / limit."""
        power, limit = self.readings.power_w, self.limit_w
        return power / limit if power is not None and limit else None

    @property
    def busy(self) -> bool:
        """Say whether kernels ran for most of the time."""
        return self.readings.use is not None and self.readings.use >= BUSY_USE


def findings(gpus: Sequence[Gpu], log: Log) -> Iterator[Read]:
    """Yield the findings on the GPUs of a file, and first what they are."""
    for one in conclusions(gpus, log.file):
        yield one.finding(environment=log.environment, command=log.command)
    if gpus:
        yield Facts(file=log.file, gpus=tuple(gpus))


def conclusions(gpus: Sequence[Gpu], file: str) -> Iterator[Conclusion]:
    """Yield what the state of the GPUs of one file means."""
    if not gpus:
        return
    yield from _spin(gpus, file)
    yield from _slow(gpus, file)
    yield from _links(gpus, file)
    yield from _held_down(gpus, file)
    yield _described(gpus, file)


def _spin(gpus: Sequence[Gpu], file: str) -> Iterator[Conclusion]:
    spinning = [gpu for gpu in gpus if spins(gpu)]
    if not spinning:
        return
    shares = [gpu.power_share or 0.0 for gpu in spinning]
    samples = min(gpu.readings.count for gpu in spinning)
    confidence: Confidence = "likely" if samples >= 5 else "hint"
    yield Conclusion(
        name="collective-spin",
        sentence=f"{len(spinning)} of {len(gpus)} GPUs are {SPIN_USE:.0f} % busy or more at "
        f"{percent(min(shares))} to {percent(max(shares))} of their power: kernels that wait for "
        f"a peer, as "
        f"an all-reduce does, not kernels that compute",
        seen=tuple(_seen(gpu, file, _readings(gpu)) for gpu in spinning),
        next_action="take a trace of all ranks: the one with the least time in collectives comes "
        "last; "
        "sweep the all-reduces of this host",
        confidence=confidence,
    )


def spins(gpu: Gpu) -> bool:
    """Say whether a GPU runs kernels all the time and draws little power."""
    use, share = gpu.readings.use, gpu.power_share
    return use is not None and use >= SPIN_USE and share is not None and share <= SPIN_POWER


def _slow(gpus: Sequence[Gpu], file: str) -> Iterator[Conclusion]:
    """Find a busy GPU whose clock is far below that of the other busy ones."""
    clocks = [(gpu, gpu.readings.clock_mhz) for gpu in gpus if gpu.busy and gpu.readings.clock_mhz]
    if len(clocks) < 2:
        return
    for gpu, clock in clocks:
        others = median(other for peer, other in clocks if peer is not gpu and other is not None)
        if clock is not None and clock < SLOW_CLOCK * others:
            why = f" ({listed(list(gpu.slowed))})" if gpu.slowed else ""
            yield Conclusion(
                name="straggler-rank",
                sentence=f"GPU {gpu.index} runs at {clock:.0f} MHz and the other busy ones at "
                f"{others:.0f}"
                f"{why}: every collective waits for it",
                seen=(_seen(gpu, file, _readings(gpu)),),
                next_action="look at its temperature, its power limit and what else it runs",
                confidence="likely" if gpu.readings.count >= 5 else "hint",
            )


def _links(gpus: Sequence[Gpu], file: str) -> Iterator[Conclusion]:
    narrow = [gpu for gpu in gpus if _below(gpu.width, gpu.width_most)]
    slow = [gpu for gpu in gpus if _below(gpu.generation, gpu.generation_most)]
    trained = [gpu for gpu in slow if gpu.busy or gpu.loaded]
    idle = [gpu for gpu in slow if gpu not in trained and gpu not in narrow]
    narrow += [gpu for gpu in trained if gpu not in narrow]
    if narrow:
        yield Conclusion(
            name="narrow-link",
            sentence=f"the PCIe link of {_those(narrow)} is below its most: "
            f"{'; '.join(dict.fromkeys(map(_link, narrow)))}; one narrow link holds all ranks up",
            seen=tuple(_seen(gpu, file, _link(gpu)) for gpu in narrow),
            next_action="reseat the card or riser, or choose another slot; a width does not fall "
            "by idleness",
            confidence="sure"
            if any(gpu.loaded or _below(gpu.width, gpu.width_most) for gpu in narrow)
            else "likely",
        )
    if idle:
        yield Conclusion(
            name="idle-link-is-not-a-fault",
            sentence=f"the PCIe link of {_those(idle)} is at a lower generation "
            f"({'; '.join(dict.fromkeys(map(_link, idle)))}) while the GPU is idle: it trains up "
            f"under load, "
            f"and this shows no fault",
            seen=tuple(_seen(gpu, file, _link(gpu)) for gpu in idle),
            next_action="look again while a transfer runs",
            verdict=False,
        )


def _held_down(gpus: Sequence[Gpu], file: str) -> Iterator[Conclusion]:
    lowered = [gpu for gpu in gpus if _below(gpu.readings.limit_w, gpu.default_limit_w)]
    if lowered:
        limits = dict.fromkeys(
            f"{gpu.readings.limit_w:g} W of {gpu.default_limit_w:g} W" for gpu in lowered
        )
        yield Conclusion(
            name="power-limit-lowered",
            sentence=f"the power limit of {_those(lowered)} is below its default: "
            f"{'; '.join(limits)}",
            seen=tuple(_seen(gpu, file, f"limit {gpu.readings.limit_w:g} W") for gpu in lowered),
            verdict=False,
        )
    slowed = [gpu for gpu in gpus if gpu.slowed]
    if slowed:
        reasons = dict.fromkeys(reason for gpu in slowed for reason in gpu.slowed)
        yield Conclusion(
            name="throttled",
            sentence=f"the clocks of {_those(slowed)} are held down: {', '.join(reasons)}",
            seen=tuple(_seen(gpu, file, ", ".join(gpu.slowed)) for gpu in slowed),
            next_action="times taken now are not those of the cold card: name this beside them",
            verdict=False,
        )


def _described(gpus: Sequence[Gpu], file: str) -> Conclusion:
    names = dict.fromkeys(redacted(gpu.name or "GPU") for gpu in gpus)
    counted = (f"{sum(redacted(g.name or 'GPU') == name for g in gpus)} x {name}" for name in names)
    links = dict.fromkeys(
        f"PCIe {gpu.generation_most:.0f} x{gpu.width_most:.0f}"
        for gpu in gpus
        if gpu.generation_most and gpu.width_most
    )
    limits = dict.fromkeys(f"{gpu.limit_w:.0f} W" for gpu in gpus if gpu.limit_w)
    words = [", ".join(counted), *links, *limits]
    return Conclusion(
        name="gpus",
        sentence=", ".join(words),
        seen=tuple(_seen(gpu, file, _readings(gpu)) for gpu in gpus),
        verdict=False,
    )


def _below(now: float | None, most: float | None) -> bool:
    return now is not None and most is not None and now < most


def _those(gpus: Sequence[Gpu]) -> str:
    return "GPU " + listed([str(gpu.index) for gpu in gpus])


def _link(gpu: Gpu) -> str:
    def side(generation: float | None, width: float | None) -> str:
        return f"PCIe {generation or 0:.0f}" + ("" if width is None else f" x{width:.0f}")

    now, most = side(gpu.generation, gpu.width), side(gpu.generation_most, gpu.width_most)
    return f"{now} of {most}"


def _readings(gpu: Gpu) -> str:
    found = gpu.readings
    words = [
        f"{found.use:g} % busy" if found.use is not None else "",
        f"{found.power_w:g} W" if found.power_w is not None else "",
        f"of {gpu.limit_w:g} W" if gpu.limit_w is not None else "",
        f"{found.clock_mhz:g} MHz" if found.clock_mhz is not None else "",
        f"state {gpu.state}" if gpu.state else "",
    ]
    return f"GPU {gpu.index}: " + (", ".join(filter(None, words)) or "no readings")


def _seen(gpu: Gpu, file: str, value: str) -> Seen:
    return Seen(file, gpu.line, value)
