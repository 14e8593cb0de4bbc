"""Prometheus and Alertmanager as processes of a test, with the deployment's own files."""

from __future__ import annotations

import json
import math
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from tests.support.process import free_port

DEPLOY = Path(__file__).parents[2] / "deploy" / "prometheus"


class Daemon:
    """A program with an HTTP interface; only the process that this object started is ever signalled."""

    def __init__(self, program: str, config: Path, directory: Path, *options: str) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self.url = f"http://{self.address}"
        listening = f"--web.listen-address={self.address}"
        self._command = [program, f"--config.file={config}", listening, "--log.level=warn", *options]
        self._log = directory / f"{type(self).__name__.lower()}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(self._command, stdout=output, stderr=output)
        end = time.monotonic() + 40
        while not self._answers():
            assert self._process.poll() is None, f"{self._command[0]} ended:\n{self.log}"
            assert time.monotonic() < end, f"{self._command[0]} is not ready:\n{self.log}"
            time.sleep(0.1)
        return self

    def __exit__(self, *reason: object) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(self.url + "/-/ready", timeout=5):  # noqa: S310  loopback
                return True
        except OSError:
            return False

    @property
    def log(self) -> str:
        """The end of what the process printed."""
        return self._log.read_text()[-5000:]

    def get(self, path: str, **parameters: Any) -> Any:
        """Return the JSON answer of a GET request.

        Raises:
            ValueError: The request was refused; the message is the program's own.
        """
        query = urllib.parse.urlencode(parameters, doseq=True)
        try:
            with urllib.request.urlopen(f"{self.url}{path}?{query}", timeout=20) as answer:  # noqa: S310  loopback
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise ValueError(error.read().decode()) from None


class Prometheus(Daemon):
    """A Prometheus; ``directory`` holds its data."""

    def __init__(self, program: str, config: Path, directory: Path) -> None:
        super().__init__(program, config, directory, f"--storage.tsdb.path={directory / 'data'}")

    def instant(self, expr: str, at: float | None = None) -> list[dict[str, Any]]:
        """Return the series of an expression at a moment."""
        parameters = {"query": expr} | ({} if at is None else {"time": at})
        return self.get("/api/v1/query", **parameters)["data"]["result"]

    def ranged(self, expr: str, start: float, end: float, step: float = 1.0) -> list[dict[str, Any]]:
        """Return the series of an expression over time."""
        answer = self.get("/api/v1/query_range", query=expr, start=start, end=end, step=step)
        return answer["data"]["result"]

    def label_values(self, label: str, selector: str = "") -> list[str]:
        """Return the values of a label, of some series where a selector is given."""
        matching = {"match[]": selector} if selector else {}
        return self.get(f"/api/v1/label/{label}/values", **matching)["data"]

    def groups(self) -> list[dict[str, Any]]:
        """Return the groups of rules with their states."""
        return self.get("/api/v1/rules")["data"]["groups"]


class Alertmanager(Daemon):
    """An Alertmanager; ``directory`` holds its data."""

    def __init__(self, program: str, config: Path, directory: Path) -> None:
        silences = f"--storage.path={directory / 'silences'}"
        super().__init__(program, config, directory, silences, "--cluster.listen-address=")

    def alerts(self) -> list[dict[str, Any]]:
        """Return what it was told."""
        return self.get("/api/v2/alerts")


def numbers(series: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return the numbers of a result, of a moment or over time; what is no number is left out."""
    samples = (
        float(value) for one in series for _, value in (one["values"] if "values" in one else [one["value"]])
    )
    return [sample for sample in samples if not math.isnan(sample)]
