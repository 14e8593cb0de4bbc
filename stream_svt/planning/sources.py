"""Sources as text for the operator: what one unit changes, what that costs and takes, what is assumed; and changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from stream_svt.errors import Problem
from stream_svt.monitor.operations import utc
from stream_svt.planning.questions import explain_question
from stream_svt.privacy.loss import amount_text
from stream_svt.settings.answers import AnswersSpec
from stream_svt.settings.application import ApplicationSpec
from stream_svt.settings.fields import duration_text
from stream_svt.settings.periods import DAY_MS, written
from stream_svt.settings.sources import SourceSpec
from stream_svt.wording import SHOWN, counted, listed

PAIR: Final = 24
"""Most bytes in memory for a pair of a unit and a count."""
OPENING_MS: Final = 15 * 60_000
"""A window opens so long, and `ahead`, before it begins."""
_ROW, _RECORD, _ROWS = 24, 1_500, 20_000
"""Bytes of a row without its series, bytes of a record without its rows, and the most rows of a record."""
_PAIRS, _MEMORY = 1_000_000, 2**30


def explain_sources(spec: ApplicationSpec) -> list[str]:
    """Return what each source counts, costs and takes, as lines of text."""
    return [line for source in spec.sources for line in ("", *explain_source(spec, source))][1:]


def explain_source(spec: ApplicationSpec, source: SourceSpec) -> list[str]:
    """Return what one source counts, costs and takes, as lines of text; a specification of this moment."""
    if source.answers is not None:
        parts = _of_answers(spec, source, source.answers)
    else:
        parts = {
            "Counts": _counts(source),
            "Moves": _moves(source),
            "Protects": _protects(spec, source),
            "Assumes": _assumes(source),
            "Writes": _writes(spec, source),
            "Takes": _takes(spec, source),
        }
        monitors, questions = {one.name: one for one in spec.monitors}, spec.window_list(source).questions
        asked = (explain_question(monitors[one.monitor], one, source) for one in questions)
        parts |= {"Asks" if number == 0 else " " * number: text for number, text in enumerate(asked)}
    head = f"Source {source.name} on topic {source.topic}:"
    return [head, *(f"  {word:8} {text}" for word, text in parts.items())]


def _of_answers(spec: ApplicationSpec, source: SourceSpec, answers: AnswersSpec) -> dict[str, str]:
    series = f" of series `{answers.series}`" if answers.series else ""
    way = "in one direction" if answers.monotonic else "up or down"
    covers = [one.covers for one in spec.monitors if one.source == source.name]
    units = dict.fromkeys(one.terms.unit for one in spec.datasets if any(of(one.name) for of in covers))
    return {
        "Passes": f"`{answers.value}`{series} as it is, in the order of look, partition and offset, every "
        f"{duration_text(source.every)}.",
        "Moves": f"{listed([*units], SHOWN) or 'one unit'} moves each answer by {answers.sensitivity} at most, {way}: "
        "that is declared, and nothing checks it.",
        "Assumes": "that one unit changes values alone: which answers there are, their datasets, series, ids and order "
        "do not depend on it. So answers of zero are written, too.",
        "Writes": f"each answer once to topic {source.counts_topic(spec.application)}, kept for 30 days.",
    }


def _counts(source: SourceSpec) -> str:
    of_kind: dict[int, list[str]] = {}
    for one in source.measures:
        of_kind.setdefault(one.at_most, []).append(one.name)
    what = [
        f"{listed(names, SHOWN)} ({'different units' if most == 1 else f'events, {most} of a unit at most'})"
        for most, names in of_kind.items()
    ]
    of = f" of {len(source.series_names)} series" if source.series else ""
    cells = counted(source.window_list().cells, "count")
    return f"{listed(what, SHOWN)}{of}, in windows of {duration_text(source.window)}: {cells} a window."


def _moves(source: SourceSpec) -> str:
    return (
        f"one `{source.unit}` adds 0 to {source.sensitivity} to each count, whatever events it has, and takes nothing "
        "away: sensitivity and monotonic follow from that."
    )


def _protects(spec: ApplicationSpec, source: SourceSpec) -> str:
    covered = [one.terms for one in spec.datasets if source.covers(one.name)]
    terms = dict.fromkeys((one.kind, one.limit) for one in covered)
    limits = " or ".join(amount_text(limit, kind) for kind, limit in terms)
    text = (
        f"{source.unit_text} in dataset {written(source.dataset_pattern)}: at most {limits or 'its limit'}."
    )
    if renewals := dict.fromkeys(one.renewal for one in covered if one.renewal is not None):
        text += "".join(f" {one.promise.capitalize()}." for one in renewals)
    if source.dataset_field:
        several = f"with several values of `{source.dataset_field}` is in several datasets"
        text += f" A `{source.unit}` {several}, and their losses add up."
    return text


def _assumes(source: SourceSpec) -> str:
    within = f"replication within {duration_text(source.settle)} (settle)"
    return (
        f"that other units' events, append times, and {within} do not depend on one unit's: no join, rate limit, or "
        "retention by size comes before the counter. On a topic with producers' timestamps also that the moment of "
        "reading does not. One value is one unit, and one unit has one value."
    )


def rows_per_day(source: SourceSpec) -> int:
    """Return how many rows the topic of counts gets a day."""
    return source.window_list().cells * len(source.asked_after_ms()) * DAY_MS // source.window


def bytes_per_day(source: SourceSpec) -> int:
    """Return about how many bytes the topic of counts gets a day, for each copy."""
    names, rows = source.series_names, rows_per_day(source)
    of_row = _ROW + sum(len(name.encode()) for name in names) / len(names)
    records = rows / len(names) * -(-len(names) // _ROWS)
    return round(rows * of_row + records * _RECORD)


def open_windows(source: SourceSpec) -> int:
    """Return the most windows that are open at a time, where the counter is not behind."""
    return -(-(source.window + source.lateness + source.ahead + OPENING_MS) // source.window)


def _writes(spec: ApplicationSpec, source: SourceSpec) -> str:
    topic, size = source.counts_topic(spec.application), _size(bytes_per_day(source))
    text = f"about {rows_per_day(source):,} rows, {size}, a day to topic {topic}, kept for 30 days."
    if questions := spec.window_list(source).questions:
        rows = len(questions) * len(source.dataset_names) * len(source.series_names) * DAY_MS // source.window
        text += f" Answers to questions: {rows:,} rows a day more."
    return text


def _takes(spec: ApplicationSpec, source: SourceSpec) -> str:
    listed = spec.window_list(source)
    back = max((one.look_back for one in listed.questions), default=0)
    closed = (
        f" Counts of {back} closed windows, which questions read: {_size(4 * back * listed.cells)}."
        if back
        else ""
    )
    if among := max((one.among for one in listed.visits), default=0):
        units = f"{_size(8 * _PAIRS * (among - 1))} for a million pairs in each"
        closed += (
            f" Units of {among - 1} closed windows, which visits look up, also in the event log: {units}."
        )
    fit = duration_text(_MEMORY // (PAIR * _PAIRS) * source.window)
    return (
        f"{_size(PAIR * _PAIRS)} of memory for a million pairs of a unit and a count, in up to {open_windows(source)} "
        f"open windows. After an outage on producers' timestamps all missed windows are open: with a million pairs in "
        f"each, 1 GiB holds those of {fit}.{closed}"
    )


def _size(count: float) -> str:
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"


# -- changes


_LATER = (
    "for windows that are not open yet: applied now, from the first that begins after {}; it opens {} before"
)


def source_changes(
    old: ApplicationSpec, new: ApplicationSpec, earlier: Mapping[str, str], now_ms: int
) -> Iterator[tuple[str, list[str], list[Problem]]]:
    """Yield what becomes of each source that is not as before: a line, its effects, and reasons to refuse it.

    ``earlier`` has the digests of the sources that earlier versions declared: see `SourceSpec.digests`.
    """
    known, wanted = ({one.name: one for one in spec.sources} for spec in (old, new))
    for name, source in wanted.items():
        before = known.get(name)
        if before is None:
            refused = [*_redeclared(source, earlier)]
            effects = [line.removeprefix("  ") for line in explain_source(new, source)[1:]]
            if others := [one.name for one in old.sources if one.topic == source.topic]:
                effects.append(
                    f"another ledger for the persons of source {others[0]}: the losses of both add up"
                )
            yield f"+ source {name} on topic {source.topic}", effects, refused
        elif before != source:
            yield f"~ source {name}", [*_effects(before, source, now_ms)], [*_refusals(before, source)]
    for name in known:
        if name not in wanted:
            effect = (
                "its counts are no longer written; only the same source can be declared by this name again"
            )
            yield f"- source {name}", [effect], []


def _redeclared(source: SourceSpec, earlier: Mapping[str, str]) -> Iterator[Problem]:
    """Yield why a source that an earlier version declared cannot be declared so again."""
    digests, name = source.digests(), source.name
    if earlier.get(name, source.digest) != source.digest:
        yield _refused(name, "", "an earlier version declared the name for another source")
        return
    for key, known in earlier.items():
        of, _, measure = key.partition("/")
        if measure and of == name and digests.get(key) != known:
            what = "is not as an earlier version declared it" if key in digests else "is left out"
            yield Problem(0, f"sources.{name}.measures", f"{measure} {what}: {_KEPT}")


def _refused(name: str, key: str, why: str) -> Problem:
    other = "declare a source with another name, and datasets of its own: another ledger for the same persons"
    return Problem(0, f"sources.{name}.{key}".rstrip("."), f"{why}: {other}")


def _effects(old: SourceSpec, new: SourceSpec, now_ms: int) -> Iterator[str]:
    if old.settle != new.settle:
        yield f"settle: {duration_text(old.settle)} -> {duration_text(new.settle)}"
    early = new.ahead + OPENING_MS
    later = _LATER.format(utc(now_ms + early), duration_text(early))
    lists = {
        "series": (old.series_names, new.series_names),
        "dataset names": (old.dataset_names, new.dataset_names),
        "measures": (_names(old), _names(new)),
    }
    for what, (was, now) in lists.items():
        if was != now:
            added, removed = ([*dict.fromkeys(a).keys() - {*b}] for a, b in ((now, was), (was, now)))
            parts = {"adds": sorted(added), "removes": sorted(removed)}
            words = [f"{verb} {listed(names, SHOWN)}" for verb, names in parts.items() if names]
            yield f"{what}: {' and '.join(words) or 'another order'}, {later}"


def _names(source: SourceSpec) -> tuple[str, ...]:
    return tuple(one.name for one in source.measures)


def _refusals(old: SourceSpec, new: SourceSpec) -> Iterator[Problem]:
    """Yield the changes of what decides a count, which never changes."""
    was, now = old.decisive, new.decisive
    for key in dict.fromkeys((*was, *now)):
        if was.get(key) != now.get(key) and key != "sensitivity":
            yield _refused(new.name, key, "decides counts and never changes")
    known, sensitivity = {one.name: one for one in new.measures}, old.sensitivity
    for measure in old.measures:
        if known.get(measure.name) != measure:
            what = "cannot be changed" if measure.name in known else "cannot be removed"
            yield Problem(0, f"sources.{new.name}.measures", f"{measure.name} {what}: {_KEPT}")
    for measure in new.measures:
        if measure.name not in _names(old) and measure.at_most > sensitivity:
            why = f"{measure.name} counts {measure.at_most} events of a unit, and the source has {sensitivity} at most"
            yield _refused(new.name, "measures", why)


_KEPT = "its counts may be on the topic. Leave it, and add one with another name"
