"""Whether a kernel moves the bytes that its op says it must: DRAM counters against touched bytes.

    python -m suites.dram_bytes [--op NAME] [--records FILE]

For each op, one implementation of ours on the largest case it fits, cold (ncu empties the caches
before each kernel), once, under `ncu`. What the DRAM read and wrote must lie within 5 % of the
op's touched bytes, else the count of bytes or the kernel is wrong. Rows: op, implementation, case,
touched bytes, read bytes, written bytes, ratio, verdict. Exit status 1 if a ratio is off.
"""

import csv
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from verifyscope import cli, runs
from verifyscope.errors import Failure, UsageError
from verifyscope.records import Evidence, Finding

if TYPE_CHECKING:
    import torch

    from kernels import Case, Implementation

WITHIN = 0.05
_READ, _WRITTEN = "dram__bytes_read.sum", "dram__bytes_write.sum"
_LARGEST_BYTES = 4e9
_LIMIT_S = 300

application = cli.app("Compare DRAM counters with the bytes that an op must touch (needs ncu).")


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """Bytes of one cold call: what the op must touch, what the DRAM read and wrote."""

    op: str
    implementation: str
    case: str
    touched: float
    read: float
    written: float

    @property
    def ratio(self) -> float:
        """Return the moved bytes over the touched bytes."""
        return (self.read + self.written) / self.touched

    @property
    def right(self) -> bool:
        """Say whether the two agree."""
        return abs(self.ratio - 1) <= WITHIN


@application.command()
def main(
    op: Annotated[list[str] | None, typer.Option(help="Only this op; may be repeated.")] = None,
    once: Annotated[str | None, typer.Option(hidden=True)] = None,
    records: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Append the findings to FILE.")
    ] = None,
) -> None:
    """Count the bytes of one cold case an op."""
    if once is not None:
        _run_once(once)
        return
    wrong = []
    with runs.start(records, "dram-bytes") as run:
        for name in op or _ops_with_a_kernel():
            counted = _count(name)
            _print(counted)
            run.append(_finding(counted, run.environment.id))
            if not counted.right:
                wrong.append(f"{counted.op}/{counted.implementation} {counted.ratio:.3f}")
    if wrong:
        raise Failure(f"moved / touched bytes off by more than 5 %: {', '.join(wrong)}")


def parse(text: str) -> tuple[float, float]:
    """Return the bytes read and written that ncu's `--csv` names, over all kernels."""
    found = {_READ: 0.0, _WRITTEN: 0.0}
    for row in csv.DictReader(line for line in text.splitlines() if line.startswith('"')):
        if row["Metric Name"] in found:
            if row["Metric Unit"] != "byte":
                raise Failure(f"ncu counts in {row['Metric Unit']!r} in place of bytes")
            found[row["Metric Name"]] += float(row["Metric Value"].replace(",", ""))
    return found[_READ], found[_WRITTEN]


def _count(op: str) -> Counted:
    command = [
        *("ncu", "--target-processes", "all", "--profile-from-start", "off"),
        *("--clock-control", "none", "--csv", "--print-units", "base"),
        *("--metrics", f"{_READ},{_WRITTEN}"),
        *(sys.executable, "-m", "suites.dram_bytes", "--once", op),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S)
    except FileNotFoundError:
        raise Failure("needs ncu (Nsight Compute), which is not on PATH") from None
    except subprocess.TimeoutExpired:
        raise Failure(f"{op}: ncu took more than {_LIMIT_S} s") from None
    text = done.stdout + done.stderr
    said = re.search(r"^# once (\S+) (\S+) (\S+)$", text, re.MULTILINE)
    if done.returncode != 0 or said is None or '"ID"' not in done.stdout:
        cli.note(text)  # it holds the words by which a caller knows that counters are forbidden
        raise Failure(f"{op}: ncu or the kernel failed: {_last(text)}")
    read, written = parse(done.stdout)
    return Counted(
        op=op,
        implementation=said[1],
        case=said[2],
        touched=float(said[3]),
        read=read,
        written=written,
    )


def _run_once(op: str) -> None:
    """Run one call between the profiler's marks: this is the process that ncu watches."""
    import torch

    from kernels import find_op

    device = torch.device("cuda")
    implementation = _kernel_of(op, device)
    if implementation is None:
        raise UsageError(f"{op} has no kernel of ours that this device runs")
    case = _largest_case(implementation, device)
    inputs = find_op(op).inputs(case, device)
    touched = find_op(op).cost(inputs).touched_bytes
    prepared = implementation.prepare(inputs)
    for _ in range(2):  # compile and tune outside the counted call
        prepared.call()
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    prepared.call()
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()
    print(f"# once {implementation.name} {case.name} {touched:.0f}", flush=True)


def _ops_with_a_kernel() -> list[str]:
    import torch

    from kernels import all_ops

    if not torch.cuda.is_available():
        raise UsageError("needs a CUDA device, and torch finds none")
    found = [op for op in all_ops() if _kernel_of(op, torch.device("cuda")) is not None]
    if not found:
        raise UsageError("no op has a kernel of ours that this device runs")
    return found


def _kernel_of(op: str, device: "torch.device") -> "Implementation | None":
    """Return the first implementation of ours that is compiled: it declares instructions."""
    from kernels import find_op

    for implementation in find_op(op).implementations.values():
        if implementation.kind == "own" and implementation.declares:
            cases = find_op(op).cases
            if any(implementation.why_not(device, case) is None for case in cases):
                return implementation
    return None


def _largest_case(implementation: "Implementation", device: "torch.device") -> "Case":
    def touched(case: "Case") -> float:
        op = implementation.op
        return op.cost(op.inputs(case, device)).touched_bytes

    sizes = {
        case.name: touched(case)
        for case in implementation.op.cases
        if not case.tiny and implementation.why_not(device, case) is None
    }
    fitting = {name: size for name, size in sizes.items() if size <= _LARGEST_BYTES}
    if not fitting:
        raise UsageError(f"{implementation.id} has no case that this device runs")
    largest = max(fitting, key=lambda name: fitting[name])
    return next(case for case in implementation.op.cases if case.name == largest)


def _print(counted: Counted) -> None:
    row = (
        *(counted.op, counted.implementation, counted.case),
        *(f"{counted.touched:.0f}", f"{counted.read:.0f}", f"{counted.written:.0f}"),
        *(f"{counted.ratio:.3f}", "right" if counted.right else "off"),
    )
    head = ("op", "implementation", "case", "touched", "read", "written", "ratio", "verdict")
    cli.print_rows([row], head)


def _finding(counted: Counted, environment: str) -> Finding:
    verdict = "agrees" if counted.right else "does not agree"
    return Finding(
        name="dram-bytes",
        sentence=(
            f"{counted.op}/{counted.implementation} on {counted.case} moved {counted.ratio:.3f} "
            f"times its touched bytes, which {verdict} with the op's cost"
        ),
        evidence=(
            Evidence(file="ncu", at=_READ, value=f"{counted.read:.0f}"),
            Evidence(file="ncu", at=_WRITTEN, value=f"{counted.written:.0f}"),
            Evidence(file="cost", at="touched_bytes", value=f"{counted.touched:.0f}"),
        ),
        next_action=None if counted.right else "look for reads that repeat, or a cost that errs",
        confidence="sure",
        environment=environment,
        command=cli.command_line(),
    )


def _last(text: str) -> str:
    said = [line.strip() for line in text.splitlines() if line.strip()]
    return said[-1] if said else "nothing"


if __name__ == "__main__":
    cli.run(application, "python -m suites.dram_bytes")
