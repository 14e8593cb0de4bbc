"""The command behind `docs/generate`."""

from __future__ import annotations

import sys

from docs.generator.outputs import TOP, outdated


def main(arguments: list[str]) -> int:
    """Write what is out of date, or with ``--check`` only name it; return the exit code."""
    if arguments not in ([], ["--check"]):
        sys.stderr.write("usage: docs/generate [--check]\n")
        return 2
    found = outdated()
    for path, content in found.items():
        if not arguments:
            path.parent.mkdir(exist_ok=True)
            path.write_text(content, encoding="utf-8")
        sys.stdout.write(f"{'out of date' if arguments else 'written'}: {path.relative_to(TOP)}\n")
    return 1 if arguments and found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
