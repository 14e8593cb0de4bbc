"""The stack for one machine: valid, closed to the network, in line with what it mounts."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from compose_spec import PyCompose

from stream_svt.application.config import parse_config
from stream_svt.demo.scenario import ITEMS, Setting
from stream_svt.forward.config import load_forward_config
from stream_svt.hosting.hosted import STOP_DEADLINE
from stream_svt.kafka.embedded import KAFKA_VERSION

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docker-compose.yml"
COMPOSE: dict[str, Any] = yaml.safe_load(FILE.read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
WORKERS = ["worker-1", "worker-2"]
IMAGE = "stream-svt:local"
OURS = sorted(name for name, service in SERVICES.items() if service["image"] == IMAGE)
MONITORS = ROOT / "deploy" / "compose" / "monitors.yaml"
MAKE_SECRETS = ROOT / "deploy" / "compose" / "make-secrets"


OWNED = {
    "apache/kafka": {
        "/var/lib/kafka/data": (1000, 0),
        "/opt/kafka/config": (1000, 1000),
    },  # no /opt/kafka/logs
    "prom/prometheus": {"/prometheus": (65534, 65534)},
    "prom/alertmanager": {"/alertmanager": (65534, 65534)},
    "grafana/grafana": {"/var/lib/grafana": (472, 0)},
}
"""Owner and group of directories in images, as their Dockerfiles say.

A new volume takes owner and mode of the image's directory, and is root's where the image has none.
"""


def mounts(service: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return the mounts as (source, target, mode)."""
    parts = [volume.split(":") for volume in service.get("volumes", [])]
    return [(source, target, mode[0] if mode else "rw") for source, target, *mode in parts]


def test_the_file_keeps_to_the_specification_of_today():
    """Merge keys are YAML's, which the parser of Compose leaves to others."""
    PyCompose.from_json(json.dumps(COMPOSE)).validate()


# It is closed


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_a_container_can_do_no_more_than_it_must(name):
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]
    assert not service.keys() & {"cap_add", "privileged", "network_mode", "pid"}
    assert service["user"].partition(":")[0] not in {"0", "root"}
    assert service["mem_limit"]
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
    assert service["image"].rpartition(":")[2] not in {"latest", service["image"]}
    assert not [source for source, _, _ in mounts(service) if source.startswith(("/", "~"))]
    assert {mode for source, _, mode in mounts(service) if source.startswith(".")} <= {"ro"}
    secrets = [key for key in service.get("environment", {}) if "password" in key.lower()]
    assert all(key.endswith("__FILE") for key in secrets)


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_a_container_may_write_to_what_it_is_given_to_write_to(name):
    service = SERVICES[name]
    user, owned = service["user"].partition(":")[0], OWNED.get(service["image"].rpartition(":")[0], {})
    for mount in service.get("tmpfs", []):
        target, _, text = mount.partition(":")
        options = dict(option.partition("=")[::2] for option in text.split(",") if option)
        if target == "/tmp":  # noqa: S108  everybody's, in an image and as a tmpfs
            assert int(options.get("mode", "1777"), 8) & 0o002
        else:  # it takes the mode of the image's directory
            assert options["uid"] == user, target
    for source, target, mode in mounts(service):
        if mode == "rw":
            assert not source.startswith(".")
            assert str(owned[target][0]) == user, target


def test_kafka_is_the_version_that_the_tests_start_and_writes_to_writable_mounts_only():
    """The logger and the collector write to LOG_DIR, ``docker/jvm/launch`` to the settings, Java to /tmp."""
    kafka = SERVICES["kafka"]
    assert kafka["image"] == SERVICES["raw-topic"]["image"] == f"apache/kafka:{KAFKA_VERSION}"
    environment = kafka["environment"]
    places = [mount.partition(":")[0] for mount in kafka["tmpfs"]]
    places += [target for _, target, mode in mounts(kafka) if mode == "rw"]
    for path in (environment["LOG_DIR"], environment["KAFKA_LOG_DIRS"], "/opt/kafka/config", "/tmp"):  # noqa: S108
        assert any(Path(path).is_relative_to(place) for place in places), path
    # Ten files of 100 MB each would stand in the memory of the container.
    assert "-loggc" not in environment["EXTRA_ARGS"]


def test_only_workers_and_the_forwarder_stand_between_what_is_trusted_and_what_is_released():
    both = {name for name, service in SERVICES.items() if len(service["networks"]) > 1}
    trusted = {name for name, service in SERVICES.items() if service["networks"] == ["trusted"]}
    assert both == {*WORKERS, "forward"}
    assert trusted == {"kafka", "raw-topic", "apply", "feed", "counter", "prometheus-trusted"}
    assert SERVICES["forward"]["secrets"] == SERVICES["counter"]["secrets"] == []


def test_secrets_are_files_that_no_commit_takes_along():
    for secret in COMPOSE["secrets"].values():
        path = Path(secret["file"])
        assert path.parent == Path("deploy/compose/secrets")
        ignored = subprocess.run(["git", "check-ignore", "-q", str(path)], cwd=ROOT, check=False)
        assert ignored.returncode == 0
    used = {name for service in SERVICES.values() for name in service.get("secrets", [])}
    assert used == set(COMPOSE["secrets"])


def test_secrets_are_made_once_and_kept_from_other_users(tmp_path):
    script = shutil.copy(MAKE_SECRETS, tmp_path / "make-secrets")
    subprocess.run([script], check=True, capture_output=True)
    directory = tmp_path / "secrets"
    made = {path.name: path.read_text() for path in directory.iterdir()}
    assert set(made) == {Path(secret["file"]).name for secret in COMPOSE["secrets"].values()}
    assert all(len(bytes.fromhex(text)) == 32 for text in made.values())
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    # Readable inside a container, whatever its user; outside, the directory is closed.
    assert {stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()} == {0o444}
    subprocess.run([script], check=True, capture_output=True)
    assert {path.name: path.read_text() for path in directory.iterdir()} == made


# It fits together


def test_what_is_mounted_exists():
    places = [source for service in SERVICES.values() for source, _, _ in mounts(service)]
    for place in places:
        assert (ROOT / place).exists() if place.startswith(".") else place in COMPOSE["volumes"], place


def test_the_image_is_built_once_then_topics_are_made_then_workers_start_then_events_come():
    def waits(name: str) -> dict[str, str]:
        return {other: how["condition"] for other, how in SERVICES[name].get("depends_on", {}).items()}

    def after(name: str) -> set[str]:
        return set(waits(name)).union(*map(after, waits(name)))

    assert [name for name, service in SERVICES.items() if "build" in service] == ["apply"]
    assert (SERVICES["apply"]["build"], SERVICES["apply"]["pull_policy"]) == (".", "build")
    for name in set(OURS) - {"apply"}:
        assert SERVICES[name]["pull_policy"] == "never"
        assert "apply" in after(name)
    assert waits("apply") == {"kafka": "service_healthy"}
    for name in WORKERS:
        assert waits(name) == {"apply": "service_completed_successfully"}
    assert waits("counter") == dict.fromkeys(("apply", "raw-topic"), "service_completed_successfully")
    assert waits("raw-topic") == {"kafka": "service_healthy"}
    assert waits("feed") == dict.fromkeys((*WORKERS, "counter"), "service_healthy")
    assert "--create-topics" in SERVICES["apply"]["command"]


def test_a_worker_has_time_to_hand_over_and_workers_differ_by_the_port_of_this_machine_alone():
    assert int(SERVICES[WORKERS[0]]["stop_grace_period"].removesuffix("s")) >= STOP_DEADLINE + 10
    first, second = (dict(SERVICES[name]) for name in WORKERS)
    assert first.pop("ports") != second.pop("ports")
    assert first == second


def test_the_monitors_are_the_demos(tmp_path):
    (tmp_path / "sealing_key").write_text("00" * 32)
    text = MONITORS.read_text()
    assert "/run/secrets/sealing_key" in text
    assert "sealing_key" in SERVICES[WORKERS[0]]["secrets"]
    [items] = [
        source for source, target, _ in mounts(SERVICES["apply"]) if target == "/etc/stream-svt/items.txt"
    ]
    assert (ROOT / items).read_text().splitlines() == [*ITEMS]
    config = parse_config(
        text.replace("/run/secrets", str(tmp_path)).replace("/etc/stream-svt/items.txt", str(ROOT / items))
    )
    demo = yaml.safe_load(Setting().yaml())
    ours = yaml.safe_load(text)
    for dataset in ours["datasets"]:
        del dataset["horizon"]  # the demo's weeks pass too quickly for burn rates
    [source], [of_demo] = ours["sources"], demo["sources"]
    assert source.pop("window") == "1m"
    assert of_demo.pop("window") == "3s"
    assert source["series"].pop("file") == "/etc/stream-svt/items.txt"
    assert of_demo["series"].pop("file") == "items.txt"
    raw = SERVICES["raw-topic"]["command"]
    assert {f"--topic={source['topic']}", "--config=message.timestamp.type=LogAppendTime"} <= {*raw}
    for part in ("application", "topics", "sources", "datasets", "monitors"):
        assert ours[part] == demo[part]
    assert config.web.host == "0.0.0.0"  # noqa: S104  of the container
    [server] = config.kafka.bootstrap_servers
    assert f"CONTAINERS://{server}" in SERVICES["kafka"]["environment"]["KAFKA_ADVERTISED_LISTENERS"].split(
        ","
    )


def test_prometheus_looks_for_workers_and_alertmanager_where_they_are():
    prometheus = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    [scraped] = prometheus["scrape_configs"]
    workers, forwarders = ((one["names"], one["type"], one["port"]) for one in scraped["dns_sd_configs"])
    aliases = SERVICES[WORKERS[0]]["networks"]["released"]["aliases"]
    assert workers == (aliases, "A", yaml.safe_load(MONITORS.read_text())["web"]["port"])
    forwarding = load_forward_config(ROOT / mounts(SERVICES["forward"])[0][0])
    assert forwarders == (["forward"], "A", forwarding.web.port)
    assert "released" in SERVICES["forward"]["networks"]
    [alerting] = prometheus["alerting"]["alertmanagers"]
    assert alerting["static_configs"] == [{"targets": ["alertmanager:9093"]}]
    [(source, target, _), _] = mounts(SERVICES["prometheus"])
    assert f"--config.file={target}/prometheus.yml" in SERVICES["prometheus"]["command"]
    for pattern in prometheus["rule_files"]:
        assert list((ROOT / source).glob(pattern))


def test_a_prometheus_of_the_trusted_zone_looks_for_the_counter_on_its_port():
    [scraped] = yaml.safe_load((ROOT / "deploy/prometheus/trusted.yml").read_text())["scrape_configs"]
    [looked_up] = scraped["dns_sd_configs"]
    port = yaml.safe_load(MONITORS.read_text())["web"]["port"] + 2
    assert looked_up == {"names": ["counter"], "type": "A", "port": port}
    assert [one.rpartition(":")[2] for one in SERVICES["counter"]["ports"]] == [str(port)]
    assert f":{port}/health/ready" in SERVICES["counter"]["healthcheck"]["test"][-1]
    [(source, target, _), (data, _, _)] = mounts(SERVICES["prometheus-trusted"])
    assert data != mounts(SERVICES["prometheus"])[1][0]
    assert f"--config.file={target}/trusted.yml" in SERVICES["prometheus-trusted"]["command"]
    assert (ROOT / source / "trusted.yml").exists()


def test_grafana_finds_its_data_and_its_dashboards():
    provisioning = ROOT / "deploy" / "grafana" / "provisioning"
    [source] = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert (source["type"], source["isDefault"], source["editable"]) == ("prometheus", True, False)
    scraped = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text())["global"]
    # The shortest rate that a dashboard shows follows from it.
    assert source["jsonData"]["timeInterval"] == scraped["scrape_interval"]
    [provider] = yaml.safe_load((provisioning / "dashboards" / "stream-svt.yml").read_text())["providers"]
    assert provider["allowUiUpdates"] is False
    targets = {target: source for source, target, _ in mounts(SERVICES["grafana"])}
    assert list((ROOT / targets[provider["options"]["path"]]).glob("*.json"))
    assert targets["/etc/grafana/provisioning"] == "./deploy/grafana/provisioning"


def test_no_variable_of_this_machine_changes_the_file():
    assert "$" not in FILE.read_text()
    assert "env_file" not in str(COMPOSE)
    assert not os.path.lexists(ROOT / "docker-compose.override.yml")
