"""Lines of standard input become queries, or are refused by number and field."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from stream_svt.application.config import parse_config
from stream_svt.operate import send as sending_module
from stream_svt.operate.send import LineReader, SendProgress, windows
from stream_svt.protocol.records import OneRecord
from stream_svt.queries.reasons import MAX_BYTES
from stream_svt.settings.fields import Mute
from stream_svt.settings.records import RecordLayout

CONFIG = parse_config("""
application: shop
topics: {partitions: 6, partitioner: crc32}
datasets: [{names: [today, tomorrow, alone], limit: 4, unit: one basket}]
monitors:
  - {name: hot, topic: counts, datasets: [t*], epsilon: 1, cutoff: 10, sensitivity: 1, bounds: [0, 100],
     threshold: 50, expected_queries: 1000}
""")


def window(*lines: object, dataset: str | None = None):
    numbered = [
        (number, one if isinstance(one, bytes) else json.dumps(one).encode())
        for number, one in enumerate(lines, 1)
    ]
    return LineReader(CONFIG, "counts", dataset).window(numbered, 0)


def query(**fields: object) -> dict[str, object]:
    return {"dataset": "today", "id": "q", "value": 1} | fields


def test_a_line_becomes_a_query_of_its_dataset_and_keeps_every_digit() -> None:
    text = b'{"dataset": "tomorrow", "id": "q", "value": 1.000000000000000000001, "series": "a"}'
    (line,) = window(text).queries
    assert (line.key, line.value) == (b"tomorrow", b'{"id":"q","value":1.000000000000000000001,"series":"a"}')


def test_the_dataset_of_all_lines_leaves_them_as_they_are() -> None:
    (line,) = window(b'{"id": "q",  "value": 1}', dataset="today").queries
    assert (line.key, line.value) == (b"today", b'{"id": "q",  "value": 1}')


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"{", "refused, not-json"),
        (b'{"dataset": "\\ud800", "id": "q", "value": 1}', "refused, not-json"),
        (b"[1]", "refused, not-an-object"),
        ({"id": "q", "value": 1}, "'dataset' is missing"),
        (query(dataset=7), "'dataset' is missing or is not a string"),
        (query(dataset="todai"), "refused, undeclared: key 'todai' is no dataset; did you mean 'today'?"),
        (query(dataset="xyz"), "no dataset 'xyz' is declared; declared: today, tomorrow, alone"),
        (query(dataset="alone"), "no monitor on this topic covers the dataset"),
        ({"dataset": "today", "value": 1}, "refused, missing-id: "),
        (query(id=7), "refused, bad-id: "),
        (query(series=7), "refused, bad-series: "),
        (query(monitor="cold"), "refused, unknown-monitor: "),
        ({"dataset": "today", "id": "q"}, "'value' is missing"),
        (query(value="12"), "'value' is a string"),
        (query(value=None), "'value' is not a number"),
        (query(value=101), "'value' is outside the bounds [0, 100] and counts as"),
        (query(value=100.5), "outside the bounds [0, 100]"),
        (query(value=-1e-9), "outside the bounds [0, 100]"),
    ],
    ids=str,
)
def test_a_line_that_no_monitor_would_test_as_it_is_is_named(line: object, said: str) -> None:
    found = window(query(id="before"), line, query(id="after"))
    assert [one.offset for one in found.queries] == [1, 3]
    assert said in found.invalid[2]
    assert len(found.invalid) == 1


@pytest.mark.parametrize("dataset", [None, "today"])
@pytest.mark.parametrize("part", [b"dataset", b"today", b"id", b"q", b"7", b"extra", b"text"])
def test_a_line_in_another_encoding_is_named_wherever_its_characters_are(part, dataset) -> None:
    good = b'{"dataset": "today", "id": "q", "value": 7, "extra": "text"}'
    assert len(window(good, dataset=dataset).queries) == 1
    for wrong in (part + "é".encode("latin-1"), part + b"\xed\xa0\x80"):
        found = window(good.replace(part, wrong), dataset=dataset)
        assert found.queries == []
        assert found.invalid[1].startswith("refused, not-json")


def test_each_unknown_field_and_a_missing_series_is_noted_once_and_sent() -> None:
    reader = LineReader(CONFIG, "counts")
    sent = [query(series="a"), query(serie="a"), query(serie="b", shop=1)]
    texts = [(number, json.dumps(one).encode()) for number, one in enumerate(sent, 1)]
    found = reader.window(texts, 0)
    assert [one.offset for one in found.queries] == [1, 2, 3]
    assert not found.invalid
    assert found.notes == [
        (2, reader._linter.advice("no series")),
        (2, "the service ignores the field 'serie'; did you mean 'series'?"),
        (3, "the service ignores the field 'shop'"),
    ]
    assert "'mute' has no effect" in found.notes[0][1]
    assert not reader.window(texts, 0).notes


def test_all_declared_datasets_count_where_ten_are_named() -> None:
    names = [f"some-name-{number:04}" for number in range(1_234)]
    text = CONFIG.text.replace("today, tomorrow, alone", ", ".join(names)).replace("t*", "s*")
    lines = [(1, json.dumps(query(dataset="xyz")).encode())]
    message = LineReader(parse_config(text), "counts").window(lines, 0).invalid[1]
    assert message.endswith(f"; declared: {', '.join(names[:10])} and 1224 more")


def test_without_a_mute_no_series_is_missing() -> None:
    monitors = tuple(one.model_copy(update={"mute": Mute.NONE}) for one in CONFIG.spec.monitors)
    config = replace(CONFIG, spec=replace(CONFIG.spec, monitors=monitors))
    assert not LineReader(config, "counts").window([(1, json.dumps(query()).encode())], 0).notes


def test_a_marker_that_closes_a_set_needs_no_value() -> None:
    assert not window({"dataset": "today", "set": "s", "closed": True}).invalid


async def chunks(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def numbered(*parts: bytes, first: int = 1) -> list[tuple[int, bytes]]:
    return [line async for window in windows(chunks(*parts), first) for line in window]


async def test_lines_keep_their_numbers_wherever_chunks_end_and_however_many_are_blank() -> None:
    whole = [(1, b"a"), (3, b"bc"), (4, b"d")]
    assert await numbered(b"a\n\nb", b"c\n", b"d") == whole
    assert await numbered(b"a\n\nbc\nd\n") == whole
    assert await numbered(b"a\n\nb", b"c\n", b"d", first=4) == whole[2:]
    assert await numbered(b"") == []
    assert await numbered(b"\xef\xbb", b"\xbfa\n\xef\xbb\xbfb") == [(1, b"a"), (2, b"\xef\xbb\xbfb")]
    mark = b"\xef\xbb\xbf"
    assert await numbered(mark + b"a") == [(1, b"a")]
    assert await numbered(mark) == []
    assert await numbered(mark, mark + b"a") == [(1, mark + b"a")]
    assert await numbered(b"\n", mark + b"a") == [(2, mark + b"a")]
    [(_, too_long)] = await numbered(mark + bytes(MAX_BYTES + 2))
    assert len(too_long) == MAX_BYTES + 1


async def test_a_line_that_is_too_long_is_cut_in_memory_refused_and_disturbs_no_other_line() -> None:
    good = json.dumps(query()).encode()
    lines = await numbered(good + b"\n", *[bytes(1 << 18)] * 3 * (MAX_BYTES >> 18), b"\n" + good)
    assert max(len(line) for _, line in lines) <= MAX_BYTES + 1 + (1 << 18)
    found = window(*(line for _, line in lines))
    assert [one.offset for one in found.queries] == [1, 3]
    assert found.invalid == {2: "refused, too-large: let the producer send smaller records"}


class _Producer:
    """Acknowledges each record a little later."""

    async def send(self, *_: object, **__: object) -> asyncio.Future[None]:
        return asyncio.ensure_future(asyncio.sleep(0.05))


async def test_whoever_interrupts_a_window_goes_on_behind_it_once_it_is_acknowledged() -> None:
    progress, queries = SendProgress(next_line=3), [OneRecord(at, 0, b"today", b"{}") for at in (3, 5)]
    sending = sending_module._acknowledged(_Producer(), CONFIG, "counts", queries, progress)  # type: ignore[arg-type]
    task = asyncio.create_task(sending_module._send(sending))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (progress.acknowledged, progress.next_line, progress.last_sent) == (2, 6, 5)


@pytest.mark.parametrize(
    ("line", "valid"),
    [
        ({"dataset": "today", "n": 1}, True),
        ({"dataset": "today", "n": 1, "page": "p"}, True),
        ({"dataset": "today", "page": "p"}, False),
    ],
)
def test_lines_for_a_topic_with_other_fields_are_checked_by_its_layout(line, valid) -> None:
    layout = {"record": RecordLayout(value="n", series="page")}
    monitors = tuple(one.model_copy(update=layout) for one in CONFIG.spec.monitors)
    config = replace(CONFIG, spec=replace(CONFIG.spec, monitors=monitors))
    found = LineReader(config, "counts").window([(1, json.dumps(line).encode())], 0)
    assert (len(found.queries), len(found.invalid)) == ((1, 0) if valid else (0, 1))
