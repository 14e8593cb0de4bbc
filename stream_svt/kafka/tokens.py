"""Access tokens for SASL/OAUTHBEARER, from a program, a token endpoint (OAuth 2 client credentials) or AWS's signer.

A token is used until shortly before it expires, and renewed in the background at 70 % of its lifetime: logins wait
for a token only if none is valid. Messages never contain a token, a secret, or output of a program or an endpoint.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
import math
import os
import re
import signal
import ssl
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import quote_plus

from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import KafkaError, SaslAuthenticationFailed

from stream_svt import plain_text
from stream_svt.settings.document import quote
from stream_svt.settings.fields import held_by
from stream_svt.settings.sections import KafkaConfig

log = logging.getLogger(__name__)

TOKEN_DEADLINE: Final = 8.0
"""Seconds to get a token: less than the deadline of a client's start, whose error would not name the cause."""
RETRY_PAUSE: Final = 5.0
"""Seconds after a failure until the source is asked again."""
UNKNOWN_LIFETIME: Final = 60.0
"""Seconds for which a token without an expiry is used."""
RENEWAL: Final = 0.7
"""Part of its lifetime after which a token is renewed."""
_LARGEST = 1 << 16
"""Bytes of the answer of a program or a token endpoint that are read."""
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*", re.ASCII)


class TokenUnavailable(KafkaError):  # type: ignore[misc]  # aiokafka has no types
    """No token is available; a later try may succeed. Clients of aiokafka treat it as a failed connection."""


class TokenRefused(SaslAuthenticationFailed):  # type: ignore[misc]
    """The token endpoint refused the client, or the brokers refused its token."""


@dataclass(frozen=True, slots=True)
class Token:
    """An access token, and the seconds for which it is valid; None if unknown."""

    text: str = field(repr=False)
    lifetime: float | None

    @classmethod
    def of(cls, text: object, lifetime: object, origin: str) -> Token:
        """Return a token with its lifetime, by default from its claims; raises TokenUnavailable for other text."""
        if not isinstance(text, str) or not _TOKEN.fullmatch(text):
            raise TokenUnavailable(f"{origin} no access token")
        if (seconds := _seconds(lifetime)) is None and (
            expiry := _seconds(claims(text).get("exp"))
        ) is not None:
            seconds = expiry - time.time()
        return cls(text, seconds)


class TokenSource(Protocol):
    """Gets a new token."""

    async def fetch(self) -> Token:
        """Return a token; raises TokenUnavailable or TokenRefused."""


@dataclass(frozen=True, slots=True)
class CommandTokens:
    """Tokens that a program prints, as text, or as JSON with ``access_token`` and perhaps ``expires_in``."""

    command: Sequence[str]
    directory: Path

    async def fetch(self) -> Token:
        """Return the program's output; it is killed after `TOKEN_DEADLINE`, or when the caller is cancelled."""
        doing = f"the program {quote(self.command[0])} of kafka.oauth_token_command"
        try:
            async with asyncio.timeout(TOKEN_DEADLINE):
                text, code = await self._run()
        except TimeoutError:
            raise TokenUnavailable(f"{doing} did not end within {TOKEN_DEADLINE:.0f} s") from None
        except OSError as error:
            raise TokenUnavailable(f"{doing} cannot be started: {error.strerror}") from None
        if code:
            raise TokenUnavailable(f"{doing} ended with exit code {code}; run it by hand")
        answer = _object(text) if text.startswith("{") else {"access_token": text}
        return Token.of(answer.get("access_token"), answer.get("expires_in"), f"{doing} printed")

    async def _run(self) -> tuple[str, int]:
        """Return the program's output and exit code."""
        process = await asyncio.create_subprocess_exec(
            *self.command,
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        printed, has_ended = b"", False
        try:
            while (
                process.stdout and len(printed) < _LARGEST and (part := await process.stdout.read(_LARGEST))
            ):
                printed += part
            if len(printed) >= _LARGEST:
                return "", 0
            code = await process.wait()
            has_ended = True
            return _text(printed), code
        finally:
            if not has_ended:
                # Together with the programs that it started: they would keep its output open.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            # `wait` also waits for the end of the output, which is not read any more.
            process._transport.close()  # type: ignore[attr-defined]  # noqa: SLF001  asyncio offers no other way
            await process.wait()


@dataclass(frozen=True, slots=True)
class ClientCredentials:
    """Tokens of an OAuth 2 token endpoint for a client's id and secret (RFC 6749, section 4.4)."""

    url: str
    client_id: str
    secret_file: Path
    scope: str | None = None
    tls: ssl.SSLContext | None = None

    async def fetch(self) -> Token:
        """Ask the token endpoint; the secret is read from its file each time."""
        import aiohttp  # slow to import; a worker has it

        doing = f"the token endpoint {self.url} of kafka.oauth_token_url"
        try:
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(TOKEN_DEADLINE)) as session:
                form = {"grant_type": "client_credentials"} | ({"scope": self.scope} if self.scope else {})
                login = {"Authorization": f"Basic {await self._login()}", "Accept": "application/json"}
                async with session.post(
                    self.url, data=form, headers=login, allow_redirects=False, ssl=self.tls or True
                ) as response:
                    status, body = response.status, await response.content.read(_LARGEST)
        except aiohttp.ClientConnectorCertificateError:
            raise TokenUnavailable(
                f"the certificate of {doing} is not trusted; set kafka.oauth_ca_file"
            ) from None
        except TimeoutError:
            raise TokenUnavailable(f"{doing} did not answer within {TOKEN_DEADLINE:.0f} s") from None
        except (aiohttp.ClientError, ValueError) as error:
            raise TokenUnavailable(f"{doing} cannot be reached ({type(error).__name__})") from None
        answer = _object(body.decode(errors="replace"))
        if status == 200:
            return Token.of(answer.get("access_token"), answer.get("expires_in"), f"{doing} returned")
        code = answer.get("error")  # a word of RFC 6749; descriptions are free text
        said = f"{status} {code}" if isinstance(code, str) and re.fullmatch("[a-z_]{1,40}", code) else status
        if status in {400, 401, 403}:
            hint = "check kafka.oauth_client_id, oauth_client_secret_file and oauth_scope"
            raise TokenRefused(f"{doing} refused the client ({said}); {hint}")
        raise TokenUnavailable(f"{doing} answered {said}")

    async def _login(self) -> str:
        try:
            text = plain_text.decoded(await asyncio.to_thread(self.secret_file.read_bytes))
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            message = f"cannot read kafka.oauth_client_secret_file {quote(str(self.secret_file))}: {reason}"
            raise TokenUnavailable(message) from None
        pair = quote_plus(self.client_id), quote_plus(plain_text.first_line(text))
        return base64.b64encode(":".join(pair).encode()).decode()


@dataclass(frozen=True, slots=True)
class MskTokens:
    """Tokens for brokers of Amazon MSK with IAM: a request that is signed with the credentials that AWS's SDK finds."""

    region: str

    async def fetch(self) -> Token:
        """Return a signed token; the SDK may ask a metadata service for credentials, in a thread."""
        try:
            async with asyncio.timeout(TOKEN_DEADLINE):
                text, expiry_ms = await asyncio.to_thread(self._signed)
        except TimeoutError:
            message = f"AWS's SDK found no credentials within {TOKEN_DEADLINE:.0f} s"
            raise TokenUnavailable(message) from None
        except Exception as error:  # noqa: BLE001  the signer and its SDK raise errors of many kinds
            hint = "set AWS_PROFILE, a role of this machine, or other credentials that AWS's SDK finds"
            message = f"no token for AWS_MSK_IAM could be signed ({type(error).__name__}); {hint}"
            raise TokenUnavailable(message) from None
        return Token.of(text, expiry_ms / 1000 - time.time(), "the signer returned")

    def _signed(self) -> tuple[str, int]:
        """Return a token and the time of its end; the first call imports the SDK, which takes some 0.2 seconds."""
        from aws_msk_iam_sasl_signer.MSKAuthTokenProvider import generate_auth_token

        text, expiry_ms = generate_auth_token(self.region)
        return text, expiry_ms


class Tokens(AbstractTokenProvider):  # type: ignore[misc]
    """The token that all connections of a process use; see the module.

    ``extensions`` are sent with it. One task at a time asks the source, whatever the number of connections that wait.
    """

    def __init__(self, source: TokenSource, extensions: Mapping[str, str] | None = None) -> None:
        self._source = source
        self._extensions = dict(extensions or {})
        self._token: Token | None = None
        self._failure: KafkaError | None = None
        self._renew_at = self._ends_at = self._retry_at = 0.0
        self._renewal: asyncio.Task[None] | None = None

    async def token(self) -> str:
        """Return a valid token; raises TokenUnavailable or TokenRefused."""
        now = time.monotonic()
        if (
            now >= self._renew_at
            and now >= self._retry_at
            and (self._renewal is None or self._renewal.done())
        ):
            self._renewal = asyncio.create_task(self._renew(), name="token")
        if now >= self._ends_at and self._renewal is not None:
            # Other connections may wait, too, when this one is given up.
            await asyncio.wait([self._renewal])
        if self._token is not None and time.monotonic() < self._ends_at:
            return self._token.text
        failure = self._failure or TokenUnavailable("the task that gets tokens was cancelled")
        raise type(failure)(*failure.args)

    def extensions(self) -> dict[str, str]:
        """Return the SASL extensions to send with a token."""
        return self._extensions

    def refused(self) -> TokenRefused:
        """Discard the token, which the brokers refused, and return the error with the token's public claims.

        After a pause the source is asked again, because its configuration may have been corrected.
        """
        if self._token is None and isinstance(self._failure, TokenRefused):
            return TokenRefused(*self._failure.args)  # by another connection, at the same time
        known = claims(self._token.text) if self._token is not None else {}
        named = {name: known[name] for name in ("iss", "aud", "sub") if name in known}
        said = ", ".join(f"{name} {quote(_word(value))}" for name, value in named.items())
        if (expiry := _seconds(known.get("exp"))) is not None:
            left = expiry - time.time()
            said += f", exp {f'in {left:.0f} s' if left > 0 else f'{-left:.0f} s ago'}"
        shown = f"its claims: {said}" if said else "it has no claims that can be read here"
        hint = "compare it with the brokers' sasl.oauthbearer.expected.issuer and .audience, and their clock"
        self._failure = TokenRefused(f"the brokers refused the access token ({shown}); {hint}")
        self._token, self._renew_at, self._ends_at = None, 0.0, 0.0
        self._retry_at = time.monotonic() + RETRY_PAUSE
        return self._failure

    async def _renew(self) -> None:
        try:
            token = await self._source.fetch()
        except Exception as error:  # noqa: BLE001  a source that fails otherwise is asked again, too
            if not isinstance(error, TokenUnavailable | TokenRefused):
                error = TokenUnavailable(f"no access token ({type(error).__name__})")
            self._failure, self._retry_at = error, time.monotonic() + RETRY_PAUSE
            left = max(0.0, self._ends_at - time.monotonic())
            log.warning("event=token_not_renewed valid_seconds=%.0f error=%r", left, error.args[0])
            return
        now = time.monotonic()
        lifetime = UNKNOWN_LIFETIME if token.lifetime is None else max(token.lifetime, RETRY_PAUSE)
        self._token, self._failure = token, None
        self._renew_at = now + RENEWAL * lifetime
        # A session is over with its token: the last seconds would be too short for one.
        self._ends_at = now + lifetime - max(2.0, min(10.0, lifetime / 10))


def claims(token: str) -> dict[str, Any]:
    """Return the unverified claims of a JSON Web Token; none of another token."""
    parts = token.split(".")
    if len(parts) != 3:
        return {}
    try:
        return _object(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)).decode())
    except ValueError:  # neither base64 nor UTF-8
        return {}


def _seconds(value: object) -> float | None:
    """Return a finite number of JSON, also in quotes; None for other values."""
    with contextlib.suppress(ValueError, OverflowError):
        if isinstance(value, str | int | float) and math.isfinite(number := float(value)):
            return number
    return None


def _text(printed: bytes) -> str:
    """Return the text that a program printed, "" for another encoding than UTF-8."""
    with contextlib.suppress(ValueError):
        return plain_text.decoded(printed).strip()
    return ""


def _object(text: str) -> dict[str, Any]:
    """Return a JSON object; an empty one for other text."""
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(text)
        return found if isinstance(found, dict) else {}
    return {}


def _word(claim: object) -> str:
    words = claim if isinstance(claim, list) else [claim]
    return " ".join(re.sub(r"[^ -~]", "?", str(word)) for word in words)


def tokens_of(kafka: KafkaConfig) -> Tokens | None:
    """Return the access tokens of a section `kafka`; None for another login."""
    if kafka.aws_region is not None:
        return Tokens(MskTokens(kafka.aws_region))
    if (program := kafka.oauth_token_command) is not None:
        return Tokens(CommandTokens(program.name, program.held), kafka.oauth_extensions)
    url, client, secret = kafka.oauth_token_url, kafka.oauth_client_id, kafka.oauth_client_secret_file
    if url is None or client is None or secret is None:
        return None
    [authorities] = held_by(kafka.oauth_ca_file)
    tls = ssl.create_default_context(cafile=authorities)
    source = ClientCredentials(url, client, secret.held, kafka.oauth_scope, tls)
    return Tokens(source, kafka.oauth_extensions)
