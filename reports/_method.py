"""The section that says how each number was made: commands, clocks, stop rules, conditions."""

from collections.abc import Iterable, Mapping

from reports import _text
from reports._collected import Collected
from reports._markdown import code, table, text
from verifyscope.records import Measurement, Value

MOST_COMMANDS = 30
_MOST_VALUES = 4
# What a row is held to stands in the row, not among how it was timed.
_OF_A_ROW = (
    "moved_bytes",
    "roof_s",
    "nodes",
    "limited_by",
    "reachable_share",
    "bound_s",
    "within_bound",
)


def commands_table(found: Collected) -> str:
    """Return the commands that made the records, when, and in which environment."""
    runs = {(run.id, run.command): run for run in found.runs}
    several = len(found.environments) > 1
    lines = [
        (
            text(run.created),
            code(run.command),
            *((found.letter(run.id),) if several else ()),
        )
        for run in list(runs.values())[:MOST_COMMANDS]
    ]
    header = ("when", "command", *(("on",) if several else ()))
    return table(header, lines, align="ll" + "l" * several)


def left_out(found: Collected) -> int:
    """Return how many commands the table leaves out."""
    return max(0, len({(run.id, run.command) for run in found.runs}) - MOST_COMMANDS)


def method_table(measured: Iterable[Measurement]) -> str | None:
    """Return what the records say of their clock, input sets, stop rule and conditions."""
    methods: dict[str, dict[Value, None]] = {}
    for one in measured:
        for name, value in (*one.method.items(), *one.conditions.items()):
            if name in _OF_A_ROW:
                continue
            methods.setdefault(name, {})[value] = None
    lines = [(text(name.replace("_", " ")), _values(values)) for name, values in methods.items()]
    return table(("", "in these records"), lines, align="ll") if lines else None


def _values(values: Mapping[Value, None]) -> str:
    """Return few values one by one, many numbers as a range."""
    if len(values) <= _MOST_VALUES:
        return "; ".join(text(_text.value(value)) for value in values)
    numbers = [value for value in values if isinstance(value, int | float)]
    if len(numbers) == len(values):
        return f"{_text.value(min(numbers))} to {_text.value(max(numbers))}"
    return text(_text.listed((_text.value(value) for value in values), most=_MOST_VALUES))
