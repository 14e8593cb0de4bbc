"""What is done with the forwarder's file and command: its receivers are one of the test's own, on this machine."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

from stream_svt.errors import ConfigError
from stream_svt.forward.config import parse_forward_config
from tests.documentation.shell import Command
from tests.documentation.stage import Stage, StepFailed
from tests.support.process import free_port

KEYS = {"topic", "destinations"}
_ENDS = {"--check", "--test", "--schema", "--help"}


def read_forwarding(stage: Stage, document: Mapping[str, Any], text: str) -> None:
    """Let the forwarder's own reader look at a document."""
    for destination in document["destinations"]:
        for name in destination.get("webhook", {}).get("key_files", ()):
            path = stage.here / name
            if not path.exists():
                path.write_text(os.urandom(32).hex())
                path.chmod(0o600)
    try:
        parse_forward_config(text, directory=stage.here)
    except ConfigError as error:
        raise StepFailed(f"the configuration is refused: {error}") from None


def play_forwarding(stage: Stage, command: Command, text: str, application: Path) -> None:
    """Forward the alerts of a worker; a command that goes on must deliver one to every destination."""
    stage.worker(application)
    words = list(command.words)
    path = stage.here / stage.own(words[words.index("-c") + 1])
    with _receiver() as (address, taken):
        kept = path.read_text()
        path.write_text(_with_address(kept, address))
        try:
            if _ENDS & set(words):
                stage.bash(text)
                return
            port = free_port()
            running = stage.start(text.split(" #", maxsplit=1)[0], STREAM_SVT_WEB_PORT=str(port))
            stage.feed()
            stage.until(lambda: b"/api/v2/alerts" in taken, "a delivery to Alertmanager", running)
            stage.until(lambda: b"/hook" in taken, "a delivery to the webhook", running)
            stage.fetch(f"http://127.0.0.1:{port}/metrics")
            stage.running.remove(running)
            if code := running.end():
                raise StepFailed(f"`{text}` ended with exit code {code}:\n{running.said()[-1500:]}")
        finally:
            path.write_text(kept)


def _with_address(text: str, address: str) -> str:
    document = yaml.safe_load(text)
    for destination in document["destinations"]:
        if "alertmanager" in destination:
            destination["alertmanager"]["urls"] = [address]
        if "webhook" in destination:
            destination["webhook"]["url"] = f"{address}/hook"
    return yaml.safe_dump(document, sort_keys=False)


@contextlib.contextmanager
def _receiver() -> Iterator[tuple[str, set[bytes]]]:
    """Take whatever is posted; note the paths."""
    taken: set[bytes] = set()

    class Taking(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            taken.add(self.path.encode())
            self.send_response(204)
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            """Keep quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Taking)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", taken
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
