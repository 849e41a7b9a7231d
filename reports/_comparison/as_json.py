"""A comparison as JSON: every row, part and difference; seconds, ratios, null where not known."""

import math
from pathlib import Path
from typing import Any

import msgspec

from reports._comparison.comparison import Comparison, Group, sentence
from reports._comparison.hypotheses import Hypothesis
from reports._comparison.matching import Pair
from reports._comparison.runs import Row
from reports._comparison.splits import Part, Split
from reports._comparison.verdicts import Change


def write(path: Path, found: Comparison, *, command: str) -> None:
    """Write all that is known of `found`, made by `command`."""
    matched = found.matched
    known = {
        "made_by": command,
        "sentence": sentence(found),
        "same_within": found.same_within,
        "counts": dict(found.counts),
        "rows": [_pair(pair) for pair in matched.pairs],
        "only_a": [_row(row) for row in matched.only_old],
        "only_b": [_row(row) for row in matched.only_new],
        "ops": [_group(group) for group in found.groups],
        "splits": [_split(split) for split in found.splits],
        "differences": [_hypothesis(one) for one in found.hypotheses],
        "not_recorded": found.unknown,
        "findings_only_a": [one.name for one in found.only_old_findings],
        "findings_only_b": [one.name for one in found.only_new_findings],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(known), indent=1) + b"\n")


def _row(row: Row) -> dict[str, Any]:
    last = row.last
    return {
        "id": last.id,
        "op": last.op,
        "implementation": last.implementation,
        "case": last.case,
        "mode": last.mode,
        "launch": last.launch,
        "cache": last.cache,
        "ranks": last.ranks,
        "requested": last.requested,
        "source": last.source,
        "status": last.status,
        "reason": last.reason,
        "median_s": row.median_s,
    }


def _pair(pair: Pair) -> dict[str, Any]:
    return _row(pair.new) | {
        "id_a": pair.old.last.id,
        "median_a_s": pair.old.median_s,
        "status_a": pair.old.last.status,
        "reason_a": pair.old.last.reason,
        "change": _change(pair.change),
    }


def _change(change: Change | None) -> dict[str, Any] | None:
    if change is None:
        return None
    return {
        "ratio": _finite(change.ratio),
        "low": _finite(change.low),
        "high": _finite(change.high),
        "chance": change.chance,
        "verdict": change.verdict,
        "spread_from": change.basis,
    }


def _group(group: Group) -> dict[str, Any]:
    return {
        "op": group.op,
        "class": group.part,
        "rows": group.rows,
        "verdicts": dict(group.verdicts),
        "mean": _change(group.mean),
    }


def _split(split: Split) -> dict[str, Any]:
    return {
        "what": split.what,
        "source": split.source,
        "is_sum": split.is_sum,
        "whole": _part(split.whole),
        "parts": [_part(part) for part in split.parts],
    }


def _part(part: Part) -> dict[str, Any]:
    return {
        "name": part.name,
        "a_s": part.old_s,
        "b_s": part.new_s,
        "change_s": part.change_s,
        "spread_s": part.spread_s,
    }


def _hypothesis(one: Hypothesis) -> dict[str, Any]:
    return {
        "kind": one.difference.kind,
        "field": one.difference.field,
        "name": one.difference.name,
        "a": one.difference.old,
        "b": one.difference.new,
        "rows": len(one.difference.rows),
        "moved": one.moved,
        "explained": one.explained,
        "against": one.against,
        "unmoved": one.unmoved,
        "fits": one.fits,
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
