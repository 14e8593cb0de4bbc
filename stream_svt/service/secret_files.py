"""Secrets: read from files, or printed by a command; never in the YAML or the environment.

File names are relative to the configuration file.
"""

from __future__ import annotations

import ssl
import stat
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stream_svt.errors import Problem
from stream_svt.service.signatures import KEY_BYTES, VerifyingKey, public_key, secret_bytes, shared_key
from stream_svt.settings.document import Document, KeyPath, path_text
from stream_svt.settings.messages import quote
from stream_svt.settings.sections import ControlConfig, KafkaConfig, SealingConfig, ServiceDocument

KEY_COMMAND_SECONDS = 10
"""How long a command that prints a key may take."""

_NO_KEY = f"must hold {KEY_BYTES} bytes as {2 * KEY_BYTES} hex digits or as base64"


@dataclass(frozen=True, kw_only=True)
class Secrets:
    """What the files and commands of a configuration hold.

    Attributes:
        password: Of the broker's user, None without one.
        ca_file: Path of the authorities' certificates, None for those of the system.
        master_key, previous_keys: 32 bytes each, for sealing; None where state is not sealed.
        command_keys: Keys whose owners may give commands; empty where signatures are not required.
    """

    password: str | None = field(default=None, repr=False)
    ca_file: Path | None = None
    master_key: bytes | None = field(default=None, repr=False)
    previous_keys: tuple[bytes, ...] = field(default=(), repr=False)
    command_keys: tuple[VerifyingKey, ...] = ()


class SecretFiles:
    """Reads the secrets that a configuration names; reports those that cannot be used to its document.

    Attributes:
        notes: Files of secrets that others on the machine can read.
    """

    def __init__(self, document: Document, directory: Path) -> None:
        self._document = document
        self._directory = directory
        self.notes: list[Problem] = []

    def all_of(self, sections: ServiceDocument) -> Secrets:
        """Return everything that the sections name.

        Raises:
            ConfigError: With every file and command that cannot be used.
        """
        keys = self.keys(sections.sealing)
        secrets = Secrets(
            password=self.password(sections.kafka),
            ca_file=self.authorities(sections.kafka),
            master_key=keys[0] if keys else None,
            previous_keys=tuple(keys[1:]),
            command_keys=self.command_keys(sections.control, keys),
        )
        self._document.finish()
        return secrets

    def password(self, kafka: KafkaConfig) -> str | None:
        """Return the password of the brokers' user."""
        name = kafka.password_file
        return None if name is None else self.first_line(name, ("kafka", "password_file"), "password")

    def first_line(self, name: str, place: KeyPath, what: str) -> str | None:
        """Return the first line of a file of one secret, None where it is reported."""
        text = self.secret(name, place)
        if text is None or (line := next(iter(text.splitlines()), "")):
            return text and line
        self._document.report(place, f"file {quote(name)} holds no {what} in its first line")
        return None

    def authorities(self, kafka: KafkaConfig) -> Path | None:
        """Return the file of the authorities that may sign the brokers' certificates."""
        return None if kafka.ca_file is None else self.certificates(kafka.ca_file, ("kafka", "ca_file"))

    def certificates(self, name: str, place: KeyPath) -> Path:
        """Return the path of a PEM file; report where it cannot be loaded."""
        path = self._directory / name
        try:
            ssl.create_default_context(cafile=path)
        except ssl.SSLError:
            self._document.report(place, f"file {quote(name)} holds no PEM certificate")
        except OSError as error:
            self._document.report(place, f"cannot read {quote(name)}: {error.strerror}")
        return path

    def keys(self, sealing: SealingConfig) -> list[bytes]:
        """Return the master keys, the one that seals first."""
        sources: list[tuple[KeyPath, Any]] = [
            (("sealing", kind), source)
            for kind in ("key_file", "key_command")
            if (source := getattr(sealing, kind)) is not None
        ]
        for kind in ("previous_key_files", "previous_key_commands"):
            older = enumerate(getattr(sealing, kind))
            sources += [(("sealing", kind, index), source) for index, source in older]
        return self._keys(sources)

    def shared_keys(self, names: Sequence[str], place: KeyPath) -> list[bytes]:
        """Return the keys of 32 bytes in files, in their order."""
        return self._keys([((*place, index), name) for index, name in enumerate(names)])

    def _keys(self, sources: Sequence[tuple[KeyPath, str | Sequence[str]]]) -> list[bytes]:
        """Return the keys that files hold, or commands print."""
        keys: list[bytes] = []
        for place, source in sources:
            if isinstance(source, str):
                text, origin = self.secret(source, place), f"file {quote(source)}"
            else:
                text, origin = self._printed(source, place), f"what {quote(source[0])} prints"
            if text is None:
                continue
            if (key := secret_bytes(text)) is None:
                self._document.report(place, f"{origin} {_NO_KEY}")
            elif key in keys:
                self._document.report(place, f"{origin} holds the same key as another")
            else:
                keys.append(key)
        return keys

    def command_keys(self, control: ControlConfig, sealing: Sequence[bytes]) -> tuple[VerifyingKey, ...]:
        """Return the keys whose owners may give commands."""
        keys: dict[str, VerifyingKey] = {}
        for kind in ("public_key_files", "hmac_key_files"):
            for index, name in enumerate(getattr(control, kind)):
                place = ("control", kind, index)
                text = self.secret(name, place, secret=kind == "hmac_key_files")
                if text is None:
                    continue
                try:
                    key = public_key(text) if kind == "public_key_files" else _shared(text, sealing)
                    if key.name in keys:
                        raise ValueError("holds the same key as another")
                    keys[key.name] = key
                except ValueError as error:
                    self._document.report(place, f"file {quote(name)} {error}")
        return tuple(keys.values())

    def _printed(self, command: Sequence[str], place: KeyPath) -> str | None:
        """Return what a program prints on its standard output; what it says otherwise is not repeated."""
        try:
            done = subprocess.run(
                command,
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=KEY_COMMAND_SECONDS,
                check=True,
            )
            return done.stdout.decode()
        except UnicodeDecodeError:
            why = "prints no text"
        except subprocess.TimeoutExpired:
            why = f"did not end within {KEY_COMMAND_SECONDS} s"
        except subprocess.CalledProcessError as error:
            why = f"ended with exit code {error.returncode}"
        except OSError as error:
            why = f"cannot be started: {error.strerror}"
        self._document.report(place, f"program {quote(command[0])} {why}")
        return None

    def note(self, place: KeyPath, message: str) -> None:
        """Keep advice about a key."""
        self.notes.append(Problem(self._document.line(place), path_text(place), message))

    def secret(self, name: str, place: KeyPath, *, secret: bool = True) -> str | None:
        """Return the text of a file, None where it is reported; ``secret``: nobody else should read it."""
        path = self._directory / name
        try:
            mode = path.stat().st_mode
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            self._document.report(place, f"file {quote(name)} is not text")
            return None
        except OSError as error:
            self._document.report(place, f"cannot read {quote(name)}: {error.strerror}")
            return None
        if mode & ((stat.S_IROTH | stat.S_IWOTH) if secret else stat.S_IWOTH):
            done = "read or written" if secret else "written"
            message = f"file {quote(name)} can be {done} by everybody on this machine: chmod 600 it"
            self.note(place, message)
        return text


def _shared(text: str, sealing: Sequence[bytes]) -> VerifyingKey:
    secret = secret_bytes(text)
    if secret is None:
        raise ValueError(_NO_KEY)
    if secret in sealing:
        raise ValueError("holds a sealing key: commands need a key of their own")
    return shared_key(secret)[1]
