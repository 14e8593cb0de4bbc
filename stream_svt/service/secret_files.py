"""Secrets: read from files, or printed by a command; never in the YAML or the environment.

File names are relative to the configuration file.
"""

from __future__ import annotations

import ssl
import stat
import subprocess
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeAlias, TypeVar

from stream_svt.errors import Problem
from stream_svt.service.signatures import VerifyingKey, public_key, secret_bytes, shared_key
from stream_svt.settings.document import Document, KeyPath, path_text, quote
from stream_svt.settings.sections import ControlConfig, KafkaConfig, SealingConfig

Key = TypeVar("Key")
_Source: TypeAlias = str | Sequence[str]
"""A file's name, or a command."""

KEY_COMMAND_SECONDS = 10
"""How long a command that prints a key may take."""


class SecretFiles:
    """Reads the secrets that a configuration names; reports those that cannot be used to its document."""

    def __init__(self, document: Document, directory: Path) -> None:
        self._document = document
        self._directory = directory
        self.notes: list[Problem] = []

    def password(self, kafka: KafkaConfig) -> str | None:
        """Return the password of the brokers' user, None without one."""
        name = kafka.password_file
        return None if name is None else self.first_line(name, ("kafka", "password_file"), "password")

    def first_line(self, name: str, place: KeyPath, what: str) -> str | None:
        """Return the first line of a file of one secret, None where it is reported."""
        text = self._text(name, place)
        if text is None or (line := next(iter(text.splitlines()), "")):
            return text and line
        self._document.report(place, f"file {quote(name)} holds no {what} in its first line")
        return None

    def authorities(self, kafka: KafkaConfig) -> Path | None:
        """Return the PEM file of the authorities that may sign the brokers' certificates, None for the system's."""
        name, place = kafka.ca_file, ("kafka", "ca_file")
        if name is None:
            return None
        path = self._directory / name
        try:
            ssl.create_default_context(cafile=path)
        except ssl.SSLError:
            self._document.report(place, f"file {quote(name)} holds no PEM certificate")
        except OSError as error:
            self._document.report(place, f"cannot read {quote(name)}: {error.strerror}")
        return path

    def sealing_keys(self, sealing: SealingConfig) -> list[bytes]:
        """Return the master keys, the one that seals first."""
        sources: list[tuple[KeyPath, _Source]] = [
            (("sealing", kind), source)
            for kind in ("key_file", "key_command")
            if (source := getattr(sealing, kind)) is not None
        ]
        for kind in ("previous_key_files", "previous_key_commands"):
            sources += _numbered(("sealing", kind), getattr(sealing, kind))
        return self._keys(sources, secret_bytes)

    def shared_keys(self, names: Sequence[str], place: KeyPath) -> list[bytes]:
        """Return the keys of 32 bytes in files, in their order."""
        return self._keys(_numbered(place, names), secret_bytes)

    def command_keys(self, control: ControlConfig, sealing: Sequence[bytes]) -> list[VerifyingKey]:
        """Return the keys whose owners may give commands; none of them may be one of the ``sealing`` keys."""

        def shared(text: str) -> VerifyingKey:
            if (secret := secret_bytes(text)) in sealing:
                raise ValueError("holds a sealing key: commands need a key of their own")
            return shared_key(secret)[1]

        public = _numbered(("control", "public_key_files"), control.public_key_files)
        known = self._keys(public, public_key, is_secret=False)
        return known + self._keys(_numbered(("control", "hmac_key_files"), control.hmac_key_files), shared)

    def _keys(
        self,
        sources: Iterable[tuple[KeyPath, _Source]],
        read: Callable[[str], Key],
        *,
        is_secret: bool = True,
    ) -> list[Key]:
        """Return the keys that files hold, or commands print; ``read`` says in a ValueError what is wrong with one."""
        keys: list[Key] = []
        for place, source in sources:
            if isinstance(source, str):
                text, origin = self._text(source, place, is_secret=is_secret), f"file {quote(source)}"
            else:
                text, origin = self._printed(source, place), f"what {quote(source[0])} prints"
            if text is None:
                continue
            try:
                if (key := read(text)) in keys:
                    raise ValueError("holds the same key as another")
                keys.append(key)
            except ValueError as error:
                self._document.report(place, f"{origin} {error}")
        return keys

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

    def _text(self, name: str, place: KeyPath, *, is_secret: bool = True) -> str | None:
        """Return the text of a file, None where it is reported."""
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
        if mode & ((stat.S_IROTH | stat.S_IWOTH) if is_secret else stat.S_IWOTH):
            done = "read or written" if is_secret else "written"
            self.note(place, f"file {quote(name)} can be {done} by everybody on this machine: chmod 600 it")
        return text


def _numbered(place: KeyPath, sources: Iterable[_Source]) -> list[tuple[KeyPath, _Source]]:
    return [((*place, index), source) for index, source in enumerate(sources)]
