"""The page on the reproduction: its words are written by hand, its tables by the measurements.

A part between `<!-- begin NAME -->` and `<!-- end NAME -->` belongs to the program.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_PART = re.compile(r"(<!-- begin (?P<name>[a-z0-9-]+) -->\n).*?(<!-- end (?P=name) -->)", re.DOTALL)


def filled(page: str, parts: Mapping[str, str]) -> str:
    """Return the page with each part in its place.

    Raises
    ------
    LookupError
        When the page lacks a part's place, or has a place for which there is no part.
    """
    places = [found["name"] for found in _PART.finditer(page)]
    if sorted(places) != sorted(parts):
        raise LookupError(f"the page has places for {sorted(places)}, the parts are {sorted(parts)}")
    return _PART.sub(lambda found: f"{found[1]}\n{parts[found['name']].strip()}\n\n{found[3]}", page)
