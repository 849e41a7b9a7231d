"""What is wrong with each GPU's own link, and with GPUs that are not alike.

A link below its most while nothing runs over it is no fault: it trains up under load. Its most is
what card and slot can do together, so a slot below its card shows only beside the card's own data.
"""

from collections.abc import Iterator, Sequence

from collectives._host.facts import Gpu, Host
from ingest import gpu_findings
from ingest.conclusions import Conclusion, Seen, listed
from verifyscope import hardware


def conclusions(host: Host) -> Iterator[Conclusion]:
    """Yield what is wrong with links, clocks and power."""
    if not host.gpus:
        return
    states = [gpu.state for gpu in host.gpus]
    for one in gpu_findings.conclusions(states, host.gpus[0].seen.file):
        if one.name != "gpus":  # the table says it
            yield one
    yield from _below_the_card(host.gpus)
    yield from _unlike(host.gpus)


def _below_the_card(gpus: Sequence[Gpu]) -> Iterator[Conclusion]:
    """Find slots that can do less than the cards in them, by the cards' data."""
    found: list[tuple[Gpu, str]] = []
    for gpu in gpus:
        known = hardware.match(gpu.idle.name or "")
        link = None if known is None else known.link
        if link is None or link.kind != "pcie":
            continue
        generation, width = gpu.idle.generation_most, gpu.idle.width_most
        narrow = width is not None and width < link.width
        slow = generation is not None and generation < link.generation
        if narrow or slow:
            card = f"PCIe {link.generation} x{link.width}"
            found.append((gpu, f"at most {_most(gpu)}, the card has {card}"))
    if found:
        yield Conclusion(
            name="slot-below-card",
            sentence=f"the slot of {_those([gpu for gpu, _ in found])} can do less than the card: "
            f"{'; '.join(dict.fromkeys(words for _, words in found))}",
            seen=tuple(_seen(gpu, words) for gpu, words in found),
            next_action="look at the slot's lanes and generation in the board's manual and the "
            "firmware (bifurcation), or use another slot; no card outruns its slot",
        )


def _unlike(gpus: Sequence[Gpu]) -> Iterator[Conclusion]:
    links = dict.fromkeys(_most(gpu) for gpu in gpus if gpu.idle.width_most)
    if len(links) > 1:
        yield Conclusion(
            name="gpus-of-different-links",
            sentence=f"the GPUs' links are not alike ({', '.join(links)}): every step of a ring "
            "waits for the slowest, and one narrow slot may send all of it through the processor",
            seen=tuple(_seen(gpu, _most(gpu)) for gpu in gpus if gpu.idle.width_most),
            next_action="put all GPUs into slots of one width and generation, or leave the odd one "
            "out of tensor parallelism",
        )
    names = dict.fromkeys(gpu.idle.name for gpu in gpus if gpu.idle.name)
    if len(names) > 1:
        yield Conclusion(
            name="gpus-of-different-models",
            sentence=f"the GPUs are not alike: {listed([str(name) for name in names])}",
            seen=tuple(_seen(gpu, gpu.idle.name or "") for gpu in gpus if gpu.idle.name),
            next_action="every collective waits for the slowest: compare their kernels, too",
            confidence="likely",
        )


def _most(gpu: Gpu) -> str:
    generation, width = gpu.idle.generation_most, gpu.idle.width_most
    return f"PCIe {generation or 0:.0f} x{width or 0:.0f}"


def _seen(gpu: Gpu, value: str) -> Seen:
    return Seen(gpu.seen.file, gpu.seen.line, f"GPU {gpu.index}: {value}")


def _those(gpus: Sequence[Gpu]) -> str:
    return "GPU " + listed([str(gpu.index) for gpu in gpus])
