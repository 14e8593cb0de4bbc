"""The manifests are valid, agree with each other and with the service, and give away no privilege."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from cloudcoil.models.prometheus_operator import v1 as operator

from deploy.kubernetes import rules
from stream_svt.errors import ConfigError
from stream_svt.forward.config import ForwardWebConfig
from stream_svt.service.config import parse_config
from stream_svt.service.hosting import STOP_DEADLINE
from stream_svt.service.web import PAGES
from stream_svt.settings.sections import WebConfig
from tests.support.forwarding import loaded
from tests.support.keys import write_secrets
from tests.support.tls import Authority

ROOT = Path(__file__).parents[2]
HERE = ROOT / "deploy" / "kubernetes"
CONFIG = HERE / "config" / "monitors.yaml"
FORWARD = HERE / "forward" / "forward.yaml"
VERSIONS = ("1.27", "1.31", kubernetes_validate.latest_version())
OF_THE_OPERATOR = ("ServiceMonitor", "PrometheusRule")

PAGE = (ROOT / "docs" / "kubernetes.md").read_text()
[OVERLAY] = re.findall(r"```yaml\n# shop/kustomization.yaml\n(.*?)```", PAGE, re.DOTALL)


def load(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return document


KUSTOMIZATIONS = {path.parent.name: load(path) for path in sorted(HERE.glob("*/kustomization.yaml"))}
MANIFESTS = {
    path.relative_to(HERE).as_posix(): load(path)
    for path in sorted(HERE.rglob("*.yaml"))
    if path.name not in {"kustomization.yaml", "monitors.yaml", "forward.yaml"}
}
CORE = sorted(name for name, document in MANIFESTS.items() if document["kind"] not in OF_THE_OPERATOR)
DEPLOYMENT, JOB = MANIFESTS["service/deployment.yaml"], MANIFESTS["apply/job.yaml"]
PODS = {
    name: MANIFESTS[name]["spec"]["template"]
    for name in ("service/deployment.yaml", "apply/job.yaml", "forward/deployment.yaml")
}
WORKER = PODS["service/deployment.yaml"]
[CONTAINER] = WORKER["spec"]["containers"]


def selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    """Tell whether a selector means a pod; ours use no other operator than In."""
    return selector.get("matchLabels", {}).items() <= labels.items() and all(
        labels.get(wanted["key"]) in wanted["values"] for wanted in selector.get("matchExpressions", [])
    )


# The manifests are what Kubernetes and the operator know


@pytest.mark.parametrize("name", CORE)
@pytest.mark.parametrize("version", VERSIONS)
def test_every_manifest_is_valid(name, version):
    kubernetes_validate.validate(MANIFESTS[name], version, strict=True)


@pytest.mark.parametrize("kind", OF_THE_OPERATOR)
def test_the_resources_of_the_operator_are_valid_and_have_only_fields_that_it_knows(kind):
    [document] = [one for one in MANIFESTS.values() if one["kind"] == kind]
    known = getattr(operator, kind).model_validate(document)
    assert known.model_dump(by_alias=True, exclude_unset=True, mode="json") == document


# Kustomize finds everything


def test_every_manifest_is_named_by_the_kustomization_beside_it_and_exists():
    named = {
        f"{folder}/{name}"
        for folder, document in KUSTOMIZATIONS.items()
        for name in document.get("resources", [])
        if not name.startswith("..")
    }
    # The namespace comes before everything else, the secret included, and outlives what is in it.
    assert named == set(MANIFESTS) - {"namespace.yaml"}
    for folder, document in KUSTOMIZATIONS.items():
        assert document["namespace"] == MANIFESTS["namespace.yaml"]["metadata"]["name"]
        for name in document.get("resources", []):
            assert (HERE / folder / name).exists()


def test_all_pods_run_the_same_image():
    images = [document["images"] for document in KUSTOMIZATIONS.values() if "images" in document]
    assert images == [images[0]] * len(PODS)
    for pod in PODS.values():
        assert [container["image"] for container in pod["spec"]["containers"]] == [images[0][0]["name"]]


def test_what_kustomize_puts_in_is_there():
    generated = {}
    for folder, document in KUSTOMIZATIONS.items():
        for config in document.get("configMapGenerator", []):
            generated[config["name"]] = config["files"]
            assert all((HERE / folder / name).is_file() for name in config["files"])
    for pod in PODS.values():
        volumes = pod["spec"]["volumes"]
        [config] = [volume["configMap"]["name"] for volume in volumes if volume["name"] == "config"]
        assert config in generated


def kubectl(folder: Path) -> list[dict[str, Any]]:
    """Return what kubectl makes of a folder; no registry that tests/run fetches from has it."""
    if not shutil.which("kubectl"):
        pytest.skip("kubectl is not installed")
    done = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


@pytest.mark.parametrize("folder", sorted(KUSTOMIZATIONS))
def test_each_folder_builds(folder):
    built = kubectl(HERE / folder)
    assert all(document["metadata"]["namespace"] == "stream-svt" for document in built)
    for document in built:
        if document["kind"] not in {"Deployment", "Job"}:
            continue
        spec = document["spec"]["template"]["spec"]
        [config] = [volume["configMap"]["name"] for volume in spec["volumes"] if volume["name"] == "config"]
        # A changed configuration has another name: that is what starts the pods anew.
        assert re.fullmatch(r"stream-svt(-forward)?-[a-z0-9]{10}", config)
        assert config in {one["metadata"]["name"] for one in built if one["kind"] == "ConfigMap"}
        assert {one["image"] for one in spec["containers"]} == {"registry.example/stream-svt:0.1.0"}


def test_an_overlay_as_the_page_shows_replaces_configuration_image_and_namespace(tmp_path):
    shutil.copytree(HERE, tmp_path / "stream-svt" / "deploy" / "kubernetes")
    shop = tmp_path / "shop"
    shop.mkdir()
    (shop / "kustomization.yaml").write_text(OVERLAY)
    (shop / "monitors.yaml").write_text("application: shop\n")
    built = kubectl(shop)
    assert len(built) == len(kubectl(HERE / "service"))
    assert {document["metadata"]["namespace"] for document in built} == {"shop"}
    [config] = [document for document in built if document["kind"] == "ConfigMap"]
    assert config["data"] == {"monitors.yaml": "application: shop\n"}
    [deployment] = [document for document in built if document["kind"] == "Deployment"]
    spec = deployment["spec"]["template"]["spec"]
    assert [one["image"] for one in spec["containers"]] == ["registry.shop.example/stream-svt:1.2.0"]
    assert config["metadata"]["name"] in str(spec["volumes"])


# Nothing may do more than it needs


@pytest.mark.parametrize("name", sorted(PODS))
def test_pods_keep_to_the_restricted_profile(name):
    """The pod security standards of Kubernetes, with a closed root and a limit of memory besides."""
    spec = PODS[name]["spec"]
    assert not spec.keys() & {"hostNetwork", "hostPID", "hostIPC", "initContainers"}
    kinds = {kind for volume in spec["volumes"] for kind in volume}
    assert kinds <= {"name", "configMap", "emptyDir", "secret"}
    assert spec["automountServiceAccountToken"] is False
    for container in spec["containers"]:
        own = container["securityContext"]
        both = spec["securityContext"] | own
        assert both["runAsNonRoot"] is True
        assert both["runAsUser"] > 0
        assert both["seccompProfile"] == {"type": "RuntimeDefault"}
        assert own["allowPrivilegeEscalation"] is False
        assert own["capabilities"] == {"drop": ["ALL"]}
        assert own["readOnlyRootFilesystem"] is True
        assert not own.get("privileged")
        assert not any("hostPort" in port for port in container.get("ports", []))
        assert "memory" in container["resources"]["limits"]


def test_the_namespace_takes_restricted_pods_only_and_workers_have_an_account_without_a_token():
    labels = MANIFESTS["namespace.yaml"]["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    account = MANIFESTS["service/serviceaccount.yaml"]
    assert account["automountServiceAccountToken"] is False
    assert WORKER["spec"]["serviceAccountName"] == account["metadata"]["name"]


def test_no_secret_stands_in_a_manifest_and_each_is_a_file_only_the_pod_can_read():
    assert all(document["kind"] != "Secret" for document in MANIFESTS.values())
    for pod in PODS.values():
        spec = pod["spec"]
        [secret] = [volume["secret"] for volume in spec["volumes"] if "secret" in volume]
        assert secret["defaultMode"] == 0o440
        assert spec["securityContext"]["fsGroup"] == spec["securityContext"]["runAsGroup"]
        for container in spec["containers"]:
            assert "env" not in container
            assert "envFrom" not in container
            assert all(mount.get("readOnly") for mount in container["volumeMounts"] if mount["name"] != "tmp")


@pytest.mark.parametrize(
    ("policy", "pods", "config"),
    [
        ("service/networkpolicy.yaml", {"service/deployment.yaml", "apply/job.yaml"}, CONFIG),
        ("forward/networkpolicy.yaml", {"forward/deployment.yaml"}, FORWARD),
    ],
)
def test_a_network_policy_lets_its_pods_reach_names_and_kafka_and_be_reached_by_prometheus(
    policy, pods, config
):
    spec = MANIFESTS[policy]["spec"]
    meant = {name for name, pod in PODS.items() if selects(spec["podSelector"], pod["metadata"]["labels"])}
    assert meant == pods
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    server = load(config)["kafka"]["bootstrap_servers"]
    namespace, port = server.split(".")[1], int(server.rpartition(":")[2])
    dns, kafka, *others = spec["egress"]
    assert {one["port"] for one in dns["ports"]} == {53}
    assert [one["port"] for one in kafka["ports"]] == [port]
    [peer] = kafka["to"]
    assert peer["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": namespace}
    [ingress] = spec["ingress"]
    [container] = PODS[max(pods)]["spec"]["containers"]
    assert [one["port"] for one in ingress["ports"]] == [container["ports"][0]["containerPort"]]
    # The forwarder alone posts to somebody, and only to where its configuration says.
    posted = re.findall(r"http://[\w-]+\.(\w+)\.svc:(\d+)", config.read_text())
    allowed = [
        (rule["to"][0]["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"], str(port["port"]))
        for rule in others
        for port in rule["ports"]
    ]
    assert allowed == posted


# The manifests agree with the service


@pytest.mark.parametrize(
    ("name", "port"),
    [("service/deployment.yaml", WebConfig().port), ("forward/deployment.yaml", ForwardWebConfig().port)],
)
def test_probes_ask_for_pages_on_the_port_that_is_served(name, port):
    probes = {"startup": "/health/live", "liveness": "/health/live", "readiness": "/health/ready"}
    [container] = PODS[name]["spec"]["containers"]
    [served] = container["ports"]
    assert served["containerPort"] == port
    found = {
        key.removesuffix("Probe"): probe["httpGet"] for key, probe in container.items() if "Probe" in key
    }
    assert found == {kind: {"path": path, "port": served["name"]} for kind, path in probes.items()}
    assert set(probes.values()) <= set(PAGES)


def test_a_worker_has_time_to_hand_over_and_different_specifications_never_run_side_by_side():
    assert WORKER["spec"]["terminationGracePeriodSeconds"] >= STOP_DEADLINE + 10
    assert DEPLOYMENT["spec"]["strategy"] == {"type": "Recreate"}


def test_the_service_the_budget_and_the_spread_mean_the_workers_alone():
    labels = WORKER["metadata"]["labels"]
    others = [pod["metadata"]["labels"] for pod in PODS.values() if pod is not WORKER]
    service = MANIFESTS["service/service.yaml"]
    budget = MANIFESTS["service/poddisruptionbudget.yaml"]["spec"]
    spread = WORKER["spec"]["topologySpreadConstraints"]
    meant = [
        {"matchLabels": service["spec"]["selector"]},
        DEPLOYMENT["spec"]["selector"],
        budget["selector"],
        *(one["labelSelector"] for one in spread),
    ]
    for selector in meant:
        assert selects(selector, labels)
        assert not any(selects(selector, of_another) for of_another in others)
    assert budget["maxUnavailable"] < DEPLOYMENT["spec"]["replicas"]


def test_what_is_scraped_is_workers_and_forwarders_under_the_job_that_prometheus_yml_names():
    [scraped] = load(ROOT / "deploy" / "prometheus" / "prometheus.yml")["scrape_configs"]
    monitor = MANIFESTS["monitoring/servicemonitor.yaml"]["spec"]
    [endpoint] = monitor["endpoints"]
    assert endpoint["path"] in PAGES
    ports = {}
    for name in ("service", "forward"):
        service = MANIFESTS[f"{name}/service.yaml"]
        labels = service["metadata"]["labels"]
        assert selects(monitor["selector"], labels)
        assert labels[monitor["jobLabel"]] == scraped["job_name"]
        pod = PODS[f"{name}/deployment.yaml"]
        assert selects({"matchLabels": service["spec"]["selector"]}, pod["metadata"]["labels"])
        [port], [container] = service["spec"]["ports"], pod["spec"]["containers"]
        assert port["name"] == endpoint["port"]
        assert port["targetPort"] == container["ports"][0]["name"]
        ports[port["port"]] = container["ports"][0]["containerPort"]
    assert list(ports) == list(ports.values()) == [one["port"] for one in scraped["dns_sd_configs"]]


@pytest.fixture
def secret(tmp_path) -> Callable[[Path], str]:
    """Return the text of a configuration, with the files of the secret that it names in a directory of this machine."""
    pem = Authority.new().pem.decode()
    write_secrets(tmp_path, {"sealing.key": "00" * 32, "kafka.password": "word", "kafka-ca.pem": pem})

    def text(config: Path) -> str:
        for container in (container for pod in PODS.values() for container in pod["spec"]["containers"]):
            places = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
            assert places["secrets"] == "/run/secrets/stream-svt"
            assert places["config"] == "/etc/stream-svt"
        return config.read_text().replace("/run/secrets/stream-svt", str(tmp_path))

    return text


def test_the_configuration_of_the_workers_is_valid_with_the_files_of_their_secret(secret):
    config = parse_config(secret(CONFIG))
    assert config.notes == ()
    assert config.master_keys
    assert config.topics.replication_factor == 3


def test_the_forwarder_reads_what_the_workers_publish_and_has_no_sealing_key(secret, tmp_path):
    text = secret(FORWARD)
    assert "sealing" not in text
    config = loaded(tmp_path, text)
    assert config.topic == parse_config(secret(CONFIG)).topics.alerts
    names = [
        {volume["secret"]["secretName"] for volume in PODS[name]["spec"]["volumes"] if "secret" in volume}
        for name in ("service/deployment.yaml", "forward/deployment.yaml")
    ]
    assert names[0].isdisjoint(names[1])


def test_variables_that_kubernetes_makes_of_services_cannot_be_taken_for_settings():
    # Of a service named stream-svt-web, say; they are made for every service of the namespace, unless told not to.
    made = {"STREAM_SVT_WEB_SERVICE_HOST": "10.0.0.1", "STREAM_SVT_WEB_PORT": "tcp://10.0.0.1:6066"}
    with pytest.raises(ConfigError, match="STREAM_SVT_WEB_SERVICE_HOST"):
        parse_config(CONFIG.read_text(), environ=made)
    for pod in PODS.values():
        assert pod["spec"]["enableServiceLinks"] is False


# The rules are those of deploy/prometheus


def test_the_prometheus_rule_holds_every_group_as_it_stands():
    """Out of date: `python -m deploy.kubernetes.rules`."""
    groups = [group for path in sorted(rules.RULES.glob("*.yml")) for group in load(path)["groups"]]
    assert groups
    assert MANIFESTS["monitoring/prometheusrule.yaml"]["spec"] == {"groups": groups}
