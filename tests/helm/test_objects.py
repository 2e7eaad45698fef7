"""What is rendered fits together: selectors and labels, ports and names, volumes and mounts; and what is off is absent."""

import pytest

from tests.helm.render import (
    ATTACH,
    SERVE,
    Object,
    containers,
    merged,
    objects,
    of_kind,
    pods,
    ports,
    selects,
    template,
    variables,
)


def test_workloads_select_their_own_pods(rendered: list[Object]) -> None:
    for each in rendered:
        if each["kind"] in ("Deployment", "StatefulSet"):
            assert selects(each["spec"]["selector"], each["spec"]["template"]["metadata"]["labels"])
            others = [other for name, other, _ in pods(rendered) if name != each["metadata"]["name"]]
            assert not [other for other in others if selects(each["spec"]["selector"], other["labels"])]


def test_services_reach_a_port_of_one_workload(rendered: list[Object]) -> None:
    for service in of_kind(rendered, "Service"):
        hit = [
            spec
            for _, meta, spec in pods(rendered)
            if selects({"matchLabels": service["spec"]["selector"]}, meta["labels"])
        ]
        (spec,) = hit
        for port in service["spec"]["ports"]:
            assert port["targetPort"] in ports(spec)


def test_mounts_have_volumes_and_volumes_have_mounts(rendered: list[Object]) -> None:
    for name, _, spec in pods(rendered):
        volumes = {each["name"] for each in spec.get("volumes", [])}
        owner = next(
            each
            for each in rendered
            if each["metadata"]["name"] == name and each["kind"] in ("Deployment", "StatefulSet", "Pod")
        )
        volumes |= {each["metadata"]["name"] for each in owner["spec"].get("volumeClaimTemplates", [])}
        mounted = {each["name"] for container in containers(spec).values() for each in container["volumeMounts"]}
        assert volumes == mounted
        for container in containers(spec).values():
            paths = [each["mountPath"] for each in container["volumeMounts"]]
            assert len(set(paths)) == len(paths)
            given = [each["name"] for each in container.get("env", [])]
            assert len(set(given)) == len(given)


def test_config_maps_that_are_mounted_are_there(rendered: list[Object]) -> None:
    there = {each["metadata"]["name"] for each in of_kind(rendered, "ConfigMap")}
    for _, _, spec in pods(rendered):
        wanted = {each["configMap"]["name"] for each in spec["volumes"] if "configMap" in each}
        assert wanted <= there


def test_pods_are_restricted(rendered: list[Object]) -> None:
    """Kubernetes' Pod Security Standard «restricted», and a read-only root besides."""
    for _, _, spec in pods(rendered):
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] > 0
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for volume in spec.get("volumes", []):
            assert set(volume) - {"name"} <= {"emptyDir", "configMap", "secret", "persistentVolumeClaim"}
        for container in containers(spec).values():
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["readOnlyRootFilesystem"] is True
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert not {"privileged", "runAsUser"} & set(context)
            assert not [port for port in container.get("ports", []) if "hostPort" in port]


def test_no_object_grants_anything(rendered: list[Object]) -> None:
    assert not {each["kind"] for each in rendered} & {"Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"}
    for account in of_kind(rendered, "ServiceAccount"):
        assert account["automountServiceAccountToken"] is False


@pytest.mark.parametrize(
    ("values", "kind", "count"),
    [
        (ATTACH, "PodMonitor", 1),
        (merged(ATTACH, {"podMonitor": {"enabled": False}}), "PodMonitor", 0),
        ({}, "PodMonitor", 0),
        ({"crds": {"prometheusOperator": "absent"}}, "PodMonitor", 0),
        (ATTACH, "ServiceMonitor", 0),
        (ATTACH, "PrometheusRule", 1),
        (merged(ATTACH, {"prometheusRule": {"enabled": False}}), "PrometheusRule", 0),
        ({}, "PrometheusRule", 0),
        (merged(ATTACH, {"dashboards": {"enabled": False}}), "ConfigMap", 0),
        ({"dashboards": {"grafanaOperator": {"enabled": True}}}, "GrafanaDashboard", 0),
        ({"dashboards": {"grafanaOperator": {"enabled": True}}}, "ConfigMap", 0),
        (ATTACH, "Deployment", 0),
        (ATTACH, "Pod", 0),
        (ATTACH, "Service", 0),
        (ATTACH, "ServiceAccount", 0),
        (SERVE, "Deployment", 1),
        (SERVE, "StatefulSet", 0),
        (merged(SERVE, {"vllm": {"kind": "StatefulSet"}}), "Deployment", 0),
        (merged(SERVE, {"vllm": {"kind": "StatefulSet"}}), "StatefulSet", 1),
        (SERVE, "Service", 2),
        (SERVE, "PersistentVolumeClaim", 0),
        (merged(SERVE, {"vllm": {"cache": {"enabled": True}}}), "PersistentVolumeClaim", 1),
        (merged(SERVE, {"vllm": {"cache": {"enabled": True, "existingClaim": "c"}}}), "PersistentVolumeClaim", 0),
        (merged(SERVE, {"vllm": {"kind": "StatefulSet", "cache": {"enabled": True}}}), "PersistentVolumeClaim", 0),
        (SERVE, "PodDisruptionBudget", 0),
        (merged(SERVE, {"pdb": {"enabled": True}}), "PodDisruptionBudget", 1),
        (SERVE, "NetworkPolicy", 0),
        (merged(SERVE, {"networkPolicy": {"enabled": True}}), "NetworkPolicy", 1),
        (merged(SERVE, {"networkPolicy": {"enabled": True}, "otelCollector": {"enabled": True}}), "NetworkPolicy", 2),
        (merged(SERVE, {"networkPolicy": {"enabled": True}, "otelCollector": {"enabled": True, "kind": "operator"}}), "NetworkPolicy", 1),
        (SERVE, "ServiceAccount", 1),
        (merged(SERVE, {"serviceAccount": {"create": False}}), "ServiceAccount", 0),
        (SERVE, "HorizontalPodAutoscaler", 0),
        (SERVE, "ScaledObject", 0),
        (merged(SERVE, {"autoscaling": {"keda": {"enabled": True, "serverAddress": "http://p"}}}), "ScaledObject", 0),
        (SERVE, "Pod", 1),
        (merged(SERVE, {"tests": {"enabled": False}}), "Pod", 0),
        (merged(ATTACH, {"image": {"repository": "r"}, "tests": {"url": "http://v:9464/metrics"}}), "Pod", 1),
    ],
)  # fmt: skip
def test_a_toggle_does_what_it_says(values: Object, kind: str, count: int) -> None:
    assert len(of_kind(objects(values), kind)) == count


def test_the_cluster_is_asked_for_its_apis() -> None:
    found = objects({}, "--api-versions", "monitoring.coreos.com/v1")
    assert of_kind(found, "PodMonitor")


@pytest.mark.parametrize("sidecar", [False, True])
@pytest.mark.parametrize("inject", [False, True])
@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet"])
@pytest.mark.parametrize("scrape", [False, True])
def test_a_matrix_of_pods(sidecar: bool, inject: bool, kind: str, scrape: bool) -> None:  # noqa: FBT001
    values = merged(
        SERVE,
        {"sidecar": {"enabled": sidecar}, "inject": {"enabled": inject}, "vllm": {"kind": kind}, "podMonitor": {"enabled": scrape}},
        {"exporters": {"prometheus": {"enabled": scrape}, "otlp": {"enabled": not scrape, "endpoint": "" if scrape else "http://c:4318"}}},
    )  # fmt: skip
    found = objects(values)
    spec = template(found)["spec"]
    wanted = [name for name, on in (("vitals-inject", inject), ("vitals", sidecar)) if on]
    assert [each["name"] for each in spec.get("initContainers", [])] == wanted
    assert ("PYTHONPATH" in variables(containers(spec)["vllm"])) == inject
    assert ("vitals" in ports(spec)) == scrape
    assert bool([each for each in of_kind(found, "Service") if each["metadata"]["name"].endswith("-metrics")]) == scrape
    test_mounts_have_volumes_and_volumes_have_mounts(found)
    test_services_reach_a_port_of_one_workload(found)
