"""The monitors as a service: configuration, Kafka, the journal, shards, web pages and control."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("stream-svt")
except PackageNotFoundError:  # run from a checkout that was never installed
    __version__ = "0+unknown"
