"""What follows from sources: keys of the monitors that test their counts, units of the datasets that they fill."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from stream_svt.mechanisms.accuracy import reported_margin
from stream_svt.mechanisms.estimates import survival
from stream_svt.mechanisms.grid import grid_ceil
from stream_svt.settings import detection, fields, questions
from stream_svt.settings.datasets import DatasetDeclaration
from stream_svt.settings.document import Found, KeyPath, Strict, did_you_mean, quote
from stream_svt.settings.monitors import OF_SOURCE, MonitorSpec
from stream_svt.settings.periods import DAY_MS, periods_in, written
from stream_svt.settings.questions import HIGHEST
from stream_svt.settings.sources import SourceSpec, log_topic
from stream_svt.wording import SHOWN, listed

if TYPE_CHECKING:
    from stream_svt.settings.sections import ConfigDocument

_UNREAD: dict[str, Any] = {"topic": "unread", "sensitivity": 1, "bounds": (0, 1), "expected_queries": 1}
"""Stand for the keys that would follow from a source with problems of its own."""
_UNSOLVED: dict[str, Any] = {"threshold": 0, "epsilon": 1, "cutoff": 1, "expected_queries": 1}
"""Stand for the keys that would follow from a `detect` with problems."""
_SAMPLE_MS = 4 * DAY_MS
"""A Monday: whether datasets are declared is compared for the periods that begin then."""


def read_sources(data: Mapping[str, Any], context: object) -> list[Any]:
    """Return the sources in a document, each as a `SourceSpec` unless it has a problem.

    The length of the periods in its dataset's name is that of the declaration that it fills.
    """
    raw_datasets = [raw for raw in _items(data, "datasets") if isinstance(raw, dict) and "every" in raw]
    declared = (_valid(DatasetDeclaration, raw, context) for raw in raw_datasets)
    longer = [one for one in declared if isinstance(one, DatasetDeclaration)]
    found = [_valid(SourceSpec, raw, context) for raw in _items(data, "sources")]
    return [one.with_periods(longer) if isinstance(one, SourceSpec) else one for one in found]


def _valid(model: type[Strict], raw: Any, context: object) -> Any:  # noqa: ANN401
    """Return a part of a document as its model; as it is if it has a problem, which other parts report."""
    try:
        return model.model_validate(raw, context=context)
    except ValidationError:
        return raw


def derived(
    data: Mapping[str, Any], sources: Sequence[Any], context: object
) -> tuple[list[Any], list[tuple[Any, str]]]:
    """Return the monitors in a document with the keys that follow from their sources, and problems of these keys."""
    application = str(data.get("application"))
    try:
        fields.plain_name(application)
    except ValueError:
        application = "unread"
    monitors, problems, declared = [], list[tuple[Any, str]](), list[Any]()
    for number, raw in enumerate(_items(data, "monitors")):
        monitors.append(raw)
        path = ("monitors", number)
        if _name_in(raw).endswith(fields.END):
            problems.append(
                ((*path, "name"), f"{quote(_name_in(raw))} is a name of the service: leave out the dot")
            )
        if isinstance(raw, dict) and raw.get("source") is not None:
            followed, found = _followed(raw, sources, application, context)
            own = () if "datasets" in followed else ("datasets",)
            follow = [key for key in OF_SOURCE if key not in own]
            problems += (((*path, key), _follows(raw["source"])) for key in follow if key in raw)
            monitors[-1] = {key: value for key, value in raw.items() if key not in follow} | followed
            problems += (((*path, *key.split(".")), message) for key, message in found)
            counts = any(raw["source"] == getattr(one, "name", None) and not one.answers for one in sources)
            if counts and not {"detect", "epsilon", "cutoff", "threshold", "thresholds"} & raw.keys():
                problems.append(((*path, "detect"), _NO_RUN))
                monitors[-1] = monitors[-1] | _UNSOLVED
            if isinstance(end := raw.get("end"), dict):
                monitors[-1]["mute"] = end.get("longest", "7d")
                if "mute" in raw:
                    problems.append(((*path, "mute"), "follows from end: write longest there, and remove it"))
        if isinstance(raw, dict) and raw.get("detect") is not None:
            follow = [key for key in detection.FOLLOW if key in raw]
            problems += ((("monitors", number, key), _FROM_DETECT) for key in follow)
            kept = {key: value for key, value in monitors[-1].items() if key not in follow}
            declared = declared or [
                _valid(DatasetDeclaration, one, context) for one in _items(data, "datasets")
            ]
            solved, wrong = (_UNSOLVED, []) if follow else _detected(kept, sources, declared, context)
            monitors[-1] = kept | solved
            problems += ((("monitors", number, "detect", *key), message) for key, message in wrong)
    return monitors, problems


_NO_RUN = (
    "is required: what shall be found, such as {above: 500, surely_from: 700, alerts: 5}; or write epsilon, "
    "cutoff and threshold"
)
_FROM_DETECT = "cannot be combined with detect, from which all about a run follows: remove one of them"


def _detected(
    monitor: Mapping[str, Any], sources: Sequence[Any], declared: Sequence[Any], context: object
) -> tuple[dict[str, Any], list[tuple[tuple[str, ...], str]]]:
    """Return the keys of a monitor that follow from its `detect`, and problems of that, by path."""
    source = next((one for one in sources if getattr(one, "name", "") == monitor.get("source")), None)
    asked = _valid(detection.DetectOptions, monitor["detect"], context)
    if monitor.get("source") is None or (source is not None and source.answers is not None):
        return _UNSOLVED, [((), "is for counts of a source: write epsilon, cutoff and threshold instead")]
    if source is None or "granularity" not in monitor or not isinstance(asked, detection.DetectOptions):
        return _UNSOLVED, []
    known = (one for one in declared if isinstance(one, DatasetDeclaration))
    filled = (one for one in known if any(map(source.covers, one.samples(_SAMPLE_MS))))
    if (per_ms := next((one.limit.per_ms for one in filled if one.limit.per_ms != asked.per), -1)) != -1:
        has = f"per {fields.duration_text(per_ms)}: write that" if per_ms else "no per: leave it out"
        return _UNSOLVED, [(("per",), f"the limit of the datasets of source {quote(source.name)} has {has}")]
    held = getattr(context, "held", None) or detection.Held()
    try:
        problem = detection.problem_of(asked, asked.cutoff(source.period_ms), monitor)
        return held.keys_of(_name_in(monitor), asked, problem), []
    except ValueError as error:
        return _UNSOLVED, [(("surely_from",), str(error))]


def _items(data: Mapping[str, Any], key: str) -> Sequence[Any]:
    found = data.get(key)
    return found if isinstance(found, list | tuple) else ()


def _follows(source: object) -> str:
    return f"follows from source {quote(source)}: remove it"


def _followed(
    monitor: Mapping[str, Any], sources: Sequence[Any], application: str, context: object
) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """Return the keys that follow from a monitor's source, and problems of `source` and `measure`."""
    name, measure = monitor["source"], monitor.get("measure")
    names = {one.name if isinstance(one, SourceSpec) else _name_in(one): one for one in reversed(sources)}
    source = names.get(name) if isinstance(name, str) else None
    if isinstance(name, str) and name not in names:
        known = f"; expected one of {', '.join(names)}" if names else ": declare it under sources"
        return _UNREAD, [("source", f"unknown source {quote(name)}{did_you_mean(name, names) or known}")]
    if not isinstance(source, SourceSpec):
        return _UNREAD, []
    topic, datasets = source.counts_topic(application), {"datasets": [source.datasets]}
    if source.answers is not None:
        keys = ("sensitivity", "monotonic", "granularity", "bounds")
        declared = {key: getattr(source.answers, key) for key in keys}
        wrong = f"source {quote(name)} passes on answers, and has no measures: remove it"
        of_counts = (key for key in ("measure", *questions.KEYS) if monitor.get(key) is not None)
        found = [(key, wrong) for key in of_counts]
        return {"topic": topic, "measure": None, **declared, **(datasets if source.datasets else {})}, found
    measures, problems = [one.name for one in source.measures], []
    if measure is None:
        measure = measures[0]
        if len(measures) > 1:
            problems.append(
                ("measure", f"is required: source {quote(name)} has the measures {', '.join(measures)}")
            )
    elif measure not in measures:
        near = did_you_mean(measure, measures) or f"; expected one of {', '.join(measures)}"
        problems.append(("measure", f"source {quote(name)} has no measure {quote(measure)}{near}"))
    followed = {
        "topic": topic,
        "measure": measure,
        **datasets,
        "sensitivity": source.sensitivity,
        "monotonic": True,
        "granularity": 1,
        "bounds": [0, HIGHEST],
    }
    if (asking := _keys_of(monitor, context)) and not problems:
        of_series = {"threshold": monitor.get("threshold", 0)} if asking.thresholds else {}
        try:
            question = questions.asked_by(_name_in(monitor), asking, measure, source)
        except questions.NotAsked as wrong:
            return _UNREAD | of_series, [*wrong.problems.items()]
        step = Fraction(1, question.parts)
        bound = questions.BOUND * step
        followed |= {
            "sensitivity": sum(question.moves) * step,
            "granularity": step,
            "bounds": [-bound, bound],
            **of_series,
        }
    if monitor.get("expected_queries") is None and _rule(monitor) in {"exposure", "optimal"}:
        followed["expected_queries"] = source.closes_of_a_period if asking else source.queries_of_a_period
    return followed, problems


def _keys_of(monitor: Mapping[str, Any], context: object) -> questions.QuestionKeys | None:
    """Return the keys of a monitor's question, None without one; wrong ones are problems of the monitor itself."""
    given = {key: monitor[key] for key in questions.KEYS if monitor.get(key) is not None}
    try:
        return questions.QuestionKeys.model_validate(given, context=context) if given else None
    except ValidationError:
        return None


def _name_in(raw: object) -> str:
    name = raw.get("name") if isinstance(raw, dict) else None
    return name if isinstance(name, str) else ""


def _rule(monitor: Mapping[str, Any]) -> object:
    """Return the name of a monitor's correction as it stands in a document."""
    rule = monitor.get("correction", "exposure")
    return next(iter(rule), "") if isinstance(rule, dict) else rule if isinstance(rule, str) else ""


def filled(
    datasets: Sequence[DatasetDeclaration], sources: Sequence[SourceSpec]
) -> tuple[tuple[DatasetDeclaration, ...], list[tuple[Any, str]]]:
    """Return declarations of datasets with the units that follow from sources, and problems."""
    found, problems = [], list[tuple[Any, str]]()
    for number, one in enumerate(datasets):
        covering = [source for source in sources if any(map(source.covers, one.samples(_SAMPLE_MS)))]
        problems += _declaration_problems(number, one, covering)
        unit = {"unit": covering[0].unit_text} if covering and covering[0].answers is None else {}
        found.append(one.model_copy(update=unit))
    return tuple(found), problems


def _declaration_problems(number: int, one: DatasetDeclaration, covering: Sequence[SourceSpec]) -> Found:
    path = ("datasets", number)
    if not covering or covering[0].answers is not None:
        if one.unit is None:
            what = "The privacy unit in words, such as 'one basket' or 'one user'"
            yield (*path, "unit"), f"is required: {what}"
    elif one.unit is not None:
        yield (*path, "unit"), _follows(covering[0].name)
    if not covering:
        return
    source, *others = covering
    name = quote(source.name)
    if others:
        message = f"sources {name} and {quote(others[0].name)} fill these datasets, and a dataset has one source only"
        yield path, f"{message}: give them datasets with different names"
    other = next((each for each in one.samples(_SAMPLE_MS) if not source.covers(each)), None)
    if other is not None:
        yield (
            path,
            f"source {name} fills a part of these datasets, and not {quote(other)}: declare them apart",
        )
    own, periods = (periods_in(text) for text in (source.dataset_pattern, one.pattern))
    if own != periods:
        wanted = "without generate" if own is None else f"by generate, with {own.slot} and the same every"
        filled = quote(written(source.dataset_pattern))
        yield path, f"source {name} fills {filled}: declare these datasets {wanted}"
    elif (
        source.window
        and periods
        and one.from_
        and (since := (periods.origin_ms - _SAMPLE_MS) % source.window)
    ):
        begin, window = one.from_ - timedelta(milliseconds=since), timedelta(milliseconds=source.window)
        message = f"a window of source {name} must begin then: write {begin} or {begin + window}"
        yield (*path, "from"), message
    elif periods and source.answers is None and one.lateness <= source.lateness:
        late = fields.duration_text(source.lateness)
        message = f"must be longer than the lateness of source {name} ({late}): the counts of a period's last window"
        yield (*path, "lateness"), f"{message} have the timestamp of its close"


def problems(config: ConfigDocument) -> Found:
    """Yield contradictions between sources, and with the monitors and datasets of a document."""
    topics = {one.counts_topic(config.application): one for one in config.sources}
    declared = {
        name: source
        for one in config.datasets
        for name in one.samples(_SAMPLE_MS)
        for source in config.sources
        if source.covers(name)
    }
    for number, source in enumerate(config.sources):
        path = ("sources", number)
        names = [one.name for one in config.sources[:number]]
        if source.name in names:
            yield (*path, "name"), f"source {quote(source.name)} is declared already"
        if source.window and (source.period_ms or 0) % source.window:
            pattern, found = quote(written(source.dataset_pattern)), fields.duration_text(source.window)
            yield (
                (*path, "window"),
                f"must divide the period of {pattern}, found {found}: use a shorter window",
            )
        if source.topic in topics or source.topic == log_topic(config.application):
            yield (
                (*path, "topic"),
                f"{quote(source.topic)} is written by the counter: name the topic of raw events",
            )
        for name in source.dataset_names if source.dataset_pattern else ():
            if source.dataset_at(_SAMPLE_MS, name) not in declared:
                pattern = written(source.dataset_pattern)
                pattern = pattern.replace("{name}", name) if name else pattern
                key = "generate" if periods_in(pattern) else "name"
                message = f"datasets declare no {quote(pattern)}"
                yield (*path, "dataset"), f"{message}: add one, {{{key}: {quote(pattern)}, ..}}"
                break
    filled = declared | _by_monitors(config, declared)
    for number, monitor in enumerate(config.monitors):
        path = ("monitors", number)
        if monitor.source is not None:
            yield from _monitor_problems(number, monitor, config.sources)
            yield from _border_problems(number, monitor, config)
        elif monitor.topic in topics:
            name = topics[monitor.topic].name
            yield (
                (*path, "topic"),
                f"is the topic of counts of source {quote(name)}: write source: {name} instead",
            )
        # A monitor that reads the topic of a source's counts has a problem already.
        others = (one for one, by in filled.items() if by.name != monitor.source and monitor.covers(one))
        name = next(others, "") or _later(monitor, config.sources)
        if name and (monitor.source is not None or monitor.topic not in topics):
            by = (
                filled[name].name
                if name in filled
                else next(s.name for s in config.sources if s.covers(name))
            )
            message = f"also matches {quote(name)}, which source {quote(by)} fills"
            remedy = "a dataset has one source, or query topics. List the other datasets"
            yield (*path, "datasets"), f"{message}: {remedy}"


def _later(monitor: MonitorSpec, sources: Sequence[SourceSpec]) -> str:
    """Return the pattern of datasets of another source that a monitor matches in some period, "" if there is none."""
    others = (one for one in sources if one.name != monitor.source and one.period_ms)
    filled = (one for one in others if any(map(one.may_fill, monitor.datasets)))
    return next((one.datasets for one in filled), "")


def _by_monitors(config: ConfigDocument, others: Mapping[str, SourceSpec]) -> dict[str, SourceSpec]:
    """Return the datasets that answers name in a field: those that monitors of their source run on."""
    named = {one.name: one for one in config.sources if not one.dataset_pattern}
    covering = [(named[one.source], one.covers) for one in config.monitors if one.source in named]
    names = (name for one in config.datasets for name in one.samples(_SAMPLE_MS) if name not in others)
    return {name: source for name in names for source, covers in reversed(covering) if covers(name)}


def _monitor_problems(number: int, monitor: MonitorSpec, sources: Sequence[SourceSpec]) -> Found:
    source = next(one for one in sources if one.name == monitor.source)
    if monitor.not_renewed is not None and source.series is None and source.answers is None:
        message = f"mutes are of series, and source {quote(source.name)} has none: remove it"
        yield ("monitors", number, "not_renewed"), message
    path = ("monitors", number, "append")
    if isinstance(monitor.append, fields.Sweep) and (source.answers is not None or source.ask != "close"):
        does = "asks at each tick" if source.answers is None else "passes on answers without sets"
        message = f"sweep needs sets of queries, and source {quote(source.name)} {does}"
        yield path, f"{message}: use retry or off, or a source with ask: close"
    if isinstance(monitor.append, fields.Retry) and monitor.append.lifetime.ms is None:
        message = "retry needs a lifetime in time, such as {retry: {lifetime: 6h}}"
        yield path, f"{message}: offsets of a topic of counts mean nothing"
    if monitor.end is not None:
        yield from _end_problems(("monitors", number, "end"), monitor, source)


def _end_problems(path: KeyPath, monitor: MonitorSpec, source: SourceSpec) -> Found:
    """Yield why a monitor cannot test for ends."""
    if source.answers is not None or source.series is None:
        does = "passes on answers" if source.answers else "has no series, and only series are muted"
        yield path, f"is for counts of series, and source {quote(source.name)} {does}: write mute instead"
    elif source.ask != "close" and not monitor.asks:
        message = f"is for closed windows, and source {quote(source.name)} asks at each tick"
        yield path, f"{message}: set ask: close there, or a question such as for"
    else:
        try:
            ending = monitor.ending(source)
        except ValidationError as error:
            for one in error.errors(include_url=False):
                key = str(one["loc"][-1]) if one["loc"] else ""
                yield (*path, *({"epsilon", "cutoff"} & {key})), one["msg"]
            return
        if any(getattr(monitor, key) is not None for key in ("thresholds", "share", "usual")):
            return
        mechanism, least = ending.mechanism(), -monitor.excess.over if monitor.excess else Fraction(0)
        low = grid_ceil(ending.threshold + least, ending.granularity)
        chance = max(
            survival(law, mechanism.threshold_law, low + branch.correction(0))
            for law, branch in zip(mechanism.branch_laws, mechanism.branches, strict=True)
        )
        if chance < detection.SURE:
            enough = float(least + reported_margin(mechanism, detection.SURE) * ending.granularity)
            message = f"no end would be seen: without events a test reports it {chance:.0%} of the time."
            also = " and the threshold" if enough > monitor.threshold else ""
            remedy = f"Raise it{also} to {enough:,.12g}, or give end a larger epsilon or a smaller cutoff"
            yield (*path, "below"), f"{message} {remedy}"


def _border_problems(number: int, monitor: MonitorSpec, config: ConfigDocument) -> Found:
    """Yield datasets of periods whose ledgers would not add up the windows of other periods that `usual` reads."""
    source = next(one for one in config.sources if one.name == monitor.source)
    if monitor.usual is None or monitor.measure is None:
        return
    back_ms = monitor.question(source).look_back * source.window
    for one in config.datasets:
        if one.generate is None or not any(map(source.covers, one.samples(_SAMPLE_MS))):
            continue
        if one.renewal is None or one.renewal.looks_back_ms < back_ms:
            back = fields.duration_text(back_ms)
            message = f"reads {back} back, into earlier periods of {quote(one.generate)}, where one person has other"
            with_limit = "" if one.renewal else "a limit per time and "
            remedy = f"declare them with {with_limit}looks_back: {back}, or without generate"
            yield ("monitors", number, "usual"), f"{message} ledgers: {remedy}"


def notes(config: ConfigDocument) -> Iterator[tuple[Any, str]]:
    """Yield advice about sources that are allowed but may be unintended."""
    tested = {(one.source, one.measure or "") for one in config.monitors}
    tested |= {(one.source, one.share.of) for one in config.monitors if one.share is not None}
    sizes = {one.name: len(one.series_names) for one in config.sources}
    for number, monitor in enumerate(config.monitors):
        sweep, size = monitor.append, sizes.get(monitor.source or "", 0)
        if isinstance(sweep, fields.Sweep) and size > sweep.max_set_size:
            message = f"a window has {size} series, and a sweep tests {sweep.max_set_size} of them again"
            yield ("monitors", number, "append"), f"{message}: raise max_set_size"
    for number, source in enumerate(config.sources):
        path = ("sources", number)
        for index, measure in enumerate(source.measure_names):
            if (source.name, measure) not in tested:
                where = (*path, "measures", index) if "measures" in source.model_fields_set else path
                of = f"measure {quote(measure)} of " if measure else ""
                yield where, f"no monitor tests {of}source {quote(source.name)}"
        if source.answers is None and source.ahead < source.settle:
            message = f"is shorter than settle ({fields.duration_text(source.settle)}): on producers' timestamps events"
            yield (
                (*path, "ahead"),
                f"{message} of a window that begins between a tick and its look are dropped",
            )
        names = {source.dataset_at(_SAMPLE_MS, name) for name in source.dataset_names}
        each = (name for one in config.datasets for name in one.samples(_SAMPLE_MS))
        if missing := [name for name in each if source.covers(name) and name not in names]:
            yield (
                (*path, "dataset"),
                f"counts nothing for {listed(missing, SHOWN)}: list its name, too",
            )
