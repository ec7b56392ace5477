"""The pods of the Helm chart, as helm renders them: what they run, with which settings, and which doors of theirs are
open to whom.
"""

import json
from pathlib import Path

import pytest
import yaml

from claims.dialects.hami_words import HAMI_RESOURCES
from gpuplane.run import procfile
from gpuplane.settings import variables
from tests.cluster.controlplane.chart import (
    CHART,
    EXAMPLES,
    NAMESPACE,
    RESERVATIONS,
    example,
    of_kinds,
    render,
    scheduler_configuration,
    scheduler_gates,
)
from tests.cluster.controlplane.program import ROOT
from tests.cluster.recorder import Json


def pod_specs(objects: list[Json]) -> dict[str, Json]:
    """Pod spec by component."""
    return {
        one["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/component"]: one["spec"]["template"]["spec"]
        for one in of_kinds(objects, "Deployment", "DaemonSet")
    }


def containers(spec: Json) -> list[Json]:
    """All of them, the first ones too."""
    return [*spec.get("initContainers", []), *spec["containers"]]


ON_NODES = {"agent", "runner"}
"""Programs on GPU nodes, which have settings of their own."""


def environment(container: Json) -> dict[str, str]:
    """Values by name; those that come from elsewhere as text."""
    return {one["name"]: one.get("value", json.dumps(one.get("valueFrom"))) for one in container.get("env", [])}


def test_processes_run_what_the_procfile_says() -> None:
    specs = pod_specs(render())
    commands = procfile.read(ROOT / "Procfile")
    started = {name: spec["containers"][0]["command"] for name, spec in specs.items()}
    assert started.pop("agent")[:3] == ["python", "-m", "agent"]
    assert started == {name: command for name, command in commands.items() if name in specs}
    assert set(specs) == {"web", "worker", "watch", "beat", "agent"}
    assert [one["name"] for one in specs["web"]["containers"]] == ["web", "kube-scheduler"]
    migrating = {name for name, spec in specs.items() if "initContainers" in spec}
    assert migrating == {"web", "worker", "watch"}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_settings_of_every_process_are_known_and_agree(path: Path) -> None:
    known = {variable.name for variable in variables.VARIABLES}
    reservation = example(path).get("reservation", {})
    for name, spec in pod_specs(render(example(path))).items():
        if name in ON_NODES:
            continue
        for container in containers(spec):
            if container["name"] == "kube-scheduler":
                continue
            told = environment(container)
            assert len(told) == len(container["env"]), f"{name}: a name is set twice"
            assert {one for one in told if one.startswith("GPUPLANE_")} <= known
            assert told["GPUPLANE_KUBECONFIG"] == "in-cluster"
            assert told["GPUPLANE_SIMULATE"] == "0"
            assert told["GPUPLANE_NAMESPACE"] == NAMESPACE
            # web and worker, and in every process the same: the webhook asks who wrote a result, whoever it was
            ours = f"system:serviceaccount:{NAMESPACE}:gpuplane"
            assert told["GPUPLANE_SERVICE_ACCOUNT"] == f"{ours},{ours}-worker"
            assert told["GPUPLANE_RESERVATION_NAMESPACE"] == reservation.get("namespace", RESERVATIONS)
            assert ("GPUPLANE_ADMIN_PASSWORD" in told) == (container["name"] == "bootstrap")
            mounts = {one["mountPath"]: one["name"] for one in container["volumeMounts"]}
            assert {one["name"] for one in spec["volumes"] if "emptyDir" in one} >= {
                mounts[told["GPUPLANE_DATA_DIR"]],
                mounts["/tmp"],
            }
            values = {
                key: value for key, value in told.items() if key.startswith("GPUPLANE_") and not value.startswith("{")
            }
            variables.read(values)


def test_settings_are_written_as_they_are_read() -> None:
    """helm reads the numbers of a file of values as floating point, and writes a million as 1e+06."""
    settings = {"GPUPLANE_BODY_LIMIT": 67108864, "GPUPLANE_HOLD_SECONDS": 45, "GPUPLANE_VISIBLE_DEVICES": "index"}
    for name, spec in pod_specs(render({"settings": {**settings, "GPUPLANE_DO_NOT_DISRUPT": False}})).items():
        for container in containers(spec):
            if name in ON_NODES or container["name"] == "kube-scheduler":
                continue
            told = environment(container)
            assert {key: told[key] for key in settings} == {key: str(value) for key, value in settings.items()}
            assert told["GPUPLANE_DO_NOT_DISRUPT"] == "false"
            variables.read({key: told[key] for key in settings})


def test_labels_of_people_and_of_the_chart_stand_once() -> None:
    """A pod's label wins over one of all objects, and what selectors find pods by over both."""
    part = "app.kubernetes.io/component"
    values = {"commonLabels": {"team": "a", "site": "x", part: "c"}, "podLabels": {"team": "b", part: "p"}}
    objects = render({**values, "monitoring": {"enabled": True, "labels": {"site": "y"}}})
    for one in of_kinds(objects, "Deployment", "DaemonSet"):
        labels = one["spec"]["template"]["metadata"]["labels"]
        assert (labels["team"], labels["site"]) == ("b", "x")
        assert one["spec"]["selector"]["matchLabels"].items() <= labels.items()
        assert one["metadata"]["labels"]["team"] == "a"
    (monitor,) = of_kinds(objects, "ServiceMonitor")
    assert (monitor["metadata"]["labels"]["site"], monitor["metadata"]["labels"][part]) == ("y", "monitoring")


@pytest.mark.parametrize(
    ("values", "want"),
    [
        pytest.param(
            {},
            {
                "IMAGE": "gpuplane:0.1.0",
                "PULL_SECRETS": (),
                "RUNTIME_CLASS": "",
                "PRIORITY_CLASS": "system-node-critical",
                "TOLERATIONS": ({"operator": "Exists"},),
                "SECONDS": 30,
            },
            id="by default",
        ),
        pytest.param(
            {
                "image": {"repository": "registry.example/a", "tag": "2"},
                "imagePullSecrets": [{"name": "one"}, {"name": "two"}],
                "reservation": {"priorityClassName": "", "runtimeClassName": "nvidia", "tolerations": [], "seconds": 5},
            },
            {
                "IMAGE": "registry.example/a:2",
                "PULL_SECRETS": ("one", "two"),
                "RUNTIME_CLASS": "nvidia",
                "PRIORITY_CLASS": "",
                "TOLERATIONS": (),
                "SECONDS": 5,
            },
            id="as told",
        ),
        pytest.param(
            {"image": {"digest": f"sha256:{'0' * 64}"}, "reservation": {"image": {"repository": "b"}}},
            {"IMAGE": "b:0.1.0"},
            id="an image of their own",
        ),
        pytest.param(
            {"reservation": {"image": {"repository": "b", "digest": f"sha256:{'1' * 64}"}}},
            {"IMAGE": f"b@sha256:{'1' * 64}"},
            id="an image by digest",
        ),
    ],
)
def test_reservation_pods_are_what_the_values_say(values: Json, want: Json) -> None:
    """SHARE-3 gpuplane makes them; its settings come from the chart's values."""
    for process in ("web", "worker", "watch"):
        told = environment(pod_specs(render(values))[process]["containers"][0])
        given = {name: value for name, value in told.items() if name.startswith("GPUPLANE_RESERVATION_")}
        read = variables.read(given)
        assert {name: read[f"RESERVATION_{name}"] for name in want} == want


def test_namespaces_of_kais_reservation_pods() -> None:
    """SHARE-7 gpuplane and its reservation pods may do there what they may in their own; webhooks pass it by."""
    before, after = render(), render({"reservation": {"adopt": ["runai-reservation"]}})
    kinds = ("ServiceAccount", "Role", "RoleBinding")

    def inside(objects: list[Json], namespace: str) -> list[tuple[str, str, object]]:
        there = [one for one in of_kinds(objects, *kinds) if one["metadata"]["namespace"] == namespace]
        return [(one["kind"], one["metadata"]["name"], one.get("rules")) for one in there]

    assert inside(before, "runai-reservation") == []
    assert inside(after, "runai-reservation") == inside(after, RESERVATIONS) == inside(before, RESERVATIONS)
    assert len(inside(after, RESERVATIONS)) == 5
    for hooks in of_kinds(after, "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        assert '"runai-reservation"' in json.dumps(hooks)
    itself = render({"reservation": {"adopt": [RESERVATIONS]}})
    assert inside(itself, RESERVATIONS) == inside(before, RESERVATIONS), "each object once"


def test_the_namespace_of_reservation_pods() -> None:
    """SHARE-3 it holds them to the Pod Security level `restricted`, outlives the release, and lets nobody in."""
    objects = render()
    (namespace,) = of_kinds(objects, "Namespace")
    assert namespace["metadata"]["name"] == RESERVATIONS
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    assert namespace["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    (policy,) = (one for one in of_kinds(objects, "NetworkPolicy") if one["metadata"]["namespace"] == RESERVATIONS)
    assert policy["spec"] == {"podSelector": {}, "policyTypes": ["Ingress"]}
    assert of_kinds(render({"reservation": {"createNamespace": False}}), "Namespace") == []


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_pods_have_no_more_than_they_need(path: Path) -> None:
    for name, spec in pod_specs(render(example(path))).items():
        assert spec["enableServiceLinks"] is False, name
        if name not in ON_NODES:
            assert spec["securityContext"]["runAsNonRoot"] is True
            assert spec["priorityClassName"] == "system-cluster-critical"
        for container in containers(spec):
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"] is True
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert set(container["resources"]) == {"requests", "limits"}
        assert spec["automountServiceAccountToken"] is (name not in {"beat", *ON_NODES})


def test_every_open_port_is_let_in_and_no_other() -> None:
    everything = example(CHART / "ci" / "everything-values.yaml")
    plain = {"web": {"tls": False}}
    for values, want in (
        ({}, {"https", "webhook"}),
        (plain, {"http", "webhook"}),
        (everything, {"https", "webhook", "extender"}),
    ):
        objects = render(values)
        (policy,) = (one for one in of_kinds(objects, "NetworkPolicy") if one["metadata"]["name"].endswith("-web"))
        assert {rule["ports"][0]["port"] for rule in policy["spec"]["ingress"]} == want
        (service,) = (one for one in of_kinds(objects, "Service") if not one["metadata"]["name"].endswith("-telemetry"))
        assert {one["targetPort"] for one in service["spec"]["ports"]} == want
        ports = {one["name"] for container in pod_specs(objects)["web"]["containers"] for one in container["ports"]}
        assert ports == want | {"scheduler"}


def test_runners() -> None:
    """SLOT-4c options that the program knows, an address of the pod, and nobody but web at its slots' ports."""
    objects = render({"runner": {"enabled": True, "ports": {"first": 30000, "last": 30099}}})
    (container,) = pod_specs(objects)["runner"]["containers"]
    told = environment(container)
    assert container["command"] == ["python", "-m", "runner", "--end-slots"]
    assert told["GPUPLANE_URL"] == f"https://gpuplane.{NAMESPACE}.svc:8000"
    assert told["GPUPLANE_RUNNER_PORTS"] == "30000-30099"
    assert "status.podIP" in told["GPUPLANE_RUNNER_HOST"]
    program = (ROOT / "runner" / "__main__.py").read_text()
    assert all(f'"{name}"' in program for name in told if name.startswith("GPUPLANE_"))
    (policy,) = (one for one in of_kinds(objects, "NetworkPolicy") if one["metadata"]["name"].endswith("-runner"))
    (rule,) = policy["spec"]["ingress"]
    assert rule["ports"] == [{"port": 30000, "endPort": 30099, "protocol": "TCP"}]
    assert [one["podSelector"]["matchLabels"]["app.kubernetes.io/component"] for one in rule["from"]] == ["web"]
    accounts = {one["metadata"]["name"] for one in of_kinds(objects, "ServiceAccount")}
    assert pod_specs(objects)["runner"]["serviceAccountName"] in accounts


def test_agents_are_on_every_node_unless_nobody_wants_them() -> None:
    """NODE-1 by the image that is built for them where it is named, else by gpuplane's; an account without rights."""
    objects = render()
    (agent,) = of_kinds(objects, "DaemonSet")
    spec = agent["spec"]["template"]["spec"]
    assert "nodeSelector" not in spec
    assert spec["tolerations"] == [{"operator": "Exists"}]
    accounts = {one["metadata"]["name"]: one for one in of_kinds(objects, "ServiceAccount")}
    assert spec["serviceAccountName"] in accounts
    bound = [one for one in of_kinds(objects, "ClusterRoleBinding", "RoleBinding") if "subjects" in one]
    assert spec["serviceAccountName"] not in {who["name"] for one in bound for who in one["subjects"]}
    own = {"agent": {"image": {"repository": "gpuplane-agent", "tag": "2"}}}
    images = [pod_specs(render(values))["agent"]["containers"][0]["image"] for values in ({}, own)]
    assert images == ["gpuplane:0.1.0", "gpuplane-agent:2"]
    without = render({"agent": {"enabled": False}})
    assert of_kinds(without, "DaemonSet") == []
    assert spec["serviceAccountName"] not in {one["metadata"]["name"] for one in of_kinds(without, "ServiceAccount")}


def test_agents_speak_to_processes_of_their_own_when_asked() -> None:
    """NODE-2 the address, the Service, the policy and the pods agree; without them the web processes take the agents
    along.
    """
    agent = pod_specs(render())["agent"]
    assert environment(agent["containers"][0])["GPUPLANE_URL"] == f"https://gpuplane.{NAMESPACE}.svc:8000"
    objects = render({"telemetry": {"replicas": 2}})
    specs = pod_specs(objects)
    host = f"gpuplane-telemetry.{NAMESPACE}.svc"
    assert environment(specs["agent"]["containers"][0])["GPUPLANE_URL"] == f"https://{host}:8000"
    told = environment(specs["telemetry"]["containers"][0])
    assert host in told["GPUPLANE_ALLOWED_HOSTS"].split(",")
    assert told["GPUPLANE_AGENTS_ONLY"] == "1"
    assert not told.keys() & {"GPUPLANE_EXTENDER_LISTEN", "GPUPLANE_WEBHOOK_LISTEN"}
    assert specs["telemetry"]["containers"][0]["command"] == specs["web"]["containers"][0]["command"]
    named = {
        kind: next(one for one in of_kinds(objects, kind) if one["metadata"]["name"] == "gpuplane-telemetry")
        for kind in ("Service", "Deployment", "NetworkPolicy", "PodDisruptionBudget")
    }
    assert named["Deployment"]["spec"]["replicas"] == 2
    labels = named["Deployment"]["spec"]["template"]["metadata"]["labels"].items()
    chosen = (
        named["Service"]["spec"]["selector"],
        named["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"],
        named["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
    )
    assert all(one.items() <= labels for one in chosen)
    (web,) = (one for one in of_kinds(objects, "Service") if one["metadata"]["name"] == "gpuplane")
    assert not web["spec"]["selector"].items() <= labels


def test_extender_entry_is_what_the_design_asks_for() -> None:
    configuration = yaml.safe_load(scheduler_configuration(render()))
    assert configuration["percentageOfNodesToScore"] == 100
    assert configuration["leaderElection"]["resourceNamespace"] == NAMESPACE
    (profile,) = configuration["profiles"]
    assert profile["schedulerName"] == "gpu-scheduler"
    ignored = profile["pluginConfig"][0]["args"]
    assert ignored["ignoredResourceGroups"] == ["koordinator.sh"]
    assert set(ignored["ignoredResources"]) == HAMI_RESOURCES
    (extender,) = configuration["extenders"]
    assert extender == {
        "urlPrefix": "http://127.0.0.1:8001/extender",
        "filterVerb": "filter",
        "prioritizeVerb": "prioritize",
        "bindVerb": "bind",
        "preemptVerb": "preempt",
        "weight": 10,
        "httpTimeout": "60s",
        "nodeCacheCapable": True,
        "ignorable": False,
    }
    web = environment(pod_specs(render())["web"]["containers"][0])
    assert web["GPUPLANE_EXTENDER_LISTEN"] == "127.0.0.1:8001"


def test_large_numbers_of_the_scheduler_are_written_in_digits() -> None:
    """kube-scheduler takes no 4e+06 for a whole number, as helm writes four million."""
    names = ("parallelism", "podInitialBackoffSeconds", "podMaxBackoffSeconds")
    given = {"clientConnection": {"burst": 4_000_000}, "extender": {"weight": 1_000_000}, **dict.fromkeys(names, 2**31)}
    text = scheduler_configuration(render({"scheduler": given}))
    written = yaml.safe_load(text)
    numbers = (written["clientConnection"]["burst"], written["extenders"][0]["weight"], *map(written.get, names))
    assert numbers == (4_000_000, 1_000_000, 2**31, 2**31, 2**31)


@pytest.mark.parametrize(
    ("tag", "want"),
    [
        ("v1.32.9", []),
        ("v1.33.0", ["--feature-gates=SchedulerAsyncPreemption=false"]),
        ("v1.36.3-own.1", ["--feature-gates=SchedulerAsyncPreemption=false"]),
        ("v1.37.0", []),
        ("latest", []),
    ],
)
def test_schedulers_are_configured_not_to_preempt_asynchronously(tag: str, want: list[str]) -> None:
    """LEASE-2 a version that does not know the gate would not start with it."""
    assert scheduler_gates(render({"scheduler": {"image": {"tag": tag}}})) == want


def test_cert_manager_brings_the_certificates_when_asked() -> None:
    objects = render({"certificates": {"certManager": {"enabled": True}}})
    assert [one["metadata"]["name"] for one in of_kinds(objects, "Issuer")] == ["gpuplane-self-signed", "gpuplane-ca"]
    for one in of_kinds(objects, "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        assert one["metadata"]["annotations"]["cert-manager.io/inject-ca-from"] == f"{NAMESPACE}/gpuplane-tls"
        assert not any("caBundle" in hook["clientConfig"] for hook in one["webhooks"])
    assert "gpuplane-tls" not in {one["metadata"]["name"] for one in of_kinds(objects, "Secret")}
