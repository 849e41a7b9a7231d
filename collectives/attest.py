r"""`python -m collectives.attest -- COMMAND ...`: did the settings reach the workers of a server?

It starts the command (SGLang, vLLM, anything that starts workers) with NCCL's log on, a file for
each process, and says for each worker what was asked for, what is in effect, by whose doing, and
what NCCL chose by size. The verdict is the first line. The server may run for ever: Ctrl-C,
--seconds or --until-quiet stop it and report; Ctrl-\ reports while it runs. Logging takes time in
each eager call: attest a server, do not serve with it.

    python -m collectives.attest --seconds 300 -- python -m sglang.launch_server ...
    python -m collectives.attest --expect NCCL_PROTO=LL --log FILE...

Exit status 0 where every setting reached every worker, 1 where not, 2 for a wrong question; that of
the command where it ends by itself with another one than 0.
"""

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from verifyscope import cli
from verifyscope.errors import UsageError

if TYPE_CHECKING:
    from collectives._attest.conclusion import Conclusion
    from collectives._attest.judgement import Start
    from collectives._attest.logs import Logs, Watched
    from collectives._attest.server import Ended, Limits
    from verifyscope.runs import Run

PROGRAM = "python -m collectives.attest"
_LONGEST_S = 30 * 86_400

application = cli.app("Start a server and say which settings reached its workers.")


@application.command()
def main(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="COMMAND", help="What to start, behind --; or more files of --log."),
    ] = None,
    log: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="Read kept logs of NCCL, or a folder, and start nothing."
        ),
    ] = None,
    expect: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE", help="A setting that the workers should have; may be repeated."
        ),
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(help="Stop the command after this long, and report.")
    ] = None,
    until_quiet: Annotated[
        float | None,
        typer.Option(help="Stop it once NCCL has logged something, and nothing for this long (s)."),
    ] = None,
    grace: Annotated[
        float, typer.Option(help="Seconds it has to end when it is stopped; then it is killed.")
    ] = 15.0,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Keep NCCL's own logs here; they name your hosts."),
    ] = None,
    records: Annotated[
        Path | None,
        typer.Option(help="Append the findings to this file; else a new folder under runs/."),
    ] = None,
    json: Annotated[Path | None, typer.Option(help="Write all of it to this file.")] = None,
) -> None:
    """Start COMMAND with NCCL's log on; say for each worker what reached it and what NCCL chose."""
    if log:
        _refuse_with_log(seconds=seconds, until_quiet=until_quiet, out=out)
        _read([*log, *map(Path, words or ())], expect or (), records, json)
        return
    if not words:
        raise UsageError(f"nothing to start: give {PROGRAM} -- COMMAND ..., or --log FILE")
    if "--" not in sys.orig_argv and set(words) & set(sys.orig_argv):
        # The command line becomes part of a record, but for what is behind the --.
        raise UsageError(f"put -- before the command: {PROGRAM} -- COMMAND ...")
    from collectives._attest.server import Limits

    for option, given in (("--seconds", seconds), ("--until-quiet", until_quiet)):
        if given is not None and not 0 < given <= _LONGEST_S:
            raise UsageError(f"{option} {given:g} is out of range; give seconds up to {_LONGEST_S}")
    if not 0 <= grace <= 3600:
        raise UsageError(f"--grace {grace:g} is out of range; give seconds up to 3600")
    limits = Limits(seconds=seconds, quiet_s=until_quiet, grace_s=grace)
    _attest(words, expect or (), limits, out=out, records=records, json=json)


def _refuse_with_log(**others: object) -> None:
    given = [name for name, value in others.items() if value is not None]
    if given:
        option = given[0].replace("_", "-")
        raise UsageError(f"--{option} is for a command that is started; with --log leave it out")


def _read(
    paths: Sequence[Path], expected: Sequence[str], records: Path | None, json: Path | None
) -> None:
    """Report on logs that somebody kept: nothing is known of how their processes were started."""
    from collectives._attest import logs, requested
    from collectives._attest.judgement import Start
    from verifyscope import runs

    files = [file for path in paths for file in _files(path)]
    wanted = requested.requested({}, (), expected)
    start = Start(requested=wanted, environment=None, configured={})
    found = logs.read(files)
    if not found.log.processes:
        raise UsageError(
            f"{files[0]}: no line of NCCL with host, process and device; log with NCCL_DEBUG=INFO "
            f"and NCCL_DEBUG_SUBSYS={','.join(requested.SUBSYSTEMS)}"
        )
    with runs.start(records, "attest") as run, cli.output(json) as file:
        concluded = _concluded(found, start, {}, run)
        _tell(concluded, run, file)
    raise typer.Exit(0 if concluded.reached else 1)


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = sorted(file for file in path.iterdir() if file.is_file())
    if not found:
        raise UsageError(f"--log {path} is an empty folder; give the logs of NCCL")
    return found


def _attest(
    words: Sequence[str],
    expected: Sequence[str],
    limits: "Limits",
    *,
    out: Path | None,
    records: Path | None,
    json: Path | None,
) -> None:
    """Start the command, report when it has ended, and end as it did or as the verdict is."""
    from collectives._attest import logs, requested, server
    from collectives._attest.judgement import Start
    from ingest.nccl_conf import configured
    from verifyscope import runs

    before, command = requested.split(words)
    if not command:
        raise UsageError(f"no program behind the settings; give {PROGRAM} -- COMMAND ...")
    environment = {**os.environ, **before}
    start = Start(
        requested=requested.requested(os.environ, words, expected),
        environment=environment,
        configured=configured(environment),
    )
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(_folder(out))
        run = stack.enter_context(runs.start(records, "attest"))
        file = stack.enter_context(cli.output(json))
        logging, said = requested.logging(environment, folder)
        said += [f"the command sets {name} itself" for name in requested.logging_in(command)]
        for sentence in said:
            cli.note(f"{PROGRAM}: {sentence}")
        watched = logs.Watched(folder=folder, pattern=logging["NCCL_DEBUG_FILE"])
        watcher = _Watcher(watched, start, run)
        ended = server.run(
            command, environment=environment | logging, limits=limits, watcher=watcher
        )
        concluded = watcher.concluded()
        _tell(concluded, run, file)
    raise typer.Exit(_status(ended, concluded))


@contextlib.contextmanager
def _folder(out: Path | None) -> Iterator[Path]:
    """Make the folder of NCCL's logs, which is gone afterwards where nobody asked for them."""
    from collectives._attest import logs

    if out is None:
        with tempfile.TemporaryDirectory(prefix="nccl-logs-") as made:
            yield Path(made)
        return
    out.mkdir(parents=True, exist_ok=True)
    if logs.made_in(out):
        raise UsageError(f"--out {out} holds the logs of another run; name a new folder")
    yield out


class _Watcher:
    """Looks at the logs of a running command, and reports on them when asked."""

    def __init__(self, watched: "Watched", start: "Start", run: "Run") -> None:
        self._watched, self._start, self._run = watched, start, run

    def look(self) -> None:
        """Look once at what is new."""
        self._watched.look()

    def is_quiet(self, seconds: float) -> bool:
        """Say whether something was logged, and nothing more for `seconds`."""
        return self._watched.is_quiet(seconds)

    def concluded(self) -> "Conclusion":
        """Return what the logs say now."""
        from collectives._attest import logs

        found = logs.read(logs.made_in(self._watched.folder))
        return _concluded(found, self._start, self._watched.started, self._run)

    def report(self) -> None:
        """Print what the logs say now, on stderr: stdout is for the last word."""
        from collectives._attest import printing

        with contextlib.redirect_stdout(sys.stderr):
            printing.report(self.concluded())
            print(flush=True)


def _concluded(
    found: "Logs", start: "Start", started: Mapping[int, Mapping[str, str]], run: "Run"
) -> "Conclusion":
    from collectives._attest.conclusion import conclude
    from collectives._attest.workers import workers

    here = run.environment
    return conclude(
        found, workers(found, started), start, environment=here.id, command=here.command
    )


def _tell(found: "Conclusion", run: "Run", json: BinaryIO | None) -> None:
    """Record, print and write what was found."""
    from collectives._attest import printing

    for finding in found.findings:
        run.append(finding)
    printing.report(found)
    if json is not None:
        import msgspec

        text = msgspec.json.format(msgspec.json.encode(printing.as_json(found)), indent=1)
        json.write(text + b"\n")
    cli.note(f"records: {run.path}")


def _status(ended: "Ended", found: "Conclusion") -> int:
    if ended.stopped is None and ended.status:
        cli.note(f"{PROGRAM}: the command ended by itself with status {ended.status}")
        return ended.status
    return 0 if found.reached else 1


if __name__ == "__main__":
    cli.run(application, PROGRAM)
