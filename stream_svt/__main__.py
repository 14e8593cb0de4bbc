"""The program `stream-svt`: Ctrl-C ends it without a traceback, also while its modules are imported."""

from __future__ import annotations

import sys
from typing import NoReturn

INTERRUPTED = 130


def main() -> NoReturn:
    """Run the command line and exit with its code."""
    try:
        from stream_svt.cli import main as command_line

        command_line()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
