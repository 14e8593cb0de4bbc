"""The chart, rendered by Helm: its objects are valid, agree with each other and the service, and give no privilege."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from stream_svt.application.config import parse_config
from stream_svt.errors import ConfigError
from stream_svt.forward.config import ForwardWebConfig
from stream_svt.hosting.hosted import STOP_DEADLINE
from stream_svt.settings.sections import WebConfig
from stream_svt.web import PAGES
from tests.support.forwarding import loaded
from tests.support.keys import write_secrets
from tests.support.tls import Authority

pytestmark = pytest.mark.debian
ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "stream-svt"
CONFIG, FORWARD = (CHART.parent / name for name in ("monitors.yaml", "forward.yaml"))
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
VERSIONS = ("1.27", "1.31", kubernetes_validate.latest_version())
OF_THE_OPERATOR = ("ServiceMonitor", "PrometheusRule")
GIVEN = (f"--set-file=config={CONFIG}", f"--set-file=forward.config={FORWARD}")
ALL = (
    *GIVEN,
    "--set=forward.enabled=true,serviceMonitor.enabled=true,prometheusRule.enabled=true",
    "--set=counter.enabled=true,counter.serviceMonitor.enabled=true",
)
Objects = dict[tuple[str, str], dict[str, Any]]
WORKER, APPLY, COUNTER, FORWARDER = "worker", "apply", "counter", "forward"


@pytest.fixture(scope="module")
def helm(debian_program) -> Callable[..., subprocess.CompletedProcess[str]]:
    program = debian_program("helm")

    def run(command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command of Helm on the chart."""
        named = ["shop"] if command == "template" else []
        whole = [program, command, *named, str(CHART), "--kube-version=1.31", *arguments]
        return subprocess.run(whole, capture_output=True, text=True, check=False)

    return run


@pytest.fixture(scope="module")
def render(helm) -> Callable[..., Objects]:
    def rendered(*arguments: str) -> Objects:
        """Return what a release named shop has, by kind and component."""
        done = helm("template", *arguments)
        assert done.returncode == 0, done.stderr
        found = [document for document in yaml.safe_load_all(done.stdout) if document]
        objects = {
            (one["kind"], one["metadata"]["labels"]["app.kubernetes.io/component"]): one for one in found
        }
        assert len(objects) == len(found)
        return objects

    return rendered


@pytest.fixture(scope="module")
def objects(render) -> Objects:
    return render(*ALL)


def pods(objects: Objects) -> dict[str, dict[str, Any]]:
    return {
        component: document["spec"]["template"]
        for (kind, component), document in objects.items()
        if kind in {"Deployment", "Job"}
    }


def selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    """Tell whether a selector means a pod; ours use no other operator than In."""
    return selector.get("matchLabels", {}).items() <= labels.items() and all(
        labels.get(wanted["key"]) in wanted["values"] for wanted in selector.get("matchExpressions", [])
    )


# What Helm, Kubernetes and the operator say


def test_the_linter_finds_nothing(helm):
    done = helm("lint", "--strict", *ALL)
    assert done.returncode == 0, done.stdout
    assert set(re.findall(r"\[(WARNING|ERROR)\]", done.stdout)) == set()


def schema_problems(objects: Objects) -> None:
    """Hold objects against the schemas of several versions of Kubernetes, and of the operator's newest."""
    # Here, for its thousands of models take every process of the suite two seconds.
    from cloudcoil.models.prometheus_operator import v1 as operator

    for (kind, _), document in objects.items():
        if kind in OF_THE_OPERATOR:
            known = getattr(operator, kind).model_validate(document)
            assert known.model_dump(by_alias=True, exclude_unset=True, mode="json") == document
        else:
            for version in VERSIONS:
                kubernetes_validate.validate(document, version, strict=True)


def test_every_object_is_valid(objects):
    kinds = [
        "ConfigMap",
        "Deployment",
        "Job",
        "NetworkPolicy",
        "PodDisruptionBudget",
        "Service",
        "ServiceAccount",
    ]
    assert {kind for kind, _ in objects} == {*kinds, *OF_THE_OPERATOR}
    schema_problems(objects)


def test_every_value_can_be_given_and_shows(render):
    """Each option that is empty by default, with something in it."""
    placement = "nodeSelector.disk=ssd,tolerations[0].operator=Exists,priorityClassName=high,podLabels.a=b"
    more = "affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution=null,podAnnotations.c=d"
    each = [*placement.split(","), *more.split(","), "args={--log-level,debug}"]
    options = [f"{where}.{one}" for where in ("workers", "counter", "forward") for one in each]
    options += ["image.pullSecrets[0]=registry", "image.digest=sha256:" + "0" * 64, "nameOverride=watch"]
    monitoring = ("serviceMonitor", "prometheusRule", "counter.serviceMonitor")
    options += [f"{kind}.labels.release=prometheus" for kind in monitoring]
    options += [f"{one}.{key}={one}" for one in (APPLY, COUNTER) for key in ("username", "secretName")]
    options += ["apply.args={--create-topics,--yes,--retire}"]
    objects = render(*ALL, f"--set={','.join(options)}", "--set=files.items\\.txt=milk")
    schema_problems(objects)
    for (kind, _), document in objects.items():
        assert document["metadata"]["name"].startswith("watch")
        assert (document["metadata"]["labels"].get("release") == "prometheus") is (kind in OF_THE_OPERATOR)
    assert objects["ConfigMap", WORKER]["data"]["items.txt"] == "milk"
    for component, pod in pods(objects).items():
        spec, [container] = pod["spec"], pod["spec"]["containers"]
        assert spec["imagePullSecrets"] == [{"name": "registry"}]
        assert container["image"].endswith("stream-svt@sha256:" + "0" * 64)
        if component in (APPLY, COUNTER):
            assert container["env"] == [{"name": "STREAM_SVT_KAFKA_USERNAME", "value": component}]
            assert [one["secret"]["secretName"] for one in spec["volumes"] if "secret" in one] == [component]
        else:
            assert "env" not in container
        if component == APPLY:
            assert container["args"][1:] == ["--create-topics", "--yes", "--retire"]
        else:
            assert (pod["metadata"]["labels"]["a"], pod["metadata"]["annotations"]["c"]) == ("b", "d")
            assert spec["nodeSelector"] == {"disk": "ssd"}
            assert container["args"][-2:] == ["--log-level", "debug"]
            assert spec["tolerations"] == [{"operator": "Exists"}]
            assert spec["priorityClassName"] == "high"


def test_what_can_be_left_out_is_left_out(render):
    off = ("apply", "podDisruptionBudget", "networkPolicy")
    without = render(*GIVEN, "--set=" + ",".join(f"{one}.enabled=false" for one in off))
    assert {kind for kind, _ in without} == {"ConfigMap", "Deployment", "Service", "ServiceAccount"}
    assert {component for _, component in without} == {WORKER}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "--set-file config=FILE; it is empty"),
        ([*GIVEN[:1], "--set=forward.enabled=true"], "--set-file forward.config=FILE"),
        (["--set=config=monitors.yaml"], "--set-file config=FILE"),
        ([*GIVEN, "--set=workers.replica=3"], "additional properties 'replica' not allowed"),
        ([*GIVEN, "--set=image.digest=latest"], "does not match pattern"),
        ([*GIVEN, "--set=networkPolicy.kafka.ports=null"], "networkPolicy"),
    ],
    ids=["nothing", "no-forward", "a-name", "unknown", "digest", "no-ports"],
)
def test_a_wrong_value_is_refused_by_its_name(helm, arguments, said):
    done = helm("template", *arguments)
    assert done.returncode != 0
    assert said in done.stderr


# What starts anew, and when


def test_another_monitor_or_source_starts_a_job_alone_and_another_connection_everything(
    render, objects, tmp_path
):
    def changed(before: str, after: str) -> tuple[bool, bool, bool]:
        file = tmp_path / "monitors.yaml"
        text = CONFIG.read_text()
        assert before in text
        file.write_text(text.replace(before, after))
        others = render(*ALL, f"--set-file=config={file}")
        assert others["ConfigMap", WORKER]["data"]["monitors.yaml"] == file.read_text()
        names = [one["Job", APPLY]["metadata"]["name"] for one in (objects, others)]
        started = (pods(objects)[one] != pods(others)[one] for one in (WORKER, COUNTER))
        return (names[0] != names[1], *started)

    assert changed("above: 500", "above: 550") == (True, False, False)
    assert changed("datasets:", "sources: [{name: clicks}]\ndatasets:") == (True, False, False)
    assert changed("username: stream-svt", "username: other") == (True, True, True)


def test_a_new_image_starts_everything(render, objects):
    others = render(*ALL, "--set=image.tag=9.9.9")
    assert objects["Job", APPLY]["metadata"]["name"] != others["Job", APPLY]["metadata"]["name"]
    images = {pod["spec"]["containers"][0]["image"] for pod in pods(others).values()}
    assert images == {f"{VALUES['image']['repository']}:9.9.9"}


def test_a_worker_has_time_to_hand_over_and_workers_start_anew_one_after_the_other(objects):
    assert pods(objects)[WORKER]["spec"]["terminationGracePeriodSeconds"] >= STOP_DEADLINE + 10
    strategy = objects["Deployment", WORKER]["spec"]["strategy"]
    assert strategy["rollingUpdate"] == {"maxUnavailable": 1, "maxSurge": 0}


def test_the_configuration_is_mounted_where_the_image_looks_for_it(objects):
    names = dict.fromkeys((WORKER, APPLY, COUNTER), "monitors.yaml") | {FORWARDER: "forward.yaml"}
    for component, name in names.items():
        spec = pods(objects)[component]["spec"]
        [volume] = [volume["configMap"]["name"] for volume in spec["volumes"] if volume["name"] == "config"]
        [mounted] = [one for one in objects.values() if one["metadata"]["name"] == volume and "data" in one]
        assert set(mounted["data"]) == {name}


# Nothing may do more than it needs


RESTRICTED = {
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
}


@pytest.mark.parametrize("component", [WORKER, APPLY, COUNTER, FORWARDER])
def test_a_pod_keeps_to_the_restricted_profile_and_has_no_secret_but_as_a_file_of_its_own(objects, component):
    """The pod security standards of Kubernetes, with a closed root and a limit of memory besides."""
    [user] = re.findall(r"^USER (\d+):\1$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    spec = pods(objects)[component]["spec"]
    assert not spec.keys() & {"hostNetwork", "hostPID", "hostIPC", "initContainers"}
    kinds = {kind for volume in spec["volumes"] for kind in volume}
    assert kinds <= {"name", "configMap", "emptyDir", "secret"}
    assert spec["automountServiceAccountToken"] is False
    assert {spec["securityContext"][key] for key in ("runAsUser", "runAsGroup", "fsGroup")} == {int(user)}
    [secret] = [volume["secret"] for volume in spec["volumes"] if "secret" in volume]
    assert secret["defaultMode"] == 0o440
    [container] = spec["containers"]
    context = spec["securityContext"] | container["securityContext"]
    assert {key: context.get(key) for key in RESTRICTED} == RESTRICTED
    assert not context.get("privileged")
    assert not any("hostPort" in port for port in container.get("ports", []))
    assert "cpu" not in container["resources"]["limits"]
    assert container["resources"]["limits"]["memory"]
    assert not container.keys() & {"env", "envFrom"}
    assert all(mount.get("readOnly") for mount in container["volumeMounts"] if mount["name"] != "tmp")


def test_no_secret_is_in_the_chart_and_workers_have_an_account_without_a_token(objects):
    assert all(kind != "Secret" for kind, _ in objects)
    account = objects["ServiceAccount", WORKER]
    assert account["automountServiceAccountToken"] is False
    assert pods(objects)[WORKER]["spec"]["serviceAccountName"] == account["metadata"]["name"]


@pytest.mark.parametrize(
    ("component", "meant", "config"), [(WORKER, {WORKER, APPLY}, CONFIG), (FORWARDER, {FORWARDER}, FORWARD)]
)
def test_a_network_policy_lets_its_pods_reach_names_and_kafka_and_be_reached_by_prometheus(
    objects, component, meant, config
):
    spec = objects["NetworkPolicy", component]["spec"]
    assert meant == {
        name for name, pod in pods(objects).items() if selects(spec["podSelector"], pod["metadata"]["labels"])
    }
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    server = yaml.safe_load(config.read_text())["kafka"]["bootstrap_servers"]
    namespace, port = server.split(".")[1], int(server.rpartition(":")[2])
    dns, kafka, *others = spec["egress"]
    assert {one["port"] for one in dns["ports"]} == {53}
    assert [one["port"] for one in kafka["ports"]] == [port]
    [peer] = kafka["to"]
    assert peer["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": namespace}
    [ingress] = spec["ingress"]
    [container] = pods(objects)[component]["spec"]["containers"]
    assert [one["port"] for one in ingress["ports"]] == [container["ports"][0]["containerPort"]]
    # The forwarder alone posts to somebody, and only to where its configuration says.
    posted = re.findall(r"http://[\w-]+\.(\w+)\.svc:(\d+)", config.read_text())
    allowed = [
        (rule["to"][0]["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"], str(port["port"]))
        for rule in others
        for port in rule["ports"]
    ]
    assert allowed == posted


def test_nobody_asks_a_counter_but_who_is_named_for_it(render, objects):
    peer = {"namespaceSelector": {"matchLabels": {"zone": "trusted"}}}
    named = render(*ALL, f"--set-json=counter.from={json.dumps([peer])}")
    for found, ingress in (
        (objects, []),
        (named, [{"from": [peer], "ports": [{"protocol": "TCP", "port": WebConfig().port + 2}]}]),
    ):
        policy, labels = found["NetworkPolicy", COUNTER]["spec"], pods(found)[COUNTER]["metadata"]["labels"]
        assert policy["ingress"] == ingress
        assert policy["policyTypes"] == ["Ingress", "Egress"]
        assert policy["egress"] == found["NetworkPolicy", WORKER]["spec"]["egress"]
        meant = [one for (kind, _), one in found.items() if kind == "NetworkPolicy"]
        assert [one for one in meant if selects(one["spec"]["podSelector"], labels)] == [
            found["NetworkPolicy", COUNTER]
        ]


def test_a_network_policy_lets_pods_reach_what_is_given_besides(render, objects):
    more = "networkPolicy.more[0].to[0].ipBlock.cidr=10.1.2.0/24,networkPolicy.more[0].ports={443,8443}"
    others = render(*ALL, f"--set={more}")
    wanted = {
        "to": [{"ipBlock": {"cidr": "10.1.2.0/24"}}],
        "ports": [{"protocol": "TCP", "port": 443}, {"protocol": "TCP", "port": 8443}],
    }
    for component in (WORKER, COUNTER, FORWARDER):
        before, after = (one["NetworkPolicy", component]["spec"]["egress"] for one in (objects, others))
        assert after == [*before[:2], wanted, *before[2:]]


# The objects agree with the service


@pytest.mark.parametrize(
    ("component", "port", "key", "config"),
    [
        (WORKER, WebConfig().port, "config", CONFIG),
        (COUNTER, WebConfig().port + 2, "config", CONFIG),
        (FORWARDER, ForwardWebConfig().port, "forward.config", FORWARD),
    ],
    ids=[WORKER, COUNTER, FORWARDER],
)
def test_probes_and_service_ask_for_pages_on_the_port_that_the_configuration_names(
    render, objects, tmp_path, component, port, key, config
):
    elsewhere = tmp_path / "elsewhere.yaml"
    elsewhere.write_text(config.read_text().replace("host: 0.0.0.0", "host: 0.0.0.0\n  port: 8443"))
    probes = {"startup": "/health/live", "liveness": "/health/live", "readiness": "/health/ready"}
    another = 8443 + 2 * (component == COUNTER)
    for found, wanted in ((objects, port), (render(*ALL, f"--set-file={key}={elsewhere}"), another)):
        [container] = pods(found)[component]["spec"]["containers"]
        [served] = container["ports"]
        [named] = found["Service", component]["spec"]["ports"]
        assert served["containerPort"] == named["port"] == wanted
        asked = {
            key.removesuffix("Probe"): probe["httpGet"] for key, probe in container.items() if "Probe" in key
        }
        assert asked == {kind: {"path": path, "port": served["name"]} for kind, path in probes.items()}
    assert set(probes.values()) <= set(PAGES)


def test_the_service_the_budget_and_the_spread_mean_the_workers_alone(objects):
    labels = pods(objects)[WORKER]["metadata"]["labels"]
    others = [pod["metadata"]["labels"] for component, pod in pods(objects).items() if component != WORKER]
    budget, deployment = objects["PodDisruptionBudget", WORKER]["spec"], objects["Deployment", WORKER]["spec"]
    meant = [
        {"matchLabels": objects["Service", WORKER]["spec"]["selector"]},
        deployment["selector"],
        budget["selector"],
        *(one["labelSelector"] for one in pods(objects)[WORKER]["spec"]["topologySpreadConstraints"]),
    ]
    for selector in meant:
        assert selects(selector, labels)
        assert not any(selects(selector, of_another) for of_another in others)
        assert not selects(selector, labels | {"app.kubernetes.io/instance": "another-release"})
    assert budget["maxUnavailable"] < deployment["replicas"]


def test_what_is_scraped_is_workers_and_forwarders_under_the_job_that_prometheus_yml_names(objects):
    scraping = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text())
    [scraped] = scraping["scrape_configs"]
    monitor, own = (objects["ServiceMonitor", one]["spec"] for one in ("monitoring", COUNTER))
    [endpoint] = monitor["endpoints"]
    assert endpoint["path"] in PAGES
    assert endpoint["interval"] == scraping["global"]["scrape_interval"]
    ports = []
    for component in (WORKER, FORWARDER):
        service = objects["Service", component]
        labels = service["metadata"]["labels"]
        assert selects(monitor["selector"], labels)
        assert labels[monitor["jobLabel"]] == scraped["job_name"]
        [port] = service["spec"]["ports"]
        assert port["name"] == endpoint["port"]
        ports.append(port["port"])
    assert ports == [one["port"] for one in scraped["dns_sd_configs"]]
    # A counter belongs to another Prometheus: the first one finds no port of its name there.
    services = [one for (kind, _), one in objects.items() if kind == "Service"]
    trusted = [one for one in services if selects(own["selector"], one["metadata"]["labels"])]
    assert trusted == [objects["Service", COUNTER]]
    [port] = trusted[0]["spec"]["ports"]
    assert [one["port"] for one in own["endpoints"]] == [port["name"]] != [endpoint["port"]]
    [scraped] = yaml.safe_load((ROOT / "deploy" / "prometheus" / "trusted.yml").read_text())["scrape_configs"]
    assert trusted[0]["metadata"]["labels"][own["jobLabel"]] == scraped["job_name"]
    assert port["port"] == scraped["dns_sd_configs"][0]["port"]


@pytest.fixture
def secret(objects, tmp_path) -> Callable[[Path], str]:
    """Return the text of a configuration, with the files of the secret that it names in a directory of this machine."""
    pem = Authority.new().pem.decode()
    write_secrets(tmp_path, {"sealing.key": "00" * 32, "kafka.password": "word", "kafka-ca.pem": pem})

    def text(config: Path) -> str:
        for pod in pods(objects).values():
            [container] = pod["spec"]["containers"]
            places = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
            assert places["secrets"] == "/run/secrets/stream-svt"
            assert places["config"] == "/etc/stream-svt"
        return config.read_text().replace("/run/secrets/stream-svt", str(tmp_path))

    return text


def test_the_configuration_of_the_workers_is_valid_with_the_files_of_their_secret(secret):
    config = parse_config(secret(CONFIG))
    assert config.notes == ()
    assert config.sealing.master_keys
    assert config.topics.replication_factor == 3


def test_a_counter_needs_no_sealing_key(secret, tmp_path):
    (tmp_path / "sealing.key").unlink()
    assert parse_config(secret(CONFIG), for_counter=True).sealing.master_keys == ()
    with pytest.raises(ConfigError, match=r"sealing\.key"):
        parse_config(secret(CONFIG))


def test_the_forwarder_reads_what_the_workers_publish_and_has_no_sealing_key(objects, secret, tmp_path):
    text = secret(FORWARD)
    assert "sealing" not in text
    config = loaded(tmp_path, text)
    assert config.topic == parse_config(secret(CONFIG)).topics.alerts
    names = [
        {
            volume["secret"]["secretName"]
            for volume in pods(objects)[name]["spec"]["volumes"]
            if "secret" in volume
        }
        for name in (WORKER, FORWARDER)
    ]
    assert names[0].isdisjoint(names[1])


def test_variables_that_kubernetes_makes_of_services_cannot_be_taken_for_settings(objects):
    # Of a service named stream-svt-web, say; they are made for every service of the namespace, unless told not to.
    made = {"STREAM_SVT_WEB_SERVICE_HOST": "10.0.0.1", "STREAM_SVT_WEB_PORT": "tcp://10.0.0.1:6066"}
    with pytest.raises(ConfigError, match="STREAM_SVT_WEB_SERVICE_HOST"):
        parse_config(CONFIG.read_text(), environ=made)
    for pod in pods(objects).values():
        assert pod["spec"]["enableServiceLinks"] is False


def test_the_prometheus_rule_holds_every_group_of_deploy_prometheus_as_it_stands(objects):
    files = sorted((ROOT / "deploy" / "prometheus" / "rules").glob("*.yml"))
    groups = [group for path in files for group in yaml.safe_load(path.read_text())["groups"]]
    [rule] = [one["spec"] for (kind, _), one in objects.items() if kind == "PrometheusRule"]
    assert groups
    assert rule == {"groups": groups}
