"""GPUs for the tests between GPUs: they write at once what they are told to, unless told to fail.

As a program, `python -m tests.fake_peers MODE FD`, it is the process that a real one runs them in.
"""

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

from collectives._host.child import Started, WhyNot, end_with
from collectives._host.facts import Way
from collectives._host.peer_process import speak
from collectives._host.peer_tests import Differed

Pair = tuple[int, int]
RIGHT = Differed(lost=0, wrong=0)


@dataclass
class FakePeers:
    """`apart` cannot reach each other; `faults` are what a write leaves; rates are bytes a second.

    crowded: by how much writes at once are slower than alone; hangs: the pair whose write never
    ends; raises: the pair whose write is an error.
    """

    numbers: tuple[int, ...] = (0, 1)
    apart: frozenset[Pair] = frozenset()
    faults: Mapping[tuple[int, int, Way], Differed] = field(default_factory=dict)
    rates: Mapping[Pair, float] = field(default_factory=dict)
    crowded: float = 1.0
    together: Differed = RIGHT
    host_rate: float = 2.0**34
    idle: tuple[int, int] = (1, 16)
    loaded: tuple[int, int] | None = (5, 16)
    hangs: Pair | None = None
    raises: Pair | None = None
    written: list[tuple[int, int, Way, int, int]] = field(default_factory=list)

    def link(self, gpu: int) -> tuple[int | None, int | None]:
        return self.idle

    def link_under_load(self, gpu: int) -> tuple[int | None, int | None] | None:
        return self.loaded

    def host_copy(self, gpu: int, *, to_gpu: bool, size_bytes: int) -> float:
        return size_bytes / self.host_rate

    def can_reach(self, writer: int, target: int) -> bool:
        return (writer, target) not in self.apart

    def write(self, writer: int, target: int, *, way: Way, size_bytes: int, seed: int) -> Differed:
        if (writer, target) == self.hangs:
            time.sleep(600)
        if (writer, target) == self.raises:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        self.written.append((writer, target, way, size_bytes, seed))
        return self.faults.get((writer, target, way), RIGHT)

    def write_together(self, writes: Sequence[Pair], *, size_bytes: int) -> tuple[float, Differed]:
        alone = [size_bytes / self.rates.get(pair, 2.0**34) for pair in writes]
        if len(writes) == 1:
            return alone[0], RIGHT
        return self.crowded * max(alone), self.together


def main(mode: str, upstream: Connection) -> None:
    """Do as `mode` says, as the process of the real tests would."""
    end_with(upstream)
    if mode == "silent":
        time.sleep(600)
    if mode == "dies before":
        sys.exit("libcuda.so.1 is broken")
    upstream.send(Started())
    if mode == "why not":
        upstream.send(WhyNot("torch 9.9 is built without CUDA"))
    elif mode == "dies":
        print("a last word of the driver", flush=True)
        sys.exit(3)
    else:
        faults: dict[str, FakePeers] = {
            "right": FakePeers(numbers=(0, 2)),
            "hangs": FakePeers(hangs=(1, 0)),
            "raises": FakePeers(raises=(0, 1)),
        }
        speak(upstream, faults[mode])


if __name__ == "__main__":
    main(sys.argv[1], Connection(int(sys.argv[2])))
