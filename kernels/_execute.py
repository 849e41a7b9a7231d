"""Where an implementation is executed: on the device, or in what stands in for one.

Without a GPU, Triton kernels run in Triton's interpreter and CUDA C++ runs on the CPU with races,
bounds and deadlocks watched. Both are for tiny cases, and for correctness alone.
"""

import contextlib
import os
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
import torch

import kernels
from kernels import _host_cuda, _raw
from kernels._check import check
from kernels._graph import check_replay
from kernels._points import Checked, Point, reason_from
from kernels._registry import Case, Implementation, Reason, find_case, find_op
from verifyscope.errors import Failure, UsageError

Executed = Literal["cuda", "cpu", "interpreter", "host"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How a point is executed here; `executed` is None, with a reason, where it cannot be."""

    executed: Executed | None
    reason: Reason | None = None


def device() -> torch.device:
    """Return the device that implementations are checked on."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def interpret_without_a_gpu() -> None:
    """Choose Triton's interpreter if there is no GPU; call it before Triton is imported."""
    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"


def way(implementation: Implementation, case: Case, *, device: torch.device) -> Way:
    """Say how `implementation` is executed on `case`, with the stand-ins where there is no GPU."""
    needs = implementation.needs
    reason = implementation.why_not(device, case)
    if reason is None:
        interpreted = "triton" in needs.packages and os.environ.get("TRITON_INTERPRET") == "1"
        native: Executed = "cuda" if device.type == "cuda" else "cpu"
        return Way(executed="interpreter" if interpreted else native)
    kernels_of = set(needs.packages)
    if device.type != "cpu" or not needs.capabilities or not kernels_of <= {"triton", "cupy"}:
        return Way(executed=None, reason=reason)
    if refused := needs.refuses(case):
        return Way(executed=None, reason=refused)
    if not case.tiny:
        return Way(executed=None, reason="too large to be executed without a GPU")
    if kernels_of == {"triton"}:
        return Way(executed="interpreter")
    missing = _host_cuda.why_not()
    return Way(executed=None if missing else "host", reason=missing)


@contextlib.contextmanager
def stand_ins() -> Iterator[None]:
    """Within the block, launching CUDA C++ runs it on this CPU if there is no GPU."""
    if torch.cuda.is_available():
        yield
        return
    with _raw.launching_by(_host_cuda.run):
        yield


def check_point(task: tuple[Point, bool]) -> Checked:
    """Check one point, given by name, against its reference; whatever happens becomes a row.

    task: the point, and whether to capture a CUDA graph and check its replay instead.
    """
    point, graph = task
    implementation = find_op(point.op).implementations[point.implementation]
    case, here = find_case(implementation.op, point.case), device()
    chosen = way(implementation, case, device=here)
    row = Checked(
        part=point.part,
        op=point.op,
        implementation=point.implementation,
        kind=point.kind,
        case=point.case,
        executed=f"{chosen.executed} + graph" if graph and chosen.executed else chosen.executed,
        status="skipped",
        reason=chosen.reason,
    )
    if chosen.executed is None:
        return row
    try:
        with stand_ins():
            found = (check_replay if graph else check)(implementation, case, device=here)
    except torch.OutOfMemoryError as error:
        return msgspec.structs.replace(
            row, reason=f"too large for this device: {reason_from(error)}"
        )
    except (UsageError, Failure):  # of this machine, not of the kernel
        raise
    except Exception as error:  # whatever a kernel raises is this point's result
        return msgspec.structs.replace(row, status="failed", reason=_where(error))
    worst = found.worst
    return msgspec.structs.replace(
        row,
        status="failed" if found.problems else "passed",
        max_row_error=worst.error,
        tolerance=worst.allowed,
        output=worst.output,
        reason=found.problems,
    )


def _where(error: Exception) -> str:
    """Return the error in one line, with the line of this project that it came from."""
    folders = [Path(path).resolve() for path in kernels.__path__]
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if any(Path(frame.filename).resolve().is_relative_to(folder) for folder in folders)
        and not Path(frame.filename).name.startswith("_")
    ]
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{reason_from(error)}{place}"
