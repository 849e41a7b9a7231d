"""Timing on a GPU: graphs over many input sets, or events behind a flush; warm beside either.

An implementation that cannot be captured is timed eagerly behind a flush and says why. After a
capture that failed halfway, torch's allocator may be in doubt; rows from then on carry a flag.
"""

import gc
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

import torch

import kernels
from kernels import CaptureFailed, Gpu, Implementation, Inputs, InputSets, Outputs, Prepared
from suites._bench import Conditions, Timing
from verifyscope.records import Cache, Value


@dataclass(slots=True)
class GpuBench:
    """A GPU behind the calls of `Gpu`."""

    gpu: Gpu
    device: torch.device = field(init=False)
    cache_bytes: int | None = field(init=False)
    in_doubt: str | None = field(init=False, default=None)
    # An idle GPU takes about a tenth of a second to raise its clocks.
    warm_up_s: float = 0.2
    # A round is some milliseconds, and events take steps of half a microsecond.
    fewest_rounds: int = 20
    _flush: kernels.ReadFlush | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.device, self.cache_bytes = self.gpu.device, self.gpu.l2_bytes

    def input_sets(self, *, touched_bytes: float, set_bytes: int) -> InputSets:
        """Choose by L2 and free memory."""
        return kernels.input_sets(
            touched_bytes=touched_bytes,
            set_bytes=set_bytes,
            cache_bytes=self.gpu.l2_bytes,
            free_bytes=self.gpu.free_bytes(),
        )

    def timings(
        self,
        implementation: Implementation,
        sets: Sequence[Inputs],
        *,
        touched_bytes: float,
        why_flushed: str | None,
    ) -> tuple[Timing, ...]:
        """Return a cold or flushed timing, and a warm one where a set fits the L2."""
        before = self.gpu.allocated_bytes()
        first = implementation.prepare(sets[0])
        outputs = first.call()
        # The inputs are there already; this is what a set needs beside them.
        beside = self.gpu.allocated_bytes() - before
        del outputs
        if why_flushed is None:
            chosen = self.input_sets(touched_bytes=touched_bytes, set_bytes=beside)
            why_flushed = chosen.why_flushed
        why_eager = self.gpu.why_not_capturable(first.call)
        why_not_warm = why_eager
        if touched_bytes > self.gpu.l2_bytes:
            why_not_warm = "one input set is more than the L2"
        try:
            if why_flushed or why_eager:
                main = self._flushed(first, why=why_eager or why_flushed or "")
                last = first
            else:
                walked = [first, *(implementation.prepare(one) for one in sets[1:])]
                main = self._cold(walked, call_bytes=beside)
                last = walked[-1]
            if why_not_warm is None:
                # A walk has pushed out all but its last sets: repeating one of those leaves the
                # first ones cold for the next walk.
                calls = kernels.warm_calls(main.timer.sample())
                return main, self._graph([last] * calls, cache="warm", sets=1)
        except CaptureFailed as error:
            self.in_doubt = f"after a failed capture of {implementation.id}"
            main, why_not_warm = self._flushed(first, why=str(error)), str(error)
        return (replace(main, facts={**main.facts, "why_not_warm": why_not_warm}),)

    def conditions(self) -> AbstractContextManager[Conditions]:
        """Sample this GPU through NVML."""
        from verifyscope.conditions import Sampler

        return Sampler(str(torch.cuda.get_device_properties(self.device).uuid))

    def synchronize(self) -> None:
        """Wait for the device; raise if it is lost."""
        self.gpu.synchronize()

    def release(self) -> None:
        """Give the memory of the case before back to the device."""
        gc.collect()
        self.gpu.empty_cache()

    def _cold(self, walked: Sequence[Prepared], *, call_bytes: int) -> Timing:
        """Walk the sets once to see how long that takes, and as often as it must be then."""
        once = self._graph(walked, cache="cold", sets=len(walked))
        repeats = kernels.walks(
            once.timer.sample() * len(walked),
            calls=len(walked),
            call_bytes=call_bytes,
            free_bytes=self.gpu.free_bytes(),
        )
        if repeats == 1:
            return once
        return self._graph([*walked] * repeats, cache="cold", sets=len(walked))

    def _graph(self, walked: Sequence[Prepared], *, cache: Cache, sets: int) -> Timing:
        captured = self.gpu.capture(lambda: [one.call() for one in walked])
        captured.replay()
        facts: dict[str, Value] = {}
        if captured.node_count is not None:
            facts["graph_nodes"] = captured.node_count

        def run() -> Sequence[Outputs]:
            # What computes in place starts from its own results, also from call to call of a graph.
            in_place = {id(one): one for one in walked if one.restore is not None}
            outputs = [one.fresh() for one in in_place.values()]
            if not in_place:
                captured.replay()
            self.gpu.synchronize()
            return outputs or captured.outputs

        return Timing(
            timer=kernels.GraphTimer(
                replay=captured.replay, calls=len(walked), stopwatch=self.gpu.stopwatch()
            ),
            run=run,
            convert=walked[0].convert,
            clock="cuda-graph",
            cache=cache,
            launch="graph",
            calls=len(walked),
            sets=sets,
            facts=facts,
            holds=tuple(walked),
        )

    def _flushed(self, ready: Prepared, *, why: str) -> Timing:
        if self._flush is None:
            self._flush = kernels.ReadFlush(self.gpu.l2_bytes, self.device)
        flush, watch = self._flush, self.gpu.stopwatch()
        pass_s = min(watch.seconds(flush, before=flush) for _ in range(3))
        enqueue_s = kernels.enqueue_seconds(ready.call, synchronize=self.gpu.synchronize)
        passes, hidden = kernels.flush_passes(enqueue_s=enqueue_s, pass_s=pass_s)

        def run() -> Sequence[Outputs]:
            outputs = ready.fresh()
            self.gpu.synchronize()
            return [outputs]

        return Timing(
            timer=kernels.FlushedTimer(
                call=ready.call, flush=flush, passes=passes, stopwatch=watch
            ),
            run=run,
            convert=ready.convert,
            clock="cuda-events",
            cache="flushed",
            launch="eager",
            calls=1,
            sets=1,
            facts={
                "why_flushed": why,
                "flush_passes": passes,
                "launch_hidden": hidden,
                "resolution_s": kernels.EVENT_RESOLUTION_S,
            },
        )
