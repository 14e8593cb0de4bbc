"""Version of the installed package."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("stream-svt")
except PackageNotFoundError:  # run from a checkout that was never installed
    __version__ = "0+unknown"
