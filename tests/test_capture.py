"""Captured passes follow their tensors, and what breaks a capture is named."""

import gc
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from graphs import capture, nodes, stub
from graphs._stub import asked, equality, shrunken
from graphs._stub.asked import Case, Reduce
from graphs._stub.messages import Replayed
from graphs.capture import CaptureBroke, Graphed
from graphs.stub import Stub
from kernels import Outputs
from kernels._registry import Implementation
from kernels.attention import tree_attention
from kernels.attention._gathered import pack, unpack
from tests.fake_capture import FakeRecorder
from verifyscope.models import TABLE, Model

CPU = torch.device("cpu")
LLAMA = shrunken.shrunken(TABLE["llama-3.1-70b"])
# Latent attention without experts: torch's loop over experts asks the host, and no graph holds it.
KIMI = replace(shrunken.shrunken(TABLE["kimi-k2.5"]), moe=None, dense_layers=3)


pytestmark = pytest.mark.usefixtures("as_a_rank_runs")


@pytest.fixture
def _on_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add an attention that reads lengths, trees and pages where they lie, as our kernels do."""

    def attend(**inputs: Any) -> Outputs:
        given = tree_attention.Given(**inputs)
        shape, tokens = given.shape, given.draft_tokens
        key = torch.arange(shape.most_keys)
        pages = given.page_table.clamp(0, len(given.k_cache) - 1).long()
        page, slot = pages[:, key // shape.page_size], key % shape.page_size
        draft = key - given.prefix_lens[:, None]  # [requests, keys]
        bit = (given.mask_words[:, :, None] >> draft.clamp(0, tokens - 1)[:, None]) & 1
        seen = (draft < 0)[:, None] | ((draft < tokens)[:, None] & (bit != 0))
        hidden = ~seen.repeat_interleave(shape.group, 1)[:, None]
        rows = pack(given.q, tokens=tokens, kv_heads=shape.kv_heads).float()
        keys, values = (
            cache[page, slot].transpose(1, 2).float() for cache in (given.k_cache, given.v_cache)
        )
        score = rows * given.scale @ keys.transpose(2, 3)
        weight = score.masked_fill(hidden, float("-inf")).softmax(-1)
        return {"out": unpack(weight @ values, tokens=tokens).to(given.q.dtype)}

    op = tree_attention.OP
    one = Implementation(op=op, name="follower", prepare=_prepared(attend), omits=("lse",))
    monkeypatch.setitem(op._added, "follower", one)


def _prepared(run: Any) -> Any:
    from kernels import Prepared

    return lambda inputs: Prepared(call=lambda: run(**inputs))


def _built(model: Model = LLAMA, **more: Any) -> Stub:
    fields: dict[str, Any] = {
        "model": model,
        "tp": 2,
        "rows": 4,
        "context": 100,
        "requests": 2,
        "tree": "eagle4",
        "attention": "verify",
        "path": "auto",
        "reduce": Reduce("none"),
    }
    case = Case(**{**fields, **more})
    return stub.build(case, CPU, free_bytes=10**10, cache_bytes=None)


def _graphed(built: Stub, *outside: str, recorder: FakeRecorder | None = None) -> Graphed:
    return capture.capture(
        built.full(), outside=frozenset(outside), recorder=recorder or FakeRecorder()
    )


@pytest.mark.parametrize("model", [LLAMA, KIMI], ids=["grouped", "latent"])
@pytest.mark.parametrize("outside", [(), ("attention",), ("norms", "rope")])
def test_a_captured_pass_gives_what_eager_gives(model: Model, outside: tuple[str, ...]) -> None:
    built = _built(model)
    want = built.full().run().clone()
    graphed = _graphed(built, *outside)
    graphed.logits.zero_()
    assert torch.equal(graphed.run(), want)
    # Nothing that runs in between moves what the graph reads.
    built.only({"attention"}).run()
    built.full().run()
    assert torch.equal(graphed.run(), want)


def test_attention_outside_leaves_a_graph_more_than_layers_and_copies_its_results() -> None:
    graphed = _graphed(_built(), "attention")
    assert len(graphed.graphs) == 4
    assert graphed.copies == 3
    assert len(graphed.pieces) == 7
    assert len(_graphed(_built()).pieces) == 1


def test_an_all_reduce_outside_works_in_place_and_copies_nothing() -> None:
    built = _built(reduce=Reduce("delay", 1e-6))

    def scaled(flow: dict[str, torch.Tensor]) -> None:
        flow["hidden"].mul_(1.5)

    steps = tuple(replace(s, run=scaled) if s.in_place else s for s in built.steps)
    other = replace(built, steps=steps)
    want = other.full().run().clone()
    graphed = _graphed(other, "all_reduce", "embedding_all_reduce")
    assert graphed.copies == 0
    assert torch.equal(graphed.run(), want)


def test_a_step_that_cannot_be_captured_is_named_and_so_is_what_it_did() -> None:
    built = _built(shrunken.shrunken(TABLE["kimi-k2.5"]))
    with pytest.raises(CaptureBroke) as caught:
        _graphed(built)
    assert caught.value.op == "experts_down"
    assert "operation not permitted when stream is capturing" in caught.value.reason


def test_a_capture_that_is_invalidated_without_an_error_is_named_by_the_step_behind_it() -> None:
    recorder = FakeRecorder()
    recorder.invalidated_by = "silu"
    with pytest.raises(CaptureBroke) as caught:
        _graphed(_built(), recorder=recorder)
    assert (caught.value.op, caught.value.reason) == (
        "dense_mlp_activation",
        "RuntimeError: the capture was invalidated here",
    )


def test_a_step_that_fails_before_the_capture_is_named_as_well() -> None:
    built = _built()

    def lost(flow: dict[str, torch.Tensor]) -> None:
        raise RuntimeError("no such kernel image")

    steps = tuple(replace(s, run=lost) if s.name == "o_proj" else s for s in built.steps)
    with pytest.raises(CaptureBroke, match="o_proj: RuntimeError: no such kernel image"):
        _graphed(replace(built, steps=steps))


def test_the_nodes_of_a_graph_are_those_of_its_steps_and_of_pieces_those_of_all() -> None:
    built = _built()
    whole, pieces = _graphed(built).opened(), _graphed(built, "attention").opened()
    attention = _graphed_only(built, "attention").opened()
    assert whole.kinds["kernel"] == pieces.kinds["kernel"] + attention.kinds["kernel"]
    assert whole.kernels["mm"] == 3 * 4 + 1  # four products a layer, and the head


def _graphed_only(built: Stub, part: str) -> Graphed:
    return capture.capture(built.only({part}), outside=frozenset(), recorder=FakeRecorder())


def test_a_captured_pass_without_a_part_computes_what_the_eager_one_does() -> None:
    built = _built()
    taken = built.without({"dense_mlp"})
    want = taken.run().clone()
    graphed = capture.capture(taken, outside=frozenset(), recorder=FakeRecorder())
    assert torch.equal(graphed.run(), want)
    assert "mm" in graphed.opened().kernels


def _checked(built: Stub, graphed: Graphed) -> dict[str, Replayed]:
    found = equality.check(built, {"graph": graphed}, synchronize=lambda: None)
    return {one.changed: one for one in found}


@pytest.mark.usefixtures("_on_device")
def test_replays_with_other_lengths_trees_and_pages_equal_eager_bit_for_bit() -> None:
    built = _built(impl=asked.implementations("attention=follower"))
    found = _checked(built, _graphed(built))
    assert list(found) == ["", "lengths", "tree", "page table"]
    assert all(one.bitwise and one.problem is None for one in found.values())
    # The first step stands there again.
    assert built.metadata.prefix_lens.tolist() == [100, 100]
    assert torch.equal(built.metadata.page_table, built.drafts.layout.table)


@pytest.mark.usefixtures("_on_device")
def test_the_other_steps_really_give_other_logits() -> None:
    built = _built(impl=asked.implementations("attention=follower"))
    first = built.full().run().clone()
    from graphs._stub.cache import others

    for _, drafts in others(built.case):
        built.metadata.fill(drafts)
        assert not torch.equal(built.full().run(), first)


def test_a_graph_that_keeps_what_the_host_planned_is_found_out() -> None:
    built = _built()  # torch's attention, whose indices are planned for the first lengths
    found = _checked(built, _graphed(built))
    assert found[""].problem is None
    for changed in ("lengths", "tree", "page table"):
        problem = found[changed].problem
        assert problem is not None, changed
        assert problem.startswith("differs from eager by ")


def test_what_eager_itself_does_not_repeat_is_no_fault_of_the_graph() -> None:
    got, want = torch.tensor([[1.0, 0.003]]), torch.tensor([[1.0, 0.0]])
    assert equality.row_error(got, want) == pytest.approx(3e-3)
    assert equality._judged("graph", "", got, want, 1e-3).problem is None
    assert equality._judged("graph", "", got, want, 5e-4).problem is not None
    assert equality.row_error(torch.tensor([[float("nan")]]), torch.tensor([[1.0]])) == float("inf")


class _Stream:
    """A stream by its name; entering it is noted."""

    cuda_stream = 7

    def __init__(self, name: str = "side", log: list[str] | None = None) -> None:
        self.name, self.log = name, [] if log is None else log

    def wait_stream(self, other: "_Stream") -> None:
        self.log.append(f"{self.name} waits for {other.name}")

    def synchronize(self) -> None:
        self.log.append(f"{self.name} synchronized")

    def __enter__(self) -> None:
        self.log.append(f"on {self.name}")

    def __exit__(self, *args: object) -> None:
        self.log.append(f"off {self.name}")


@pytest.fixture
def cuda_log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replace what a recorder calls of torch.cuda; what it does is noted."""
    log: list[str] = []
    caller = _Stream("caller", log)

    class Graph:
        def __init__(self, *, keep_graph: bool) -> None:
            assert keep_graph

        def instantiate(self) -> None:
            log.append("instantiated")

        def raw_cuda_graph(self) -> int:
            return 1

        def replay(self) -> None:
            log.append("replayed")

    class Capturing:
        def __init__(self, graph: Graph, *, pool: object, stream: _Stream) -> None:
            assert pool == (0, 5)
            self._stream = stream

        def __enter__(self) -> None:
            log.append(f"captures on {self._stream.name}, collector {gc.isenabled()}")

        def __exit__(self, kind: object, error: object, trace: object) -> None:
            log.append("capture ends")
            if error is not None:  # as torch: what ends the capture is raised in its place
                raise RuntimeError("operation failed due to a previous error during capture")

    replaced: dict[str, Any] = {
        "current_stream": lambda: caller,
        "Stream": lambda: _Stream("side", log),
        "stream": lambda stream: stream,
        "synchronize": lambda: None,
        "CUDAGraph": Graph,
        "graph": Capturing,
        "set_stream": lambda stream: log.append(f"back on {stream.name}"),
        "graph_pool_handle": lambda: (0, 5),
    }
    for name, value in replaced.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(capture, "upload", lambda graph, stream: True)
    monkeypatch.setattr(nodes, "broke", lambda stream: False)
    return log


def test_a_recorder_warms_up_captures_without_the_collector_and_uploads(
    cuda_log: list[str],
) -> None:
    recorder = capture.CudaRecorder()
    recorder.warm_up(lambda: cuda_log.append("body"))
    with recorder.capturing():
        graph = recorder.record(lambda: cuda_log.append("body"))
    assert gc.isenabled()
    graph.replay()
    assert cuda_log == [
        *("side waits for caller", "on side", "body", "off side", "caller waits for side"),
        *("captures on side, collector False", "body", "capture ends"),
        *("instantiated", "caller synchronized", "replayed"),
    ]
    assert graph.instantiate_s >= 0
    assert graph.upload_s is not None


def test_a_recorder_returns_to_the_stream_and_the_cause_is_that_of_the_step(
    cuda_log: list[str],
) -> None:
    built = _built()
    project = next(step.run for step in built.steps if step.name == "qkv_proj")

    def copies(flow: dict[str, torch.Tensor]) -> None:
        if cuda_log[-1].startswith("captures on"):
            raise ValueError("a copy to the CPU")
        project(flow)

    steps = tuple(replace(s, run=copies) if s.name == "qkv_proj" else s for s in built.steps)
    with pytest.raises(CaptureBroke) as caught:
        capture.capture(
            replace(built, steps=steps).full(),
            outside=frozenset(),
            recorder=capture.CudaRecorder(),
        )
    assert (caught.value.op, caught.value.reason) == ("qkv_proj", "ValueError: a copy to the CPU")
    assert cuda_log[-1] == "back on caller"
    assert gc.isenabled()


class _Enum(int):
    def __new__(cls, value: int, name: str) -> "_Enum":
        made = super().__new__(cls, value)
        made.name = name  # type: ignore[attr-defined]
        return made


_OK = _Enum(0, "cudaSuccess")
_KINDS = SimpleNamespace(
    cudaGraphNodeTypeKernel=_Enum(0, "cudaGraphNodeTypeKernel"),
    cudaGraphNodeTypeMemcpy=_Enum(1, "cudaGraphNodeTypeMemcpy"),
    cudaGraphNodeTypeGraph=_Enum(4, "cudaGraphNodeTypeGraph"),
)


class _Bindings:
    """cuda.bindings over a graph that is a list of nodes: (kind, handle, name or child graph)."""

    def __init__(self, graphs: dict[int, list[tuple[str, str, Any]]], *, pads: int = 0) -> None:
        self.graphs, self.pads = graphs, pads
        self.cudaGraphNodeType = _KINDS
        self.error = _OK

    def cudaGraph_t(self, raw: int) -> int:
        return raw

    def CUgraphNode(self, raw: int) -> int:
        return raw

    def cudaGraphGetNodes(self, graph: int, count: int = 0) -> tuple[Any, ...]:
        found = self.graphs[graph]
        listed = [graph * 100 + at for at in range(len(found))][:count] + [0] * self.pads
        return self.error, listed if count else [], len(found)

    def _node(self, node: int) -> tuple[str, str, Any]:
        return self.graphs[node // 100][node % 100]

    def cudaGraphNodeGetType(self, node: int) -> tuple[Any, ...]:
        return _OK, getattr(_KINDS, f"cudaGraphNodeType{self._node(node)[0]}")

    def cudaGraphChildGraphNodeGetGraph(self, node: int) -> tuple[Any, ...]:
        return _OK, self._node(node)[2]

    def cuGraphKernelNodeGetParams(self, node: int) -> tuple[Any, ...]:
        _, handle, _ = self._node(node)
        known = {"func": 0, "kern": 0, handle: 1000 + node}
        return _OK, SimpleNamespace(**known)

    def cuFuncGetName(self, func: int) -> tuple[Any, ...]:
        return _OK, self._node(func - 1000)[2]

    def cuKernelGetName(self, kern: int) -> tuple[Any, ...]:
        return _OK, self._node(kern - 1000)[2]


def _opened(bindings: _Bindings, monkeypatch: pytest.MonkeyPatch) -> nodes.Nodes:
    fake = SimpleNamespace(driver=bindings, runtime=bindings)
    monkeypatch.setitem(__import__("sys").modules, "cuda.bindings", fake)
    return nodes.opened(1)


@pytest.mark.parametrize("pads", [0, 3])
def test_a_graph_is_opened_by_kind_and_kernel_whichever_handle_names_it(
    monkeypatch: pytest.MonkeyPatch, pads: int
) -> None:
    graph = [
        ("Kernel", "func", b"attend"),
        ("Kernel", "kern", b"attend"),
        ("Memcpy", "", None),
        ("Kernel", "func", b"combine"),
        ("Kernel", "none", None),
    ]
    found = _opened(_Bindings({1: graph}, pads=pads), monkeypatch)
    assert found.kinds == {"kernel": 4, "memcpy": 1}
    assert found.kernels == {"attend": 2, "combine": 1, "(a kernel without a name)": 1}
    assert found.count == 5


def test_a_child_graph_is_entered(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = [("Kernel", "func", b"reduce"), ("Kernel", "func", b"reduce")]
    outer = [("Kernel", "func", b"norm"), ("Graph", "", 2)]
    found = _opened(_Bindings({1: outer, 2: inner}), monkeypatch)
    assert found.kernels == {"reduce": 2, "norm": 1}


def test_what_the_bindings_refuse_is_said_and_never_counted_as_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bindings = _Bindings({1: []})
    bindings.error = _Enum(400, "cudaErrorInvalidResourceHandle")
    with pytest.raises(nodes.NotOpened, match=r"answers cudaErrorInvalidResourceHandle \(400\)"):
        _opened(bindings, monkeypatch)
