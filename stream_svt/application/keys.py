"""What keeps an undeclared key from being the name of a dataset that it looks like."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from stream_svt import plain_text
from stream_svt.settings.application import ApplicationSpec
from stream_svt.settings.document import did_you_mean, quote

SEARCHED_NAMES: Final = 1_000
"""Maximum number of declared names that are searched for a similar one."""
_SERIALIZERS: Final = (
    "let the producer write keys as plain text: key.serializer or key-serializer "
    "org.apache.kafka.common.serialization.StringSerializer (Java, Spring), KEY_FORMAT='KAFKA' (ksqlDB), "
    "key.converter org.apache.kafka.connect.storage.StringConverter (Kafka Connect)"
)
_MAGIC: Final = 5
"""Bytes before the content of a key that a serializer of the Schema Registry wrote: zero, and the schema's id."""


def likeness(key: bytes, spec: ApplicationSpec) -> str:
    """Return which dataset an undeclared key looks like, why it is another name, and what to change; "" for none."""
    for whys, text in _readings(key):
        for name, why, remedy in _forms(text):
            if spec.find(name) is not None and (found := [*whys, *filter(None, [why])]):
                wrote = _SERIALIZERS if whys else remedy
                return f"key {shown(key)} is dataset {quote(name)} {' and '.join(found)}: {wrote}"
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return f"key {shown(key)} is no UTF-8 text, so it names no dataset: {_SERIALIZERS}"
    similar = did_you_mean(text, [one.name for one in spec.datasets[:SEARCHED_NAMES]])
    return f"key {shown(key)} is no dataset{similar}" if similar else ""


def shown(key: bytes) -> str:
    """Return a key as a message quotes it."""
    return quote(key.decode(errors="backslashreplace"))


def _readings(key: bytes) -> Iterator[tuple[list[str], str]]:
    """Yield the texts that a key may hold, each with the wrapping around it."""
    behind: list[str] = []
    if key[:1] == b"\0" and len(key) > _MAGIC:
        behind = ["behind a schema id"]
        # Avro writes the length before a text: of one byte up to 63 bytes, else of two.
        contents = [key[_MAGIC:], key[_MAGIC + 1 :], key[_MAGIC + 2 :]]
    else:
        contents = [key]
    for content in contents:
        try:
            text = content.decode()
        except UnicodeDecodeError:
            continue
        yield behind, text
        try:
            found = msgspec.json.decode(text.lstrip(plain_text.MARK).strip())
        except (msgspec.DecodeError, RecursionError):
            continue
        if isinstance(found, str):
            yield [*behind, "in JSON quotes"], found
        elif isinstance(found, dict):
            for value in found.values():
                if isinstance(value, str):
                    yield [*behind, "in a JSON object"], value


def _forms(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield names that look like a text, with the difference and what to do about it."""
    yield text, "", ""
    visible = plain_text.visible(text)
    remedy = "let the producer write the name alone"
    if unseen := plain_text.invisible(text):
        yield visible, f"with {unseen}, which nobody sees", remedy
    composed = plain_text.look(text).strip()
    difference = f"with {unseen}, or blanks around it" if unseen else "with blanks around it"
    if composed != visible.strip():
        difference = "in another form than Unicode's normal form C"
        remedy = "let the producer normalize keys to NFC"
    yield composed, difference, remedy
