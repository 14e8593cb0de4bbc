"""Prometheus and Alertmanager as processes of a test, with the deployment's own files."""

from __future__ import annotations

import json
import math
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from tests.support.process import Process, free_port

DEPLOY = Path(__file__).parents[2] / "deploy" / "prometheus"


def tool(program: str, *arguments: str | Path) -> str:
    """Run promtool or amtool to success, and return what it prints."""
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Daemon(Process):
    """A program with an HTTP interface."""

    def __init__(self, program: str, config: Path, directory: Path, *options: str) -> None:
        port = free_port()
        self.address = f"127.0.0.1:{port}"
        listening = f"--web.listen-address={self.address}"
        command = [program, f"--config.file={config}", listening, "--log.level=warn", *options]
        super().__init__(command, port, directory / f"{type(self).__name__.lower()}.log")

    def __enter__(self) -> Self:
        end = time.monotonic() + 40
        while "Unavailable" in (self.fetch("/-/ready") or "Unavailable"):
            assert self.alive, f"it ended:\n{self.log}"
            assert time.monotonic() < end, f"it is not ready:\n{self.log}"
            time.sleep(0.1)
        return self

    def __exit__(self, *reason: object) -> None:
        self.process.kill()
        self.process.wait()

    def get(self, path: str, **parameters: Any) -> Any:
        """Return the JSON answer of a GET request."""
        query = urllib.parse.urlencode(parameters, doseq=True)
        with urllib.request.urlopen(f"{self.url}{path}?{query}", timeout=20) as answer:  # noqa: S310  loopback
            return json.load(answer)


class Prometheus(Daemon):
    """A Prometheus; ``directory`` holds its data."""

    def __init__(self, program: str, config: Path, directory: Path) -> None:
        super().__init__(program, config, directory, f"--storage.tsdb.path={directory / 'data'}")

    def instant(self, expr: str, at: float | None = None) -> list[dict[str, Any]]:
        parameters = {"query": expr} | ({} if at is None else {"time": at})
        return self.get("/api/v1/query", **parameters)["data"]["result"]

    def ranged(self, expr: str, start: float, end: float, step: float = 1.0) -> list[dict[str, Any]]:
        answer = self.get("/api/v1/query_range", query=expr, start=start, end=end, step=step)
        return answer["data"]["result"]

    def label_values(self, label: str, selector: str = "") -> list[str]:
        """Return the values of a label, of some series where a selector is given."""
        matching = {"match[]": selector} if selector else {}
        return self.get(f"/api/v1/label/{label}/values", **matching)["data"]

    def groups(self) -> list[dict[str, Any]]:
        return self.get("/api/v1/rules")["data"]["groups"]


class Alertmanager(Daemon):
    """An Alertmanager; ``directory`` holds its data."""

    def __init__(self, program: str, config: Path, directory: Path) -> None:
        silences = f"--storage.path={directory / 'silences'}"
        super().__init__(program, config, directory, silences, "--cluster.listen-address=")

    def alerts(self) -> list[dict[str, Any]]:
        return self.get("/api/v2/alerts")

    def post(self, alerts: bytes) -> None:
        """Post alerts, a JSON list."""
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}/api/v2/alerts", alerts, headers)  # noqa: S310  loopback
        with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310
            assert answer.status == 200


def numbers(series: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return the numbers of a result, of a moment or over time; what is no number is left out."""
    samples = (
        float(value) for one in series for _, value in (one["values"] if "values" in one else [one["value"]])
    )
    return [sample for sample in samples if not math.isnan(sample)]
