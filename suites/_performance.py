"""What a row of our own is held to: its roof, its launches, and the bound that they make.

    bound = roof / reachable share of the op + nodes x the measured time of an empty graph node

The roof is the larger of the bytes that this form moves over the measured memory ceiling and its
flops over the measured matrix ceiling (`verifyscope/roofline.py`). A row says which of bytes, flops
and nodes limits it, and whether it stays within the bound. Nothing fails by it: it is a record. How
time grows with T, and whether a baseline is quicker, is said by the report, which has all rows.
"""

from suites._measure import Outcome, Timed
from suites.ceilings import Ceilings
from verifyscope.records import Value
from verifyscope.roofline import Cost


def held_to(
    outcome: Outcome, timed: Timed, *, cost: Cost, dtype: str, ceilings: Ceilings, median_s: float
) -> dict[str, Value]:
    """Return it for a record's method; nothing without a memory ceiling.

    cost: the op's, where the form has none of its own.
    """
    form = outcome.form_cost or cost
    share = outcome.implementation.op.reachable_share
    roof = ceilings.roof(form, dtype, nodes=nodes_of(outcome, timed), reachable_share=share)
    if roof is None:
        return {}
    told: dict[str, Value | None] = {
        "moved_bytes": form.touched_bytes,
        "roof_s": roof.roof_s,
        "nodes": roof.nodes,
        "node_s": roof.node_s,
        "limited_by": roof.limited_by,
        "reachable_share": None if roof.bound_s is None else share,
        "bound_s": roof.bound_s,
        "within_bound": None if roof.bound_s is None else median_s <= roof.bound_s,
    }
    return {name: value for name, value in told.items() if value is not None}


def nodes_of(outcome: Outcome, timed: Timed) -> int | None:
    """Return the launches of a call: as the implementation says, else as its graph has them."""
    if outcome.launches is not None:
        return outcome.launches
    nodes = timed.facts.get("graph_nodes")
    if not isinstance(nodes, int) or nodes % timed.calls:
        return None
    return nodes // timed.calls
