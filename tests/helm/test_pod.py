"""The pod that serves: what is injected, the sidecar, what vLLM is told."""

from pathlib import Path

import pytest

from tests.helm.render import (
    SERVE,
    Object,
    containers,
    merged,
    objects,
    ports,
    selects,
    template,
    the,
    variables,
    workload,
)


def test_the_package_is_copied_to_where_python_looks() -> None:
    spec = template(objects(merged(SERVE, {"inject": {"pythonPath": "/plugins:/more"}})))["spec"]
    inject, vllm = containers(spec)["vitals-inject"], containers(spec)["vllm"]
    target = inject["command"][-1]
    (mounted,) = [each for each in inject["volumeMounts"] if each["mountPath"] == target]
    (seen,) = [each for each in vllm["volumeMounts"] if each["name"] == mounted["name"]]
    assert seen["readOnly"] is True
    assert variables(vllm)["PYTHONPATH"] == f"{seen['mountPath']}:/plugins:/more"


def test_the_sidecar_is_native_and_shares_its_socket() -> None:
    spec = template(objects(merged(SERVE, {"sidecar": {"enabled": True}})))["spec"]
    sidecar, vllm = containers(spec)["vitals"], containers(spec)["vllm"]
    assert sidecar in spec["initContainers"]
    assert sidecar["restartPolicy"] == "Always"
    socket = Path("/run/vllm-vitals/wire/vitals.sock")
    for container in (sidecar, vllm):
        (mounted,) = [each for each in container["volumeMounts"] if each["mountPath"] == str(socket.parent.parent)]
        assert not mounted.get("readOnly")
    assert "securityContext" in spec
    assert not {"runAsUser"} & {*sidecar["securityContext"], *vllm["securityContext"]}, "both must be the pod's user"
    for probe, path in (("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
        assert sidecar[probe]["httpGet"] == {"path": path, "port": "vitals", "scheme": "HTTP"}
    assert "NVIDIA_VISIBLE_DEVICES" not in variables(sidecar)


def test_a_probe_needs_no_certificate() -> None:
    tls = {"tls": {"enabled": True, "secretName": "a", "clientCASecret": "b"}}
    values = {
        "sidecar": {"enabled": True},
        "exporters": {"prometheus": tls},
        "podMonitor": {"tlsConfig": {"insecureSkipVerify": True}},
    }
    sidecar = containers(template(objects(merged(SERVE, values)))["spec"])["vitals"]
    for probe in ("livenessProbe", "readinessProbe"):
        assert sidecar[probe]["tcpSocket"] == {"port": "vitals"}


def test_what_vllm_is_told() -> None:
    vllm = {
        "model": "org/model", "args": ["--max-model-len=1", "a b"], "port": 8080, "command": ["python3", "-m", "x"],
        "env": [{"name": "A", "value": "1"}], "envFrom": [{"secretRef": {"name": "s"}}],
        "gpus": {"count": 4, "resource": "amd.com/gpu"}, "resources": {"requests": {"cpu": 2}, "limits": {"memory": "9Gi"}},
        "shmSize": "1Gi", "terminationGracePeriodSeconds": 9, "podLabels": {"lane": "1"}, "podAnnotations": {"note": "2"},
        "runtimeClassName": "nvidia", "priorityClassName": "high", "nodeSelector": {"disk": "3"},
        "tolerations": [{"key": "t", "operator": "Exists"}], "affinity": {"nodeAffinity": {}},
        "extraVolumes": [{"name": "x", "emptyDir": {}}], "extraVolumeMounts": [{"name": "x", "mountPath": "/x"}],
        "image": {"repository": "r/v", "tag": "1", "pullPolicy": "Always"}, "replicas": 3,
        "updateStrategy": {"type": "Recreate"}, "livenessProbe": {"tcpSocket": {"port": "http"}},
        "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}],
    }  # fmt: skip
    found = objects(merged(SERVE, {"vllm": vllm}))
    deployment = workload(found)
    spec, meta = deployment["spec"]["template"]["spec"], deployment["spec"]["template"]["metadata"]
    container = containers(spec)["vllm"]
    assert deployment["spec"]["replicas"] == 3
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}
    assert (container["image"], container["imagePullPolicy"]) == ("r/v:1", "Always")
    assert container["command"] == ["python3", "-m", "x"]
    assert container["args"] == ["org/model", "--port=8080", "--max-model-len=1", "a b"]
    assert variables(container)["A"] == "1"
    assert container["envFrom"] == vllm["envFrom"]
    assert container["resources"] == {
        "requests": {"cpu": 2, "amd.com/gpu": 4}, "limits": {"memory": "9Gi", "amd.com/gpu": 4},
    }  # fmt: skip
    assert ports(spec)["http"] == 8080
    assert container["livenessProbe"]["tcpSocket"] == {"port": "http"}
    assert meta["labels"]["lane"] == "1"
    assert meta["annotations"]["note"] == "2"
    for key in (
        "terminationGracePeriodSeconds",
        "runtimeClassName",
        "priorityClassName",
        "nodeSelector",
        "tolerations",
        "affinity",
    ):
        assert spec[key] == vllm[key]
    shm = next(each for each in spec["volumes"] if each["name"] == "shm")
    assert shm["emptyDir"]["sizeLimit"] == "1Gi"
    (spread,) = spec["topologySpreadConstraints"]
    assert selects(spread["labelSelector"], meta["labels"])


def test_images_by_tag_and_digest() -> None:
    digest = f"sha256:{'a' * 64}"
    found = objects(
        merged(SERVE, {"image": {"repository": "r", "digest": digest}, "vllm": {"image": {"digest": digest}}})
    )
    images = {name: each["image"] for name, each in containers(template(found)["spec"]).items()}
    assert images == {"vitals-inject": f"r@{digest}", "vllm": f"vllm/vllm-openai@{digest}"}
    tagged = containers(template(objects(merged(SERVE, {"image": {"tag": "t"}})))["spec"])
    assert tagged["vitals-inject"]["image"].endswith(":t")


def test_the_cache_is_a_claim_for_each_pod_of_a_stateful_set() -> None:
    cache = {"enabled": True, "size": "7Gi", "storageClass": "fast", "accessModes": ["ReadWriteOncePod"]}
    found = objects(merged(SERVE, {"vllm": {"kind": "StatefulSet", "cache": cache}}))
    (claim,) = workload(found)["spec"]["volumeClaimTemplates"]
    wanted = {
        "accessModes": ["ReadWriteOncePod"],
        "storageClassName": "fast",
        "resources": {"requests": {"storage": "7Gi"}},
    }
    assert claim["spec"] == wanted
    found = objects(merged(SERVE, {"vllm": {"cache": cache}}))
    assert the(found, "PersistentVolumeClaim")["spec"] == wanted
    volume = next(each for each in template(found)["spec"]["volumes"] if each["name"] == "cache")
    assert volume["persistentVolumeClaim"]["claimName"] == the(found, "PersistentVolumeClaim")["metadata"]["name"]
    assert the(found, "PersistentVolumeClaim")["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


@pytest.mark.parametrize(
    ("pdb", "wanted"),
    [({}, {"maxUnavailable": 1}), ({"maxUnavailable": 2}, {"maxUnavailable": 2}), ({"minAvailable": "50%"}, {"minAvailable": "50%"}),
     ({"minAvailable": 0}, {"minAvailable": 0})],
)  # fmt: skip
def test_budgets(pdb: Object, wanted: Object) -> None:
    spec = the(objects(merged(SERVE, {"pdb": {"enabled": True, **pdb}})), "PodDisruptionBudget")["spec"]
    assert {key: value for key, value in spec.items() if key != "selector"} == wanted
