"""A configuration is applied on a real broker: to running workers, one after the other, signed, and whatever dies."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stream_svt.application.config import Config, load_config, parse_config
from stream_svt.application.signatures import signing_key
from stream_svt.cli.configuring import apply_file
from stream_svt.errors import ConfigError
from stream_svt.monitor.released import EventType
from stream_svt.protocol.configuration import Bundle, Version, records
from stream_svt.worker.config_versions import (
    Overtaken,
    Proposal,
    follow,
    newest,
    propose,
    publish,
    read,
    read_versions,
)
from stream_svt.worker.ports import context_of, verifier_of
from tests.support.keys import ed25519_pair
from tests.support.process import applied
from tests.support.worker import HIGH, Scene, complaint, until

pytestmark = pytest.mark.kafka


@pytest.fixture
def file(scene: Scene) -> Path:
    return scene.write()


def write(file: Path, text: str) -> None:
    file.write_text(text)


async def commit(config: Config, proposal: Proposal, **options: Any) -> Version:
    return await publish(config, config.cluster(), proposal.bundle, before=proposal.before, **options)


async def proposed(config: Config) -> Proposal:
    return await propose(config, config.cluster())


def _more(scene: Scene) -> str:
    """Return a configuration with one more dataset, and one more monitor that reads it on another topic."""
    monitor = scene.text().partition("monitors:\n")[2].replace(".counts", ".others")
    other = monitor.replace("name: hot", "name: other\n    datasets: [d]")
    return scene.text(datasets="a, b, c, d", threshold=700) + other


async def test_what_is_applied_is_what_every_worker_runs(scene: Scene, file: Path, stream_svt) -> None:
    """Workers know their brokers only; datasets, monitors and query topics come while they run."""

    async def applies(*options: str) -> str:
        ended = await stream_svt("apply", "--yes", "-c", file, *options)
        assert ended.code == 0, ended
        return ended.out

    services = []
    for known in (scene.write(), scene.write()):
        text = known.read_text()
        known.write_text(text[: text.index("datasets:")] + text[text.index("web:") :])
        services.append(scene.serve(file=known, applies=False))
    first, second = services
    for service in services:
        await service.until(
            lambda service=service: "waits for a configuration" in (service.fetch("/health/ready") or "")
        )
    write(file, scene.text().replace("cutoff: 3", "cutoff: none"))
    ended = await stream_svt("apply", "-c", file, "--yes")
    assert (ended.code, "monitors[0].cutoff" in ended.err) == (2, True)
    write(file, scene.text())
    ended = await stream_svt("apply", "-c", file)  # nobody can answer
    assert (ended.code, "not confirmed; nothing was changed" in ended.err) == (1, True)
    assert "note ledger: a dataset must belong to this application alone" in ended.err  # as check says it
    assert (await stream_svt("config", "-c", file)).code == 1
    assert "Version 1 of" in await applies()
    for service in services:
        await service.ready()
    await scene.send("a", HIGH)
    await first.until(lambda: sum(one.offsets(scene.queries) for one in services) == 1)

    write(file, _more(scene))
    refused = await stream_svt("apply", "-c", file, "--dry-run")
    assert refused.code == 2
    assert f"topic '{scene.application}.others' does not exist" in refused.err
    said = await applies("--create-topics")
    assert "~ monitor hot\n    threshold: 5000 -> 700" in said
    assert f"+ monitor other on topic {scene.application}.others" in said
    assert "+ dataset d: epsilon 4 each, for one basket" in said
    assert "Adopted by 2 of 2 shards." in said
    await scene.send("a", 2_000)
    await scene.send("d", HIGH, topic=f"{scene.application}.others")
    await first.until(lambda: sum(one.offsets(scene.queries) for one in services) == 2)
    await first.until(lambda: sum(one.offsets(f"{scene.application}.others") for one in services) == 1)
    alerts = {(alert.dataset, alert.monitor, alert.threshold) for alert in await scene.alerts()}
    assert alerts == {("a", "hot", 5000), ("a", "hot", 700), ("d", "other", 5000)}

    again = await stream_svt("apply", "-c", file)
    assert (again.code, "No change: the file is the same as that version" in again.err) == (0, True)
    shown = await stream_svt("config", "-c", file)
    assert shown.err.startswith("Version 2, digest ")
    assert shown.out.startswith(f"application: {scene.application}\ndatasets:\n")
    assert "kafka:" not in shown.out

    without = scene.text(datasets="a, b, c", threshold=700)
    write(file, without)
    unasked = await stream_svt("apply", "-c", file, "--yes")
    assert (unasked.code, "dataset d would be retired permanently" in unasked.err) == (2, True)
    with pytest.raises(ConfigError, match="if that is intended, use 'stream-svt apply'"):
        await asyncio.to_thread(apply_file, file)
    said = await applies("--retire")
    assert "- dataset d\n    permanently: no later version can declare the name again" in said
    write(file, _more(scene))
    again = await stream_svt("apply", "-c", file, "--yes")
    assert (again.code, "dataset d retired by an earlier version" in again.err) == (2, True)
    write(file, without)
    audited = await stream_svt("audit", "-c", file, "--state")
    assert audited.code == 0, audited

    write(file, without.replace("threshold: 700", "threshold: 800"))
    applying = asyncio.create_task(asyncio.to_thread(applied, file))
    await second.until(lambda: second.said("event=configuration_read version=4"))
    await first.end(signal.SIGKILL)
    assert "Adopted by 2 of 2 shards." in await applying
    adopted = [
        (event.shard, event.data.detail["number"])
        for event in await scene.events()
        if event.type == EventType.CONFIGURATION_ADOPTED
    ]
    assert sorted(adopted) == [(shard, number) for shard in range(2) for number in (1, 2, 3, 4)]
    about_d = [event.type for event in await scene.events() if event.data.dataset == "d"]
    assert about_d[-2:] == [EventType.RUN_CLOSED, EventType.RETIRED]


async def test_of_two_operators_the_second_is_refused_until_he_has_seen_the_first(scene, file):
    config, brokers = scene.config(), scene.config().cluster()
    proposals = [await proposed(scene.config(threshold=threshold)) for threshold in (100, 200)]
    outcomes = await asyncio.gather(*(commit(config, one) for one in proposals), return_exceptions=True)
    (version,) = [one for one in outcomes if isinstance(one, Version)]

    async def is_read() -> bool:
        return newest(await read_versions(config, brokers), config.topics.config) == version

    await until(is_read)  # a commit returns before its marks are written
    with pytest.raises(Overtaken, match="version 1 is there now"):
        await commit(config, proposals[1])
    seen = await proposed(scene.config(threshold=200))
    assert (await commit(config, seen._replace(bundle=Bundle("text")))).number == 2


async def test_a_configuration_topic_created_again_is_seen_and_a_file_is_applied_above_it(scene, file):
    """Shards that adopted version 3 refuse a version 1; also an unchanged file gets a new number then."""
    config, brokers = scene.config(), scene.config().cluster()
    await scene.apply(await scene.start(config), scene.config(threshold=700), number=3)
    await scene.released(EventType.CONFIGURATION_ADOPTED, 2)
    with pytest.raises(
        ConfigError, match=r"0, 1 adopted version 3, and version 1 would be refused: .* --above 3"
    ):
        await propose(config, brokers)
    proposal = await propose(config, brokers, above=3)
    assert (await commit(config, proposal, above=3)).number == 4
    assert [(await propose(config, brokers, above)).is_new for above in (0, 3, 4)] == [
        False,
        False,
        True,
    ]


async def test_the_partitioner_of_an_application_never_changes(scene: Scene, file: Path) -> None:
    """Neither a file nor a worker with another one gets in: no dataset has a second ledger on another shard."""
    config, other = scene.config(), scene.config(partitioner="crc32")
    version = await commit(config, await proposed(config))
    with pytest.raises(
        ConfigError, match=r"topics\.partitioner: is crc32, and the application began with murmur2"
    ):
        await proposed(other)
    worker = await scene.start(parse_config(scene.text(partitioner="crc32"), is_whole=False), ready=False)
    with pytest.raises(ConfigError, match="began with murmur2"):
        await worker.adopt(await read(version, scene.partitions))
    await until(lambda: "began with murmur2" in complaint(worker))
    assert not worker.statuses()
    await scene.stop(worker)
    await scene.start(config)
    await scene.released(EventType.STATE_BEGUN)  # published by the second transaction
    begun = [data.detail for data in await scene.told(EventType.STATE_BEGUN)]
    assert {(one["partitions"], one["partitioner"]) for one in begun} == {(scene.partitions, "murmur2")}
    await scene.stop(scene.workers[0])
    worker = await scene.start(other, ready=False)  # whoever trusts a file instead of the topic
    await until(lambda: "this worker has 2 and crc32" in complaint(worker))
    assert not worker.statuses()


async def test_a_version_that_nobody_signed_who_may_is_not_followed(scene: Scene) -> None:
    private, public = ed25519_pair()
    (scene.directory / "alice.pub").write_text(public)
    file = scene.write(more="control: {keys: [alice.pub]}\n")
    config = load_config(file)
    brokers = config.cluster()
    follower = follow(load_config(file, is_whole=False), brokers)
    waiting = asyncio.ensure_future(anext(follower))
    forged = Bundle(scene.text(threshold=1))
    await publish(scene.config(), brokers, forged, before=None)
    await asyncio.sleep(2.0)
    assert not waiting.done()
    proposal = await proposed(config)
    assert proposal.before is None
    version = await commit(config, proposal, above=1, key=signing_key(private))
    assert await asyncio.wait_for(waiting, 20) == version
    # Its copy in another application's topic is not followed there.
    elsewhere = replace(config, topics=config.topics.model_copy(update={"config": scene.queries}))
    current = next(value for name, value in records(version) if name == b"current") or b""
    header = signing_key(private).header(context_of(config, "c", config.topics.config, 0), current)
    record: Any = SimpleNamespace(value=current, headers=(header,))
    assert verifier_of(config, "c", config.topics.config, 0)(record) is None
    assert verifier_of(elsewhere, "c", elsewhere.topics.config, 0)(record) is not None
    await follower.aclose()


async def test_nothing_is_applied_while_a_worker_runs_that_cannot_read_it(scene, file, monkeypatch):
    monkeypatch.setattr("stream_svt.worker.group.FORMAT", 0)
    await scene.start()
    with pytest.raises(
        ConfigError, match=r"workers of an older release cannot read this configuration: .* at 127"
    ):
        await proposed(scene.config())
    await scene.stop(scene.workers[0])
    monkeypatch.undo()
    await scene.start()
    assert (await proposed(scene.config())).is_new


async def test_a_configuration_of_many_names_arrives_whole(scene: Scene, file: Path) -> None:
    names = [sha256(b"%d" % number).hexdigest()[:24] for number in range(60_000)]  # hard to compress
    (scene.directory / "names.txt").write_text("\n".join(names))
    write(file, scene.text().replace("names: [a, b, c]", "file: names.txt"))
    config, brokers = load_config(file), load_config(file).cluster()
    version = await commit(config, await proposed(config))
    assert len(list(records(version))) > 2  # of one version, no record may be missing
    found = newest(await read_versions(config, brokers), config.topics.config)
    assert found == version
    assert [dataset.name for dataset in (await read(found, 1)).declared.datasets] == names
    before = (await read_versions(config, brokers)).current
    smaller = await publish(config, brokers, Bundle(scene.text()), before=before)
    assert newest(await read_versions(config, brokers), config.topics.config) == smaller
