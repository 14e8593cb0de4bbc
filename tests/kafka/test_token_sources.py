"""Access tokens: where they come from, how long they are used, and what is said where there is none."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import logging
import ssl
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import parse_qsl, quote, urlsplit

import pytest

from stream_svt.kafka import tokens
from stream_svt.kafka.clients import tls_context
from stream_svt.kafka.tokens import (
    ClientCredentials,
    CommandTokens,
    MskTokens,
    Token,
    TokenRefused,
    Tokens,
    TokenUnavailable,
    claims,
)
from tests.support.issuer import SECRET, Issuer
from tests.support.tls import Authority, connections_closed

ISSUER = Issuer()
EXPIRY = 4_102_444_800.0  # in the year 2100
JWT = ISSUER.token(exp=EXPIRY)


def prints(text: str) -> CommandTokens:
    return CommandTokens((sys.executable, "-c", f"print({text!r})"), Path())


class Source:
    """Gives tokens of so many seconds, numbered; ``failure`` is raised instead."""

    def __init__(self, lifetime: float | None = 100.0) -> None:
        self.lifetime, self.asked = lifetime, 0
        self.failure: Exception | None = None
        self.free = asyncio.Event()
        self.free.set()

    async def fetch(self) -> Token:
        self.asked += 1
        await self.free.wait()
        if self.failure is not None:
            raise self.failure
        return Token(f"token{self.asked}", self.lifetime)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(tokens, "time", SimpleNamespace(monotonic=lambda: now[0], time=time.time))
    return now


@pytest.mark.parametrize(
    ("printed", "lifetime"),
    [
        ("opaque-token", None),
        (JWT, EXPIRY),
        ('{"access_token": "opaque", "expires_in": 60}', 60),
        ('{"access_token": "opaque", "expires_in": "60"}', 60),
        ('{"access_token": "opaque", "expires_in": NaN}', None),
        (json.dumps({"access_token": JWT, "expires_in": None}), EXPIRY),
    ],
    ids=["text", "jwt", "json", "quoted", "nan", "claims"],
)
async def test_a_program_prints_a_token_and_perhaps_for_how_long_it_is_valid(printed, lifetime):
    token = await prints(printed).fetch()
    if lifetime == EXPIRY:
        lifetime -= time.time()
    assert token.lifetime == (None if lifetime is None else pytest.approx(lifetime, abs=20))
    assert token.text not in repr(token)


@pytest.mark.parametrize(
    "printed",
    ["", "two words", "a\x01b", '{"token": "x"}', "{", "[1]", "[" * 50_000, "x" * 70_000],
    ids=["nothing", "words", "control", "other key", "half", "list", "nested", "long"],
)
async def test_what_is_no_token_is_refused_and_not_repeated(printed: str) -> None:
    with pytest.raises(TokenUnavailable, match="printed no access token") as refused:
        await prints(printed).fetch()
    assert not printed or printed not in str(refused.value)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("no-such-program",), "cannot be started: No such file or directory"),
        (("/bin/sh", "-c", "echo secret; exit 3"), "ended with exit code 3"),
        (("/bin/sh", "-c", "sleep 60 & echo secret"), "did not end within"),
        (("yes",), "printed no access token"),
    ],
    ids=["missing", "fails", "leaves a child", "endless"],
)
async def test_a_program_that_prints_no_token_is_named(command, said, monkeypatch):
    monkeypatch.setattr(tokens, "TOKEN_DEADLINE", 2.0)
    with pytest.raises(TokenUnavailable, match=said) as failed:
        await CommandTokens(command, Path()).fetch()
    assert "secret" not in str(failed.value)


async def test_one_request_serves_all_who_wait_even_if_one_gives_up() -> None:
    source = Source()
    source.free.clear()
    all_tokens = Tokens(source)
    first, *others = [asyncio.create_task(all_tokens.token()) for _ in range(5)]
    await asyncio.sleep(0)
    first.cancel()
    source.free.set()
    assert await asyncio.gather(*others) == ["token1"] * 4
    assert source.asked == 1


async def test_an_unexpected_error_of_a_source_is_named_and_asked_again_after_a_pause(clock):
    source = Source()
    source.failure = RuntimeError("can't start new thread: secret")
    provider = Tokens(source)
    for _ in range(2):
        with pytest.raises(TokenUnavailable, match=r"no access token \(RuntimeError\)$"):
            await provider.token()
    assert source.asked == 1
    source.failure = None
    clock[0] += tokens.RETRY_PAUSE
    assert await provider.token() == "token2"


async def test_a_token_is_renewed_in_the_background_before_it_expires(clock: list[float]) -> None:
    source = Source()
    provider = Tokens(source, {"logicalCluster": "lkc-1"})
    assert provider.extensions() == {"logicalCluster": "lkc-1"}
    assert await provider.token() == "token1"
    clock[0] += 60
    assert await provider.token() == "token1"
    source.free.clear()
    clock[0] += 11  # more than 70 % of its lifetime
    for _ in range(3):
        assert await asyncio.wait_for(provider.token(), 1) == "token1"
        await asyncio.sleep(0)
    assert source.asked == 2
    source.free.set()
    await asyncio.sleep(0.01)
    assert await provider.token() == "token2"


async def test_a_token_of_unknown_lifetime_is_used_for_a_minute(clock: list[float]) -> None:
    source = Source(None)
    provider = Tokens(source)
    await provider.token()
    clock[0] += 53.9
    source.free.clear()
    assert await provider.token() == "token1"
    source.free.set()
    clock[0] += 0.2
    assert await provider.token() == "token2"


async def test_a_failed_source_is_asked_again_after_a_pause_and_a_valid_token_stays_in_use(clock, caplog):
    source = Source()
    provider = Tokens(source)
    await provider.token()
    source.failure = TokenUnavailable("the endpoint is down")
    clock[0] += 75
    for _ in range(10):
        assert await provider.token() == "token1"
        await asyncio.sleep(0)
    assert source.asked == 2
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "valid_seconds=15" in caplog.text
    clock[0] += 15
    for _ in range(3):
        with pytest.raises(TokenUnavailable, match="the endpoint is down"):
            await provider.token()
    assert source.asked == 3
    clock[0] += tokens.RETRY_PAUSE
    source.failure = None
    assert await provider.token() == "token4"


async def test_a_token_that_the_brokers_refused_is_not_used_again(clock: list[float]) -> None:
    source = Source()
    provider = Tokens(source)
    assert await provider.token() == "token1"
    refusal = provider.refused()
    for _ in range(3):
        with pytest.raises(TokenRefused, match="brokers refused the access token"):
            await provider.token()
    assert source.asked == 1
    clock[0] += tokens.RETRY_PAUSE
    assert await provider.token() == "token2"
    assert "token1" not in str(refusal)


def test_a_refused_token_is_described_by_its_claims_alone() -> None:
    provider = Tokens(Source())
    issued = ISSUER.token(aud=["a", "b\x1b"], exp=time.time() - 30)
    provider._token = Token(issued, 1.0)
    said = str(provider.refused())
    assert "aud 'a b?'" in said
    assert " s ago" in said
    assert issued not in said
    assert str(provider.refused()) == said
    assert all(claims(text) == {} for text in ("a.b.c", "a.b", "a.e30.c.d", "a.W10.c", "a.\x80.c"))


# --- the token endpoint


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with Issuer().serving() as issuer:
        yield issuer


@pytest.fixture
def endpoint(issuer: Issuer, tmp_path: Path) -> ClientCredentials:
    (tmp_path / "secret").write_text(SECRET + "\nrest\n")
    return ClientCredentials(issuer.url + "/token", "me", tmp_path / "secret", "kafka read")


@pytest.mark.loopback
async def test_a_token_endpoint_is_asked_with_the_clients_credentials(issuer, endpoint):
    issuer.lifetime = 300
    token = await endpoint.fetch()
    assert claims(token.text)["sub"] == "svt"
    assert token.lifetime == 300
    [form] = issuer.asked
    assert (form["grant_type"], form["scope"]) == (["client_credentials"], ["kafka read"])


@pytest.mark.loopback
async def test_a_new_client_secret_is_read_without_a_restart(issuer, endpoint):
    endpoint.secret_file.write_text("old")
    with pytest.raises(TokenRefused, match=r"refused the client \(401 invalid_client\); check kafka.oauth"):
        await endpoint.fetch()
    endpoint.secret_file.write_text(SECRET)
    assert await endpoint.fetch()
    endpoint.secret_file.unlink()
    with pytest.raises(
        TokenUnavailable, match=r"cannot read kafka\.oauth_client_secret_file .*: No such file"
    ):
        await endpoint.fetch()


@pytest.mark.loopback
@pytest.mark.parametrize(
    ("answer", "kind", "said"),
    [
        ((400, {"error": "invalid_scope"}), TokenRefused, "refused the client .400 invalid_scope"),
        ((403, b"<html>secret"), TokenRefused, "refused the client .403.;"),
        ((400, {"error": "the secret is"}), TokenRefused, "refused the client .400.;"),
        ((503, b""), TokenUnavailable, "answered 503"),
        ((302, b""), TokenUnavailable, "answered 302"),
        ((200, {"access_token": "secret thing"}), TokenUnavailable, "returned no access token"),
        ((200, ["secret"]), TokenUnavailable, "returned no access token"),
        ((200, b"x" * 200_000), TokenUnavailable, "returned no access token"),
    ],
    ids=["scope", "page", "text", "down", "elsewhere", "no token", "list", "long"],
)
async def test_an_endpoint_without_a_token_is_named_and_its_answer_is_not_repeated(
    issuer, endpoint, answer, kind, said
):
    issuer.answer = answer
    with pytest.raises(kind, match=said) as failed:
        await endpoint.fetch()
    assert "secret " not in str(failed.value)


@pytest.mark.loopback
async def test_a_slow_or_missing_endpoint_is_named(issuer, endpoint, monkeypatch):
    monkeypatch.setattr(tokens, "TOKEN_DEADLINE", 0.2)
    issuer.delay = 0.5
    with pytest.raises(TokenUnavailable, match=f"{issuer.url}/token of kafka.oauth_token_url did not answer"):
        await endpoint.fetch()
    gone = ClientCredentials("http://127.0.0.1:1/token", "me", endpoint.secret_file)
    with pytest.raises(TokenUnavailable, match=r"cannot be reached \(ClientConnectorError\)"):
        await gone.fetch()


@pytest.mark.loopback
async def test_an_endpoint_with_an_authority_of_its_own_is_trusted_by_its_file_only(tmp_path: Path) -> None:
    authority = Authority.new()
    (tmp_path / "store.pem").write_bytes(authority.broker_store())
    (tmp_path / "ca.pem").write_bytes(authority.pem)
    (tmp_path / "secret").write_text(SECRET)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "store.pem")
    with Issuer().serving(server) as issuer:
        asked = (f"{issuer.url}/token", "me", tmp_path / "secret", None)
        trusting = tls_context(tmp_path / "ca.pem")
        assert (await ClientCredentials(*asked, trusting).fetch()).lifetime == 3600
        with pytest.raises(TokenUnavailable, match=r"not trusted; set kafka\.oauth_ca_file"):
            await ClientCredentials(*asked).fetch()
    await connections_closed()


# --- Amazon MSK


def _signature(secret: str, region: str, query: dict[str, str]) -> str:
    """Sign a request as AWS's Signature Version 4 describes it, without AWS's library."""
    date, host = query["X-Amz-Date"], f"kafka.{region}.amazonaws.com"
    named = "&".join(f"{quote(name, safe='')}={quote(query[name], safe='')}" for name in sorted(query))
    body = hashlib.sha256(b"").hexdigest()
    request = f"GET\n/\n{named}\nhost:{host}\n\nhost\n{body}"
    scope = f"{date[:8]}/{region}/kafka-cluster/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{date}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
    key = f"AWS4{secret}".encode()
    for part in (*scope.split("/"), text):
        key = hmac.digest(key, part.encode(), "sha256")
    return key.hex()


async def test_a_token_for_msk_is_a_request_signed_with_the_credentials_of_the_environment(monkeypatch):
    """It is computed here from AWS's description, too; nothing is sent."""
    secret = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    monkeypatch.setenv("AWS_SESSION_TOKEN", "session/token")
    token = await MskTokens("eu-west-1").fetch()
    assert token.lifetime == pytest.approx(900, abs=60)
    url = urlsplit(base64.urlsafe_b64decode(token.text + "=" * (-len(token.text) % 4)).decode())
    query = dict(parse_qsl(url.query))
    assert (url.scheme, url.netloc) == ("https", "kafka.eu-west-1.amazonaws.com")
    assert query.pop("User-Agent").startswith("aws-msk-iam-sasl-signer-python/")
    assert (query["Action"], query["X-Amz-Expires"]) == ("kafka-cluster:Connect", "900")
    assert query["X-Amz-Credential"].startswith("AKIDEXAMPLE/")
    assert query.pop("X-Amz-Signature") == _signature(secret, "eu-west-1", query)


async def test_missing_credentials_for_msk_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(TokenUnavailable, match="no token for AWS_MSK_IAM could be signed"):
        await MskTokens("eu-west-1").fetch()
