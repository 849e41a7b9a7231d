"""No time without a passed check, before and after; what fails has a reason and stops nobody."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from kernels import Case, Implementation, Inputs, Needs, Outputs, Prepared, Stage
from suites._bench import HostBench
from suites._gpu_bench import GpuBench
from suites._measure import Measured, measure
from tests.fake_gpu import CALL_S, FakeGpu
from tests.timed_ops.doubling import OP
from verifyscope.alternate import StopRule

FEW = OP.cases[0]
QUICK = StopRule(time_cap_s=0.02, min_rounds=3)


def made(name: str, compute: Callable[[torch.Tensor], Outputs], **more: Any) -> Implementation:
    def prepare(inputs: Inputs) -> Prepared:
        x = inputs["x"]
        assert isinstance(x, torch.Tensor)
        return Prepared(call=lambda: compute(x))

    fields: dict[str, Any] = {"kind": "own", "needs": Needs(), "declares": ()}
    return Implementation(op=OP, name=name, prepare=prepare, **(fields | more))


def planning(name: str, *stages: Stage) -> Implementation:
    def prepare(inputs: Inputs) -> Prepared:
        x = inputs["x"]
        assert isinstance(x, torch.Tensor)
        return Prepared(call=lambda: double(x), stages=stages)

    return replace(made(name, double), prepare=prepare)


def double(x: torch.Tensor) -> Outputs:
    return {"y": 2 * x}


def measured(*implementations: Implementation, case: Case = FEW) -> Measured:
    return measure(OP, case, implementations, bench=HostBench(), rule=QUICK)


def test_right_ones_have_samples_and_say_how_they_were_taken() -> None:
    done = measured(made("one", double), made("two", lambda x: {"y": x + x}))
    assert {one.status for one in done.outcomes.values()} == {"ok"}
    one, two = (done.outcomes[name].timed[0] for name in ("one", "two"))
    assert len(one.samples) == len(two.samples) >= 3
    assert (one.clock, one.cache, one.launch, one.sets) == ("perf-counter", "warm", "eager", 1)
    assert one.facts["threads"] == torch.get_num_threads()
    assert done.cost == OP.cost(OP.inputs(FEW, torch.device("cpu")))


def test_a_wrong_one_has_failed_without_a_time_and_the_others_go_on() -> None:
    done = measured(made("right", double), made("wrong", lambda x: {"y": 3 * x}))
    wrong = done.outcomes["wrong"]
    assert (wrong.status, wrong.timed) == ("failed", ())
    assert wrong.reason is not None
    assert wrong.reason.startswith("disagrees with the reference: y: row")
    assert done.outcomes["right"].timed


def test_a_missing_output_is_no_agreement() -> None:
    assert measured(made("empty", lambda x: {})).outcomes["empty"].status == "failed"


def test_an_output_that_is_declared_as_omitted_is_not_missing() -> None:
    done = measured(made("silent", lambda x: {}, omits=("y",)))
    assert done.outcomes["silent"].status == "ok"


def test_what_is_never_written_is_seen_since_memory_is_poisoned() -> None:
    def forgetful(x: torch.Tensor) -> Outputs:
        y = torch.empty_like(x)
        y[:-1] = 2 * x[:-1]
        return {"y": y}

    outcome = measured(made("forgetful", forgetful)).outcomes["forgetful"]
    assert outcome.status == "failed"
    assert "NaN at (7,)" in (outcome.reason or "")


def test_what_is_written_only_once_is_seen_since_outputs_are_poisoned_again() -> None:
    def prepare(inputs: Inputs) -> Prepared:
        x = inputs["x"]
        assert isinstance(x, torch.Tensor)
        y = 2 * x
        return Prepared(call=lambda: {"y": y})

    outcome = measured(replace(made("lazy", double), prepare=prepare)).outcomes["lazy"]
    assert outcome.status == "failed"
    assert "NaN at (0,)" in (outcome.reason or "")


def test_results_that_are_kept_by_shape_are_seen_since_other_inputs_follow() -> None:
    kept: dict[torch.Size, torch.Tensor] = {}

    def caching(x: torch.Tensor) -> Outputs:
        return {"y": kept.setdefault(x.shape, 2 * x).clone()}

    outcome = measured(made("caching", caching)).outcomes["caching"]
    assert (outcome.status, outcome.timed) == ("failed", ())


def test_what_goes_wrong_while_it_is_timed_is_seen_afterwards() -> None:
    calls: list[None] = []

    def drifting(x: torch.Tensor) -> Outputs:
        calls.append(None)
        return {"y": 2 * x if len(calls) < 12 else 2.5 * x}

    outcome = measured(made("drifting", drifting)).outcomes["drifting"]
    assert (outcome.status, outcome.timed) == ("failed", ())


def test_one_that_raises_has_an_error_and_the_others_go_on() -> None:
    def raising(x: torch.Tensor) -> Outputs:
        raise ValueError("no kernel for this shape\nand more")

    done = measured(made("raising", raising), made("right", double))
    assert done.outcomes["raising"].reason == "ValueError: no kernel for this shape"
    assert done.outcomes["raising"].status == "error"
    assert done.outcomes["right"].status == "ok"


def test_too_little_memory_is_a_reason_to_skip() -> None:
    def greedy(x: torch.Tensor) -> Outputs:
        raise torch.OutOfMemoryError("tried to allocate 9 GiB")

    outcome = measured(made("greedy", greedy)).outcomes["greedy"]
    assert outcome.status == "skipped"
    assert outcome.reason is not None
    assert outcome.reason.startswith("needs more memory than is free: OutOfMemoryError: tried")


def test_a_case_that_cannot_be_set_up_is_the_reason_of_all() -> None:
    broken = Case(name="broken", dims={"numbers": "many"})
    done = measured(made("one", double), made("two", double), case=broken)
    assert done.cost is None
    for outcome in done.outcomes.values():
        assert outcome.status == "error"
        assert (outcome.reason or "").startswith("the case could not be set up: TypeError")


def test_planning_is_timed_beside_the_call_and_not_within() -> None:
    done = measured(planning("planned", Stage(name="fill", run=list)), made("plain", double))
    assert done.outcomes["plain"].planned == ()
    (whole,) = done.outcomes["planned"].planned  # its only stage is the whole
    assert (whole.stage, whole.within) == (None, None)
    assert 1 <= len(whole.samples) <= 20
    assert min(whole.samples) > 0


def test_each_stage_is_timed_and_one_within_another_only_alone() -> None:
    log: list[str] = []
    stages = (
        Stage(name="mask", run=lambda: log.append("m")),
        Stage(name="pack", run=lambda: log.append("p"), within="plan"),
        Stage(name="plan", run=lambda: log.append("P")),
    )
    planned = measured(planning("planned", *stages)).outcomes["planned"].planned
    assert [(one.stage, one.within) for one in planned] == [
        (None, None),
        ("mask", None),
        ("pack", "plan"),
        ("plan", None),
    ]
    rounds = len(planned[0].samples)
    assert {len(one.samples) for one in planned} == {rounds}
    assert "".join(log) == "mP" + ("mP" + "mpP") * rounds


def test_only_what_is_repeated_is_planning_and_not_what_is_made_once() -> None:
    made_once: list[None] = []

    def prepare(inputs: Inputs) -> Prepared:
        made_once.append(None)
        x = inputs["x"]
        assert isinstance(x, torch.Tensor)
        return Prepared(call=lambda: double(x), stages=(Stage(name="plan", run=lambda: None),))

    one = replace(made("one", double), prepare=prepare)
    outcome = measured(one).outcomes["one"]
    assert len(outcome.planned[0].samples) == 20
    assert len(made_once) == 3  # checked, timed, and checked on other inputs


# On the fake GPU: the whole way of a cold case.


@pytest.fixture
def gpu() -> FakeGpu:
    return FakeGpu(l2_bytes=2 * 64)  # `few` touches 64 bytes: six sets are walked


def on_gpu(gpu: FakeGpu, names: Sequence[str]) -> Measured:
    def counted(name: str) -> Implementation:
        def prepare(inputs: Inputs) -> Prepared:
            x = inputs["x"]
            assert isinstance(x, torch.Tensor)
            return Prepared(call=gpu.counted(lambda: double(x), name))

        return replace(made(name, double), prepare=prepare)

    return measure(
        OP, FEW, [counted(n) for n in names], bench=GpuBench(gpu, warm_up_s=0), rule=QUICK
    )


@pytest.fixture(autouse=True)
def _no_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    from suites._bench import HostLoad

    class Quiet(HostLoad):
        def __enter__(self) -> HostLoad:
            return self

        def __exit__(self, *args: object) -> None:
            pass

    monkeypatch.setattr(GpuBench, "conditions", lambda self: Quiet(load=None))


def test_cold_and_warm_are_taken_of_every_implementation(gpu: FakeGpu) -> None:
    done = on_gpu(gpu, ["a", "b"])
    for outcome in done.outcomes.values():
        cold, warm = outcome.timed
        assert (cold.cache, cold.sets, cold.calls % 6) == ("cold", 6, 0)
        assert (warm.cache, warm.sets) == ("warm", 1)
        assert set(cold.samples) == set(warm.samples) == {CALL_S}


def test_implementations_alternate_on_the_gpu(gpu: FakeGpu) -> None:
    on_gpu(gpu, ["a", "b"])
    timed = [part.rpartition("start")[2] for part in "".join(gpu.log).split("end")[:-1]]
    # Each timed part is one implementation's; calibration of the warm graphs comes before.
    order = "".join(part[0] for part in timed)
    assert "aabb" + "bbaa" + "aabb" in order


def in_place(*, restores: bool, factor: int = 2) -> Implementation:
    """Multiply a copy of the input in place, over and over."""

    def prepare(inputs: Inputs) -> Prepared:
        x = inputs["x"]
        assert isinstance(x, torch.Tensor)
        y = x.clone()
        return Prepared(
            call=lambda: {"y": y.mul_(factor)}, restore=(lambda: y.copy_(x)) if restores else None
        )

    return replace(made("in-place", double), prepare=prepare)


@pytest.mark.parametrize("where", ["cpu", "gpu", "flushed"])
def test_what_computes_in_place_is_looked_at_after_what_it_was_given_is_back(
    where: str, gpu: FakeGpu
) -> None:
    if where == "flushed":
        gpu.capturable = "it cannot be captured"
    bench = HostBench() if where == "cpu" else GpuBench(gpu, warm_up_s=0)

    def status(one: Implementation) -> str:
        return measure(OP, FEW, [one], bench=bench, rule=QUICK).outcomes["in-place"].status

    assert status(in_place(restores=True)) == "ok"
    assert status(in_place(restores=False)) == "failed"
    assert status(in_place(restores=True, factor=3)) == "failed"


def test_a_replay_that_does_nothing_is_seen(gpu: FakeGpu) -> None:
    gpu.loses_work = True
    outcome = on_gpu(gpu, ["lost"]).outcomes["lost"]
    assert outcome.status == "failed"
    assert "NaN at (0,)" in (outcome.reason or "")
