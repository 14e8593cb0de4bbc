"""The service's configuration: the file is read, then checked, then its secrets are read."""

from __future__ import annotations

import codecs
import ssl
import stat
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from os import PathLike, fspath
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from stream_svt import plain_text
from stream_svt.application.signatures import VerifyingKey, public_key, secret_bytes, shared_key
from stream_svt.errors import ConfigError, Problem
from stream_svt.kafka.clients import Cluster, Login, TlsFiles
from stream_svt.kafka.partitioning import Partitioning
from stream_svt.kafka.tokens import ClientCredentials, CommandTokens, MskTokens, Tokens
from stream_svt.protocol.configuration import Bundle
from stream_svt.settings import sections
from stream_svt.settings.application import ApplicationSpec, application_of
from stream_svt.settings.datasets import ReadNames, lines_of
from stream_svt.settings.document import Document, KeyPath, did_you_mean, path_text, quote, read, without

Key = TypeVar("Key")
_Source: TypeAlias = str | Sequence[str]
"""File name, or command with arguments."""

KEY_COMMAND_SECONDS = 10


@dataclass(frozen=True, kw_only=True)
class Config:
    """A checked configuration of the service.

    Attributes:
        spec: Datasets and monitors.
        notes: Advice about settings that work but may not be intended.
        source: File name, for messages.
        login: Secrets and files of the connection to the brokers.
        master_keys: Sealing keys of 32 bytes, the current one first; empty if state is not sealed.
        command_keys: Keys that may sign commands; empty if signatures are not required.
        registry_password: Password of the user of the Schema Registry.
        directory: Where file names are relative to.
    """

    kafka: sections.KafkaConfig
    topics: sections.TopicsConfig
    sealing: sections.SealingConfig
    control: sections.ControlConfig
    schema_registry: sections.SchemaRegistryConfig
    web: sections.WebConfig
    commit: sections.CommitConfig
    spec: ApplicationSpec
    notes: tuple[Problem, ...] = ()
    source: str = "configuration"
    login: Login = field(default_factory=Login, repr=False)
    master_keys: tuple[bytes, ...] = field(default=(), repr=False)
    command_keys: tuple[VerifyingKey, ...] = ()
    registry_password: str | None = field(default=None, repr=False)
    directory: Path = Path()

    @property
    def current(self) -> ApplicationSpec:
        """The specification, with the generated datasets that are open now."""
        return self.spec.at(int(time.time() * 1000))

    def cluster(self) -> Cluster:
        """Return how to reach the brokers."""
        return Cluster.of(self.kafka, self.login)

    @property
    def partitioning(self) -> Partitioning:
        """The shards of datasets."""
        return Partitioning(self.topics.partitions, self.topics.partitioner)

    def home(self, dataset: str) -> int:
        """Return the shard of a dataset."""
        return self.partitioning.of(dataset.encode())


def load_config(path: Path, environ: Mapping[str, str] | None = None, *, is_whole: bool = True) -> Config:
    """Return the configuration in a file; see `parse_config`."""
    text, source = content(path), str(path)
    return parse_config(text, source=source, directory=path.parent, environ=environ, is_whole=is_whole)


def bundle_of(path: Path) -> Bundle:
    """Return the part of a configuration file that is applied: its text without service sections, and named files."""
    found = content(path)
    document = read(found, str(path))
    names = _names_in(path.parent)
    listed = [each.get("file") for each in document.data.get("datasets") or () if isinstance(each, dict)]
    wanted = [name for name in (document.data.get("carried_over"), *listed) if isinstance(name, str)]
    try:
        files = {name: "".join(f"{line}\n" for line in lines_of(name, names)) for name in wanted}
    except ValueError as error:
        raise ConfigError([Problem(0, "", str(error))], str(path)) from None
    return Bundle(without(plain_text.decoded(found), sections.SERVICE_KEYS), files)


def content(path: Path) -> bytes:
    """Return what is in a configuration file, or raise ConfigError."""
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
) -> Config:
    """Return the configuration in a YAML text, or raise ConfigError with all problems.

    File names in it are relative to ``directory``. Unless it ``is_whole``, datasets and monitors are skipped: a worker
    reads them from the configuration topic.
    """
    document = read(text, source)
    sections.apply_environment(document, environ or {}, sections.SECTIONS)
    if is_whole:
        whole = document.validated(sections.ConfigDocument)
        spec = application_of(document, whole, _names_in(directory))
        service: sections.ServiceDocument = whole
    else:
        for key in sections.ConfigDocument.model_fields.keys() - sections.ServiceDocument.model_fields.keys():
            document.data.pop(key, None)
        service = document.validated(sections.ServiceDocument)
        spec = ApplicationSpec(service.application, (), ())
    files = SecretFiles(document, directory)
    keys = files.sealing_keys(service.sealing)
    config = Config(
        spec=spec,
        **{key: getattr(service, key) for key in sections.SERVICE_KEYS},
        notes=(*spec.notes, *sections.section_notes(document, service)),
        source=source,
        login=files.login(service.kafka),
        master_keys=tuple(keys),
        command_keys=tuple(files.command_keys(service.control, keys)),
        registry_password=files.registry_password(service.schema_registry),
        directory=directory,
    )
    _require_registry(document, config)
    document.raise_problems()
    return replace(config, notes=tuple(sorted([*config.notes, *files.notes])))


def cluster_of(keys: Mapping[str, Any], password: str | None = None) -> Cluster:
    """Return the cluster of a section `kafka` that is given as keys and values of Python.

    ``password`` is the text of one, instead of the key password_file. Raises ConfigError with all problems.
    """
    given = {name: fspath(value) if isinstance(value, PathLike) else value for name, value in keys.items()}
    lines: dict[KeyPath, int] = {(): 0, ("kafka",): 0, **{("kafka", name): 0 for name in given}}
    document = Document({"kafka": given}, "connection", lines=lines)
    if password is not None:
        if "password_file" in given:
            document.report(
                ("kafka", "password_file"), "cannot be combined with password: remove one of them"
            )
        given.setdefault("password_file", "given as text")
    found = document.validated(sections.KafkaDocument).kafka
    files = SecretFiles(document, Path())
    if password is None:
        login = files.login(found)
    else:
        login = replace(files.login(found.model_copy(update={"password_file": None})), password=password)
    document.raise_problems()
    return Cluster.of(found, login)


def _require_registry(document: Document, config: Config) -> None:
    """Report monitors whose records need a Schema Registry, where none is configured."""
    for index, monitor in enumerate(config.spec.monitors):
        if monitor.record is not None and monitor.record.format == "avro" and not config.schema_registry.url:
            path = ("monitors", index, "record", "format")
            document.report(path, "avro needs the address of a Schema Registry: set schema_registry.url")


def _names_in(directory: Path) -> ReadNames:
    return lambda name: plain_text.lines(plain_text.decoded((directory / name).read_bytes()))


class SecretFiles:
    """Reads the secrets that a configuration names, from files or from what a command prints; reports problems."""

    def __init__(self, document: Document, directory: Path) -> None:
        self._document = document
        self._directory = directory
        self.notes: list[Problem] = []

    def login(self, kafka: sections.KafkaConfig) -> Login:
        """Return the secrets and files of the connection to the brokers, after reporting those that cannot be used."""
        password = self.first_line(kafka.password_file, ("kafka", "password_file"), "password")
        return Login(password, self._tokens(kafka), self._tls(kafka))

    def _tokens(self, kafka: sections.KafkaConfig) -> Tokens | None:
        """Return the access tokens of the connection, None for another login."""
        if (region := kafka.aws_region) is not None:
            if find_spec("aws_msk_iam_sasl_signer") is None:
                message = "AWS_MSK_IAM needs the extra 'msk': pip install 'stream-svt[msk]'"
                self._document.report(("kafka", "sasl_mechanism"), message)
            return Tokens(MskTokens(region))
        if (command := kafka.oauth_token_command) is not None:
            return Tokens(CommandTokens(command, self._directory), kafka.oauth_extensions)
        url, client, secret = kafka.oauth_token_url, kafka.oauth_client_id, kafka.oauth_client_secret_file
        if url is None or client is None or secret is None:
            return None
        self.first_line(secret, ("kafka", "oauth_client_secret_file"), "client secret")
        ca = kafka.oauth_ca_file
        files = TlsFiles(None if ca is None else self._directory / ca)
        tls = self._context(files, ("kafka", "oauth_ca_file"), ca)
        source = ClientCredentials(url, client, self._directory / secret, kafka.oauth_scope, tls)
        return Tokens(source, kafka.oauth_extensions)

    def registry_password(self, registry: sections.SchemaRegistryConfig) -> str | None:
        """Return the password of the Schema Registry's user, None without one; report a ca_file that is none."""
        if registry.ca_file is not None:
            authorities = TlsFiles(self._directory / registry.ca_file)
            self._context(authorities, ("schema_registry", "ca_file"), registry.ca_file)
        return self.first_line(registry.password_file, ("schema_registry", "password_file"), "password")

    def first_line(self, name: str | None, path: KeyPath, what: str) -> str | None:
        """Return the first line of a secret file, None without a file, or after reporting a problem."""
        text = None if name is None else self._text(name, path)
        if text is None or (line := plain_text.first_line(text)):
            return text and line
        self._document.report(path, f"file {quote(name)} holds no {what} in its first line")
        return None

    def _tls(self, kafka: sections.KafkaConfig) -> TlsFiles:
        """Return the files of the TLS connection, after reporting those that cannot be used."""
        names = (kafka.ca_file, kafka.certificate_file, kafka.private_key_file)
        files = TlsFiles(*(None if name is None else self._directory / name for name in names))
        if kafka.private_key_file is not None:
            self._text(kafka.private_key_file, ("kafka", "private_key_file"))
        steps = (
            (names[0], TlsFiles(files.authorities), "ca_file", ""),
            (names[1], files, "certificate_file", " of private_key_file, not encrypted"),
        )
        for name, step, key, of in steps:
            # A context without files reads all authorities of the system, and takes a twentieth of a second.
            if name is not None and not self._context(step, ("kafka", key), name, of):
                break
        return files

    def _context(
        self, files: TlsFiles, path: KeyPath, name: str | None, of: str = ""
    ) -> ssl.SSLContext | None:
        try:
            if name is not None and (self._directory / name).read_bytes().startswith(codecs.BOM_UTF8):
                why = "begins with a byte order mark, which hides its first certificate: save it without"
                self._document.report(path, f"file {quote(name)} {why}")
                return None
            return files.context()
        except ssl.SSLError:
            self._document.report(path, f"file {quote(name)} holds no PEM certificate{of}")
        except OSError as error:
            self._document.report(path, f"cannot read {quote(name)}: {error.strerror}")
        return None

    def sealing_keys(self, sealing: sections.SealingConfig) -> list[bytes]:
        """Return the master keys, the current one first."""
        current = {"key_file": sealing.key_file, "key_command": sealing.key_command}
        sources: list[tuple[KeyPath, _Source]] = [
            (("sealing", kind), one) for kind, one in current.items() if one
        ]
        for kind in ("previous_key_files", "previous_key_commands"):
            sources += _numbered(("sealing", kind), getattr(sealing, kind))
        return self._keys(sources, secret_bytes)

    def shared_keys(self, names: Sequence[str], path: KeyPath) -> list[bytes]:
        """Return the 32-byte keys in files, in order."""
        return self._keys(_numbered(path, names), secret_bytes)

    def command_keys(self, control: sections.ControlConfig, sealing: Sequence[bytes]) -> list[VerifyingKey]:
        """Return the keys that may sign commands; none may be a ``sealing`` key."""

        def shared(text: str) -> VerifyingKey:
            if (secret := secret_bytes(text)) in sealing:
                raise ValueError("holds a sealing key: commands need a key of their own")
            return shared_key(secret)[1]

        public = _numbered(("control", "public_key_files"), control.public_key_files)
        hmac = _numbered(("control", "hmac_key_files"), control.hmac_key_files)
        return self._keys(public, public_key, is_secret=False) + self._keys(hmac, shared)

    def _keys(
        self,
        sources: Iterable[tuple[KeyPath, _Source]],
        read: Callable[[str], Key],
        *,
        is_secret: bool = True,
    ) -> list[Key]:
        """Return the keys in files or in the output of commands; ``read`` raises ValueError for an invalid one."""
        keys: list[Key] = []
        for path, source in sources:
            if isinstance(source, str):
                text, origin = self._text(source, path, is_secret=is_secret), f"file {quote(source)}"
            else:
                text, origin = self._printed(source, path), f"what {quote(source[0])} prints"
            if text is None:
                continue
            try:
                if (key := read(text)) in keys:
                    raise ValueError("holds the same key as another")
                keys.append(key)
            except ValueError as error:
                self._document.report(path, f"{origin} {error}")
        return keys

    def _printed(self, command: Sequence[str], path: KeyPath) -> str | None:
        """Return the standard output of a program, None after reporting a problem; messages never repeat its output."""
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
        self._document.report(path, f"program {quote(command[0])} {why}")
        return None

    def note(self, path: KeyPath, message: str) -> None:
        """Add advice about a configuration key."""
        self.notes.append(Problem(self._document.line(path), path_text(path), message))

    def _text(self, name: str, path: KeyPath, *, is_secret: bool = True) -> str | None:
        """Return the text of a file, None after reporting a problem."""
        file = self._directory / name
        try:
            mode = file.stat().st_mode
            text = plain_text.decoded(file.read_bytes())
        except ValueError as error:
            self._document.report(path, f"cannot read {quote(name)}: {error}")
            return None
        except OSError as error:
            self._document.report(path, f"cannot read {quote(name)}: {error.strerror}")
            return None
        if mode & ((stat.S_IROTH | stat.S_IWOTH) if is_secret else stat.S_IWOTH):
            access = "read or written" if is_secret else "written"
            self.note(path, f"file {quote(name)} can be {access} by everybody on this machine: chmod 600 it")
        return text


def _numbered(path: KeyPath, sources: Iterable[_Source]) -> list[tuple[KeyPath, _Source]]:
    return [((*path, index), source) for index, source in enumerate(sources)]
