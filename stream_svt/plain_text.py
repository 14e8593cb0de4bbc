r"""Text as people see it: the text of files, and invisible characters.

Programs compare names, keys and secrets by bytes, people by their look. `decoded` and `lines` read every text file;
`flaw` returns why a name may look like another one; `escaped` is applied to all quotations in a terminal or a log
line.

>>> escaped("north\u200b\x1b[2J")
'north\\u200b\\x1b[2J'
>>> flaw("north\u200b")
'has U+200B ZERO WIDTH SPACE, which nobody sees: remove it'
"""

from __future__ import annotations

import codecs
import re
from typing import Final
from unicodedata import category, is_normalized, name, normalize

from stream_svt.wording import listed

SHOWN: Final = 5
"""Code points that a message names."""
MARK: Final = "\ufeff"
"""The byte order mark, which some editors write at the beginning of a file."""

_BLANK: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""Letters, marks and symbols without a shape: those of Unicode's Default_Ignorable_Code_Point, and the Braille blank.

All other characters without a shape are not `printable <str.isprintable>`: categories Cc, Cf, Cs, Co, Cn, Zl and Zp,
and spaces other than the one of ASCII. As in RFC 8264, Co and Cn count: no font or standard says how they look.
"""
_KINDS: Final = {"Cc": "control character", "Co": "private use", "Cn": "unassigned", "Cs": "surrogate"}


def decoded(content: bytes) -> str:
    """Return the text of a UTF-8 file without a byte order mark; ValueError for other encodings."""
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise ValueError("it is UTF-16 text: save it as UTF-8")
    try:
        return content.decode().lstrip(MARK)
    except UnicodeDecodeError as error:
        raise ValueError("it is not UTF-8 text") from error


def lines(text: str) -> list[str]:
    r"""Return the lines of a text, which end with ``\n`` or ``\r\n``: any other character is part of a line.

    >>> lines("north\r\nwe\x0bst\n")
    ['north', 'we\x0bst']
    """
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")] if text else []


def first_line(text: str) -> str:
    """Return the first line of a text, "" if there is none."""
    return text.partition("\n")[0].removesuffix("\r")


def is_visible(character: str) -> bool:
    """Return whether a character has a shape, or is the space of ASCII."""
    return character.isprintable() and not _BLANK.match(character)


def _is_all_visible(text: str) -> bool:
    return text.isprintable() and (text.isascii() or not _BLANK.search(text))


def invisible(text: str) -> str:
    """Return the first invisible code points of a text, as text; "" if there are none."""
    if _is_all_visible(text):
        return ""
    found = dict.fromkeys(one for one in text if not is_visible(one))
    return listed([_code_point(one) for one in found], SHOWN)


def flaw(text: str) -> str:
    r"""Return why a name may look like another one, "" if it does not.

    >>> flaw("cafe\u0301")
    "is not in Unicode's normal form C (NFC): write U+0065 U+0301 as U+00E9"
    """
    if unseen := invisible(text):
        return f"has {unseen}, which nobody sees: remove it"
    if is_normalized("NFC", text):
        return ""
    before, after = text, normalize("NFC", text)
    while before[:1] == after[:1]:
        before, after = before[1:], after[1:]
    while before[-1:] == after[-1:] and len(before) > 1 and len(after) > 1:
        before, after = before[:-1], after[:-1]
    wrong, right = (" ".join(f"U+{ord(one):04X}" for one in part[:4]) for part in (before, after))
    return f"is not in Unicode's normal form C (NFC): write {wrong} as {right}"


def visible(text: str) -> str:
    """Return a text without its invisible characters."""
    return text if _is_all_visible(text) else "".join(filter(is_visible, text))


def look(text: str) -> str:
    r"""Return the visible characters of a text in NFC, in which texts that look alike are equal.

    >>> look("cafe\u0301") == look("ca\u200bfé")
    True
    """
    return normalize("NFC", visible(text))


def escaped(text: str, *, keep: str = "") -> str:
    r"""Return a text with invisible characters as Python writes them, except characters of ``keep``.

    Terminals obey control characters, and reverse the text after some format characters.
    """
    if _is_all_visible(text):
        return text
    return "".join(one if one in keep or is_visible(one) else ascii(one)[1:-1] for one in text)


def _code_point(character: str) -> str:
    what = name(character, "") or f"({_KINDS.get(category(character), 'no name')})"
    return f"U+{ord(character):04X} {what}"
