"""An authority of a test's own, a broker's certificate from it, and a broker that speaks TLS only to others."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from stream_svt.kafka.embedded import EmbeddedKafka, free_ports, new_cluster_id
from tests.support.issuer import AUDIENCE, Issuer
from tests.support.keys import write_secrets
from tests.support.topics import STEADY

PASSWORD: Final = "open sesame"
USERS: Final = tuple(f"user{number}" for number in range(12))
"""Users of tests about permissions: each test gives them some, for an application of its own."""
SESSION: Final = 3
"""Seconds after which a client has to log in again."""
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


@dataclass(frozen=True)
class Authority:
    """A certificate for the loopback address that is its own authority."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @classmethod
    def new(cls) -> Authority:
        key = ec.generate_private_key(ec.SECP256R1())
        serial = x509.random_serial_number()
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, f"test authority {serial:x}")])
        others = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
        unused = dict.fromkeys((*others, "encipher_only", "decipher_only"), False)
        extensions = {
            x509.BasicConstraints(ca=True, path_length=None): True,
            x509.KeyUsage(digital_signature=True, key_cert_sign=True, crl_sign=True, **unused): True,
            x509.SubjectKeyIdentifier.from_public_key(key.public_key()): False,
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]): False,
        }
        now = datetime.now(UTC)
        begin, end = now - timedelta(hours=1), now + timedelta(days=1)
        builder = x509.CertificateBuilder(name, name, key.public_key(), serial, begin, end)
        for extension, critical in extensions.items():
            builder = builder.add_extension(extension, critical=critical)
        return cls(key, builder.sign(key, hashes.SHA256()))

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)

    def broker_store(self) -> bytes:
        """Return key and certificate, as Kafka reads them from one PEM file."""
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()) + self.pem


async def connections_closed() -> None:
    """Wait until the running loop has no connection left: the end of TLS waits for the broker's answer.

    A loop that ends before leaves a socket behind, which fails whichever test runs when it is collected.
    """
    loop: Any = asyncio.get_running_loop()
    async with asyncio.timeout(40):
        while any(one._sock for one in loop._transports.values()):
            await asyncio.sleep(0.02)


class SecureKafka(EmbeddedKafka):
    """A broker with a listener for users with permissions: SASL_SSL, with PLAIN and both SCRAM mechanisms.

    With an issuer, its access tokens are taken there, too; their sessions, and those of SCRAM-SHA-512, last `SESSION`
    seconds. Another listener is without TLS, with PLAIN. The first one is the administrator's: it asks for nothing, and
    everything may be done there.

    Args:
        authority: Signs the broker's certificate.
        directory: Where the broker's key is written.
        users: They have the same password.
        issuer: Of access tokens.
    """

    def __init__(
        self,
        authority: Authority,
        directory: Path,
        users: Sequence[str] = ("svt",),
        issuer: Issuer | None = None,
    ) -> None:
        store = directory / "broker.pem"
        store.write_bytes(authority.broker_store())
        trusted = directory / "trusted.pem"
        trusted.write_bytes(authority.pem)
        client, controller, sasl, login, mutual = ports = free_ports(5)
        listeners = {
            "PLAINTEXT": client,
            "CONTROLLER": controller,
            "SASL": sasl,
            "LOGIN": login,
            "MUTUAL": mutual,
        }
        modules = "org.apache.kafka.common.security"
        words = "".join(f' user_{name}="{PASSWORD}"' for name in users)
        scram = f"{modules}.scram.ScramLoginModule required;"
        settings = {
            **STEADY,
            "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in listeners.items()),
            "listener.security.protocol.map": (
                "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL:SASL_SSL,LOGIN:SASL_PLAINTEXT,MUTUAL:SSL"
            ),
            "inter.broker.listener.name": "PLAINTEXT",
            "sasl.enabled.mechanisms": ",".join(MECHANISMS),
            "listener.name.login.sasl.enabled.mechanisms": "PLAIN",
            **{
                f"listener.name.{name}.plain.sasl.jaas.config": f"{modules}.plain.PlainLoginModule required{words};"
                for name in ("sasl", "login")
            },
            "listener.name.sasl.scram-sha-256.sasl.jaas.config": scram,
            "listener.name.sasl.scram-sha-512.sasl.jaas.config": scram,
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(store),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(trusted),
            "listener.name.mutual.ssl.client.auth": "required",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
            "group.min.session.timeout.ms": "500",
        }
        jvm = []
        if issuer is not None:
            oauth, module = "org.apache.kafka.common.security.oauthbearer", "listener.name.sasl.oauthbearer"
            settings |= {
                "sasl.enabled.mechanisms": ",".join((*MECHANISMS, "OAUTHBEARER")),
                f"{module}.sasl.jaas.config": f"{oauth}.OAuthBearerLoginModule required;",
                f"{module}.sasl.server.callback.handler.class": f"{oauth}.OAuthBearerValidatorCallbackHandler",
                f"{module}.connections.max.reauth.ms": str(SESSION * 1000),
                "listener.name.sasl.scram-sha-512.connections.max.reauth.ms": str(SESSION * 1000),
                "sasl.oauthbearer.jwks.endpoint.url": f"{issuer.url}/keys",
                "sasl.oauthbearer.jwt.validator.class": f"{oauth}.BrokerJwtValidator",
                "sasl.oauthbearer.expected.issuer": issuer.url,
                "sasl.oauthbearer.expected.audience": AUDIENCE,
                "sasl.oauthbearer.clock.skew.seconds": "0",
            }
            jvm = [f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={issuer.url}/keys"]
        credentials = [
            option
            for name in users
            for mechanism in MECHANISMS[1:]
            for option in ("--add-scram", f"{mechanism}=[name={name},password={PASSWORD}]")
        ]
        storage = ("--standalone", "-t", new_cluster_id(), *credentials)
        super().__init__(overrides=settings, ports=ports[:2], storage=storage, jvm=jvm)
        self.sasl_bootstrap_servers = f"127.0.0.1:{sasl}"
        self.login_bootstrap_servers = f"127.0.0.1:{login}"
        self.mutual_bootstrap_servers = f"127.0.0.1:{mutual}"
        self.authority, self.issuer = authority, issuer

    def secured(
        self, text: str, directory: Path, user: str = "svt", mechanism: str = "SCRAM-SHA-256", ca: str = ""
    ) -> str:
        """Return a configuration for the listener without TLS, changed to log in over TLS; its files are written."""
        (directory / "ca.pem").write_bytes(self.authority.pem)
        if not (directory / "password").exists():
            write_secrets(directory, {"password": PASSWORD})
        login = f"username: {user}, password_file: password, ca_file: {ca or 'ca.pem'}"
        return self._with_mechanism(text, mechanism, login)

    def with_tokens(self, text: str, directory: Path, source: str) -> str:
        """Return such a configuration, changed to log in with the access tokens of a source, as keys of the file."""
        (directory / "ca.pem").write_bytes(self.authority.pem)
        return self._with_mechanism(text, "OAUTHBEARER", f"{source}, ca_file: ca.pem")

    def _with_mechanism(self, text: str, mechanism: str, keys: str) -> str:
        login = f"security_protocol: SASL_SSL, sasl_mechanism: {mechanism}, {keys}"
        return text.replace(f'"{self.bootstrap_servers}"', f'"{self.sasl_bootstrap_servers}", {login}')

    def with_certificate(self, text: str, directory: Path, names: str) -> str:
        """Return such a configuration, changed to connect with the authority's own certificate as the client's."""
        (directory / "ca.pem").write_bytes(self.authority.pem)
        write_secrets(directory, {"client.key": self.authority.broker_store().decode()})
        mutual = f'"{self.mutual_bootstrap_servers}", security_protocol: SSL, ca_file: ca.pem{names}'
        return text.replace(f'"{self.bootstrap_servers}"', mutual)

    def with_login(self, text: str, user: str = "svt") -> str:
        """Return a configuration for the listener without TLS, changed to log in, without TLS, too."""
        login = f"security_protocol: SASL_PLAINTEXT, sasl_mechanism: PLAIN, username: {user}"
        servers = f'"{self.login_bootstrap_servers}", {login}, password_file: password'
        return text.replace(f'"{self.bootstrap_servers}"', servers)
