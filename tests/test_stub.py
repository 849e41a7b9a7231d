"""A stub really does the work of a rank: nothing is skipped, everything flows, parts come out."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from graphs import stub
from graphs._stub import asked, memory, shrunken
from graphs._stub.asked import Case, Reduce
from graphs._stub.chosen import Choice
from graphs._stub.step import Flow
from graphs.stub import Stub
from kernels import Case as KernelCase
from kernels import Implementation, Prepared, find_op
from verifyscope.errors import UsageError
from verifyscope.models import TABLE, Gqa, Mla, Model
from verifyscope.parts import PARTS
from verifyscope.records import Mode

CPU = torch.device("cpu")


pytestmark = pytest.mark.usefixtures("as_a_rank_runs")


def _case(model: Model | str = "kimi-k2.5", **more: object) -> Case:
    given = TABLE[model] if isinstance(model, str) else model
    fields: dict[str, object] = {
        "model": shrunken.shrunken(given),
        "tp": 2,
        "rows": 4,
        "context": 100,
        "requests": 2,
        "tree": "eagle4",
        "attention": "verify",
        "path": "auto",
        "reduce": Reduce("none"),
        "shrunk": True,
    }
    return Case(**{**fields, **more})  # type: ignore[arg-type]  # fields of a case


def _built(case: Case | None = None) -> Stub:
    return stub.build(case or _case(), CPU, free_bytes=10**10, cache_bytes=None)


@pytest.mark.parametrize("model", TABLE)
def test_every_op_of_the_layer_list_is_computed_once_by_a_step(model: str) -> None:
    case = _case(model)
    built = _built(case)
    wanted = []
    for op, count in case.forward().calls():
        if op.message_bytes is None:
            wanted += [op.name] * count
    done = [name for step in built.steps for name in step.covers]
    assert sorted(done) == sorted(wanted)
    assert {step.part for step in built.steps} <= set(PARTS)


@pytest.mark.parametrize("model", TABLE)
def test_a_pass_gives_the_same_logits_each_time_and_none_of_them_is_zero(model: str) -> None:
    built = _built(_case(model))
    first = built.full().run().clone()
    assert torch.equal(first, built.full().run())
    assert first.shape == (8, 1024)
    assert torch.isfinite(first).all()
    assert (first != 0).float().mean() > 0.99


def test_layers_number_from_the_first_to_the_last_and_keep_the_order_of_the_list() -> None:
    built = _built()
    numbers = [step.layer for step in built.steps if step.layer is not None]
    assert numbers == sorted(numbers)
    assert set(numbers) == {0, 1, 2}
    assert built.steps[0].part == "metadata"
    assert built.steps[-1].name == "lm_head"


@pytest.mark.parametrize("model", ["kimi-k2.5", "qwen3-30b-a3b"])
def test_what_a_step_gives_changes_the_result_so_that_none_can_be_skipped(model: str) -> None:
    built = _built(_case(model, requests=1))
    want = built.full().run().clone()
    flow, before = built.flow, []
    for step in built.steps:
        step.run(flow)
        before.append(dict(flow))
    for at, step in enumerate(built.steps):
        # The last layer and what surrounds the layers; the residual of the last norm ends there.
        for name in step.writes if step.layer in (None, 2) else ():
            flow.clear()
            flow.update(before[at])
            flow[name] = _disturbed(flow[name])
            for later in built.steps[at + 1 :]:
                later.run(flow)
            ends = (step.name, name) == ("final_norm", "residual")
            assert torch.equal(flow["logits"], want) == ends, f"{step.name}: {name}"


def _disturbed(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_floating_point():
        return tensor * 1.5 + 0.5
    return (tensor + 1) % 4


def test_the_drafts_write_their_keys_where_the_metadata_says_and_attention_reads_them() -> None:
    built = _built()
    want = built.full().run().clone()
    steps = [step for step in built.steps if step.name == "rope"]
    built.metadata.slots.add_(1)  # the entries go to another slot
    for step in built.steps[1:]:  # without the step that works the slots out
        step.run(built.flow)
    assert len(steps) == 3
    assert not torch.equal(built.flow["logits"], want)


def test_a_pass_without_anything_but_one_part_computes_that_part_alone() -> None:
    built = _built()
    only = built.only({"attention"})
    assert {step.name for step in only.left} == {"attention"}
    assert len(only.left) == 3
    ran: list[str] = []

    def noting(name: str) -> Callable[[Flow], None]:
        return lambda flow: ran.append(name)

    watched = [replace(step, run=noting(step.name)) for step in built.steps]
    other = replace(built, steps=tuple(watched), kept={})
    built.full().run()
    other.kept.update(
        {at: {n: built.flow[n] for n in s.writes} for at, s in enumerate(built.steps)}
    )
    other.only({"norms"}).run()
    assert set(ran) == {"input_norm", "q_a_norm", "kv_a_norm", "post_attention_norm", "final_norm"}


@pytest.mark.parametrize(
    "part", ["attention", "routed_experts", "norms", "all_reduce", "embedding"]
)
def test_a_part_that_is_taken_out_hands_on_what_it_gave(part: str) -> None:
    built = _built(_case(reduce=Reduce("delay", 1e-6)))
    want = built.full().run().clone()
    got = built.without({part}).run()
    assert torch.equal(got, want)


def test_what_is_handed_on_and_reduced_in_place_is_put_back_before_a_pass() -> None:
    built = _built(_case(reduce=Reduce("delay", 1e-6)))

    def double(flow: Flow) -> None:
        flow["hidden"].mul_(2)

    doubling = [replace(step, run=double) if step.in_place else step for step in built.steps]
    other = replace(built, steps=tuple(doubling), kept={})
    want = other.full().run().clone()
    taken = other.without({"attention_projections", "routed_experts", "shared_expert", "dense_mlp"})
    for _ in range(20):
        taken.restore()
        got = taken.run()
    assert torch.equal(got, want)
    for _ in range(2):
        got = taken.run()
    assert not torch.equal(got, want)


def test_passes_share_what_is_handed_on_and_copy_only_what_changes_in_place() -> None:
    built = _built(_case(reduce=Reduce("delay", 1e-6)))
    assert built.only({"attention"}).changed == ()
    # What the all-reduces change in place: the embedding's, and two a layer.
    assert len(built.only({"all_reduce", "embedding_all_reduce"}).changed) == 7
    assert len(built.without({"attention_projections"}).changed) == 3


def test_weights_and_caches_are_normal_and_never_zero() -> None:
    built = _built(_case("llama-3.1-70b"))
    for name, tensor in {**built.flow, "table": built.metadata.page_table}.items():
        assert tensor.abs().sum() > 0, name
    built.full().run()
    assert (built.flow["residual"] == 0).float().mean() < 0.01


def test_fewer_weight_sets_are_taken_in_turn() -> None:
    every = _built(_case(weight_sets=3, model=shrunken.shrunken(TABLE["llama-3.1-70b"])))
    two = _built(_case(weight_sets=2, model=shrunken.shrunken(TABLE["llama-3.1-70b"])))
    assert (every.facts["weight_sets"], two.facts["weight_sets"]) == (3, 2)
    runs = {step.layer: step.run for step in two.steps if step.name == "o_proj"}
    assert runs[0] is runs[2]
    assert runs[0] is not runs[1]
    assert len({step.run for step in every.steps if step.name == "o_proj"}) == 3


KIMI = TABLE["kimi-k2.5"]


def _plan(
    case: Case, *, free: float, cache: int | None = 128 * 2**20, wanted: int | None = None
) -> tuple[memory.Held, ...]:
    return memory.plan(
        case.forward(), free_bytes=int(free), cache_bytes=cache, wanted=wanted, page_size=64
    )


def _kimi(**more: object) -> Case:
    case = replace(_case(tp=8, requests=1, context=8192), model=KIMI, shrunk=False)
    return replace(case, **more)  # type: ignore[arg-type]  # fields of a case


def test_kimi_at_tp8_takes_about_75_gb_a_rank_with_all_layers_distinct() -> None:
    found = {one.section: one for one in _plan(_kimi(), free=140e9)}
    assert found["experts"].sets == 60
    assert found["dense"].sets == 1
    whole = sum(one.bytes for one in found.values())
    assert 74e9 < whole < 79e9
    # 384 experts of 3.1 MB, projections, shared expert, router and 9.5 MB of cache a layer
    assert found["experts"].layer_bytes == pytest.approx(1.27e9, rel=0.01)


def test_where_not_all_fit_as_many_layers_are_distinct_as_keep_them_out_of_the_l2() -> None:
    found = {one.section: one for one in _plan(_kimi(), free=40e9)}
    experts = found["experts"]
    assert experts.sets * experts.touched_bytes >= 3 * 128 * 2**20
    assert (experts.sets - 1) * experts.touched_bytes < 3 * 128 * 2**20
    assert experts.sets == 3


def test_a_model_that_does_not_fit_is_refused_with_what_it_takes_and_what_there_is() -> None:
    with pytest.raises(UsageError, match=r"kimi-k2.5 at --tp 8 takes .* GB a rank .* can be used"):
        _plan(_kimi(), free=4e9)
    with pytest.raises(UsageError, match=r"with --weight-sets 30, and 36.0 GB can be used here"):
        _plan(_kimi(), free=40e9, wanted=30)


def test_a_case_says_its_own_name_and_dims() -> None:
    case = _kimi(reduce=Reduce("delay", 33e-6), rows=3, tree="chain")
    assert case.name == "kimi-k2.5-tp8-rows3-context8192-layers61-delay:33us"
    assert case.dims()["all_reduce"] == "delay:33us"
    assert _case().dims()["model"] == "kimi-k2.5-shrunk"


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("none", ["none"]),
        ("one-rank", ["one-rank"]),
        ("real", ["real"]),
        ("delay:33us", ["delay:33us"]),
        ("delay:10us,33.5us", ["delay:10us", "delay:33.5us"]),
    ],
)
def test_all_reduces_are_chosen_by_name(text: str, kinds: list[str]) -> None:
    assert [str(one) for one in asked.reduces(text)] == kinds


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ring", "unknown --all-reduce 'ring'; give none, one-rank, real or a delay such as"),
        ("delay:", "unknown --all-reduce 'delay:'"),
        ("delay:fast", "delay:fast is no time above zero; give microseconds"),
        ("delay:0us", "is no time above zero"),
    ],
)
def test_an_unknown_all_reduce_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        asked.reduces(text)


def test_a_delay_lasts_as_long_as_it_was_asked_for() -> None:
    import time

    from graphs._stub import reducing

    wait = reducing.all_reduce(Reduce("delay", 3e-3), CPU)
    assert wait is not None
    start = time.perf_counter()
    wait(torch.zeros(1))
    assert time.perf_counter() - start >= 3e-3
    assert reducing.all_reduce(Reduce("none"), CPU) is None
    assert reducing.all_gather(Reduce("delay", 1e-6), ranks=2, like=torch.zeros(2)) is None


@pytest.mark.parametrize(
    ("impl", "form", "path", "message"),
    [
        ("attention=best", "verify", "auto", "no such implementation; known: torch"),
        ("moe=triton", "verify", "auto", r"--impl moe=triton: .*(needs a CUDA device|no such)"),
        ("attention=torch", "decode", "auto", "it has no form for --attention decode"),
        ("moe=torch", "verify", "direct", "it has no path for --moe direct; leave that out"),
    ],
)
def test_an_implementation_that_cannot_be_had_is_refused_with_the_reason(
    impl: str, form: str, path: str, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        _built(_case(impl=asked.implementations(impl), attention=form, path=path))


@pytest.mark.parametrize("model", TABLE)
def test_every_implementation_can_say_whether_it_computes_the_cases_of_a_stub(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[tuple[str, KernelCase]] = []
    of = Choice.of

    def noting(self: Choice, kind: str, op: str, case: KernelCase) -> Implementation:
        given.append((op, case))
        return of(self, kind, op, case)

    monkeypatch.setattr(Choice, "of", noting)
    _built(_case(model))
    assert {op for op, _ in given} >= {"rms_norm", "rope"}
    for op, case in {(op, case.name): (op, case) for op, case in given}.values():
        for implementation in find_op(op).implementations.values():
            why = implementation.needs.refuses(case)
            assert why is None or isinstance(why, str)


def _rows(
    *names: str, kind: str = "attention", form: Mode = "verify", path: asked.PathName = "auto"
) -> str:
    """Return what the first name's family stands for among implementations name:form."""
    op = replace(find_op("mla_verify"), _added={})
    for name in names:
        word, _, given = name.partition(":")
        mode = next((one for one in asked.FORMS if one == given), None)
        op._add(
            Implementation(op=op, name=word, prepare=lambda inputs: Prepared(call=dict), mode=mode)
        )
    family = names[0].partition(":")[0].partition("_")[0]
    choice = Choice(device=CPU, named={kind: family}, form=form, path=path)
    case = KernelCase(name="any", dims={})
    found, why = choice._one(kind, family, op.implementations, case)
    return found.name if found is not None else why


def test_a_whole_mlp_is_one_step_where_an_implementation_of_it_is_named() -> None:
    built = _built(_case(impl=asked.implementations("mlp=torch")))
    steps = {step.name: step for step in built.steps}
    assert "shared_expert_gate_up" not in steps
    assert "dense_mlp_activation" not in steps
    assert steps["shared_expert_down"].covers == (
        "shared_expert_gate_up",
        "shared_expert_activation",
        "shared_expert_down",
    )
    want = built.full().run().clone()
    assert torch.equal(built.full().run(), want)
    assert torch.isfinite(want).all()
    with pytest.raises(UsageError, match="--impl mlp=torch takes bf16, and dense_mlp has fp8"):
        _built(_case("deepseek-v3", impl=asked.implementations("mlp=torch")))


def test_a_name_stands_for_its_forms_and_its_paths() -> None:
    forms = ("triton:verify", "triton_decode:decode", "triton_extend:extend")
    assert _rows(*forms) == "triton"
    assert _rows(*forms, form="decode") == "triton_decode"
    assert _rows(*forms, form="extend") == "triton_extend"
    library = ("flashinfer_composed", "flashinfer_rows:decode")
    assert _rows(*library) == "flashinfer_composed"
    assert _rows(*library, form="decode") == "flashinfer_rows"
    assert _rows("torch", form="extend") == "it has no form for --attention extend"
    paths = ("triton", "triton_direct", "triton_sorted")
    assert _rows(*paths, kind="moe") == "triton"
    assert _rows(*paths, kind="moe", path="sorted") == "triton_sorted"
    assert _rows("torch", kind="moe", path="sorted").startswith("it has no path for --moe sorted")


def test_shrunken_models_keep_the_kind_of_every_part() -> None:
    for model in TABLE.values():
        small = shrunken.shrunken(model)
        assert type(small.attention) is type(model.attention)
        assert (small.moe is None) == (model.moe is None)
        assert small.formats == model.formats
        assert small.layers == 3
        assert small.name == f"{model.name}-shrunk"
        if model.moe is not None and small.moe is not None:
            assert (small.moe.groups > 1) == (model.moe.groups > 1)
            assert small.moe.scoring == model.moe.scoring
            assert small.dense_layers == min(1, model.dense_layers)
    assert isinstance(KIMI.attention, Mla)
    direct = replace(KIMI, attention=replace(KIMI.attention, q_lora_rank=None))
    small = shrunken.shrunken(direct)
    assert isinstance(small.attention, Mla)
    assert small.attention.q_lora_rank is None
    assert isinstance(shrunken.shrunken(TABLE["llama-3.1-70b"]).attention, Gqa)


def test_the_first_layers_of_a_model_have_a_name_of_their_own() -> None:
    first = asked.cut(KIMI, 8)
    assert (first.name, first.layers, first.dense_layers) == ("kimi-k2.5-first-8", 8, 1)
    assert asked.cut(KIMI, 61) is KIMI
    with pytest.raises(UsageError, match=r"--layers 62, but kimi-k2\.5 has 61; give 1 to that"):
        asked.cut(KIMI, 62)


def test_quant_sets_the_formats_of_a_known_checkpoint() -> None:
    deepseek = TABLE["deepseek-v3"]
    assert asked.quantised(KIMI, "fp8").formats == deepseek.formats
    assert asked.quantised(deepseek, "int4").formats == KIMI.formats
    assert asked.quantised(KIMI, None) is KIMI
    with pytest.raises(UsageError, match="unknown --quant 'int3'; known: bf16, fp8, int4"):
        asked.quantised(KIMI, "int3")
