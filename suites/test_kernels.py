"""Every implementation of every op on every case: one point each, measured case by case.

pytest suites/ --benchmark-only [-k EXPRESSION] [--records FILE] [--benchmark-json FILE]
"""

from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from kernels import Point
from suites._points import by_name, id_of, points
from suites._suite import Suite
from verifyscope.clock import DeviceClock


def _param(point: Point) -> Any:
    return pytest.param(
        point.op,
        point.implementation,
        point.case,
        id=id_of(point),
        marks=pytest.mark.benchmark(timer=DeviceClock(), group=f"{point.op}/{point.case}"),
    )


@pytest.mark.parametrize(("op", "implementation", "case"), [_param(point) for point in points()])
def test_kernel(
    suite: Suite,
    benchmark: BenchmarkFixture,
    request: pytest.FixtureRequest,
    op: str,
    implementation: str,
    case: str,
) -> None:
    """Hand the point's own samples to pytest-benchmark; what has none fails or is skipped."""
    clock = request.node.get_closest_marker("benchmark").kwargs["timer"]
    suite.take(by_name()[op, implementation, case], benchmark, clock)
