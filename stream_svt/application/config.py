"""The service's configuration: the file is read, and checked with the files and secrets that it names."""

from __future__ import annotations

import codecs
import shlex
import ssl
import stat
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from os import PathLike, fspath
from pathlib import Path
from typing import Any, TypeVar

from stream_svt import plain_text
from stream_svt.application.signatures import VerifyingKey, secret_bytes, shared_key, verifying_key
from stream_svt.errors import ConfigError, Problem
from stream_svt.kafka.clients import Cluster, tls_context
from stream_svt.kafka.partitioning import Partitioning
from stream_svt.protocol.configuration import Bundle
from stream_svt.settings import detection, sections
from stream_svt.settings.application import ApplicationSpec, specification
from stream_svt.settings.document import Document, KeyPath, did_you_mean, quote, read, refuse, without
from stream_svt.settings.fields import Named, opened

Held = TypeVar("Held")

KEY_COMMAND_SECONDS = 10


@dataclass(frozen=True, kw_only=True)
class Config:
    """A checked configuration of the service.

    Attributes:
        spec: Datasets and monitors.
        text, document: The text of the file, and its content; None without datasets and monitors.
        has_sources: Whether the file declares sources, also where datasets and monitors are skipped.
        notes: Advice about settings that work but may not be intended.
        source: File name, for messages.
    """

    kafka: sections.KafkaConfig
    topics: sections.TopicsConfig
    sealing: sections.SealingConfig
    control: sections.ControlConfig
    schema_registry: sections.SchemaRegistryConfig
    web: sections.WebConfig
    commit: sections.CommitConfig
    spec: ApplicationSpec
    text: str = field(repr=False)
    document: sections.ConfigDocument | None = field(default=None, repr=False)
    has_sources: bool = False
    notes: tuple[Problem, ...] = ()
    source: str = "configuration"
    reread: Callable[..., Config] | None = field(default=None, compare=False, repr=False)

    def holding(self, held: detection.Held) -> Config:
        """Return the configuration with the numbers that an applied version holds."""
        has_numbers = any(one.detect is not None for one in self.spec.monitors)
        return self.reread(held=held) if has_numbers and self.reread else self

    def placed(self, problem: Problem) -> Problem:
        """Return a problem with the line of its key, whose path has the name of a monitor in place of its number."""
        section, *rest = problem.field.split(".")
        numbers = {one.name: number for number, one in enumerate(self.spec.monitors)}
        if section == "maintenance":
            path: KeyPath = (section,)
        elif section == "monitors" and rest and rest[0] in numbers:
            path = (section, numbers[rest[0]], *rest[1:])
        else:
            return problem
        return replace(problem, line=read(self.text, self.source).problem(path, "").line)

    @property
    def current(self) -> ApplicationSpec:
        """The specification, with the generated datasets that are open now."""
        return self.spec.at(int(time.time() * 1000))

    def cluster(self) -> Cluster:
        """Return how to reach the brokers."""
        return self._cluster

    @cached_property
    def _cluster(self) -> Cluster:
        return Cluster.of(self.kafka)

    @property
    def command_keys(self) -> tuple[VerifyingKey, ...]:
        """Keys that may sign commands; empty if signatures are not required."""
        return tuple(one.held for one in self.control.keys)

    @property
    def bundle(self) -> Bundle:
        """The part of the file that is applied: its text without service sections, and the files that it names."""
        files = {} if self.document is None else self.document.files
        return Bundle(
            without(self.text, sections.SERVICE_KEYS), files | detection.held_file(self.spec.monitors)
        )

    @property
    def partitioning(self) -> Partitioning:
        """The shards of datasets."""
        return Partitioning(self.topics.partitions, self.topics.partitioner)

    def home(self, dataset: str) -> int:
        """Return the shard of a dataset."""
        return self.partitioning.of(dataset.encode())


def load_config(
    path: Path, environ: Mapping[str, str] | None = None, *, is_whole: bool = True, for_counter: bool = False
) -> Config:
    """Return the configuration in a file; see `parse_config`."""
    return parse_config(
        content(path),
        source=str(path),
        directory=path.parent,
        environ=environ,
        is_whole=is_whole,
        for_counter=for_counter,
    )


def content(path: Path) -> bytes:
    """Return the content of a configuration file; ConfigError if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        others = sorted(other.name for other in path.parent.glob("*.y*ml"))
        hint = did_you_mean(path.name, others) or f"; its directory has {', '.join(others[:5])}"
        if not others:
            hint = "; no YAML file is there: 'stream-svt demo --show-config' prints one to begin with"
        if path.exists() or not path.parent.is_dir():
            hint = ""
        problem = Problem(0, "", f"cannot be read: {error.strerror or 'unknown reason'}{hint}")
        raise ConfigError([problem], str(path)) from None


def parse_config(
    text: str | bytes,
    *,
    source: str = "configuration",
    directory: Path = Path(),
    environ: Mapping[str, str] | None = None,
    is_whole: bool = True,
    for_counter: bool = False,
    held: detection.Held | None = None,
) -> Config:
    """Return the configuration in a YAML text, or raise ConfigError with all problems.

    File names in it are relative to ``directory``. Unless it ``is_whole``, datasets and monitors are skipped: a worker
    reads them from the configuration topic. A counter needs no sealing key: ``for_counter`` skips the section, so that
    it can run where there is none. ``held`` are numbers of the version applied last.
    """
    document = read(text, source)
    document.override(environ or {}, sections.SECTIONS)
    if for_counter:
        document.data.pop("sealing", None)
    data, whole = document.data, None
    model: type[sections.ServiceDocument] = sections.ConfigDocument
    if not is_whole:
        model = sections.ServiceDocument
        data = {name: value for name, value in data.items() if name not in sections.APPLIED_KEYS}
    with document.checking():
        found = model.model_validate(data, context=Files(directory, held=held))
        spec = ApplicationSpec(found.application, (), ())
        if isinstance(found, sections.ConfigDocument):
            refuse(sections.registry_problems(found))
            spec, whole = specification(found, document.problem), found
    notes = (document.problem(*note) for note in sections.notes(found))
    return Config(
        spec=spec,
        text=document.text,
        document=whole,
        has_sources=bool(document.data.get("sources")),
        **{key: getattr(found, key) for key in sections.SERVICE_KEYS},
        notes=tuple(sorted([*spec.notes, *notes])),
        source=source,
        reread=partial(parse_config, text, source=source, directory=directory, environ=environ),
    )


def cluster_of(keys: Mapping[str, Any], password: str | None = None) -> Cluster:
    """Return the cluster of a section `kafka` that is given as keys and values of Python.

    ``password`` is the text of one, instead of the key password_file. Raises ConfigError with all problems.
    """
    given = {name: fspath(value) if isinstance(value, PathLike) else value for name, value in keys.items()}
    if password is not None and given.setdefault("password_file", "given as text") != "given as text":
        wrong = Problem(0, "kafka.password_file", "cannot be combined with password: remove one of them")
        raise ConfigError([wrong], "connection")
    lines: dict[KeyPath, int] = {(): 0, ("kafka",): 0, **{("kafka", name): 0 for name in given}}
    document, files = Document({"kafka": given}, "connection", lines=lines), Files(Path(), password)
    with document.checking():
        checked = sections.KafkaDocument.model_validate(document.data, context=files)
    return Cluster.of(checked.kafka)


class Files:
    """Reads the files, and the output of programs, that a configuration names: the context of its validation.

    File names are relative to ``directory``. A ``password`` takes the place of its file's. Each method returns what a
    key names, or raises ValueError with a message that does not repeat what is held there.
    """

    def __init__(
        self, directory: Path, password: str | None = None, held: detection.Held | None = None
    ) -> None:
        self._directory, self._password, self.held = directory, password, held
        self._sealing: list[bytes] = []
        self._command: list[object] = []
        self._certificate: Path | None = None

    def lines(self, name: str) -> Named[list[str]]:
        """Return the lines of a file."""
        return Named(name, plain_text.lines(self._text(name)))

    def first_line(self, name: str) -> Named[str]:
        """Return the first line of a secret file."""
        if self._password is not None:
            return Named(name, self._password)
        if not (line := plain_text.first_line(self._text(name))):
            raise ValueError(f"file {quote(name)} holds nothing in its first line")
        return Named(name, line, self._advice(name))

    def secret_file(self, name: str) -> Named[Path]:
        """Return the path of a file whose first line is a secret, for a reader who reads it again."""
        return Named(name, self._directory / name, self.first_line(name).note)

    def key(self, name: str) -> Named[bytes]:
        """Return the shared key of 32 bytes in a file."""
        return Named(name, _held(secret_bytes, self._text(name), f"file {quote(name)}"), self._advice(name))

    def sealing_key(self, name: str | tuple[str, ...]) -> Named[bytes]:
        """Return the key in a file, or the key that a program prints; no key occurs twice."""
        if not isinstance(name, str):
            printed = _held(secret_bytes, self._printed(name), f"what {quote(name[0])} prints")
            return _once(Named(name, printed), self._sealing)
        try:
            return _once(self.key(name), self._sealing)
        except ValueError as error:
            if (path := self._directory / name).exists():
                raise
            file = shlex.quote(str(path))
            make = f"openssl rand -hex 32 > {file}; chmod 600 {file}"
            raise ValueError(
                f"{error}; copy the application's key there, or make its first one: {make}"
            ) from None

    def command_key(self, name: str) -> Named[VerifyingKey]:
        """Return a key that verifies commands; it must be no sealing key, and occurs once."""
        text = self._text(name)
        key = _held(verifying_key, text, f"file {quote(name)}")
        if any(shared_key(one)[1] == key for one in self._sealing):
            raise ValueError(f"file {quote(name)} holds a sealing key: commands need a key of their own")
        return _once(Named(name, key, self._advice(name, is_secret="-----BEGIN" not in text)), self._command)

    def directory(self, command: tuple[str, ...]) -> Named[Path]:
        """Return a program with the directory where it is started."""
        return Named(command, self._directory)

    def authorities(self, name: str) -> Named[Path]:
        """Return the path of certificates of authorities, after trying them."""
        path = self._certificates(name)
        _try_tls(f"file {quote(name)} holds no PEM certificate", path)
        return Named(name, path)

    def certificate(self, name: str) -> Named[Path]:
        """Return the path of certificates, which are tried with their key."""
        self._certificate = self._certificates(name)
        return Named(name, self._certificate)

    def private_key(self, name: str) -> Named[Path]:
        """Return the path of a private key, after trying it with its certificate."""
        path, note = self._directory / name, self._text(name) and self._advice(name)
        # A context without files reads all authorities of the system, and takes a twentieth of a second.
        if self._certificate is not None:
            pair = "certificate_file holds no PEM certificate of this key, not encrypted"
            _try_tls(pair, None, self._certificate, path)
        return Named(name, path, note)

    def _certificates(self, name: str) -> Path:
        path = self._directory / name
        if opened(lambda _: path.read_bytes(), name).startswith(codecs.BOM_UTF8):
            why = "begins with a byte order mark, which hides its first certificate: save it without"
            raise ValueError(f"file {quote(name)} {why}")
        return path

    def _text(self, name: str) -> str:
        return opened(lambda name: plain_text.decoded((self._directory / name).read_bytes()), name)

    def _advice(self, name: str, *, is_secret: bool = True) -> str:
        """Return advice about a file that everybody on this machine may read, if it is secret, or write; else ""."""
        mode = (self._directory / name).stat().st_mode
        if not mode & ((stat.S_IROTH | stat.S_IWOTH) if is_secret else stat.S_IWOTH):
            return ""
        access = "read or written" if is_secret else "written"
        return f"file {quote(name)} can be {access} by everybody on this machine: chmod 600 it"

    def _printed(self, command: Sequence[str]) -> str:
        """Return the standard output of a program; messages never repeat it."""
        try:
            done = subprocess.run(
                command,
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=KEY_COMMAND_SECONDS,
                check=True,
            )
            return plain_text.decoded(done.stdout)
        except ValueError:
            why = "prints no UTF-8 text"
        except subprocess.TimeoutExpired:
            why = f"did not end within {KEY_COMMAND_SECONDS} s"
        except subprocess.CalledProcessError as error:
            why = f"ended with exit code {error.returncode}"
        except OSError as error:
            why = f"cannot be started: {error.strerror}"
        raise ValueError(f"program {quote(command[0])} {why}")


def _held(read: Callable[[str], Held], text: str, origin: str) -> Held:
    try:
        return read(text)
    except ValueError as error:
        raise ValueError(f"{origin} {error}") from None


def _once(key: Named[Held], known: list[Any]) -> Named[Held]:
    """Return a key that is not known yet, and add it."""
    if key.held in known:
        raise ValueError(f"{key} holds the same key as another")
    known.append(key.held)
    return key


def _try_tls(wrong: str, *files: Path | None) -> None:
    try:
        tls_context(*files)
    except ssl.SSLError:
        raise ValueError(wrong) from None
