"""What each hypothesis would need of a pass that took longer, in the founding case's numbers."""

import pytest

from graphs._predicted import excess
from graphs._predicted.excess import Facts, Hypothesis

FACTS = Facts(
    model="kimi-k2.5",
    ranks=8,
    layers=61,
    rows=3,
    all_reduces=122,
    message_bytes=43_008,
    row_bytes=14_336,
    all_reduce_s=31e-6,
    launches=1402,
    read_s=6.29e-6,
    context=8192,
)


def founding(**changes: object) -> dict[str, Hypothesis]:
    facts = Facts(**{**{name: getattr(FACTS, name) for name in Facts.__slots__}, **changes})
    found = excess.hypotheses(29.49e-3, against="earlier run", against_s=19.04e-3, facts=facts)
    return {one.name: one for one in found}


def test_the_founding_case_needs_86_us_an_all_reduce_or_171_us_a_layer() -> None:
    found = founding()
    assert list(found) == ["all-reduces", "launch gaps", "attention read T times"]
    assert all(one.excess_s == pytest.approx(10.45e-3) for one in found.values())
    assert found["all-reduces"].count == 122
    assert round(found["all-reduces"].each_s * 1e6) == 86
    assert found["launch gaps"].count == 61
    assert round(found["launch gaps"].each_s * 1e6) == 171
    # Two further reads in each of 61 layers.
    assert found["attention read T times"].count == 122


def test_each_hypothesis_names_what_confirms_and_what_kills_it() -> None:
    found = founding()
    sweep = "python -m collectives.sweep --gpus 8 --model kimi-k2.5 --tokens 3 on that host"
    assert found["all-reduces"].confirm.startswith(f"{sweep}: about 117 us at 43,008 B")
    assert found["all-reduces"].kill == f"{sweep}: about 31.0 us at 43,008 B, as predicted"
    assert "idle for 171 us a layer" in found["launch gaps"].confirm
    assert "one graph launch" in found["launch gaps"].kill
    # 85.7 us a read over 6.29 us at 8,192 tokens.
    assert "this alone needs 111,557 tokens" in found["attention read T times"].confirm
    assert "time(L) does not grow" in found["attention read T times"].kill


def test_what_the_pass_has_not_is_not_blamed() -> None:
    assert list(founding(rows=1)) == ["all-reduces", "launch gaps"]
    assert list(founding(all_reduces=0)) == ["launch gaps", "attention read T times"]
    unknown = founding(all_reduce_s=None)["all-reduces"]
    assert "85.7 us more than before" in unknown.confirm


def test_a_pass_that_was_no_longer_has_nothing_to_explain() -> None:
    for against_s in (29.49e-3, 40e-3):
        assert not excess.hypotheses(
            29.49e-3, against="prediction", against_s=against_s, facts=FACTS
        )


def test_over_a_prediction_that_lacks_a_part_an_excess_is_at_most_that() -> None:
    found = excess.hypotheses(
        29.49e-3, against="prediction", against_s=6.36e-3, facts=FACTS, complete=False
    )
    assert all(one.at_most for one in found)
