"""Reads the newest raw events of each source, and says how many would count, and why the others would not.

The result depends on events: it is for those who may read the raw topics.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from stream_svt.application.config import Config
from stream_svt.application.topology import partitions_of
from stream_svt.errors import BrokerError
from stream_svt.kafka import clients as kafka
from stream_svt.kafka.clients import Cluster
from stream_svt.operate.findings import Finding, note, ok, problem
from stream_svt.operate.lint import newest, request_schemas
from stream_svt.protocol.records import Records
from stream_svt.queries.avro.registry import SchemaRegistry
from stream_svt.settings.sources import SourceSpec
from stream_svt.sources.events import EventReader, Fate
from stream_svt.sources.sampling import EventSample, remedies, sampled
from stream_svt.wording import counted


async def sample_sources(config: Config, cluster: Cluster, most: int) -> list[Finding]:
    """Return what would become of the newest ``most`` events of each source, evenly from its non-empty partitions."""
    doing, now_ms = "reading raw topics", int(time.time() * 1000)
    schemas = SchemaRegistry(config.schema_registry, takes_absence=True)
    counts = await kafka.partition_counts(cluster, doing)
    findings: list[Finding] = []
    async with kafka.started(cluster.reader(), doing) as reader:
        for source in config.spec.sources:
            subject = f"sources.{source.name}"
            try:
                count = partitions_of(counts, source.topic)
                found = newest(reader, source.topic, count, most, doing)
                events = [one async for _, last in found for one in last]
            except BrokerError as error:
                findings.append(problem(subject, str(error)))
                continue
            records = Records.of(events)
            if source.format == "avro":
                await request_schemas(schemas, events)
                known, why = EventReader(source, schemas).lack(records)
                if why:
                    findings.append(problem(subject, why))
                records = records[:known]
            if not len(records):
                findings.append(note(subject, f"topic {source.topic!r} has no event to sample"))
                continue
            given = source, records, now_ms, schemas
            findings += _findings(source, sampled(*given), remedies(*given))
    return findings


def _findings(source: SourceSpec, sample: EventSample, advice: Iterable[str]) -> Iterator[Finding]:
    """Yield how many events count, for which measures, why others do not, and what helps."""
    subject, total, good = f"sources.{source.name}", sample.fates.total(), sample.fates[Fate.COUNTED]
    finding = ok if good else problem
    yield finding(
        subject, f"{good} of the newest {counted(total, 'event')} of topic {source.topic!r} would count"
    )
    if good and sample.matches:
        finding = ok if all(sample.matches.values()) else note
        each = ", ".join(f"{name} {count}" for name, count in sample.matches.items())
        yield finding(subject, f"of these match each measure: {each}")
    for fate, count in sorted(sample.fates.items(), key=lambda one: (-one[1], one[0])):
        if fate is not Fate.COUNTED:
            yield note(subject, f"{count} would not: the event {fate.text}")
    yield from (note(subject, one) for one in advice)
