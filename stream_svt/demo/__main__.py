"""The demo's service: ``stream-svt`` that gets SIGTERM when the pipe on its standard input closes: with the demo."""

from __future__ import annotations

import os
import signal
import sys
import threading
from importlib.metadata import entry_points


def _end_with_parent() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, name="demo-watch", daemon=True).start()
    (command,) = entry_points(group="console_scripts", name="stream-svt")
    command.load()()
