"""The archives of a release, built from source."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def build(source: Path, target: Path, *options: str) -> None:
    """Build the source archive and from it the wheel, or with ``--sdist`` or ``--wheel`` one of them."""
    command = [sys.executable, "-m", "build", *options, "--no-isolation", "--outdir", target, source]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
