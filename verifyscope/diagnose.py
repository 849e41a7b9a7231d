"""`python -m verifyscope.diagnose --model kimi-k2.5 --tp 8 --minutes 10`: one command, one verdict.

Looks at this machine, reads the logs that you have (--log), tries links and all-reduces, takes a
pass of the model's layers apart, times the kernels that matter for it, predicts the pass, and
writes a report: each a process of its own within its share of the minutes. What fails, hangs or
cannot run here is named, and hides nothing else. --plan prints the commands and runs none.

Without a GPU it does what a CPU can: the prediction, all-reduces over processes, a shrunken stub;
none of their times is a GPU's. Ctrl-C ends it with a report of what there is by then.

On stdout: the steps, the verdict and the path of the report. Exit status: 0 fine, 1 a step failed,
2 usage, 130 interrupted.
"""

from __future__ import annotations

# Nothing but the standard library is imported until the command line is read: --help starts in a
# blink, and a python that lacks packages is told which, and how to get them.
import argparse
import datetime
import importlib.util
import io
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from verifyscope.errors import Failure, UsageError

if TYPE_CHECKING:
    from verifyscope._diagnosis_steps import Asked, Folder
    from verifyscope.job import Step

_PROGRAM = "python -m verifyscope.diagnose"
_ROOT = Path(__file__).resolve().parent.parent
_ADD_PACKAGES = "python -m verifyscope.install here"
_MOST_MINUTES = 24 * 60
_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    for stream in (sys.stdout, sys.stderr):  # a terminal of another encoding shows a ? instead
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    given = _parser().parse_args(arguments)
    try:
        return _diagnose(given)
    except (UsageError, Failure) as error:
        _say(f"{_PROGRAM}: {error}")
        return 2 if isinstance(error, UsageError) else 1
    except KeyboardInterrupt:
        _say(f"{_PROGRAM}: interrupted; what was measured is kept")
        return _INTERRUPTED
    except BrokenPipeError:  # whoever read stdout has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        cause = (error.strerror or str(error)).lower()
        _say(f"{_PROGRAM}: {place}{cause}; free some space or name another folder with --out")
        return 1


def _diagnose(given: argparse.Namespace) -> int:
    _require_base()
    _require_checkout()
    from verifyscope import _diagnosis_run, _diagnosis_steps, driver
    from verifyscope.hardware import match
    from verifyscope.models import find_model

    found = driver.look()
    gpus = found.gpus if found else ()
    entry = match(gpus[0]) if gpus else None
    here = _diagnosis_steps.Here(gpus=gpus, entry=entry.name if entry else None)
    asked = _asked(given, len(gpus))
    folder = _folder(given.out)
    steps = _diagnosis_steps.steps(asked, here, folder, find_model(asked.model))
    if given.plan:
        _print_plan(steps, folder, asked)
        return 0
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)
    folder.path.mkdir(parents=True, exist_ok=True)
    _say(
        f"{asked.model}, TP {asked.tp}, {asked.rows} rows at {asked.context}: at most "
        f"{asked.minutes:g} minutes, into {folder.name}"
    )
    if not gpus:
        _say("no NVIDIA GPU answers here: what runs now runs on the CPU, and is no time of a GPU")
    return _diagnosis_run.run(steps, folder=folder, budget_s=asked.minutes * 60, root=_ROOT)


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, as those of all commands."""

    def error(self, message: str) -> NoReturn:
        _say(f"{_PROGRAM}: {message}; '{_PROGRAM} --help' lists what is allowed")
        sys.exit(2)


def _parser() -> argparse.ArgumentParser:
    summary, _, details = (__doc__ or "").partition("\n\n")
    parser = _Parser(
        prog=_PROGRAM,
        usage=f"{_PROGRAM} --model MODEL [--tp N] [--minutes N] [--log FILE ...] [OPTIONS]",
        description=summary,
        epilog=details,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--model", required=True, help="a known model, or the path of a config.json")
    add("--tp", metavar="N", help="ranks of tensor parallelism  [default: the GPUs here]")
    add("--minutes", metavar="N", type=float, default=10.0, help="of all steps  [default: 10]")
    add("--rows", metavar="N", default="4", help="tokens a request in a verify  [default: 4]")
    add("--context", metavar="N", default="8k", help="cached tokens a request  [default: 8k]")
    add("--requests", metavar="N", default="1", help="requests at once  [default: 1]")
    add("--log", metavar="FILE", nargs="+", action="extend", default=[],
        help="what you have: logs and traces of the server, of NCCL, of benchmarks, nvidia-smi, "
        "lspci ...; their findings join the report")  # fmt: skip
    add("--observed-ms", metavar="MS", help="what a verify was seen to take  [default: from --log]")
    add("--earlier-ms", metavar="MS", help="what an earlier run of it took")
    add("--plain-ms", metavar="MS", help="what a plain token takes  [default: from --log]")
    add("--accept-length", metavar="TOKENS", help="tokens that a cycle yields, such as 1.8")
    add("--gpu", metavar="NAME", help="the GPU to predict for, such as h200  [default: the one "
        "here, else the founding case's, rtx-pro-6000-server]")  # fmt: skip
    add("--look-only", action="store_true",
        help="touch no GPU, for example while a server runs on them")  # fmt: skip
    add("--compile", metavar="CC", nargs="+", default=[],
        help="build all kernels for these architectures, too, such as 90 120")  # fmt: skip
    add("-k", metavar="EXPRESSION", dest="expression",
        help="kernels to time, as pytest selects; '' for all  [default: the model's]")  # fmt: skip
    add("--out", metavar="DIR", type=Path, help="the run's folder  [default: a new one in runs/]")
    add("--plan", "--dry-run", action="store_true",
        help="print the steps, their shares and their commands, and run nothing")  # fmt: skip
    return parser


def _asked(given: argparse.Namespace, gpus: int) -> Asked:
    """Return what was asked; `UsageError` names the first value that cannot be meant."""
    from verifyscope import hardware, units
    from verifyscope._diagnosis_steps import Asked
    from verifyscope.models import find_model

    if not 0 < given.minutes <= _MOST_MINUTES:
        raise UsageError(f"--minutes {given.minutes:g} is out of range; give up to {_MOST_MINUTES}")
    if given.tp is None and not gpus:
        raise UsageError("no GPU is here to count; give --tp, such as --tp 8")
    if given.gpu is not None:
        hardware.find_gpu(given.gpu)
    tp = gpus if given.tp is None else units.parse_count(given.tp)
    model = find_model(given.model)
    if model.heads % tp:
        raise UsageError(f"{model.name} has {model.heads} heads; --tp {tp} cannot split them")
    units.parse_count(given.context)
    rows = units.parse_count(given.rows)
    _require_numbers(given, rows)
    return Asked(
        model=_from_root(given.model) if Path(given.model).exists() else given.model,
        tp=tp,
        rows=rows,
        context=given.context,
        requests=units.parse_count(given.requests),
        minutes=given.minutes,
        gpu=given.gpu,
        logs=tuple(map(_log, given.log)),
        observed_ms=given.observed_ms,
        earlier_ms=given.earlier_ms,
        plain_ms=given.plain_ms,
        accept_length=given.accept_length,
        look_only=given.look_only,
        compile=tuple(given.compile),
        expression=given.expression,
    )


def _require_numbers(given: argparse.Namespace, rows: int) -> None:
    """Raise `UsageError` for a time or an acceptance that cannot be."""
    if given.earlier_ms is not None and given.observed_ms is None:
        raise UsageError("--earlier-ms is held against an observed verify; give --observed-ms too")
    accepted = _number("--accept-length", given.accept_length, least=1.0)
    if accepted is not None and accepted > rows:
        raise UsageError(
            f"--accept-length {given.accept_length}: a verify of {rows} rows yields at most {rows} "
            f"tokens; give the rows of a verify with --rows"
        )
    for option, text in (
        ("--observed-ms", given.observed_ms),
        ("--earlier-ms", given.earlier_ms),
        ("--plain-ms", given.plain_ms),
    ):
        _number(option, text, least=1e-6)


def _number(option: str, text: str | None, *, least: float) -> float | None:
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not least <= value < 1e9:
        example = "1.8" if option == "--accept-length" else "29.5"
        raise UsageError(f"{option} {text!r} is no number of at least {least:g}, like {example}")
    return value


def _log(name: str) -> str:
    if not Path(name).exists():
        raise UsageError(f"--log {name}: no such file; name what your server printed")
    return _from_root(name)


def _from_root(name: str) -> str:
    """Return what a command in the checkout calls a file or folder named from here."""
    if Path.cwd() == _ROOT:
        return name
    return str(Path(name).absolute())


def _folder(out: Path | None) -> Folder:
    from verifyscope._diagnosis_steps import Folder

    if out is None:
        out = Path("runs") / f"{datetime.datetime.now():%Y-%m-%d-%H%M%S}-diagnose"
    if out.exists() and not out.is_dir():
        raise UsageError(f"--out {out} is a file; name a folder")
    if (out / "records.jsonl").exists():
        raise UsageError(
            f"--out {out} holds a run; name another folder, or leave --out out for a new one"
        )
    return Folder(out.absolute(), _from_root(str(out)))


def _require_base() -> None:
    """Raise `Failure` where no step could run."""
    from verifyscope._diagnosis_steps import BASE

    lacks = [name for name in BASE if importlib.util.find_spec(name) is None]
    if lacks:
        raise Failure(
            f"this Python lacks {', '.join(lacks)}, without which no step runs; in the checkout "
            f"`{_ADD_PACKAGES}` (or `make setup-here`) adds them, and changes nothing that is here"
        )


def _require_checkout() -> None:
    """Raise `UsageError` where only verifyscope itself is installed."""
    from verifyscope.lacking import FLOORS

    missing = [name for name in FLOORS if not (_ROOT / name / "__init__.py").exists()]
    if missing:
        raise UsageError(
            f"{', '.join(missing)} are not beside this verifyscope ({_ROOT}), which is installed "
            f"alone; go to the checkout and run the same command there"
        )


def _print_plan(steps: Sequence[Step], folder: Folder, asked: Asked) -> None:
    """Print a script: what would run, each command with its share of the minutes above it."""
    run = shlex.quote(folder.name)
    print(f"# {asked.minutes:g} minutes; what steps leave of their time is for later ones")
    print("# the prediction is also given what is known by then: --measured, --observed-ms ...")
    print(f'cd {shlex.quote(str(_ROOT))} && RUN={run} && mkdir -p "$RUN"')
    for number, step in enumerate(steps, 1):
        if step.why_not:
            print(f"\n# {number}. {step.name}: not run: {step.why_not}")
            continue
        least, share = f"{step.least_s:.0f} s", f"{step.limit_s:.0f} s"
        print(f"\n# {number}. {step.name}: {share}, at least {least}")
        line = shlex.join((_python(), *step.command[1:]))
        if step.output:
            line += f" > {shlex.quote(folder.file(step.output))}"
        print(line.replace(run, "$RUN") if run == folder.name else line)


def _python() -> str:
    """Return how a shell names this Python."""
    name = Path(sys.executable).name
    return name if shutil.which(name) == sys.executable else sys.executable


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
