"""Which ops have a plot of time against T, what is on it, and what the page says of the others."""

import re
from pathlib import Path

import pytest

from reports import _drawn, _page, _plots
from reports._collected import collect
from tests.report_sample import GPU, US, kernel, write
from verifyscope.records import Measurement

Drawn = dict[str, tuple[list[_plots.Line], str]]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Drawn:
    """Keep what is drawn instead of drawing it."""
    kept: Drawn = {}

    def keep(path: Path, lines: list[_plots.Line], *, title: str, **_: object) -> None:
        kept[path.stem.removeprefix("time-")] = lines, title

    monkeypatch.setattr(_plots, "time_against_tokens", keep)
    return kept


def op(name: str, *, tokens: tuple[int, ...] = (1, 2, 4), **changes: object) -> list[Measurement]:
    return [
        kernel("own", 20.0 + 2 * t, op=name, case=f"t{t}", dims={"rows": t}, **changes)
        for t in tokens
    ]


def page(folder: Path, rows: list[Measurement], *, plots: bool = True) -> str:
    path = write(folder / "r.jsonl", [GPU, *rows])
    _page.write(collect([path]), folder, command="c", plots=plots)
    return (folder / "report.md").read_text()


def test_attention_and_experts_come_before_other_ops_and_the_rest_is_said(
    drawn: Drawn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_drawn, "_MOST_CURVES", 3)
    others = [row for n in range(3) for row in op(f"norm{n}", part="norms")]
    experts = op("fused_moe", part="routed_experts")
    text = page(tmp_path, [*others, *op("mla_verify"), *experts])
    assert set(drawn) == {"mla-verify", "fused-moe", "norm0"}
    said = "Not drawn: a page has the plots of 3 ops, attention and experts first"
    assert text.count(said) == 2
    for name in ("norm1", "norm2"):
        assert said in re.split(r"^### ", text, flags=re.MULTILINE)[_section(text, name)]


def _section(text: str, name: str) -> int:
    parts = re.split(r"^### ", text, flags=re.MULTILINE)
    return next(at for at, part in enumerate(parts) if part.startswith(f"`{name}`"))


def test_a_curve_has_its_fit_from_t_0_and_the_floor_beside_it(drawn: Drawn, tmp_path: Path) -> None:
    page(tmp_path, op("mla_verify", tokens=(1, 2, 4, 8)))
    (own, floor), title = drawn["mla-verify"]
    assert own.fit == pytest.approx((20 * US, 2 * US))
    assert own.label == "own; thin: fit of 20.0 us + 2.00 us x T"
    assert (own.source, floor.source) == ("measured", "predicted")
    assert (floor.label, list(floor.y)) == ("floor of bytes and flops", [20e-6] * 4)
    assert floor.is_floor
    assert title.startswith("mla_verify")


def test_two_t_are_no_curve_and_without_plots_nothing_is_missed(
    drawn: Drawn, tmp_path: Path
) -> None:
    text = page(tmp_path / "a", op("mla_verify", tokens=(1, 2)))
    text += page(tmp_path / "b", op("mla_verify"), plots=False)
    assert drawn == {}
    assert "Not drawn" not in text


def test_more_lines_than_a_plot_holds_are_counted(drawn: Drawn, tmp_path: Path) -> None:
    rows = [
        kernel(f"own{n}", 20.0 + n + t, case=f"t{t}", dims={"rows": t})
        for n in range(11)
        for t in (1, 2, 4)
    ]
    page(tmp_path, rows)
    lines, title = drawn["tree-attention"]
    assert len([line for line in lines if not line.is_floor]) == _plots.MOST_LINES == 8
    assert title.endswith("; 3 more lines in the tables")
