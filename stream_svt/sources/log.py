"""Entries of a source's event log, and their bytes: a counter's state is the fold of its durable entries.

An entry is a record of the topic `<application>.sources`, with the source's name as key. Kinds are permanent: a new
version adds fields with defaults, and an unknown kind or version is refused.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, TypeAlias

import msgspec

from stream_svt.errors import UnreadableState
from stream_svt.settings.questions import Visits
from stream_svt.settings.sources import WindowList

VERSION: Final = 1
MAX_KEYS: Final = 60_000
"""Keys of an entry `Pairs` at most: with its other fields it stays below half a megabyte."""
MAX_NAMES_BYTES: Final = 400_000
"""Characters of the names of series in an entry `WindowOpened`, at most; but one name always has room."""

Offsets: TypeAlias = dict[int, int]
"""An offset of each partition of the raw topic."""


class Park(StrEnum):
    """Why a source is parked; these names are released."""

    RECORDS_LOST = "records-lost"
    END_FELL = "end-fell"
    TOPIC_CREATED_AGAIN = "topic-created-again"
    COMPACTED = "compacted"
    LOG_INCOMPLETE = "log-incomplete"

    @property
    def text(self) -> str:
        """What happened, for people."""
        return _TEXTS[self]


_TEXTS: Final = {
    Park.RECORDS_LOST: "records of the raw topic were deleted before they were read",
    Park.END_FELL: "a partition of the raw topic ends below where it ended at the last look",
    Park.TOPIC_CREATED_AGAIN: "the raw topic was deleted and created again",
    Park.COMPACTED: "the raw topic is compacted, so that a record may delete another unit's",
    Park.LOG_INCOMPLETE: "the event log lacks entries that an open window needs",
}


class Standing(msgspec.Struct, frozen=True):
    """The small part of a counter's state, repeated so that older entries can be deleted.

    Attributes:
        topic_id: Id of the raw topic.
        first: Begin of the first window that is asked, in ms.
        next_window: Begin of the next window to open.
        looked_ms: Moment of the last look.
        ends: The partitions' ends at the last look.
        offsets: For each partition the offset up to which its records are folded.
        floors: Ends at the source's begin: records below with a producer's timestamp count nothing.
    """

    topic_id: str
    first: int
    next_window: int
    looked_ms: int
    ends: Offsets
    offsets: Offsets
    floors: Offsets


class Began(msgspec.Struct, frozen=True, tag="began"):
    """The source's begin."""

    standing: Standing


class WindowOpened(msgspec.Struct, frozen=True, tag="opened"):
    """A window is opened: its begin, the key of its units' hash, and its list.

    A long list takes several entries, ``part`` from 0 to ``parts`` - 1, each with some of the series.
    """

    window: int
    key: bytes
    list: WindowList
    part: int = 0
    parts: int = 1


class Look(msgspec.Struct, frozen=True, tag="look"):
    """A look at the raw topic.

    Attributes:
        moment_ms: Its moment.
        ends: The end of each partition.
        begins: The begins of partitions not seen before.
        settle_ms: How long after its moment it was taken, by both clocks, at least. A later `settle` does not change
            the fate of what it covers.
        by_broker: Whether the topic has brokers' timestamps by its settings: then a backlog is read in pieces.
    """

    moment_ms: int
    ends: Offsets
    begins: Offsets
    settle_ms: int
    by_broker: bool

    @property
    def taken_ms(self) -> int:
        """The moment from which on it was taken."""
        return self.moment_ms + self.settle_ms


class Pairs(msgspec.Struct, frozen=True, tag="pairs"):
    """Sorted keys of cells and units that a window counts from a tick on: 64 bits each, little endian."""

    window: int
    tick: int
    keys: bytes


class Counted(msgspec.Struct, frozen=True, tag="counted"):
    """Sorted keys of cells and units that count in a window which is closed, where later ones look them up.

    All have the same part of a tally. ``goes_on``: the entry before has the first of them.
    """

    window: int
    visits: Visits
    part: int
    keys: bytes
    goes_on: bool


class Read(msgspec.Struct, frozen=True, tag="read"):
    """For each partition the offset up to which its records are folded, into the pairs of its transaction or before."""

    offsets: Offsets


class Done(msgspec.Struct, frozen=True, tag="done"):
    """A tick was asked; its counts are in the same transaction.

    ``needed`` is the offset of the oldest entry of this source that is needed after this one, ``looks`` that of the
    first look, or accepted loss, that is not served; None if there is none.
    """

    tick: int
    needed: int | None
    looks: int | None
    standing: Standing


class Parked(msgspec.Struct, frozen=True, tag="parked"):
    """The source takes no more looks; ``serves``: what the looks before cover is still read and asked."""

    reason: Park
    serves: bool


class Accepted(msgspec.Struct, frozen=True, tag="accepted"):
    """An operator accepted a loss.

    The looks before are served first, unless the loss makes that impossible (``clears``). Then the source goes on at
    ``offsets``, the ends at that moment, and asks no window that begins before ``first``.
    """

    moment_ms: int
    first: int
    topic_id: str
    offsets: Offsets
    clears: bool


Entry: TypeAlias = Began | WindowOpened | Look | Pairs | Counted | Read | Done | Parked | Accepted

_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(Entry)


def encode(entry: Entry) -> bytes:
    """Return the bytes of an entry: the version, then its kind and fields."""
    return bytes([VERSION]) + _ENCODER.encode(entry)


def decode(content: bytes) -> Entry:
    """Return the entry of some bytes; raises `UnreadableState` for an unknown version or kind."""
    if content[:1] != bytes([VERSION]):
        raise UnreadableState(
            f"an entry of the event log has version {content[:1].hex() or 'none'}; this release reads {VERSION}"
        )
    try:
        return _DECODER.decode(memoryview(content)[1:])
    except msgspec.MsgspecError:
        raise UnreadableState("an entry of the event log is malformed, or of a later release") from None
