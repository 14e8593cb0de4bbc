"""What `status` shows: the page of one worker, or the whole application.

The whole application is shown from the newest events of its alert topic, and from the pages of workers as far as they
answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from stream_svt.application.config import Config
from stream_svt.application.facts import READ_MOST, read_adopted, read_facts
from stream_svt.cli import common
from stream_svt.errors import BrokerError
from stream_svt.monitor.operations import utc
from stream_svt.operate.running import pages, without_page
from stream_svt.terminal import say
from stream_svt.wording import counted, more
from stream_svt.worker.config_versions import workers

DATASETS_SHOWN = 50
"""Datasets of the table; the others are in the sums."""


async def read_whole(config: Config, *, versions: bool) -> dict[str, Any]:
    """Return workers (None where this user may not ask), shards, accounts of declared datasets, and workers' pages.

    Shards whose newest events do not name their version are searched for it only to show ``versions``.
    """
    cluster = config.cluster()
    try:
        members = [name for name, _ in await workers(config, cluster)]
    except BrokerError as error:
        if error.retriable:
            raise
        members = None
    shown, spec = await read_facts(config, cluster), config.current
    adopted = {number: one.version for number, one in shown.shards.items() if one.version[0]}
    if versions and (unknown := sorted(shown.shards.keys() - adopted)):
        adopted |= await read_adopted(config, cluster, READ_MOST, unknown)
    fields = ("events", "time", "command", "successor")
    answers = await pages(config, members or ())
    return {
        "application": spec.application,
        "workers": members,
        "pages": answers,
        "without_page": without_page(config, len(members or ()), answers),
        "shards": [
            {"shard": number, "version": adopted.get(number, (None,))[0]}
            | {name: getattr(one, name) for name in fields}
            for number, one in sorted(shown.shards.items())
        ],
        "declared": len(spec.datasets),
        "datasets": [
            {"dataset": one.name, "measure": account.measure, "limit": account.limit}
            | {"spent": account.spent, "reserved": account.reserved}
            for one in spec.datasets
            if (account := shown.accounts.get(one.name)) is not None
        ],
    }


def show_whole(found: dict[str, Any]) -> None:
    """Print it as tables; amounts of a dataset that no page shows are as of its newest event."""
    names, answers, datasets = found["workers"], found["pages"], found["datasets"]
    members = "an unknown number of workers" if names is None else counted(len(names), "worker")
    say(f"{found['application']}: {members} in the group")
    for answer in answers:
        _show_head(answer)
    if found["without_page"]:
        say(found["without_page"])
    shards = [shard for answer in answers for shard in answer["shards"]]
    shards.sort(key=lambda shard: shard["state"] != "not-member")  # a new owner knows more
    owned = {shard["shard"]: shard for shard in shards}
    common.print_table(
        ("shard", "newest event", "closed for", *_OF_PAGES),
        [_shard_cells(shard) + _page_cells(owned.get(shard["shard"])) for shard in found["shards"]],
        spare=("state records", "last commit"),
    )
    for line in _sums(datasets):
        say(line)
    if missing := found["declared"] - len(datasets):
        say(f"{counted(missing, 'declared dataset')} without an account in the events read")
    _show_datasets(answers, datasets)


def show_worker(found: dict[str, Any]) -> None:
    """Print a worker's page as tables."""
    _show_head(found)
    common.print_table(
        ("shard", *_OF_PAGES),
        [[shard["shard"], *_page_cells(shard)] for shard in found["shards"]],
        spare=("state records", "last commit"),
    )
    _show_datasets([found], [])
    say(f"Worker {found['worker']} alone: 'stream-svt status -c FILE' shows all workers.")


_OF_PAGES = ("state", "lag", "state records", "last commit", "cause", "reason")
"""Columns of shards that their workers' pages show."""


def _shard_cells(shard: dict[str, Any]) -> list[object]:
    newest = "none"
    if shard["events"]:
        newest = f"{datetime.fromisoformat(shard['time']).astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    return [shard["shard"], newest, shard["successor"]]


def _show_head(answer: dict[str, Any]) -> None:
    ready = "ready" if answer["ready"] else "NOT READY"
    sealed = f"{'sealed' if answer['sealed'] else 'not sealed'}, partitioner {answer['partitioner']}"
    worker = f"worker {answer['worker']}, version {answer['version']}"
    say(f"{answer['application']}: {worker}, {ready}, state {sealed}")
    if fault := answer["fault"]:
        say(f"not in its group, cause {fault['cause']}: {fault['reason']}")
    if answer["lacks"]:
        say(f"not ready to take over: {answer['lacks']}")
    if reasons := answer["refused"]["reasons"]:
        counts = ", ".join(f"{reason} {number}" for reason, number in reasons.items())
        records, topic = counted(sum(reasons.values()), "record"), answer["refused"]["topic"]
        say(
            f"{records} refused ({counts}): 'stream-svt rejects list -c FILE' says what to do (topic {topic})"
        )
        if remedy := answer["refused"]["remedy"]:
            say(f"misrouted: {remedy}")


def _show_datasets(answers: list[dict[str, Any]], others: list[dict[str, Any]]) -> None:
    """Print datasets and monitors of pages, those that skip queries first; then ``others`` that no page shows.

    Below the table, what the states mean.
    """
    from stream_svt.forward.conditions import CONDITIONS

    paged = {one["dataset"]: one for answer in answers for one in answer["datasets"]}
    blind_first = sorted(paged.values(), key=lambda one: not any(each["since"] for each in one["monitors"]))
    rows = [[*_dataset_cells(one)] for one in blind_first]
    rows += [
        [[one["dataset"], *_amounts(one), "", "not known"]] for one in others if one["dataset"] not in paged
    ]
    common.print_table(
        ("dataset", "budget spent", "reserved", "monitor", "state", "run", "alerts", "muted", "queued"),
        [cells for dataset in rows[:DATASETS_SHOWN] for cells in dataset],
        spare=("queued", "muted", "reserved", "run"),
    )
    if left_out := more(len(rows) - DATASETS_SHOWN):
        say(f"..{left_out}: --json has them all")
    states = {monitor["state"] for dataset in paged.values() for monitor in dataset["monitors"]}
    for state, condition in CONDITIONS.items():
        if state in states:
            remedy = condition.remedy.format(dataset="DATASET", monitor="MONITOR")
            say(f"{state}: {condition.means}: {remedy}")


def _page_cells(shard: dict[str, Any] | None) -> list[object]:
    if shard is None:
        return ["not known", *[""] * (len(_OF_PAGES) - 1)]
    when = "never"
    if committed := shard["committed_at"]:
        when = datetime.fromtimestamp(committed, UTC).strftime("%H:%M:%SZ")
    # The lag of a shard that was never open is unknown; of counts, only the newest tick tested is shown.
    ticks = shard.get("ticks", {}).values()
    lag = [sum(shard["lag"].values())] if shard["lag"] else []
    lag += [f"ticks to {utc(min(ticks))}"] if ticks else []
    known = shard | {"lag": ", ".join(map(str, lag)) or "-", "when": when}
    return [known[name] for name in ("state", "lag", "state_records", "when", "cause", "reason")]


def _dataset_cells(dataset: dict[str, Any]) -> Iterator[list[object]]:
    """Yield a row for each monitor on a dataset; the first row shows the dataset's budget."""
    first: list[object] = [dataset["dataset"], *_amounts(dataset)]
    for monitor in dataset["monitors"]:
        more = ", top branch only" if monitor["top_branch_only"] else ""
        if monitor["since"]:
            more = f" since {utc(monitor['since'])}"
        if monitor["until"]:
            more += f" until {utc(monitor['until'])}"
        counts = [monitor[name] for name in ("run", "alerts", "muted", "queued")]
        yield [*first, monitor["monitor"], monitor["state"] + more, *counts]
        first = ["", "", ""]
    if not dataset["monitors"]:
        yield [*first, "", "not covered"]


def _amounts(dataset: dict[str, Any]) -> list[str]:
    spent = f"{dataset['spent']:g} of {dataset['limit']:g} {dataset['measure']}"
    return [spent, f"{dataset['reserved']:g}"]


def _sums(datasets: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the sums of each measure."""
    for measure in sorted({one["measure"] for one in datasets}):
        of_measure = [one for one in datasets if one["measure"] == measure]
        spent, reserved, limit = (
            sum(one[name] for one in of_measure) for name in ("spent", "reserved", "limit")
        )
        amounts = f"{measure} {spent:g} of {limit:g} spent, {reserved:g} reserved"
        yield f"{counted(len(of_measure), 'dataset')}: {amounts}"
