"""The configuration of the forwarder: which events go where.

Like the service's file it is YAML, every problem is found before anything connects, secrets stand in files of
their own, and ``STREAM_SVT_KAFKA_<KEY>`` and ``STREAM_SVT_WEB_<KEY>`` replace keys of those two sections.
"""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from urllib.parse import urlsplit

from stream_svt.errors import ConfigError, Problem
from stream_svt.forward.document import DestinationConfig, ForwardDocument, ForwardWebConfig, address
from stream_svt.monitor.quantities import found
from stream_svt.monitor.yaml_source import Document, read
from stream_svt.monitor.yaml_source import Path as Place
from stream_svt.service.config import (
    Files,
    KafkaConfig,
    apply_environment,
    client_arguments,
    content,
    section,
)
from stream_svt.service.kafka import Cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """A destination with its secrets.

    Attributes
    ----------
    config
        Its part of the file.
    group
        Its consumer group.
    urls
        Addresses that are posted to; kept out of ``repr``, for an address may be a secret.
    keys
        Keys that sign, none for Alertmanager.
    authorization
        Content of the Authorization header, or None.
    tls
        What verifies the receiver, or None for http.
    """

    config: DestinationConfig
    group: str
    urls: tuple[str, ...] = field(repr=False)
    keys: tuple[bytes, ...] = field(default=(), repr=False)
    authorization: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = None

    @property
    def name(self) -> str:
        """Its name."""
        return self.config.name


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardConfig:
    """Everything the forwarder was told, checked.

    Attributes
    ----------
    cluster
        How to reach the brokers.
    topic, park_topic
        What is read, and where refused events go.
    start_at
        Where a group without a position begins; None for the oldest event.
    destinations
        Who gets which events.
    web
        Where the pages are.
    notes
        Advice: what works but may not be meant.
    source
        Name of the file.
    """

    cluster: Cluster
    topic: str
    park_topic: str
    start_at: datetime | None
    destinations: tuple[Destination, ...]
    web: ForwardWebConfig
    notes: tuple[Problem, ...] = ()
    source: str = "configuration"

    @property
    def parks(self) -> bool:
        """Whether any destination may park events."""
        return any(destination.config.on_refused == "park" for destination in self.destinations)


def load_forward_config(path: Path | str, environ: Mapping[str, str] | None = None) -> ForwardConfig:
    """Return the configuration in a file.

    Raises
    ------
    ConfigError
        With every problem found in the file, the environment, and the files of secrets it names.
    """
    path = Path(path)
    return parse_forward_config(content(path), source=str(path), directory=path.parent, environ=environ)


def parse_forward_config(
    text: str | bytes,
    *,
    source: str = "configuration",
    directory: Path = Path(),
    environ: Mapping[str, str] | None = None,
) -> ForwardConfig:
    """Return the configuration in a YAML text; file names in it are relative to ``directory``.

    Raises
    ------
    ConfigError
        As `load_forward_config`.
    """
    document = read(text, source)
    apply_environment(document, environ or {}, {"kafka": KafkaConfig, "web": ForwardWebConfig})
    files = Files(document, directory)
    # First by itself, so that its secrets are looked at however wrong the rest is.
    kafka = section(document, "kafka", KafkaConfig)
    password = files.password(kafka) if kafka else None
    ca_file = files.authorities(kafka) if kafka else None
    whole_file = document.check(ForwardDocument, ())
    if whole_file is None:
        document.finish()
        raise ConfigError([], source)  # pragma: no cover - what is None has been reported
    group = whole_file.group or f"{whole_file.topic}.forward"
    secrets = _Secrets(document, files, directory)
    destinations = tuple(
        secrets.destination(destination, group, ("destinations", index))
        for index, destination in enumerate(whole_file.destinations)
    )
    park_topic = whole_file.park_topic or f"{whole_file.topic}.parked"
    if park_topic == whole_file.topic:
        document.report(("park_topic",), "is the topic that is read: parked events would come round again")
    document.finish()
    kafka = whole_file.kafka
    return ForwardConfig(
        cluster=Cluster(
            client_arguments(kafka, password, ca_file),
            session_timeout=kafka.session_timeout / 1000,
            heartbeat_interval=kafka.heartbeat_interval / 1000,
            group_instance_id=kafka.group_instance_id,
        ),
        topic=whole_file.topic,
        park_topic=park_topic,
        start_at=whole_file.start_at,
        destinations=destinations,
        web=whole_file.web,
        notes=tuple(sorted([*files.notes, *secrets.notes])),
        source=source,
    )


class _Secrets:
    """Completes destinations with what stands in files."""

    def __init__(self, document: Document, files: Files, directory: Path) -> None:
        self._document = document
        self._files = files
        self._directory = directory
        self.notes: list[Problem] = []

    def destination(self, config: DestinationConfig, group: str, place: Place) -> Destination:
        """Return a destination with its secrets; what cannot be read is reported."""
        urls, keys = self._receiver(config, place)
        authorization = None
        if config.authorization_file is not None:
            authorization = self._files.first_line(
                config.authorization_file, (*place, "authorization_file"), "header"
            )
            if authorization is not None and not (authorization.isascii() and authorization.isprintable()):
                self._document.report((*place, "authorization_file"), "holds what no header may hold")
        return Destination(
            config=config,
            group=f"{group}.{config.name}",
            urls=urls,
            keys=keys,
            authorization=authorization,
            tls=self._tls(config, urls, place),
        )

    def _receiver(self, config: DestinationConfig, place: Place) -> tuple[tuple[str, ...], tuple[bytes, ...]]:
        if config.alertmanager is not None:
            bases = config.alertmanager.urls
            if any(urlsplit(base).query or urlsplit(base).fragment for base in bases):
                message = "must be plain addresses: the path /api/v2/alerts is added"
                self._document.report((*place, "alertmanager", "urls"), message)
            return tuple(base.rstrip("/") + "/api/v2/alerts" for base in bases), ()
        webhook = config.webhook
        if webhook is None:
            return (), ()  # pragma: no cover - one of the two is required
        url = webhook.url
        if webhook.url_file is not None:
            url = self._secret_url(webhook.url_file, (*place, "webhook", "url_file"))
        keys = tuple(self._files.shared_keys(webhook.key_files, (*place, "webhook", "key_files")))
        if not webhook.key_files:
            self._note(
                (*place, "webhook", "key_files"),
                "requests are not signed: whoever can reach the receiver can forge an alert",
            )
        return ((url,) if url is not None else ()), keys

    def _secret_url(self, name: str, place: Place) -> str | None:
        text = self._files.first_line(name, place, "address")
        try:
            return None if text is None else address(text.strip())
        except ValueError:
            # The content is a secret: not even its beginning is repeated.
            self._document.report(place, f"file {found(name)} holds no address such as https://host/path")
            return None

    def _tls(self, config: DestinationConfig, urls: tuple[str, ...], place: Place) -> ssl.SSLContext | None:
        encrypted = [urlsplit(url).scheme == "https" for url in urls]
        tls = config.tls
        if tls is not None and not all(encrypted):
            self._document.report((*place, "tls"), "has no use with http: write https")
        open_hosts = [
            host
            for url in urls
            if urlsplit(url).scheme == "http" and not _is_loopback(host := urlsplit(url).hostname or "")
        ]
        if open_hosts and (config.authorization_file is not None or config.webhook is not None):
            self._note(place, "is posted to over http: who sits between can read, change and repeat it")
        if not any(encrypted):
            return None
        ca_file = None
        if tls is not None and tls.ca_file is not None:
            ca_file = self._files.certificates(tls.ca_file, (*place, "tls", "ca_file"))
        try:
            context = ssl.create_default_context(cafile=ca_file)
        except (ssl.SSLError, OSError):
            return None  # reported with the file
        if tls is not None and tls.certificate_file is not None and tls.key_file is not None:
            here = (*place, "tls", "key_file")
            if self._files.secret(tls.key_file, here) is not None:
                certificate, key = (self._directory / name for name in (tls.certificate_file, tls.key_file))
                try:
                    context.load_cert_chain(certificate, key, password=_no_password)
                except (ssl.SSLError, OSError):
                    self._document.report(here, "and certificate_file hold no certificate with its open key")
        return context

    def _note(self, place: Place, message: str) -> None:
        name = ".".join(str(step) for step in place)
        self.notes.append(Problem(self._document.line(place), name, message))


def _is_loopback(host: str) -> bool:
    """Tell whether a host is this machine by its name alone; 127.example.org is not."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.rstrip(".").lower() == "localhost"


def _no_password() -> str:
    """Answer OpenSSL, which would otherwise ask on the terminal, and wait."""
    return ""
