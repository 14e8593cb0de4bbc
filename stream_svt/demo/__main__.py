"""The demo's service: ``python -m stream_svt.demo run -c FILE`` is ``stream-svt run -c FILE`` that ends with the demo.

Its standard input ends when the demo is gone, however it went; then it ends as on SIGTERM.
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
