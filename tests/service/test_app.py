"""The last word of a worker that gives up."""

from __future__ import annotations

from stream_svt.errors import BrokerError, ConfigError, Problem
from stream_svt.service.app import _in_file

LIMIT = Problem(0, "datasets.a.limit", "is journaled as epsilon 3")


def test_what_is_wrong_with_the_file_is_said_with_its_name():
    nameless = _in_file(ConfigError([LIMIT]), "shop.yaml")
    assert str(nameless) == "shop.yaml: 1 problem\n  datasets.a.limit: is journaled as epsilon 3"
    assert nameless.exit_code == 2


def test_an_error_that_names_its_place_is_left_as_it_is():
    for error in (ConfigError([LIMIT], "other workers"), BrokerError("not reachable")):
        assert _in_file(error, "shop.yaml") is error
