"""`python -m ingest FILE...`: read other tools' logs into records.

Exit status 0 when every file was read, 1 when some were, 2 when none was.
"""

from pathlib import Path
from typing import Annotated

import typer

from verifyscope import cli

PROGRAM = "python -m ingest"

application = cli.app("Turn the output of other tools (nccl-tests) into records.")


@application.command()
def main(
    files: Annotated[
        list[Path],
        typer.Argument(help="Logs to read, told apart by content; - is standard input."),
    ],
    records: Annotated[
        Path | None,
        typer.Option(help="Append the records to this file; else a new folder under runs/."),
    ] = None,
) -> None:
    """Read FILES into records and say what was recognised, how many rows, and what looks wrong."""
    from ingest import reading

    reading.read_files(files, records)


if __name__ == "__main__":
    cli.run(application, PROGRAM)
