"""Logins with access tokens, on a broker that verifies them and ends sessions after seconds."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable

import pytest
import yaml
from aiokafka import TopicPartition

from stream_svt.application.config import Config, parse_config
from stream_svt.kafka import clients as kafka
from stream_svt.kafka import tokens
from stream_svt.kafka.aiokafka_fixes import apply_fixes
from stream_svt.kafka.clients import BrokerUnavailable, LoginRefused
from stream_svt.subscription import subscribe
from tests.support.issuer import SECRET, Issuer
from tests.support.keys import write_secrets
from tests.support.permissions import WORKER, allow_all
from tests.support.tls import PASSWORD, SESSION, SecureKafka
from tests.support.worker import HIGH, LOW, Scene

pytestmark = pytest.mark.kafka
COMMAND = "oauth_token_command: [cat, token]"


@pytest.fixture
async def scene(scenes, secure_broker: SecureKafka, issuer: Issuer) -> AsyncIterator[Scene]:
    scene = await scenes(on=secure_broker, partitions=1)
    write_secrets(scene.directory, {"secret": SECRET})
    await allow_all(scene.servers, "svt", scene.application, WORKER)
    yield scene
    issuer.lifetime, issuer.answer, issuer.delay = 3600.0, None, 0.0


@pytest.fixture
def config(secure_broker: SecureKafka, scene: Scene, issuer: Issuer) -> Callable[..., Config]:
    """Return the configuration with a source of tokens, by default the token endpoint."""
    apply_fixes()
    endpoint = f"oauth_token_url: {issuer.url}/token, oauth_client_id: me, oauth_client_secret_file: secret"

    def with_tokens(source: str = endpoint) -> Config:
        text = secure_broker.with_tokens(scene.text(), scene.directory, source)
        return parse_config(text, directory=scene.directory)

    return with_tokens


async def test_neither_expired_tokens_nor_ended_sessions_nor_a_slow_endpoint_disturb_a_worker(
    scene, config, issuer, caplog, monkeypatch
):
    """A token takes longer to come than a member of the group may be silent."""
    # The next token comes before the one at hand would shorten sessions to a second, in which a busy machine is late.
    monkeypatch.setattr(tokens, "RENEWAL", 0.25)
    asked, loop = len(issuer.asked), asyncio.get_running_loop()
    issuer.lifetime, issuer.delay = 11.0, 2.5
    worker = await scene.start(config())
    end, sent = loop.time() + 3.3 * SESSION, 0
    while loop.time() < end:
        sent += 1
        await scene.send("a", LOW if sent > 1 else HIGH)
        await scene.settled(worker, sent)
    assert len(issuer.asked) - asked >= 3
    assert len(await scene.alerts()) == 1
    assert [line for line in caplog.messages if "closed" in line or "rejoin" in line] == []


async def test_a_subscriber_the_forwarder_and_commands_log_in_with_the_same_keys(
    secure_broker, scene, config, stream_svt
):
    await scene.begun(HIGH, config=config())
    (scene.directory / "token").write_text(secure_broker.issuer.token())
    subscription = subscribe(
        bootstrap_servers=secure_broker.sasl_bootstrap_servers,
        topic=f"{scene.application}.alerts",
        from_beginning=True,
        security_protocol="SASL_SSL",
        sasl_mechanism="OAUTHBEARER",
        oauth_token_command=["cat", str(scene.directory / "token")],
        ca_file=scene.directory / "ca.pem",
    )
    async with asyncio.timeout(20), subscription:
        assert (await anext(aiter(subscription))).data.dataset == "a"
    text = secure_broker.with_tokens(scene.text(), scene.directory, COMMAND)
    (scene.directory / "shop.yaml").write_text(text)
    ended = await stream_svt("audit", "-c", scene.directory / "shop.yaml")
    assert ended.code == 0, ended
    connection = yaml.safe_dump({"kafka": yaml.safe_load(text)["kafka"]})
    name = scene.application
    forwarder = f"{connection}topic: {name}.alerts\ngroup: {name}\ndestinations: [{{name: a, alertmanager: {{urls: ['http://127.0.0.1:1']}}}}]\n"
    (scene.directory / "forward.yaml").write_text(forwarder)
    await allow_all(scene.servers, "svt", name, [("read", "group", ".a")])
    ended = await stream_svt("forward", "-c", scene.directory / "forward.yaml", "--check")
    assert ended.code == 0, ended


async def test_a_login_is_repeated_on_the_same_connection_before_its_session_ends(
    secure_broker, scene, config, caplog
):
    """No log line has a token or a password, at any level."""
    caplog.set_level(logging.DEBUG, "aiokafka")
    (scene.directory / "token").write_text(issued := secure_broker.issuer.token())
    text = secure_broker.secured(scene.text(), scene.directory, mechanism="SCRAM-SHA-512")
    scram = parse_config(text, directory=scene.directory)
    partition = TopicPartition(scene.queries, 0)

    async def ask(one: Config) -> None:
        async with kafka.started(one.cluster().reader(), "connecting") as reader:
            await kafka.edges(reader, [partition], "asking")
            connections = list(reader._client._conns.values())
            for pause in (0.9 * SESSION, 1.5 * SESSION):  # within a session, and after its end
                await asyncio.sleep(pause)
                await kafka.edges(reader, [partition], "asking")
            assert list(reader._client._conns.values()) == connections != []

    await asyncio.gather(ask(config(COMMAND)), ask(scram))
    assert issued not in caplog.text
    assert PASSWORD not in caplog.text


@pytest.mark.parametrize(
    ("claims", "said"),
    [
        ({"aud": "other"}, "aud 'other'"),
        ({"exp": 1_000_000_000}, "exp [0-9]+ s ago"),
        ({"iss": "https://elsewhere.example"}, "iss 'https://elsewhere.example'"),
        (None, "no claims"),
    ],
    ids=["audience", "expired", "issuer", "garbage"],
)
async def test_a_token_that_the_brokers_refuse_is_described(scene, config, issuer, claims, said):
    token = "garbage" if claims is None else issuer.token(**claims)
    (scene.directory / "token").write_text(token)
    with pytest.raises(LoginRefused, match=f"brokers refused the access token .*{said}") as refused:
        await kafka.cluster_id_of(config(COMMAND).cluster())
    assert token not in str(refused.value)


async def test_a_program_without_a_token_is_named(config):
    with pytest.raises(BrokerUnavailable, match=r"'false' of .*oauth_token_command ended with exit code 1"):
        await kafka.cluster_id_of(config("oauth_token_command: ['false']").cluster())


async def test_a_client_that_the_token_endpoint_refuses_is_told_so(scene, config):
    write_secrets(scene.directory, {"secret": "another secret"})
    with pytest.raises(LoginRefused, match=r"refused the client \(401 invalid_client\)") as refused:
        await kafka.cluster_id_of(config().cluster())
    assert "secret &" not in str(refused.value)
