"""JSON messages: many at once as lines, and what is wrong with one of them apart from its value."""

from __future__ import annotations

import re
from collections.abc import Sequence
from operator import itemgetter
from typing import Final, TypeVar

import msgspec

from stream_svt.queries.reasons import MAX_BYTES, Reason

_Row = TypeVar("_Row")

WHITESPACE: Final = b" \t\r\n"
"""What JSON means by it: without two characters that Python has, too."""
MAX_NESTING: Final = 500
"""Most objects and arrays inside one another: with more of them, what a decoder can read depends on its caller."""
UNDECODABLE: Final = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)
"""Exceptions of msgspec for malformed messages; which one text that is not UTF-8 raises depends on its version."""
_FIRST, _LAST = itemgetter(0), itemgetter(-1)
_OPENING, _CLOSING = {ord("{")}, {ord("}")}
_TOKEN: Final = re.compile(
    rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[{\[]++|[}\],:]|[^"{}\[\],: \t\r\n]++|[ \t\r\n]++|"', re.DOTALL
)
_CONTINUES: Final = re.compile(rb',[ \t\r\n]*+[^ \t\r\n"}]')
"""A comma before something else than a member: a program wrote ``1,000`` for 1000, or ``0,5``."""


def bad_size(message: bytes | memoryview) -> Reason | None:
    """Return why a message is rejected for its size, None if it is not."""
    if not message:
        return Reason.EMPTY
    return Reason.TOO_LARGE if len(message) > MAX_BYTES else None


def as_lines(values: Sequence[bytes | None]) -> bytes | None:
    """Return messages as lines; None if one of them may not be one JSON object without whitespace around it."""
    try:
        lines = b"\n".join(values)  # type: ignore[arg-type]
        if {*map(_FIRST, values)} != _OPENING or {*map(_LAST, values)} != _CLOSING:  # type: ignore[arg-type]
            return None
        if len(lines) > MAX_BYTES and max(map(len, values)) > MAX_BYTES:  # type: ignore[arg-type]
            return None
    except (TypeError, IndexError):
        return None
    return None if _brackets(lines) - len(values) >= MAX_NESTING and any(map(_may_be_deep, values)) else lines


def decode_lines(lines: bytes, count: int, decoder: msgspec.json.Decoder[_Row]) -> list[_Row] | None:
    """Return the objects of ``count`` messages that are `as_lines`; None if one of them is not one JSON object.

    Messages are separated by a newline between a closing and an opening brace. No JSON object contains that sequence,
    so if there are as many objects as messages, each message is one object.
    """
    try:
        objects = decoder.decode_lines(lines)
    except UNDECODABLE:
        return None
    return objects if len(objects) == count else None


def decode_one(message: bytes, decoder: msgspec.json.Decoder[_Row], path: Sequence[str]) -> _Row:
    """Return one message, without the content at a path of names if that is in the way; raises `UNDECODABLE`."""
    if not _is_deep(message):
        try:
            return decoder.decode(message)
        except msgspec.ValidationError:  # a field of another type, before which all is well-formed
            raise
        except UNDECODABLE:
            pass
    message = without(message, path)
    if _is_deep(message):
        raise msgspec.DecodeError
    return decoder.decode(message)


def _may_be_deep(message: bytes | None) -> bool:
    return message is not None and _brackets(message) > MAX_NESTING


def _brackets(message: bytes) -> int:
    return message.count(b"{") + message.count(b"[")


def _is_deep(message: bytes) -> bool:
    if not _may_be_deep(message):
        return False
    depth = 0
    for match in _TOKEN.finditer(message):
        token = match.group()
        if token[0] in b"{[":
            depth += len(token)
            if depth > MAX_NESTING:
                return True
        elif token[0] in b"}]":
            depth -= 1
    return False


def reason_of(error: Exception) -> Reason:
    """Return why a message that `decode_one` cannot decode is rejected."""
    return Reason.NOT_AN_OBJECT if isinstance(error, msgspec.ValidationError) else Reason.NOT_JSON


def without(message: bytes, path: Sequence[str]) -> bytes:
    """Return the message with null in place of the content of all members at a path of names."""
    kept: list[bytes] = []
    # The innermost object is on the path if ``depth`` is ``found``, the names found so far, and 1 for the outermost.
    depth, found, last, inside, enters = 0, 0, b"", False, False
    for match in _TOKEN.finditer(message):
        token = match.group()
        if token[0] in WHITESPACE:
            kept.append(token)
            continue
        on_path = depth == found + 1
        starts_member = on_path and not inside and last in (b"{", b",")
        if token == b'"' or (starts_member and token[0] not in b'"}'):  # unterminated, or no name
            return message if inside else b"".join([*kept, message[match.start() :]])
        if inside and on_path and token in (b",", b"}") and not _CONTINUES.match(message, match.start()):
            inside = False
            kept.append(b"null")
        if not inside:
            kept.append(token)
        if token[0] in b"{[":
            depth += len(token)
            found += enters and token == b"{"
        elif token in (b"}", b"]") and not (inside and on_path):
            depth -= 1
            found = min(found, max(depth - 1, 0))
        enters = on_path and token == b":" and not inside and _names(last, path[found])
        if enters and found + 1 == len(path):
            inside, enters = True, False
        last = token
    return message if inside else b"".join(kept)


def _names(quoted: bytes, name: str) -> bool:
    try:
        return bool(msgspec.json.decode(quoted) == name)
    except UNDECODABLE:
        return False
