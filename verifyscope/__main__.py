"""`python -m verifyscope`: what this machine is, what can run here, what cannot and why.

Prints one row a fact: `machine`, `yes`, `no` (with the reason) or `wrong` (with the next action).
The exit status is 0 whatever is found.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from verifyscope import cli
from verifyscope.units import bytes_

if TYPE_CHECKING:
    from verifyscope.machine import Machine
    from verifyscope.records import Environment, GpuState

application = cli.app("Say what this machine is, what can run here, and what looks wrong.")


@application.command()
def show(
    json: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write all of it as JSON, too.")
    ] = None,
) -> None:
    """Say what this machine is, what can run here, what cannot and why, and what looks wrong."""
    import msgspec  # --help starts in a blink without these two

    from verifyscope import doctor
    from verifyscope.machine import look

    machine = look()
    capabilities, findings = doctor.can_run(machine), doctor.wrong(machine)
    if json is not None:
        found = {
            "environment": machine.environment,
            "capabilities": capabilities,
            "findings": findings,
        }
        json.parent.mkdir(parents=True, exist_ok=True)
        json.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n")
    rows = [("machine", name, text) for name, text in _machine(machine)]
    rows += [
        ("no" if c.why_not else "yes", c.name, c.why_not or c.detail)
        for c in sorted(capabilities, key=lambda c: c.why_not is not None)
    ]
    rows += [("wrong", f.name, f"{f.sentence}; next: {f.next_action}") for f in findings]
    cli.print_rows(rows, ("", "what", "how"))
    if not findings:
        cli.note("Nothing looks wrong.")


def _machine(machine: Machine) -> Iterator[tuple[str, str]]:
    here = machine.environment
    memory = f", {bytes_(here.memory_bytes)} of memory" if here.memory_bytes else ""
    yield "processor", f"{here.processor}, {here.cores} cores{memory}"
    yield "system", f"{here.system}, Python {here.python}"
    for gpu in here.gpus:
        yield f"gpu {gpu.index}", _gpu(gpu)
    if here.gpus:
        yield "driver", f"{here.driver or 'not known'}, CUDA {here.cuda_driver or 'not known'}"
    else:
        yield "gpu", f"none: {machine.why_no_gpu}"
    for name, version in here.versions.items():
        yield name, version
    for name, value in here.settings.items():
        yield name, value
    yield "commit", _commit(here)


def _gpu(gpu: GpuState) -> str:
    facts = [
        gpu.name,
        bytes_(gpu.memory_bytes) if gpu.memory_bytes else None,
        f"capability {gpu.capability}" if gpu.capability else None,
        f"{gpu.sm_max_mhz} MHz at most" if gpu.sm_max_mhz else None,
        f"{gpu.power_limit_w:.0f} W at most" if gpu.power_limit_w else None,
        f"PCIe {gpu.pcie_generation} x{gpu.pcie_width}" if gpu.pcie_width else None,
    ]
    return ", ".join(fact for fact in facts if fact)


def _commit(here: Environment) -> str:
    if here.commit is None:
        return "not known: this is no checkout of verifyscope"
    return f"{here.commit}{', with changed files' if here.dirty else ''}"


if __name__ == "__main__":
    cli.run(application, "python -m verifyscope")
