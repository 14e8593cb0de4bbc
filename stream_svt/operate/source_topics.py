"""Advice about the topics of sources: whose timestamps they have, and what deletes events or counts too early."""

from __future__ import annotations

from collections.abc import Iterator

from stream_svt.application.config import Config
from stream_svt.application.topology import (
    COUNTS,
    LOG_APPEND_TIME,
    RAW,
    Topology,
    command_to_set,
    counts_topics,
    raw_topics,
    retention_of,
)
from stream_svt.operate.findings import Finding, note, ok, problem
from stream_svt.settings.fields import duration_text
from stream_svt.settings.periods import DAY_MS

COUNTS_KEPT_MS = 30 * DAY_MS
"""How long a topic of counts keeps them after the end of their tick, for outages; and longer for questions."""


def source_advice(config: Config, topology: Topology) -> Iterator[Finding]:
    """Yield findings about visible settings of topics of events and of counts."""
    counted = {one.topic for one in config.spec.sources if one.answers is None}
    for topic in raw_topics(config):
        settings = topology.settings.get(topic, {})
        clock = settings.get("message.timestamp.type")
        by_broker = clock == "LogAppendTime"
        if topic not in counted:
            pass  # an answer's timestamp decides nothing
        elif by_broker:
            yield ok(
                "sources", f"topic {topic!r} has the brokers' timestamps: counts depend on its records alone"
            )
        elif clock is not None:
            yield note(RAW, _of_producers(config, topic))
        if limits := [one for one in retention_of(settings) if not by_broker or "bytes" in one]:
            whose = "by size" if by_broker else "by size, or by producers' timestamps"
            message = f"topic {topic!r} deletes events {whose} ({', '.join(limits)})"
            harm = "one unit's events may delete those of others before they are counted"
            yield note(
                RAW, f"{message}: {harm}. Keep them by the brokers' time alone, longer than any outage"
            )
    for topic in counts_topics(config):
        settings, back = topology.settings.get(topic, {}), _read_back(config, topic)
        kept = int(settings.get("retention.ms", -1))
        message = (
            f"topic {topic!r} keeps counts for {duration_text(max(kept, 1))} after the end of their tick"
        )
        longer = command_to_set(config, topic, f"retention.ms={counts_kept_ms(config, topic)}")
        if back and settings.get("retention.bytes", "-1") != "-1":
            always = command_to_set(config, topic, "retention.bytes=-1")
            yield problem(COUNTS, f"topic {topic!r} deletes counts by size, which questions read: {always}")
        if 0 <= kept < back:
            which = "which queries are asked would depend on when a counter takes over"
            yield problem(
                COUNTS, f"{message}, and questions read {duration_text(back)} back: {which}. {longer}"
            )
        elif 0 <= kept < counts_kept_ms(config, topic):
            read = "tested, or read by a question" if back else "tested"
            yield note(
                COUNTS, f"{message}; after a longer outage they are deleted before they are {read}: {longer}"
            )


def counts_kept_ms(config: Config, topic: str) -> int:
    """Return how long a topic of counts should keep them after the end of their tick, in ms."""
    return COUNTS_KEPT_MS + _read_back(config, topic)


def _read_back(config: Config, topic: str) -> int:
    """Return how far questions about the counts of a topic read back, in ms."""
    spec = config.spec
    sources = (one for one in spec.sources if one.counts_topic(spec.application) == topic)
    backs = (
        question.look_back * one.window for one in sources for question in spec.window_list(one).questions
    )
    return max(backs, default=0)


def _of_producers(config: Config, topic: str) -> str:
    return (
        f"topic {topic!r} has timestamps of its producers: the moment at which the counter looks decides which tick "
        "counts an event, and the guarantee assumes that no unit moves it. "
        f"{command_to_set(config, topic, LOG_APPEND_TIME)} gives later records the brokers' timestamps; every reader "
        "of the topic then sees the time of the append instead of the producer's"
    )
