"""Runs ``stream-svt`` with the given arguments as a child that cannot outlive the demo.

``python -m stream_svt.demo.worker run -c FILE`` does what ``stream-svt run -c FILE`` does, and ends like on
SIGTERM when its standard input ends, which happens when the demo is gone however it went.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from importlib.metadata import entry_points


def _follow_parent() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_follow_parent, name="demo-watch", daemon=True).start()
    (command,) = entry_points(group="console_scripts", name="stream-svt")
    command.load()()
