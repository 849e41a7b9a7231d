"""What holds of all device code in Triton, read from its source."""

import ast
from collections.abc import Iterator
from pathlib import Path

KERNELS = Path(__file__).parents[1] / "kernels"
WHOLE_BLOCKS = {"memory_ceiling.py"}  # what it reads is a whole number of blocks: no mask to pay


def _loops(function: ast.FunctionDef) -> Iterator[ast.For | ast.While]:
    for node in ast.walk(function):
        unrolled = isinstance(node, ast.For) and "static_range" in ast.unparse(node.iter)
        if isinstance(node, ast.For | ast.While) and not unrolled:
            yield node


def _calls(path: Path) -> Iterator[ast.Call]:
    for function in ast.walk(ast.parse(path.read_text())):
        if isinstance(function, ast.FunctionDef) and any(
            "triton.jit" in ast.unparse(one) for one in function.decorator_list
        ):
            for loop in _loops(function):
                yield from (one for one in ast.walk(loop) if isinstance(one, ast.Call))


def test_what_a_loop_loads_is_masked_for_it_may_be_loaded_ahead_of_the_loops_end() -> None:
    loads = [
        (path.name, call)
        for path in sorted(KERNELS.rglob("*.py"))
        if path.name not in WHOLE_BLOCKS
        for call in _calls(path)
        if ast.unparse(call.func) == "tl.load"
    ]
    assert len(loads) > 10
    unmasked = [
        f"{name}: {ast.unparse(call)}"
        for name, call in loads
        if not {"mask", "other"} <= {keyword.arg for keyword in call.keywords}
    ]
    assert unmasked == []
