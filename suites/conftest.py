"""What pytest needs to know of the suites: the records file, the selection, how a run ends.

    pytest suites/ --benchmark-only [-k EXPRESSION] [--records FILE] [--predict GPU]

pytest-benchmark's own options say how long: `--benchmark-max-time` is for a case, the rounds of all
its implementations together, `--benchmark-min-rounds` the least rounds (a GPU takes at least 20),
`--benchmark-precision` the half-width of every median's 95 % interval, as a fraction, at which a
case is done (0.01 unless given).
"""

import importlib.util
import os
import warnings
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from verifyscope import runs
from verifyscope.errors import Failure, UsageError
from verifyscope.hardware import Gpu, find_gpu
from verifyscope.runs import Run

if TYPE_CHECKING:
    from suites._suite import Suite

_SUITE = pytest.StashKey["Suite"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --records and --predict."""
    group = parser.getgroup("verifyscope")
    group.addoption(
        "--records",
        type=Path,
        metavar="FILE",
        help="append a JSON line for each point to FILE; else to a new folder in runs/",
    )
    group.addoption(
        "--predict",
        metavar="GPU",
        help="without a GPU: predict what is skipped for this one; else rtx-pro-6000-server",
    )


def pytest_configure(config: pytest.Config) -> None:
    """End with one line where nothing could be measured, whatever is selected."""
    if importlib.util.find_spec("torch") is None:
        pytest.exit("the suites need torch, which is not installed; see README.md", returncode=2)
    if config.getoption("benchmark_cprofile", None):
        pytest.exit(
            "--benchmark-cprofile would profile the playing of samples and no kernel; leave it out",
            returncode=2,
        )
    _let_pytest_benchmark_warn(config)


def _let_pytest_benchmark_warn(config: pytest.Config) -> None:
    """Keep its words to the person, such as that nothing was saved, from being errors."""
    from pytest_benchmark.logger import PytestBenchmarkWarning

    # It speaks at configuration and at the end, outside of the filters for tests.
    warnings.filterwarnings("default", category=PytestBenchmarkWarning)
    name = f"{PytestBenchmarkWarning.__module__}.{PytestBenchmarkWarning.__name__}"
    config.addinivalue_line("filterwarnings", f"default::{name}")
    # A point that fails has no samples to play, and its record says so.
    config.addinivalue_line("filterwarnings", f"ignore:Benchmark fixture was not used:{name}")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin the run once it is known what is selected; a wrong -k or -m does not come this far."""
    if config.option.collectonly:
        return
    from kernels import FOUNDING_GPU
    from suites import _suite
    from suites._points import name_of
    from suites._session import Limits, Session, bench_of_this_machine

    found = [point for item in items if (point := _suite.point_of(item)) is not None]
    selected = frozenset(name_of(point) for point in found)
    if not selected:
        return
    bench = bench_of_this_machine()
    if _disabled(config):
        config.stash[_SUITE] = _suite.CheckedSuite(bench=bench)
        return
    gpu = _named(config.getoption("--predict") or FOUNDING_GPU)
    run = _start(config.getoption("--records"))
    limits = Limits(
        max_time_s=float(config.getoption("benchmark_max_time")),
        min_rounds=int(config.getoption("benchmark_min_rounds")),
        target_width=float(config.getoption("benchmark_precision", None) or Limits().target_width),
    )
    config.stash[_SUITE] = _suite.TimedSuite(
        session=Session(bench=bench, run=run, limits=limits, selected=selected, predict_for=gpu)
    )


def _named(gpu: str) -> Gpu:
    """Return the GPU of --predict, or end pytest with one line."""
    try:
        return find_gpu(gpu)
    except UsageError as error:
        pytest.exit(str(error), returncode=2)


def _start(records: Path | None) -> Run:
    """Begin a run, or end pytest with one line and the status of the project's other commands."""
    try:
        return runs.start(records, "suites")
    except UsageError as error:
        pytest.exit(str(error), returncode=2)
    except Failure as error:
        pytest.exit(str(error), returncode=1)
    except OSError as error:
        pytest.exit(f"cannot write {error.filename or records}: {error.strerror}", returncode=1)


def _disabled(config: pytest.Config) -> bool:
    """Say whether pytest-benchmark times nothing: it was told so, or xdist is at work."""
    if "PYTEST_XDIST_WORKER" in os.environ or config.getoption("dist", "no") != "no":
        return True
    told = config.getoption("benchmark_disable") or config.getoption("benchmark_skip")
    return bool(told and not config.getoption("benchmark_enable"))


@pytest.fixture
def suite(request: pytest.FixtureRequest) -> "Suite":
    """Return the run that this test belongs to."""
    return request.config.stash[_SUITE]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """End with 130 after Ctrl-C, as the project's other commands do."""
    try:
        return (yield)
    except KeyboardInterrupt:
        pytest.exit("interrupted; what was measured is kept", returncode=130)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Tell the run of a point that ended early."""
    report = yield
    suite = item.config.stash.get(_SUITE, None)
    if suite is not None and call.excinfo is not None:
        from suites._suite import point_of

        if (point := point_of(item)) is not None:
            suite.end(point, report.outcome, call.excinfo.value)
    return report


def pytest_unconfigure(config: pytest.Config) -> None:
    """Say where the records are, below pytest's own summary."""
    suite = config.stash.get(_SUITE, None)
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if suite is not None and terminal is not None:
        terminal.write_line(suite.closing_line())


def pytest_benchmark_update_machine_info(machine_info: dict[str, Any]) -> None:
    """Leave the host's name out."""
    machine_info.pop("node", None)
