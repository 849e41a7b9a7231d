"""What a report is about: its title, and how much of what it holds; nothing that is not there."""

from collections.abc import Iterable, Sequence

from reports import _compiled, _environments, _not_run, _text
from reports._collected import Collected
from reports._markdown import code, text
from reports._subject import Subject, is_shrunk
from reports._text import plural
from verifyscope.records import Measurement

_MOST_OF_A_KIND = 6
_MOST_FILES = 4


def title(subject: Subject, found: Collected) -> str:
    """Return the title as Markdown: the system, and whether it was measured or predicted."""
    best = subject.best
    if best is not None and found.on_cpu(best):
        rows = subject.dim("rows")
        of_rows = f" of {plural(rows, 'row')}" if isinstance(rows, int) else ""
        model = text(str(subject.dim("model") or "a pass"))
        stub = ", of a shrunken stub" if is_shrunk(best) else ""
        return f"{model} on a CPU: a verify{of_rows} (measured{stub})"
    if best is not None:
        real = "" if subject.is_whole else ", not of all layers"
        machine = _environments.named(best.environment, found, lettered=False)
        return f"{_named(subject, machine)} (measured{real})"
    if subject.predicted is not None:
        seen = subject.observed
        known = "predicted" if seen is None else f"predicted and {_seen(seen.record)}"
        return f"{_named(subject, text(str(subject.dim('gpu') or 'a GPU')))} ({known})"
    return _without_a_pass(found)


def _seen(record: Measurement) -> str:
    return "imported" if record.source == "imported" else "observed"


def _named(subject: Subject, machine: str) -> str:
    """Return "kimi-k2.5, TP 8, on rtx-pro-6000-server: a verify of 3 rows"."""
    model, tp, rows = (subject.dim(name) for name in ("model", "tp", "rows"))
    words = [text(str(model))] if model is not None else []
    words += [f"TP {tp}"] if tp is not None else []
    of_rows = f" of {plural(rows, 'row')}" if isinstance(rows, int) else ""
    system = ", ".join((*words, f"on {machine}"))
    return f"{system if words else f'O{system[1:]}'}: a verify{of_rows}"


def _without_a_pass(found: Collected) -> str:
    """Return what there is where no record is of a pass on one system."""
    measured = [one for one in _timed(found) if one.source == "measured"]
    files = _files(found)
    if measured:
        kinds = [name for name, some in _kinds(found) if any(map(_is_measured, some))]
        machines = _text.listed(_machines(measured, found))
        what = " and ".join(kinds)
        return f"{what[:1].upper()}{what[1:]} measured on {machines}"
    if files:
        return f"What others measured, from {plural(len(files), 'file')} (imported)"
    if found.predicted_kernels or found.believed:
        return "What was predicted of kernels and collectives; nothing was measured"
    builds = _compiled.latest(found.compiled)
    if builds:
        gpus = _text.listed((f"sm_{one}" for one in _compiled.capabilities(builds)), most=8)
        return f"{plural(len(builds), 'kernel build')} for {gpus}; nothing was measured"
    if found.findings:
        return f"{plural(len(found.findings), 'finding')}; nothing was measured"
    return "Nothing was measured"


def _kinds(found: Collected) -> Iterable[tuple[str, Sequence[Measurement]]]:
    yield "kernels", found.kernels
    yield "collectives", found.collectives
    yield "traces", found.traces
    yield "passes", found.passes


def counts(found: Collected, not_run: Sequence[_not_run.Group]) -> str:
    """Return one line: how many points of each source, on which machines and from which files."""
    timed = _timed(found)
    measured = [one for one in timed if one.source == "measured"]
    words = ["**Nothing measured**"]
    if measured:
        words = [f"**{plural(len(measured), 'point')} measured** on "]
        words[0] += _text.listed(_machines(measured, found), most=3)
    files = _files(found)
    if files:
        imported = len(timed) - len(measured)
        words.append(f"{imported:,} imported from {_text.listed(map(code, files), most=3)}")
    predicted = (*found.predicted, *found.predicted_passes, *found.predicted_kernels)
    if predicted:
        gpus = dict.fromkeys(
            str(one.dims.get("gpu") or one.method.get("gpu", "a GPU")) for one in predicted
        )
        words.append(f"{len(predicted):,} predicted for {_text.listed(map(text, gpus))}")
    if found.compiled:
        words.append(_builds(found))
    for status in dict.fromkeys(group.status for group in not_run):
        words.append(_without_time([group for group in not_run if group.status == status]))
    if found.findings:
        words.append(plural(len(found.findings), "finding"))
    return f"{'; '.join(words)}."


def _without_time(alike: Sequence[_not_run.Group]) -> str:
    """Return how many points have a status, and why most of them do."""
    total, most = sum(one.count for one in alike), max(alike, key=lambda one: one.count)
    words = f"{total:,} {most.status}"
    if most.status in _not_run.WRONG:
        return words  # with its reason below
    share = "" if most.count == total else f"{most.count:,} of them: "
    return f"{words} ({share}{text(most.reason)})"


def _builds(found: Collected) -> str:
    builds = _compiled.latest(found.compiled)
    failed = len(_compiled.failures(builds))
    gpus = _text.listed((f"sm_{one}" for one in _compiled.capabilities(builds)), most=8)
    refused = f", **{failed:,} refused**" if failed else ""
    return f"{plural(len(builds), 'kernel build')} for {gpus}{refused}"


def wrong(not_run: Sequence[_not_run.Group]) -> list[str]:
    """Return what went wrong, one line a reason, as Markdown."""
    return [
        f"**{group.status}**: {_text.listed(map(code, group.who))}: {text(group.reason)}"
        for group in not_run
        if group.status in _not_run.WRONG
    ][:_MOST_OF_A_KIND]


def _timed(found: Collected) -> list[Measurement]:
    return [*found.kernels, *found.collectives, *found.traces, *found.passes]


def _is_measured(one: Measurement) -> bool:
    return one.source == "measured"


def _files(found: Collected) -> list[str]:
    files = (one.origin.file for one in _timed(found) if one.origin and not _is_measured(one))
    return list(dict.fromkeys(files))


def _machines(measured: Iterable[Measurement], found: Collected) -> list[str]:
    environments = dict.fromkeys(one.environment for one in measured)
    return list(dict.fromkeys(_environments.named(one, found) for one in environments))
