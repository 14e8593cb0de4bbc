"""What a budget buys, worked out before a unit of it is spent."""

from __future__ import annotations

from stream_svt.planning.budget import Purchase, purchase
from stream_svt.planning.wording import explain

__all__ = ["Purchase", "explain", "purchase"]
