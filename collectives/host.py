"""`python -m collectives.host`: what this machine is as a collective host, and what is wrong.

Looked at: GPUs, paths and links (NVML), NUMA, IOMMU, access control (ACS), settings that files or
plugins inject. Tried, unless --look-only: each link under load, writes from each GPU into each
other one compared bit by bit, their rates alone and at once, a first all-reduce with NCCL's log on.
Rows on stdout begin with what they are: host, setting, nccl, gpu, pair, together, found.

FILES are saved texts of one machine, told apart by content, and judged anywhere instead of the
machine at hand: nvidia-smi topo -m, nvidia-smi -q (text or -x), lspci -vvv, dmesg, /proc/cmdline,
NCCL's log, or one that holds several (nvidia-bug-report.log.gz).

Exit status 0; 1 where values were wrong or a test hung here; 2 for a wrong question, and where
there is neither a GPU nor a file.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from verifyscope import cli
from verifyscope.errors import Failure, UsageError

if TYPE_CHECKING:
    from collectives._host.facts import Host

PROGRAM = "python -m collectives.host"

application = cli.app("Say what a machine is as a collective host, and what is wrong with it.")


@application.command()
def main(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILE",
            help="Saved texts of a machine, told apart by content; gzip too; - is standard input.",
        ),
    ] = None,
    log: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="An NCCL log of it; the same as naming it among FILES."),
    ] = None,
    look_only: Annotated[
        bool, typer.Option("--look-only", help="Touch no GPU: no transfer, no collective.")
    ] = False,
    timeout: Annotated[
        float, typer.Option(help="Seconds without progress after which a test counts as hung.")
    ] = 60.0,
    records: Annotated[
        Path | None,
        typer.Option(help="Append the records to this file; else a new folder under runs/."),
    ] = None,
    json: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write all of it as JSON, too.")
    ] = None,
) -> None:
    """Say what this machine, or a saved report of one, is as a collective host."""
    from collectives._host import findings, machine, saved, table
    from collectives._host import records as rows
    from verifyscope import runs

    if not 1 <= timeout <= 86_400:
        raise UsageError(f"--timeout {timeout:g} is out of range; give 1 to 86400")
    named = [*(files or ()), *(log or ())]
    host = saved.read(named) if named else machine.look()
    if not named and not host.count:
        _refuse(host, json)
    # Opened before anything is tried: a place that cannot be written is known at once.
    with runs.start(records, "host") as run, cli.output(json) as file:
        if not named and not look_only:
            host = _tried(host, timeout)
        found = findings.conclusions(host)
        table.show(host, found)
        for record in rows.records(host, found, run.environment):
            run.append(record)
        if file is not None:
            file.write(rows.as_json(host, found))
    cli.note(f"records: {run.path}")
    failed = ", ".join(findings.failed(host, found))
    if failed:
        raise Failure(f"this machine is not fit for collectives as it is: {failed}")


def _refuse(host: "Host", json: Path | None) -> NoReturn:
    """Say what is known of a machine without GPUs, which is nothing to record."""
    from collectives._host import findings, saved, table
    from collectives._host import records as rows

    found = findings.conclusions(host)
    table.show(host, found)
    with cli.output(json) as file:
        if file is not None:
            file.write(rows.as_json(host, found))
    raise UsageError(
        f"no GPU to judge ({host.why_no_gpu}): run this on a machine with GPUs, or give saved "
        f"texts of one; what is read: {saved.READ}"
    )


def _tried(host: "Host", timeout_s: float) -> "Host":
    """Try the GPUs of the machine at hand."""
    from dataclasses import replace

    from collectives._host import machine, peers, probe

    if not host.gpus:
        return host
    cli.note(f"trying links and writes of {len(host.gpus)} GPUs; --look-only leaves that out")
    tried = peers.measure(timeout_s=timeout_s)
    count = len(tried.visible or host.gpus)
    cli.note(f"a first all-reduce over {count} GPUs, with NCCL's log on")
    probed, logs = probe.probe(count, timeout_s=timeout_s)
    # What went wrong just now may stand in the kernel's log only since.
    kernel = machine.kernel_log()
    return replace(host.with_trials(tried), probed=probed, nccl=logs, kernel=kernel)


if __name__ == "__main__":
    cli.run(application, PROGRAM)
