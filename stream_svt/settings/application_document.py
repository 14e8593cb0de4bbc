"""From a document to an `ApplicationSpec`: what is wrong between datasets, monitors and what was carried over.

Nothing here reads files: names in files come through a function.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fnmatch import fnmatchcase

from stream_svt.errors import Problem
from stream_svt.privacy.loss import Kind, as_text
from stream_svt.settings.application import ApplicationSpec
from stream_svt.settings.carried import Carried, parse
from stream_svt.settings.datasets import MAX_DATASETS, DatasetSpec, Generator, is_over, period_end
from stream_svt.settings.declarations import ReadNames, lines_of
from stream_svt.settings.document import Document, path_text, read
from stream_svt.settings.messages import did_you_mean, quote
from stream_svt.settings.sections import ConfigDocument
from stream_svt.settings.validation import check

_Datasets = dict[str, tuple[DatasetSpec, int]]
"""By name, with the place of the declaration."""


def load_spec(
    text: str | bytes, source: str = "configuration", read_names: ReadNames | None = None
) -> ApplicationSpec:
    """Return the specification in a YAML text.

    Raises:
        ConfigError: With every problem found, sorted by line: first those of single keys, and where there are
            none, those between them.
    """
    document = read(text, source)
    spec = application_of(document, check(document, ConfigDocument), read_names)
    document.finish()
    return spec


def application_of(
    document: Document, config: ConfigDocument, read_names: ReadNames | None = None
) -> ApplicationSpec:
    """Return the specification in a document; what is wrong is reported to the document."""
    carried = _carried(document, config, read_names)
    datasets, generators = _datasets(document, config, read_names, carried)
    _compare_patterns(document, datasets)
    if not document.problems:
        _compare(document, config, datasets, carried)
    return ApplicationSpec(
        config.application,
        tuple(dataset for dataset, index in datasets.values() if index not in generators),
        config.monitors,
        tuple(sorted(_notes(document, config, datasets))),
        carried,
        tuple(generators.values()),
    )


def _carried(document: Document, config: ConfigDocument, read_names: ReadNames | None) -> Carried | None:
    """Return what was taken over from a closed application, None where nothing is, or it is reported."""
    if (name := config.carried_over) is None:
        return None
    path = ("carried_over",)
    try:
        lines = lines_of(name, read_names)
    except ValueError as error:
        document.report(path, str(error))
        return None
    try:
        carried = parse(lines)
    except ValueError as error:
        document.report(path, f"{quote(name)}: {error}")
        return None
    if carried.successor != config.application:
        other = f"is for application {quote(carried.successor)}: another one would spend it twice"
        document.report(path, f"{quote(name)} {other}")
    return carried


def _datasets(
    document: Document, config: ConfigDocument, read_names: ReadNames | None, carried: Carried | None
) -> tuple[_Datasets, dict[int, Generator]]:
    """Return the datasets, of a generator without an end those of its first period, and these generators by place."""
    datasets: _Datasets = {}
    generators: dict[int, Generator] = {}
    for index, declaration in enumerate(config.datasets):
        path = ("datasets", index)
        if carried is not None and (why := carried.begun_again(declaration.generate or "")):
            document.report((*path, "generate"), f"{why}: use another pattern")
            continue
        try:
            if declaration.until is None and (generator := declaration.generator(read_names)) is not None:
                generators[index] = generator
            for dataset in declaration.expand(read_names):
                if dataset.name in datasets:
                    first = document.line(("datasets", datasets[dataset.name][1]))
                    message = f"dataset {quote(dataset.name)} is already declared at line {first}"
                    document.report(path, message)
                    break
                if carried is not None and (why := carried.contradiction(dataset, new=declaration.new)):
                    document.report(path, why)
                    break
                if carried is None or index in generators or not is_over(dataset.name, carried.watermarks):
                    datasets[dataset.name] = (_joined(dataset, carried), index)
        except ValueError as error:
            document.report((*path, "file" if declaration.file else "generate"), str(error))
        if len(datasets) > MAX_DATASETS:
            document.report(path, f"declares more than {MAX_DATASETS} datasets in all")
            break
    return datasets, generators


def _joined(dataset: DatasetSpec, carried: Carried | None) -> DatasetSpec:
    """Return a dataset with what was spent of it before."""
    known = None if carried is None or dataset.pattern else carried.datasets.get(dataset.name)
    return dataset if known is None else replace(dataset, limit=known.limit, spent_before=known.spent)


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


def _compare(
    document: Document, config: ConfigDocument, datasets: _Datasets, carried: Carried | None
) -> None:
    """Report what is wrong between monitors, the datasets they run on, and what was declared before."""
    names: dict[str, int] = {}
    for index, monitor in enumerate(config.monitors):
        path = ("monitors", index)
        if (first := names.setdefault(monitor.name, index)) != index:
            line = document.line(("monitors", first, "name"))
            document.report(
                (*path, "name"), f"monitor {quote(monitor.name)} is already declared at line {line}"
            )
            continue
        for place, pattern in enumerate(monitor.datasets):
            if not any(fnmatchcase(name, pattern) for name in datasets):
                message = f"pattern {quote(pattern)} matches no declared dataset"
                near = did_you_mean(pattern, list(datasets)[:1000])
                document.report((*path, "datasets", place), message + near)
        if carried is not None:
            if unknown := carried.unknown(monitor.topic):
                document.report((*path, "topic"), unknown)
            declared = carried.topics.get(monitor.topic)
            for name, message in (declared.undercut(monitor) if declared else {}).items():
                document.report((*path, name), message)
        budgets = {
            (dataset.kind, dataset.limit): dataset.name
            for dataset, _ in reversed(datasets.values())
            if monitor.covers(dataset.name)
        }
        for (kind, limit), name in budgets.items():
            price = monitor.run_price(kind)
            cost = f"{kind.measure} {as_text(price, kind)}"
            limit_text = f"the limit {kind.measure} {as_text(limit, kind)} of dataset {quote(name)}"
            if price > limit:
                document.report((*path, "epsilon"), f"one whole run costs {cost}, above {limit_text}")
            elif price + monitor.reserve_units(kind) > limit:
                message = f"leaves no room for a whole run of {cost} within {limit_text}"
                document.report((*path, "reserve"), message)


def _notes(document: Document, config: ConfigDocument, datasets: _Datasets) -> Iterator[Problem]:
    """Yield what is allowed but may not be meant."""

    def note(*path: str | int, message: str) -> Problem:
        return Problem(document.line(path), path_text(path), message)

    for index, monitor in enumerate(config.monitors):
        for name, message in monitor.notes():
            yield note("monitors", index, name, message=message)
    declared: dict[int, list[DatasetSpec]] = {}
    for dataset, position in datasets.values():
        declared.setdefault(position, []).append(dataset)
    for position, mine in declared.items():
        users = sum(any(monitor.covers(one.name) for one in mine) for monitor in config.monitors)
        if not users:
            yield note("datasets", position, message="no monitor runs on these datasets")
        elif mine[0].kind is Kind.ZCDP and users > 1:
            turns = f"with rho one run at most is open on a dataset: its {users} monitors take turns, "
            waits = "and each waits until the other's run ends"
            yield note("datasets", position, "limit", message=turns + waits)
