"""Commands on a configuration: check it, test its privacy, apply it, show the applied version, run a worker with it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stream_svt.application.config import Config
from stream_svt.application.signatures import SigningKey
from stream_svt.cli import common
from stream_svt.errors import ConfigError, Problem, StreamSvtError
from stream_svt.logs import log_to_stderr
from stream_svt.settings.detection import FILE
from stream_svt.terminal import say, say_lines, styled
from stream_svt.wording import counted
from stream_svt.worker import config_versions

if TYPE_CHECKING:
    from stream_svt.operate.findings import Finding
    from stream_svt.settings.application import ApplicationSpec

log = logging.getLogger(__name__)

WAIT_WITHOUT_WORKERS = 10.0
"""Longest wait for adoptions, in seconds, while no worker is a member of the group."""

_REPORT = "The guarantee does not hold as declared. Please report this, with the configuration and the seed."
_MARKS = {"ok": ("ok  ", "green"), "note": ("note", "yellow"), "problem": ("FAIL", "red")}


@common.command(
    "check -c monitors.yaml --offline",
    "check -c monitors.yaml --create-topics",
    "check -c monitors.yaml --print strimzi > kafka.yaml",
)
@common.config_option()
@common.flag("--create-topics", "Create the topics that do not exist.")
@common.flag("--offline", "Check the configuration only; connect to no broker.")
@common.flag("--counter", "Check the topics and permissions of a counter's user instead of a worker's.")
@common.option(
    "--sample",
    "Read the newest N events of each source, too: say how many would count, and why others would not.",
    click.IntRange(1),
    metavar="N",
)
@common.option(
    "--print printed",
    "Print topics and users with the least ACLs for Strimzi; check nothing else.",
    click.Choice(["strimzi"]),
)
def check(
    path: Path, create_topics: bool, offline: bool, counter: bool, sample: int | None, printed: str | None
) -> int:
    """Check configuration, topics and permissions.

    Prints what the budget of each monitor buys, whether the sealing keys open the newest records of each
    shard, what 'apply' would refuse or remove, and differences from the newest released events. The last line
    lists the permissions that were tried and not tried. Spends no budget, writes no record, disturbs no
    running worker.
    """
    from stream_svt.operate.check import TRIED, UNTRIED, check_brokers, check_counter, check_offline
    from stream_svt.operate.sampling import sample_sources
    from stream_svt.planning import explain
    from stream_svt.planning.persons import explain_persons
    from stream_svt.planning.sources import explain_sources

    if counter and (offline or create_topics):
        raise click.UsageError("--counter checks topics that exist: leave --offline and --create-topics out.")
    if offline and (create_topics or sample):
        needing = "--create-topics" if create_topics else "--sample"
        raise click.UsageError(f"{needing} needs the brokers: leave --offline out.")
    config = common.load(path, for_counter=counter)
    if printed:
        from stream_svt.operate.strimzi import documents

        say_lines(documents(config), nl=False)
        return 0
    if not (offline or counter) and any(one.detect is not None for one in config.spec.monitors):
        config = asyncio.run(config_versions.as_applied(config, config.cluster()))
    if not counter:
        findings = check_offline(config)
        _print(findings)
        spec = config.current
        for lines in (explain_sources(spec), explain(spec), explain_persons(config.spec)):
            for line in ["", *lines] if lines else ():
                say(line)
        say("")
    if not offline:
        cluster = config.cluster()
        workers = partial(check_brokers, create_topics=create_topics)
        findings = asyncio.run((check_counter if counter else workers)(config, cluster))
        if sample:
            findings += asyncio.run(sample_sources(config, cluster, sample))
        _print(findings)
        say("")
    said = {one.subject: one.message for one in findings if one.subject in (TRIED, UNTRIED)}
    tried = "" if offline else f"Tried: {said.get(TRIED)}. Not tried: {said.get(UNTRIED)}."
    if problems := [one for one in findings if one.level == "problem"]:
        say(tried)
        say(f"{counted(len(problems), 'problem')}: see FAIL above.", err=True)
        return ConfigError.exit_code
    say(f"No problem found. {tried}" if tried else "The configuration is valid.")
    return 0


def _print(findings: list[Finding], *, err: bool = False) -> None:
    for finding in findings:
        if finding.subject in ("tried", "not tried"):
            continue  # they end the report
        mark, colour = _MARKS[finding.level]
        say(styled(mark, fg=colour), f" {finding.subject}: {finding.message}", err=err)


@common.command("lint -c monitors.yaml", "lint -c monitors.yaml --sample 100000")
@common.config_option()
@common.option(
    "--sample",
    "Newest records of each topic to read. Default 1000.",
    click.IntRange(1),
    default=1000,
    metavar="N",
)
def lint(path: Path, sample: int) -> int:
    """Examine the newest records of the query topics.

    Counts refused records, values that are missing, not numbers, or outside the bounds, repeated ids, queries
    without a series if a monitor has `mute`, wrong timestamps, and partitions of another partitioner. The
    output depends on private values and is for readers of the query topics only. Exit code 1: something was
    found.
    """
    from stream_svt.operate.lint import sample as examine

    config = common.load(path)
    samples = asyncio.run(examine(config, config.cluster(), sample))
    for topic, found in samples.items():
        say(f"{topic}: {counted(found.records, 'record')}" + ("" if found.found else ", all as expected"))
        for line in found.lines():
            say(f"  {line}")
    return 1 if any(found.found for found in samples.values()) else 0


@common.command("schema > stream-svt.schema.json")
@common.flag("--forward forwarder", "Print the schema of the forwarder's configuration instead.")
def schema(forwarder: bool) -> None:
    """Print the JSON Schema of the configuration file, for editors.

    The YAML language server reads it if the configuration begins with this line:

    `# yaml-language-server: $schema=./stream-svt.schema.json`
    """
    from stream_svt.forward.config import json_schema as of_forwarder
    from stream_svt.settings.sections import json_schema

    common.print_json(of_forwarder() if forwarder else json_schema())


@common.command("prove -c monitors.yaml", "prove -c monitors.yaml --cases 2000 --seed 7")
@common.config_option()
@common.option("--cases", "Pairs of streams to test.", click.IntRange(1), default=100, show_default=True)
@common.option("--seed", "Seed of the random streams.", int, default=0, show_default=True)
def prove(path: Path, cases: int, seed: int) -> int:
    """Test the privacy guarantee on pairs of neighbouring streams.

    Runs the decoders and the engine on random streams and their neighbours, with the monitors of a
    configuration. Each answer of the neighbour differs by at most the declared sensitivity. With the noise
    moved as in the proof, everything visible must be the same, and the move must cost at most the charges.
    The counter of a source is tested on raw topics with and without the records of one unit. Needs no broker, reads
    no data, spends no budget.
    """
    from stream_svt.proving import prove as test_neighbours
    from stream_svt.queries.encoding import Encoded

    config = common.load(path)
    errors = click.get_text_stream("stderr")
    rngs = (random.Random(f"{seed} {number}") for number in range(cases))  # noqa: S311 - streams, not noise
    with click.progressbar(
        rngs, length=cases, label="Testing", file=errors, hidden=not errors.isatty()
    ) as bar:
        summary = test_neighbours(config.current, bar, Encoded)
    say(
        f"Tested {counted(summary.cases, 'pair')} of neighbouring streams on "
        f"{counted(len(config.spec.monitors), 'monitor')}: {counted(summary.queries, 'test')}, "
        f"{counted(summary.alerts, 'alert')}, {counted(summary.runs, 'run')}, {counted(summary.commits, 'commit')}; "
        f"{counted(summary.crashes, 'restart')} and {counted(summary.commands, 'command')} in between."
    )
    if summary.counterexample is not None:
        say(f"COUNTEREXAMPLE in case {summary.cases - 1} of seed {seed}: {summary.counterexample}.")
        say(_REPORT)
        return 1
    say(
        "Every comparison held: events, rejects, positions, counts, which step asked for a commit, and keys and "
        "lengths of all state records were the same. Moving the noise cost at most what was charged, in the closest "
        f"case {float(summary.largest_cost):.1%} of it."
    )
    if summary.unaligned:
        say(f"Left out: {counted(summary.unaligned, 'pair')} whose threshold noise no entropy can produce.")
    if (found := _prove_sources(config.spec, cases, seed)) is not None:
        say(found)
        return 1
    say(
        "This is a test of the program, not a proof: docs/privacy-guarantee.md has the proof and its assumptions."
    )
    return 0


def _prove_sources(spec: ApplicationSpec, cases: int, seed: int) -> str | None:
    """Test the counters of sources, and say so; return a counterexample, None if there is none."""
    from stream_svt.sources.proving import prove_source

    for source in (one for one in spec.sources if one.answers is None):
        rngs = (random.Random(f"{seed} {number}") for number in range(cases))  # noqa: S311 - streams, not noise
        done = prove_source(spec, source, rngs)
        if done.counterexample is not None:
            case = f"source {source.name}, case {done.cases - 1} of seed {seed}"
            return f"COUNTEREXAMPLE in {case}: {done.counterexample}.\n{_REPORT}"
        say(
            f"Tested {counted(done.cases, 'pair')} of raw topics of source {source.name}, with and without one unit: "
            f"{counted(done.events, 'event')}, {counted(done.answers, 'value')}, of which the unit moved {done.moved}; "
            f"{counted(done.takeovers, 'takeover')} in between."
        )
    return None


@common.command("apply -c monitors.yaml --dry-run", "apply -c monitors.yaml")
@common.config_option()
@common.flag("--dry-run", "Show the changes without applying them.")
@common.flag("--yes", "Do not ask for confirmation; datasets are retired only with --retire.")
@common.flag("--retire", "With --yes: retire the datasets that the file does not declare, permanently.")
@common.seconds_option("--wait", 60, "Longest wait for every shard to adopt it.")
@common.option(
    "--above",
    "Give the version a larger number than this, after the configuration topic was created again.",
    click.IntRange(min=0),
    default=0,
    metavar="NUMBER",
)
@common.flag("--create-topics", "First create the topics that are missing.")
@common.signing_option
def apply(
    path: Path,
    dry_run: bool,
    yes: bool,
    retire: bool,
    wait: float,
    above: int,
    create_topics: bool,
    key_file: Path | None,
) -> int:
    """Change the datasets and monitors of an application.

    Shows the changes, asks for confirmation, and publishes the file's datasets and monitors, with the files
    that they name, as the next version. Every shard adopts it between two transactions, without a restart of
    its worker. If two operators apply at the same time, one is refused. A parked shard adopts the version
    once it is open; producers must not rely on it before. Exit code 1: refused, or not adopted by every shard
    in time.
    """
    config = common.load(path)
    if dry_run and create_topics:
        raise click.UsageError("--create-topics and --dry-run cannot be combined: a dry run changes nothing.")
    key = None if dry_run else common.signing_key_of(config, key_file)
    if create_topics:
        from stream_svt.operate.check import create_missing

        for finding in asyncio.run(create_missing(config, config.cluster())):
            say(finding.message, err=True)
    proposal = asyncio.run(config_versions.propose(config, config.cluster(), above))
    _show(config, proposal)
    if dry_run or not proposal.is_new:
        return 0
    retired = proposal.difference.retired
    if not yes:
        also = f", and retire {retired} permanently" if retired else ""
        common.confirm(f"Apply this to {config.spec.application}{also}?")
    elif not retire:
        _refuse_to_retire(config, proposal, "use --retire as well")
    return asyncio.run(_apply(config, proposal, above=above, key=key, timeout=wait))


def apply_file(path: Path, key_file: Path | None = None) -> None:
    """Apply a file, unless it is applied already, and log the changes; wait for no confirmation and no shard."""
    config = common.load(path)
    brokers, key = config.cluster(), common.signing_key_of(config, key_file)
    while (proposal := asyncio.run(config_versions.propose(config, brokers))).is_new:
        _refuse_to_retire(config, proposal, "use 'stream-svt apply'")
        bundle, before = proposal.bundle, proposal.before
        try:
            version = asyncio.run(config_versions.publish(config, brokers, bundle, before=before, key=key))
        except config_versions.Overtaken:  # workers of one file start side by side
            time.sleep(random.uniform(0, 0.2))  # noqa: S311  jitter, so that they do not fence each other again
            continue
        lines = [line for line in proposal.difference.lines if line.startswith(("+ ", "~ ", "- "))]
        for line in proposal.difference.lines:
            log.debug("event=configuration_change change=%r", line.strip())
        log.info("event=configuration_applied version=%d changes=%d", version.number, len(lines))
        return


def _refuse_to_retire(config: Config, proposal: config_versions.Proposal, remedy: str) -> None:
    """Refuse to retire datasets without confirmation: the file may be outdated and lack datasets added since."""
    if retired := proposal.difference.retired:
        message = (
            f"{retired} would be retired permanently, and nobody was asked: if that is intended, {remedy}"
        )
        raise ConfigError([Problem(0, "datasets", message)], config.source)


def _show(config: Config, proposal: config_versions.Proposal) -> None:
    from stream_svt.operate.check import check_offline

    known = f"version {proposal.before.number}" if proposal.before is not None else "nothing"
    say(f"Application {config.spec.application}: {known} is applied.", err=True)
    if proposal.refused is not None:
        say(f"Ignored: newest record of topic {config.topics.config}: {proposal.refused}.", err=True)
    if not proposal.is_new:
        say("No change: the file is the same as that version.", err=True)
        return
    _print([one for one in check_offline(proposal.config) if one.level == "note"], err=True)
    for line in proposal.difference.lines:
        say(line)


async def _apply(
    config: Config, proposal: config_versions.Proposal, *, above: int, key: SigningKey | None, timeout: float
) -> int:
    brokers = config.cluster()
    starts = await config_versions.ends_of_alerts(config, brokers)
    bundle, before = proposal.bundle, proposal.before
    version = await config_versions.publish(config, brokers, bundle, before=before, above=above, key=key)
    say(f"Version {version.number} of {config.spec.application} is applied.")
    if not timeout:
        return 0
    is_owned = bool(await config_versions.workers(config, brokers))
    if not is_owned:  # workers join the group only after a first version
        timeout = min(timeout, WAIT_WITHOUT_WORKERS)
    left = set(starts)
    async for shard in config_versions.adoptions(config, brokers, version.number, starts, timeout):
        left.discard(shard)
    adopted = len(starts) - len(left)
    if not adopted and not is_owned:
        say("No worker runs yet: each shard adopts the version once a worker owns it.")
        return 0
    say(f"Adopted by {adopted} of {len(starts)} shards.")
    if left:
        shards = ", ".join(map(str, sorted(left)))
        message = (
            f"not yet adopted by shard {shards}: 'stream-svt status -c FILE' shows why a shard is not open"
        )
        say(f"stream-svt: {message}", err=True)
    return 1 if left else 0


@common.command("config -c monitors.yaml > applied.yaml", name="config")
@common.config_option()
@common.option("--file name", "Instead, print this file that the configuration names.", metavar="NAME")
def show_config(path: Path, name: str | None) -> None:
    """Show the applied configuration.

    Prints its datasets and monitors as YAML, without comments and without the sections of a worker (kafka,
    topics, sealing, ..). Number and digest of the version go to standard error. Exit code 1: no version was
    applied yet, or the version has no file of that name.
    """
    config = common.load(path)
    versions = asyncio.run(config_versions.read_versions(config, config.cluster()))
    version = config_versions.newest(versions, config.topics.config)
    if version is None:
        raise StreamSvtError("no configuration was applied yet: use 'stream-svt apply -c FILE'")
    if name is not None and name not in version.bundle.files:
        names = ", ".join(one for one in version.bundle.files if one != FILE) or "none"
        raise StreamSvtError(f"the configuration names no file {name!r}; it names: {names}")
    say(f"Version {version.number}, digest {version.digest[:16]}", err=True)
    say_lines(version.bundle.text if name is None else version.bundle.files[name], nl=False)


@common.command(
    "run -c monitors.yaml", "run -c monitors.yaml --apply      applies the file first: for a single machine"
)
@common.config_option()
@common.flag("--apply applies", "First apply the file, without asking for confirmation.")
@common.flag("--with-counter", "Keep 'stream-svt count' running beside the worker.")
@common.file_option(
    "--counter-log",
    "Where the counter logs, for its owner only. Default <application>.counter.log.",
    metavar="FILE",
)
@common.signing_option
@common.log_level_option
@common.log_format_option
def run(
    path: Path,
    applies: bool,
    with_counter: bool,
    counter_log: Path | None,
    key_file: Path | None,
    log_level: str,
    log_format: str,
) -> int:
    """Run a worker until it is stopped.

    Workers share the partitions, and run the datasets and monitors that 'stream-svt apply' applied last. On
    SIGTERM or Ctrl-C the worker publishes the charged events and leaves the group at once.
    """
    from stream_svt.hosting.faust_app import run as run_service

    if counter_log is not None and not with_counter:
        raise click.UsageError("--counter-log needs --with-counter.")
    log_to_stderr(log_level, log_format)
    config = common.load(path, is_whole=False)
    if applies:
        apply_file(path, key_file)
    if config.has_sources and not with_counter:
        text = f"sources are counted only while 'stream-svt count -c {path}' runs, or with --with-counter"
        log.warning("event=sources_need_a_counter note=%r", text)
    with contextlib.ExitStack() as stack:
        if with_counter:
            from stream_svt.counting.process import beside

            options = ["-c", str(path), "--log-level", log_level, "--log-format", log_format]
            file = counter_log or Path(f"{config.spec.application}.counter.log")
            stack.enter_context(beside(options, file))
            log.info("event=counter_log file=%s", file.absolute())
        return run_service(config, reread=lambda: common.load(path, is_whole=False))
