"""`python -m ingest FILE...`: read other tools' logs into records, and say what they mean.

Exit status 0 when every file was read, 1 when some were, 2 when none was.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from verifyscope import cli
from verifyscope.errors import UsageError

if TYPE_CHECKING:
    from ingest.model_findings import Machine

PROGRAM = "python -m ingest"

application = cli.app("Read what other tools print into records, and say what it means.")


@application.command()
def main(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Files, told apart by content; gzip too; - is standard input; a folder of traces."
        ),
    ] = None,
    records: Annotated[
        Path | None,
        typer.Option(help="Append the records to this file; else a new folder under runs/."),
    ] = None,
    plain_ms: Annotated[
        float | None,
        typer.Option(help="What a plain decoding step takes, where no file says it."),
    ] = None,
    gpu: Annotated[
        str | None, typer.Option(help="The GPU that floors of a config.json are counted for.")
    ] = None,
    tp: Annotated[int, typer.Option(min=1, max=1024, help="GPUs that share its weights.")] = 1,
    classes: Annotated[
        Path | None,
        typer.Option(help="A CSV of class,kind,pattern,evidence: kernels of yours in traces."),
    ] = None,
    same_system: Annotated[
        bool,
        typer.Option("--same-system", help="Compare all files, whatever systems they name."),
    ] = False,
    formats: Annotated[
        bool, typer.Option("--formats", help="List what is read, with an example line each.")
    ] = False,
) -> None:
    """Read FILES into records; print the verdict in one line, then times and findings.

    Several files are compared: a log with speculation beside one without, or two that differ in one
    setting. Files that name different models, GPUs, engines or TP are not; one line says which.
    """
    if formats:
        from ingest import printing

        printing.formats()
        return
    if not files:
        raise UsageError("no file given; name what to read, or list the formats with --formats")
    if plain_ms is not None and not 0 < plain_ms < 1e6:
        raise UsageError(
            f"--plain-ms {plain_ms:g} is no time; give milliseconds a token, like 12.1"
        )
    from ingest import reading
    from ingest.kernel_classes import with_own

    patterns = () if classes is None else with_own(classes)
    plain_s = None if plain_ms is None else plain_ms * 1e-3
    reading.read_files(
        files,
        records,
        plain_s=plain_s,
        machine=_machine(gpu, tp),
        patterns=patterns,
        same_system=same_system,
    )


def _machine(gpu: str | None, tp: int) -> "Machine | None":
    """Return what floors are counted for, or None where no GPU is named."""
    if gpu is None:
        return None
    from ingest.model_findings import Machine
    from verifyscope import hardware

    known = hardware.find_gpu(gpu)
    if known.dram_bytes_per_s is None:
        raise UsageError(f"the bandwidth of {gpu} is not known; name another GPU")
    return Machine(title=known.title, bytes_per_s=known.dram_bytes_per_s, tp=tp)


if __name__ == "__main__":
    cli.run(application, PROGRAM)
