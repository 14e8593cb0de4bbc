"""What `control close-application` refuses before anything is sent."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--successor", "shop"), "the successor needs another name"),
        (("--successor", "next", "--give-up-state"), "--give-up-state goes with --shard"),
        (("--successor", "next", "--shard", 7), "there is no shard 7 in {config}: shards are 0 to 1"),
        ((), "Missing option '--successor'"),
    ],
)
def test_a_command_to_close_that_makes_no_sense_is_refused(stream_svt, config, options, said):
    ended = stream_svt("control", "close-application", "-c", config, *options, "--yes")
    assert (ended.code, ended.out) == (2, "")
    assert said.format(config=config) in " ".join(ended.err.split())
