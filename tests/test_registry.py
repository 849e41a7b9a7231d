"""What a file of `kernels/` must be, what it may need, and what is said where it cannot be used."""

import importlib
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import kernels
from kernels import Case, Cost, Needs, Op, Outputs, Prepared, Tolerance, all_ops, find_op
from kernels._registry import absent, find_case
from verifyscope.errors import UsageError

CPU = torch.device("cpu")
A_CASE = Case(name="small", dims={"rows": 3, "tree": "chain"}, tiny=True)

AN_OP = """
import torch
from kernels import Case, Cost, Op, Tolerance
OP = Op(
    name={name!r}, part="norms", reference=lambda x: {{"y": x}},
    inputs=lambda case, device: {{"x": torch.zeros(1)}},
    cost=lambda inputs: Cost(flops=1, read_bytes=1, written_bytes=1),
    cases=(Case(name="small", dims={{}}, tiny=True), Case(name="large", dims={{}})),
    tolerance=Tolerance(row=0.1, why="a test"),
)
"""
MORE = "from kernels.{op} import OP\n@OP.implementation('{name}')\ndef more(x): return {{'y': x}}\n"


def op(**changes: object) -> Op:
    parts: dict[str, object] = {
        "name": "identity",
        "part": "norms",
        "reference": lambda x: {"y": x},
        "inputs": lambda case, device: {"x": torch.ones(1, device=device)},
        "cost": lambda inputs: Cost(flops=1, read_bytes=1, written_bytes=1),
        "cases": (A_CASE,),
        "tolerance": Tolerance(row=0.1, why="a test"),
    }
    make: Callable[..., Op] = Op
    return make(**parts | changes)


@pytest.fixture
def write(tmp_path: Path, more_ops: Callable[..., None]) -> Iterator[Callable[[str, str], None]]:
    """Return a function that puts a file beside those of `kernels/`."""
    more_ops(tmp_path)

    def add(name: str, text: str) -> None:
        (tmp_path / f"{name}.py").write_text(text)
        importlib.invalidate_caches()

    yield add
    for file in tmp_path.glob("*.py"):
        sys.modules.pop(f"kernels.{file.stem}", None)
        vars(kernels).pop(file.stem, None)


# ---- Discovery ----


def test_a_file_is_an_op_or_adds_to_one(write: Callable[[str, str], None]) -> None:
    write("zz_op", AN_OP.format(name="zz_op"))
    write("zz_op_other", MORE.format(op="zz_op", name="other"))
    write("_zz_machinery", "raise RuntimeError('never imported')")
    assert list(all_ops()["zz_op"].implementations) == ["other"]
    assert find_op("zz_op") is all_ops()["zz_op"]


def test_a_file_that_is_neither_is_refused_with_what_to_do(
    write: Callable[[str, str], None],
) -> None:
    write("zz_stray", "VALUE = 1")
    with pytest.raises(TypeError, match=r"kernels/zz_stray\.py .* start its name with an undersc"):
        all_ops()


def test_two_ops_of_one_name_are_refused(write: Callable[[str, str], None]) -> None:
    write("zz_one", AN_OP.format(name="zz_same"))
    write("zz_two", AN_OP.format(name="zz_same"))
    with pytest.raises(
        ValueError, match=r"kernels/zz_two\.py declares a second op named 'zz_same'"
    ):
        all_ops()


def test_a_missing_package_costs_one_implementation_and_is_the_reason(
    write: Callable[[str, str], None],
) -> None:
    write(
        "zz_op", AN_OP.format(name="zz_op") + MORE.format(op="zz_op", name="here").split("\n", 1)[1]
    )
    write("zz_op_nopackage", "import nopackage.jit\n")
    assert list(all_ops()["zz_op"].implementations) == ["here"]
    (missing,) = absent()
    assert (missing.op, missing.name) == ("zz_op", "nopackage")
    assert missing.reason == "needs the package 'nopackage', which is not installed"


def test_an_op_whose_file_needs_a_missing_package_is_named_with_the_reason(
    write: Callable[[str, str], None],
) -> None:
    write("zz_op", "import nopackage\n")
    write("zz_op_cupy", MORE.format(op="zz_op", name="cupy"))
    assert {(one.op, one.name) for one in absent()} == {("zz_op", "*"), ("zz_op", "cupy")}
    with pytest.raises(UsageError, match=r"op 'zz_op' cannot be loaded: needs the package 'nopack"):
        find_op("zz_op")


def test_a_wrong_import_of_something_installed_is_no_missing_package(
    write: Callable[[str, str], None],
) -> None:
    write("zz_op", "import kernels._no_such_part\n")
    with pytest.raises(ModuleNotFoundError, match="_no_such_part"):
        all_ops()


def test_an_unknown_op_or_case_is_refused_with_the_known_ones(
    write: Callable[[str, str], None],
) -> None:
    write("zz_op", AN_OP.format(name="zz_op"))
    with pytest.raises(UsageError, match=r"unknown op 'nope'; known: .*zz_op"):
        find_op("nope")
    with pytest.raises(UsageError, match="unknown case 'nope' of op 'zz_op'; known: small, large"):
        find_case(find_op("zz_op"), "nope")


def test_importing_the_machinery_imports_no_optional_package() -> None:
    importlib.import_module("kernels._compile")
    loaded = {name.partition(".")[0] for name in vars(sys.modules["kernels._compile"])}
    assert not loaded & {"triton", "cupy", "flashinfer"}


# ---- Ops, cases and implementations ----


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"part": "warp_drive"}, "unknown part 'warp_drive'"),
        ({"gate_cases": (A_CASE,)}, "two cases of one name"),
        ({"long_gate_cases": (A_CASE,)}, "two cases of one name"),
    ],
)
def test_an_op_that_contradicts_itself_is_refused(
    changes: dict[str, object], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        op(**changes)


def test_an_implementation_that_is_declared_wrongly_is_refused() -> None:
    identity = op()
    identity.implementation("one")(lambda x: {"y": x})
    with pytest.raises(ValueError, match="two implementations named 'one'"):
        identity.implementation("one")(lambda x: {"y": x})
    with pytest.raises(ValueError, match=r"declares .'warp'.; known: tensor_core, wide_load"):
        identity.implementation("two", declares=("warp",))(lambda x: {"y": x})


def test_what_prepare_gives_is_what_is_called() -> None:
    identity, calls = op(), []

    @identity.prepared_implementation("planned")
    def planned(x: torch.Tensor) -> Prepared:
        calls.append("prepare")

        def call() -> Outputs:
            calls.append("call")
            return {"y": x + 1}

        return Prepared(call=call, facts={"splits": "1"})

    prepared = identity.implementations["planned"].prepare({"x": torch.ones(2)})
    assert [prepared.call()["y"].tolist() for _ in range(2)] == [[2, 2], [2, 2]]
    assert calls == ["prepare", "call", "call"]
    assert prepared.facts == {"splits": "1"}


def test_what_a_call_gives_is_converted_outside_it() -> None:
    prepared = Prepared(
        call=lambda: {"lse": torch.ones(1)},
        convert=lambda given: {"lse": given["lse"] * math.log(2)},
    )
    assert prepared.call()["lse"].item() == 1
    assert prepared.outputs()["lse"].item() == pytest.approx(math.log(2))


def test_a_number_of_a_case_is_a_number() -> None:
    assert A_CASE.number("rows") == 3
    with pytest.raises(TypeError, match="case small: tree is 'chain', not a whole number"):
        A_CASE.number("tree")


@pytest.mark.parametrize(
    ("needs", "reason"),
    [
        (Needs(), None),
        (Needs(packages=("nopackage",)), "needs the package 'nopackage', which is not installed"),
        (
            Needs(capabilities=(90, 120)),
            "needs a CUDA device of capability 9.0, 12.0; this machine has none",
        ),
        (Needs(refuses=lambda case: f"not {case.name}"), "not small"),
    ],
)
def test_what_cannot_run_has_a_reason(needs: Needs, reason: str | None) -> None:
    identity = op()
    identity.implementation("one", needs=needs)(lambda x: {"y": x})
    assert identity.implementations["one"].why_not(CPU, A_CASE) == reason


@pytest.mark.parametrize(
    ("built", "present", "serves"),
    [
        ((80,), 80, True),
        ((80,), 89, True),  # later minor numbers of one major number run it
        ((89,), 80, False),
        ((80, 90), 100, False),
        ((100,), 103, True),
        ((), 75, True),
    ],
)
def test_a_capability_serves_later_minor_ones(
    built: tuple[int, ...], present: int, *, serves: bool
) -> None:
    identity = op()
    identity.implementation("one", needs=Needs(capabilities=built))(lambda x: {"y": x})
    assert identity.implementations["one"].serves(present) is serves
