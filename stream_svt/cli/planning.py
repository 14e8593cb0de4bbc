"""The command `plan`: recommended settings of a monitor, and their predicted findings."""

from __future__ import annotations

import re
import time
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import click
from click.core import ParameterSource
from pydantic import ValidationError

from stream_svt.cli import common
from stream_svt.cli.common import Command, option
from stream_svt.errors import MisuseError
from stream_svt.terminal import say, say_lines
from stream_svt.wording import counted

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stream_svt.planning import Belief
    from stream_svt.planning.budget import PaidRuns
    from stream_svt.settings.application import ApplicationSpec
    from stream_svt.settings.monitors import MonitorSpec

Margins: TypeAlias = "float | NDArray[Any]"
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_LEGEND = """
First figure: for the margins as given. In brackets: the range if they are up to {factor:g} times smaller or larger,
or distributed differently. F: alerts a run may waste if every query lies on the threshold. {tried} compared.
"""


# Types of options: click calls these functions with the text of an option.


def share(value: str) -> float:
    """Return a share such as 0.001 or 0.1%."""
    try:
        number = float(Fraction(value.strip().removesuffix("%"))) / (100 if "%" in value else 1)
    except (ValueError, ZeroDivisionError):
        number = 0.0
    if not 0 < number < 1:
        raise click.BadParameter(f"{value!r} is not a share strictly between 0 and 1, such as 0.001 or 0.1%.")
    return number


def margins(value: str) -> Margins:
    """Return a median margin, or the margins given by percentiles."""
    from stream_svt.planning import from_percentiles

    try:
        points = [[float(number) for number in part.split(":")] for part in value.split(",")]
        if [len(point) for point in points] == [1] and 0 < points[0][0] < float("inf"):
            return points[0][0]
        return from_percentiles([(level, margin) for level, margin in points])
    except MisuseError as error:
        raise click.BadParameter(f"{error}.") from None
    except ValueError:
        raise click.BadParameter(
            f"{value!r} is neither a median above 0, such as 40, nor percentiles such as 10:20,50:40,90:90."
        ) from None


def rate(value: str) -> float:
    """Return the queries per second of a rate such as 500/min."""
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*/\s*([smhd])\w*\s*", value)
    if match is None or not float(match[1]):
        raise click.BadParameter(f"{value!r} is not a rate such as 20/s, 500/min, 3000/h or 10000/d.")
    return float(match[1]) / _SECONDS[match[2]]


def belief_options(command: Command) -> Command:
    """Add the options that say what is believed about values."""
    text = "Distance above the threshold of these positives: the median, or percentiles such as 10:20,50:40,90:90."
    below = option("--below", "Distance below the threshold of the others, in the same form.", margins)
    positives = option("--positives", "Share of the queries above the threshold: 0.001 or 0.1%.", share)
    return positives(option("--above", text, margins)(below(command)))


def belief_of(
    positives: float | None, above: Margins | None, below: Margins | None, factor: float = 1
) -> Belief:
    """Return what these options say."""
    from stream_svt.planning import Belief

    if positives is None or above is None or below is None:
        given = {"--positives": positives, "--above": above, "--below": below}
        raise click.UsageError(f"Missing option '{next(key for key, one in given.items() if one is None)}'.")
    return Belief(positives=positives, above=above, below=below, factor=factor)


@common.command(
    "plan --epsilon 1 --cutoff 20 --monotonic --queries 1000000 \\\n"
    "      --positives 0.002% --above 800 --below 600 --rate 20/s",
    "plan -c monitors.yaml --monitor hot --positives 0.1% --above 10:5,50:40,90:200 --below 60",
    "plan -c monitors.yaml --monitor hot --positives 0.1% --above 50 --look look.json",
    "plan --epsilon 1 --cutoff 50 --queries 16000 --set --positives 0.3% --above 200 --below 300",
    "plan -c monitors.yaml --openslo slo.yaml",
)
@common.file_option("-c --config path", "Configuration file that has the monitor.")
@common.file_option(
    "--openslo", "Print the monitors of this file of OpenSLO documents instead. Needs -c.", metavar="FILE"
)
@option("--monitor name", "Monitor of the configuration; required if it has several.", metavar="NAME")
@option("--epsilon", "Privacy loss of one run.", metavar="EPSILON")
@option("--cutoff", "Alerts after which a run ends.", click.IntRange(1, 1_000_000))
@option(
    "--monotonic/--general",
    "Whether one privacy unit changes all answers in the same direction, as with counts. Default general.",
    default=None,
)
@option("--sensitivity", "Largest change of an answer per privacy unit. Default 1.", metavar="NUMBER")
@option("--granularity", "Step of the grid that answers are rounded to. Default 1.", metavar="NUMBER")
@option("--mechanism form", "Mechanism. Default svt.", click.Choice(["svt", "adaptive", "ladder"]))
@option(
    "--queries",
    "Queries that one run must last for; with --set, items of the set.",
    click.IntRange(1, 10**15),
)
@belief_options
@option(
    "--look event",
    "In place of --below: a look, the event as a file, - or its id. --above is the median then.",
    metavar="EVENT",
)
@option(
    "--uncertainty",
    "Factor by which these distances may be smaller or larger.",
    click.FloatRange(1, 100),
    default=2.0,
    show_default=True,
)
@common.flag("--set finite", "The queries are one closed set, not a stream.")
@option(
    "--drift",
    "Queries within which a positive rises, from the median of --below.",
    click.FloatRange(0, min_open=True),
    metavar="QUERIES",
)
@option("--rate", "Arrival rate, to show times: 20/s, 500/min, 3000/h, 10000/d.", rate)
@option("--limit", "Budget of the dataset, to show how long it lasts.", metavar="EPSILON")
@option(
    "--delta",
    "Compare with a limit in rho for the same epsilon and this delta, such as 1e-6.",
    click.FloatRange(0, 0.01, min_open=True),
    metavar="DELTA",
)
def plan(
    path: Path | None,
    openslo: Path | None,
    name: str | None,
    queries: int | None,
    positives: float | None,
    above: Margins | None,
    below: Margins | None,
    event: str | None,
    uncertainty: float,
    finite: bool,
    drift: float | None,
    rate: float | None,
    limit: str | None,
    delta: float | None,
    **own: Any,  # noqa: ANN401  the fields of a monitor
) -> None:
    """Recommend settings of a monitor, and predict what it would find.

    Recommends split, correction and retries from epsilon, the cutoff, and prior knowledge of the queries: the
    share above the threshold and the distances from it. Reads no data and spends no budget. With --openslo it prints
    the monitors that service level objectives declare.
    """
    if openslo is not None:
        _print_openslo(openslo, path)
        return
    import numpy as np

    from stream_svt.planning import Drift, advice, recommend
    from stream_svt.settings.fields import Sweep

    if event is None:
        belief = belief_of(positives, above, below, uncertainty)
    monitor, spec = _monitor(path, name, {key: value for key, value in own.items() if value is not None})
    if event is not None:
        if below is not None or path is None or spec is None:
            raise click.UsageError("--look replaces --below, and needs -c FILE.")
        above, below = _looked(event, path, spec, monitor, positives, above)
        belief = belief_of(positives, above, below, uncertainty)
    queries = queries or monitor.expected_queries
    if queries is None:
        raise click.UsageError("--queries is missing: the queries that one run must last for.")
    try:
        rising = None if drift is None else Drift(queries=drift, start=float(np.median(belief.below)))
        finite = finite or isinstance(monitor.append, Sweep)
        load = belief.central(queries, finite=finite, drift=rising, rate=rate)
        advised = recommend(monitor, load, belief.spread(load), present=path is not None)
    except MisuseError as error:
        raise click.UsageError(f"{error}.") from None
    # With detect there is one run a period.
    budget = None if monitor.detect else _budget(monitor, advised.best.monitor, spec, limit)
    rho = _in_rho(advised.best.monitor, spec, limit, budget, delta)
    kind = "items of a set" if finite else "queries"
    head = f"Plan for {queries:,} {kind}, {100 * belief.positives:.3g} % of them positive."
    say(f"{head} No data was read{'' if event is None else ' but the look'}, and nothing was spent.")
    say("")
    for line in advice.table(advised):
        say(line)
    say_lines(_LEGEND.format(factor=uncertainty, tried=counted(advised.tried, "setting")))
    if monitor.detect is not None:
        say(f"The keys of monitor {monitor.name!r} follow from detect: there is nothing to change.")
    else:
        if path is None:
            say("Recommended keys of a new monitor:")
        else:
            say(f"Recommended changes to monitor {monitor.name!r} (write each key once only):")
        changes = advice.settings(advised.best, None if path is None else monitor)
        for line in changes or ["none: it already has these settings"]:
            say(f"    {line}")
    for title, sentences in {
        "Expect": advice.expectations(advised, budget),
        "Note": advice.warnings(advised),
        **rho,
        **_of_source(monitor, spec),
        **_promises(spec),
    }.items():
        say("")
        say(title)
        for sentence in sentences:
            say_lines(click.wrap_text(sentence, 100, initial_indent="  - ", subsequent_indent="    "))


def _looked(
    event: str,
    path: Path,
    spec: ApplicationSpec,
    monitor: MonitorSpec,
    positives: float | None,
    above: Margins | None,
) -> tuple[Margins, Margins]:
    """Return the margins above and below the threshold by a look at what a monitor tests."""
    from stream_svt.cli.explaining import event_at
    from stream_svt.monitor.released import EventType
    from stream_svt.planning.looked import margins_after_look

    found = event_at(event, path, spec.application)
    is_released = found.type == EventType.DECILES and found.data.reason == "released"
    if not is_released or (found.application, found.data.monitor) != (spec.application, monitor.name):
        raise click.UsageError(f"--look: {event} is no released look at what {monitor.name} tests.")
    if positives is None or not isinstance(above, float):
        raise click.UsageError(
            "--look needs --positives and --above, the median distance above the threshold."
        )
    origin = float(monitor.threshold - monitor.bounds[0]) if not monitor.asks else 0.0
    try:
        return margins_after_look(found.data.detail["deciles"], positives, above, origin)
    except MisuseError as error:
        raise click.UsageError(f"--look: {error}.") from None


def _print_openslo(documents: Path, path: Path | None) -> None:
    """Print the monitors of OpenSLO documents about the sources of a configuration."""
    from stream_svt.application.config import content
    from stream_svt.planning.openslo import monitors_in

    allowed = {"openslo", "path"}
    context = click.get_current_context()
    given = {
        one for one in context.params if context.get_parameter_source(one) is ParameterSource.COMMANDLINE
    }
    if path is None or given - allowed:
        raise click.UsageError("--openslo needs -c FILE, whose sources count, and no other option.")
    lines = monitors_in(content(documents), str(documents), common.load(path).spec)
    say(f"# From {documents}. Of detect, above is the least excess of errors in a window.")
    for line in lines:
        say(line)


def _in_rho(
    best: MonitorSpec,
    spec: ApplicationSpec | None,
    limit: str | None,
    budget: PaidRuns | None,
    delta: float | None,
) -> dict[str, list[str]]:
    """Return what a limit in rho would buy, under a title, if there is a delta."""
    from stream_svt.planning.rho import rho_offer

    if delta is None:
        return {}
    try:
        return {"Rho": rho_offer(best, spec, None if limit is None else Fraction(limit), budget, delta)}
    except MisuseError as error:
        raise click.UsageError(f"--delta: {error}.") from None


def _promises(spec: ApplicationSpec | None) -> dict[str, list[str]]:
    """Return what limits that renew promise, under a title."""
    from stream_svt.planning.promises import promises

    found = [] if spec is None else promises(spec, int(time.time() * 1000))
    return {"Promise": found} if found else {}


def _of_source(monitor: MonitorSpec, spec: ApplicationSpec | None) -> dict[str, list[str]]:
    """Return what the source of a monitor counts, costs and takes, under a title."""
    from stream_svt.planning.sources import explain_source

    if spec is None or monitor.source is None:
        return {}
    title, *lines = explain_source(spec, spec.source(monitor.source))
    return {title.rstrip(":"): [": ".join(line.split(maxsplit=1)) for line in lines]}


def _monitor(
    path: Path | None, name: str | None, own: dict[str, Any]
) -> tuple[MonitorSpec, ApplicationSpec | None]:
    """Return the monitor to plan, and its configuration if there is one."""
    if path is not None:
        if own:
            flags = ", ".join("--mechanism" if key == "form" else f"--{key}" for key in own)
            raise click.UsageError(f"{flags}: the configuration sets that; leave it out, or leave out -c.")
        spec = common.load(path).current
        known = {monitor.name: monitor for monitor in spec.monitors if not monitor.ends}
        monitor = known.get(name or "") if name or len(known) > 1 else spec.monitors[0]
        if monitor is None:
            raise click.UsageError(f"--monitor must be one of {', '.join(known)}.")
        return monitor, spec
    if name is not None:
        raise click.UsageError("--monitor names a monitor of a configuration: give -c FILE, too.")
    if missing := [f"--{key}" for key in ("epsilon", "cutoff") if key not in own]:
        raise click.UsageError(f"{' and '.join(missing)} missing; or give -c FILE --monitor NAME.")
    from stream_svt.planning import monitor_for

    try:
        return monitor_for(**own), None
    except ValidationError as error:
        first = error.errors()[0]
        field = f"--{first['loc'][0]}: " if first["loc"] else ""
        raise click.UsageError(f"{field}{first['msg']}.") from None
    except (ValueError, ZeroDivisionError) as error:
        raise click.UsageError(f"--granularity: {error}.") from None


def _budget(
    monitor: MonitorSpec, best: MonitorSpec, spec: ApplicationSpec | None, limit: str | None
) -> PaidRuns | None:
    """Return the runs of a changed monitor that a limit pays for: from the option, or its first dataset."""
    from stream_svt.planning.budget import PaidRuns
    from stream_svt.privacy.loss import Kind, to_units

    if limit is None:
        dataset = next((one for one in spec.datasets if monitor.covers(one.name)), None) if spec else None
        if spec is None or dataset is None:
            return None
        others = [one for one in spec.monitors if one is not monitor and one.covers(dataset.name)]
        return PaidRuns.left(best, dataset, others)
    try:
        return PaidRuns.paid(best.mechanism(), to_units(Fraction(limit), Kind.PURE))
    except (ValueError, ZeroDivisionError):
        raise click.UsageError(f"--limit: {limit!r} is not a number such as 4 or 0.5.") from None
