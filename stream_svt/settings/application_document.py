"""From a document to an `ApplicationSpec`: every problem of datasets and monitors is reported with its line.

Nothing here reads files: names in files come through a function.
"""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from stream_svt.errors import ConfigError, Problem
from stream_svt.privacy.loss import Kind, as_text
from stream_svt.settings.application import ApplicationSpec
from stream_svt.settings.carried import Carried, parse
from stream_svt.settings.datasets import MAX_DATASETS, DatasetSpec, Generator, is_over, period_end
from stream_svt.settings.declarations import DatasetDeclaration, ReadNames
from stream_svt.settings.document import Document, read
from stream_svt.settings.fields import Name, Text
from stream_svt.settings.messages import did_you_mean, quote
from stream_svt.settings.monitors import MonitorSpec
from stream_svt.settings.validation import Strict, check

SERVICE_KEYS = ("kafka", "topics", "sealing", "control", "web", "commit")
"""Keys of the same file that only the service reads."""


class ApplicationDocument(Strict):
    """The part of the file that says what is monitored."""

    application: Name
    """Name of the application; part of its consumer group, transactional ids and sealing."""
    datasets: Annotated[tuple[DatasetDeclaration, ...], Field(min_length=1)]
    """The private datasets, each with a ledger. A dataset belongs to one application: two applications are two
    ledgers."""
    monitors: Annotated[tuple[MonitorSpec, ...], Field(min_length=1)]
    """The monitors."""
    carried_over: Text | None = None
    """File that 'stream-svt carry-over' wrote. Keep it for as long as the application lives."""


def load_spec(
    text: str, source: str = "configuration", read_names: ReadNames | None = None
) -> ApplicationSpec:
    """Return the specification in a YAML text; the service's own keys are left unread.

    Raises:
        ConfigError: With every problem found, sorted by line.
    """
    document = read(text, source)
    spec = parse_application(document, read_names)
    document.finish()
    if spec is None:  # pragma: no cover - whoever returns None has reported why
        raise ConfigError([], source)
    return spec


def parse_application(document: Document, read_names: ReadNames | None = None) -> ApplicationSpec | None:
    """Return the specification in a document, or None after reporting to it what is wrong."""
    application = parse_name(document)
    carried = _carried(document, application, read_names)
    datasets, generators = _datasets(document, read_names, carried)
    monitors = _monitors(document)
    _compare(document, datasets, monitors)
    if carried is not None:
        _compare_topics(document, carried, monitors)
    if document.problems or application is None:
        return None
    return ApplicationSpec(
        application,
        tuple(dataset for dataset, index in datasets.values() if index not in generators),
        tuple(monitor for _, monitor in monitors),
        tuple(sorted(_notes(document, datasets, monitors))),
        carried,
        tuple(generators.values()),
    )


def parse_name(document: Document) -> str | None:
    """Return the application's name, or None after reporting what is wrong with it; report unknown keys, too."""
    data: dict[str, Any] = document.data
    known = [*ApplicationDocument.model_fields, *SERVICE_KEYS]
    for key in data:
        if key not in known:
            document.report(
                (key,), f"unknown key{did_you_mean(key, known) or '; expected one of ' + ', '.join(known)}"
            )
    return _application(document)


_Datasets = dict[str, tuple[DatasetSpec, int]]


_Monitors = list[tuple[int, MonitorSpec]]


_NAME: TypeAdapter[str] = TypeAdapter(Name)


def _application(document: Document) -> str | None:
    if "application" not in document.data:
        document.report(("application",), "is required: the name of the application, such as retail-watch")
        return None
    try:
        return _NAME.validate_python(document.data["application"])
    except ValidationError as error:
        document.report(("application",), error.errors()[0]["msg"].removeprefix("Value error, "))
        return None


def _items(document: Document, key: str) -> list[Any]:
    raw = document.data.get(key)
    if raw is None or raw == []:
        document.report((key,), f"is required: a list with at least one of the {key}")
        return []
    if not isinstance(raw, list):
        document.report((key,), f"expected a list, each item beginning with a dash, found {quote(raw)}")
        return []
    return raw


def _carried(document: Document, application: str | None, read_names: ReadNames | None) -> Carried | None:
    """Return what was taken over from a closed application, None where nothing is, or it is reported."""
    name = document.data.get("carried_over")
    if name is None:
        return None
    path = ("carried_over",)
    if not isinstance(name, str) or read_names is None:
        document.report(path, f"expected the name of a file, found {quote(name)}")
        return None
    try:
        carried = parse(read_names(name))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        document.report(path, f"cannot read {quote(name)}: {reason}")
        return None
    except ValueError as error:
        document.report(path, f"{quote(name)}: {error}")
        return None
    if application is not None and carried.successor != application:
        document.report(
            path,
            f"{quote(name)} is for application {quote(carried.successor)}: another one would spend it twice",
        )
    return carried


def _compare_topics(document: Document, carried: Carried, monitors: _Monitors) -> None:
    """Report monitors that declare less of a query topic than was declared before."""
    for index, monitor in monitors:
        if (declared := carried.topics.get(monitor.topic)) is not None:
            for name, message in declared.undercut(monitor).items():
                document.report(("monitors", index, name), message)


class _Contradicted(ValueError):
    """A dataset is declared otherwise than in the file carried over."""


def _with_history(dataset: DatasetSpec, carried: Carried, *, new: bool) -> DatasetSpec | None:
    """Return a dataset with what was spent of it before; None for a generated one whose period had begun by then.

    Raises:
        _Contradicted: It is declared otherwise than before, or nobody knows what was spent of it.
    """
    if is_over(dataset.name, carried.watermarks):
        if dataset.pattern:
            return None
        raise _Contradicted(
            f"dataset {quote(dataset.name)} has the name of a period that had begun when {carried.application!r} was "
            "closed: nobody opens it again"
        )
    if dataset.pattern:
        return dataset
    known = carried.datasets.get(dataset.name)
    if known is None:
        if carried.complete or new:
            return dataset
        raise _Contradicted(
            f"dataset {quote(dataset.name)} is not in the file carried over, and alerts of {carried.application!r} are "
            "missing: nobody knows what was spent of it. Write new: true where it was never declared there"
        )
    if new:
        raise _Contradicted(f"dataset {quote(dataset.name)} is not new: {carried.application!r} had it")
    if dataset.unit != known.unit:
        raise _Contradicted(
            f"dataset {quote(dataset.name)} had the privacy unit {quote(known.unit)}: write that"
        )
    if dataset.kind is not known.kind or dataset.limit not in (known.declared, known.limit):
        limit = f"{known.kind.measure} {as_text(known.limit, known.kind)}"
        raise _Contradicted(
            f"dataset {quote(dataset.name)} had the limit {limit}, of which it spent a part: write that"
        )
    return replace(dataset, limit=known.limit, spent_before=known.spent)


def _datasets(
    document: Document, read_names: ReadNames | None, carried: Carried | None
) -> tuple[_Datasets, dict[int, Generator]]:
    """Return the datasets, of a generator without an end those of its first period, and these generators by place."""
    datasets: _Datasets = {}
    generators: dict[int, Generator] = {}
    for index in range(len(_items(document, "datasets"))):
        path = ("datasets", index)
        declaration = check(document, DatasetDeclaration, path)
        if declaration is None:
            continue
        try:
            expanded = declaration.expand(read_names)
            if declaration.until is None and (generator := declaration.generator(read_names)) is not None:
                generators[index] = generator
                expanded = generator.period(generator.from_ms)
            for dataset in expanded:
                if dataset.name in datasets:
                    first = document.line(("datasets", datasets[dataset.name][1]))
                    document.report(
                        path, f"dataset {quote(dataset.name)} is already declared at line {first}"
                    )
                    break
                joined = dataset if carried is None else _with_history(dataset, carried, new=declaration.new)
                if joined is not None:
                    datasets[dataset.name] = (joined, index)
        except _Contradicted as error:
            document.report(path, str(error))
        except ValueError as error:
            document.report((*path, "file" if declaration.file else "generate"), str(error))
        if len(datasets) > MAX_DATASETS:
            document.report(path, f"declares more than {MAX_DATASETS} datasets in all")
            break
    _compare_patterns(document, datasets)
    return datasets, generators


def _compare_patterns(document: Document, datasets: _Datasets) -> None:
    """Report names that a generator could make in another period than any declared: they would be one ledger."""
    patterns = {dataset.pattern: index for dataset, index in datasets.values() if dataset.pattern}
    seen: set[int] = set()
    for dataset, index in datasets.values():
        for pattern in patterns.keys() - {dataset.pattern}:
            if index not in seen and period_end(pattern, dataset.name) is not None:
                seen.add(index)
                line = document.line(("datasets", patterns[pattern]))
                message = f"dataset {quote(dataset.name)} is named as generator {quote(pattern)} at line {line} does"
                document.report(("datasets", index), f"{message}: rename one of them")


def _monitors(document: Document) -> _Monitors:
    monitors: _Monitors = []
    names: dict[str, int] = {}
    for index, raw in enumerate(_items(document, "monitors")):
        path = ("monitors", index)
        monitor = check(document, MonitorSpec, path)
        name = raw.get("name") if isinstance(raw, dict) else None
        if isinstance(name, str):
            if name in names:
                line = document.line(("monitors", names[name], "name"))
                document.report((*path, "name"), f"monitor {quote(name)} is already declared at line {line}")
                continue
            names[name] = index
        if monitor is not None:
            monitors.append((index, monitor))
    return monitors


def _compare(document: Document, datasets: _Datasets, monitors: _Monitors) -> None:
    """Report what is wrong between monitors and the datasets they run on."""
    if not datasets:
        return
    declarations_broken = bool(document.problems)
    for index, monitor in monitors:
        path = ("monitors", index)
        for place, pattern in enumerate(monitor.datasets):
            if not declarations_broken and not any(fnmatchcase(name, pattern) for name in datasets):
                message = f"pattern {quote(pattern)} matches no declared dataset"
                document.report(
                    (*path, "datasets", place), message + did_you_mean(pattern, list(datasets)[:1000])
                )
        budgets = {
            (dataset.kind, dataset.limit): dataset.name
            for dataset, _ in reversed(datasets.values())
            if monitor.covers(dataset.name)
        }
        for (kind, limit), name in budgets.items():
            price = monitor.run_price(kind)
            kept = monitor.reserve_units(kind)
            limit_text = f"the limit {kind.measure} {as_text(limit, kind)} of dataset {quote(name)}"
            if price > limit:
                cost = f"one whole run costs {kind.measure} {as_text(price, kind)}"
                document.report((*path, "epsilon"), f"{cost}, above {limit_text}")
            elif price + kept > limit:
                run = f"a whole run of {kind.measure} {as_text(price, kind)}"
                message = f"leaves no room for {run} within {limit_text}"
                document.report((*path, "reserve"), message)


def _notes(document: Document, datasets: _Datasets, monitors: _Monitors) -> list[Problem]:
    notes = []
    for index, monitor in monitors:
        for name, message in monitor.notes():
            path = ("monitors", index, name)
            notes.append(Problem(document.line(path), f"monitors[{index}].{name}", message))
    declared: dict[int, list[DatasetSpec]] = {}
    for dataset, position in datasets.values():
        declared.setdefault(position, []).append(dataset)
    for position, mine in declared.items():
        users = {monitor.name for _, monitor in monitors if any(monitor.covers(one.name) for one in mine)}
        line = document.line(("datasets", position))
        if not users:
            notes.append(Problem(line, f"datasets[{position}]", "no monitor runs on these datasets"))
        elif mine[0].kind is Kind.ZCDP and len(users) > 1:
            message = (
                f"with rho one run at most is open on a dataset: its {len(users)} monitors take turns, "
                "and each waits until the other's run ends"
            )
            line = document.line(("datasets", position, "limit"))
            notes.append(Problem(line, f"datasets[{position}].limit", message))
    return notes
