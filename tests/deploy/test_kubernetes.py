"""The Kubernetes manifests: built by kustomize, by Kubernetes' own schemas, and whether their pieces fit."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Iterator
from typing import Any

import kubernetes_validate
import pytest

from tests.deploy.moeplan_commands import require_command, unknown_settings
from tests.deploy.tools import DEPLOY, ROOT, documents, program, run

OVERLAYS = ("sqlite", "postgresql", "ray")
VERSIONS = ("1.29", "1.37")
"""The oldest and the newest Kubernetes whose schemas are tried."""

PODS = ("Deployment", "StatefulSet", "Job")
MADE_BY_HAND = {"moeplan", "moeplan-engine-keys"}
"""Secrets that the guide tells to make."""

Resource = dict[str, Any]


@functools.cache
def built(overlay: str) -> list[Resource]:
    return documents(run(program("kubectl"), "kustomize", DEPLOY / "kubernetes" / "overlays" / overlay))


def of_kind(overlay: str, *kinds: str) -> dict[str, Resource]:
    return {each["metadata"]["name"]: each for each in built(overlay) if each["kind"] in kinds}


def pods(overlay: str) -> dict[str, Resource]:
    return {name: each["spec"]["template"] for name, each in of_kind(overlay, *PODS).items()}


def containers(overlay: str) -> Iterator[tuple[str, Resource, Resource]]:
    """Yield name, container and pod of every container, those that run first included."""
    for name, pod in pods(overlay).items():
        for container in [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]:
            yield f"{name}/{container['name']}", container, pod["spec"]


def matches(selector: dict[str, str], pod: Resource) -> bool:
    return selector.items() <= pod["metadata"]["labels"].items()


@pytest.mark.parametrize("overlay", OVERLAYS)
@pytest.mark.parametrize("version", VERSIONS)
def test_every_object_is_one_of_kubernetes(overlay: str, version: str) -> None:
    for each in built(overlay):
        kubernetes_validate.validate(each, version, strict=True)


def test_the_schemas_refuse_what_is_none() -> None:
    job = next(iter(of_kind("postgresql", "Job").values()))
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate({**job, "spec": {**job["spec"], "backofLimit": 1}}, VERSIONS[0], strict=True)


@pytest.mark.parametrize("overlay", OVERLAYS)
class TestEveryOverlay:
    def test_objects_are_in_one_namespace_and_named_once(self, overlay: str) -> None:
        names = [(each["kind"], each["metadata"]["name"]) for each in built(overlay)]
        assert len(set(names)) == len(names)
        assert {each["metadata"]["namespace"] for each in built(overlay)} == {"moeplan"}

    def test_selectors_find_pods(self, overlay: str) -> None:
        for name, each in of_kind(overlay, "Deployment", "StatefulSet").items():
            assert matches(each["spec"]["selector"]["matchLabels"], each["spec"]["template"]), name
        selectors = {
            **{name: each["spec"]["selector"] for name, each in of_kind(overlay, "Service").items()},
            **{
                name: each["spec"]["selector"]["matchLabels"]
                for name, each in of_kind(overlay, "PodDisruptionBudget").items()
            },
        }
        for name, selector in selectors.items():
            assert [pod for pod in pods(overlay).values() if matches(selector, pod)], name

    def test_services_name_ports_that_are_there(self, overlay: str) -> None:
        for name, service in of_kind(overlay, "Service").items():
            found = [pod for pod in pods(overlay).values() if matches(service["spec"]["selector"], pod)]
            there = {
                port["name"] for pod in found for each in pod["spec"]["containers"] for port in each.get("ports", [])
            }
            assert {port["targetPort"] for port in service["spec"].get("ports", [])} <= there, name

    def test_what_pods_mount_and_read_is_there(self, overlay: str) -> None:
        for name, container, pod in containers(overlay):
            claims = [
                claim["metadata"]["name"] for each in of_kind(overlay, "StatefulSet").values()
                if each["spec"]["template"]["spec"] is pod for claim in each["spec"].get("volumeClaimTemplates", [])
            ]  # fmt: skip
            volumes = {volume["name"]: volume for volume in pod["volumes"]}
            assert {mount["name"] for mount in container["volumeMounts"]} <= {*volumes, *claims}, name
            for volume in volumes.values():
                if "secret" in volume:
                    assert volume["secret"]["secretName"] in MADE_BY_HAND
                if "persistentVolumeClaim" in volume:
                    assert volume["persistentVolumeClaim"]["claimName"] in of_kind(overlay, "PersistentVolumeClaim")
            for source in container.get("envFrom", []):
                assert source["configMapRef"]["name"] in of_kind(overlay, "ConfigMap"), name
            assert pod["serviceAccountName"] in of_kind(overlay, "ServiceAccount")

    def test_moeplan_is_run_with_commands_and_settings_that_it_has(self, overlay: str) -> None:
        text = str(built(overlay))
        assert unknown_settings(text) == set()
        asked = [container["args"] for _, container, _ in containers(overlay) if "command" not in container]
        assert asked
        for arguments in asked:
            require_command(arguments)

    def test_containers_may_do_no_more_than_they_must(self, overlay: str) -> None:
        for name, container, pod in containers(overlay):
            assert pod["securityContext"]["runAsNonRoot"], name
            assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
            assert not pod["automountServiceAccountToken"]
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
            }, name  # fmt: skip
            assert {"requests", "limits"} == set(container["resources"]), name

    def test_images_are_of_this_version(self, overlay: str) -> None:
        version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
        wanted = f"moeplan:{version}-ray" if overlay == "ray" else f"moeplan:{version}"
        assert {container["image"] for _, container, _ in containers(overlay)} == {wanted}

    def test_no_secret_is_in_the_files(self, overlay: str) -> None:
        assert of_kind(overlay, "Secret") == {}

    def test_the_schema_is_brought_up_to_date_before_anything_starts(self, overlay: str) -> None:
        for name, container, pod in containers(overlay):
            command = " ".join([*container.get("command", []), *container.get("args", [])])
            if container in pod["containers"] and ("serve" in command or "moeplan worker" in command):
                first = " ".join(
                    [*pod["initContainers"][0].get("command", []), *pod["initContainers"][0].get("args", [])]
                )
                assert "db upgrade" in first or "until moeplan db check" in first, name
        if overlay != "sqlite":
            (job,) = of_kind(overlay, "Job").values()
            assert job["spec"]["template"]["spec"]["containers"][0]["args"] == ["db", "upgrade"]


def test_sqlite_is_opened_by_one_pod_alone() -> None:
    (only,) = of_kind("sqlite", *PODS).values()
    assert only["spec"]["replicas"] == 1
    assert only["spec"]["volumeClaimTemplates"][0]["spec"]["accessModes"] == ["ReadWriteOnce"]


def test_on_postgresql_there_are_several_of_each_over_one_folder() -> None:
    replicas = {
        name: each["spec"]["replicas"] for name, each in of_kind("postgresql", "Deployment", "StatefulSet").items()
    }
    assert set(replicas) == {"moeplan", "moeplan-worker"}
    assert min(replicas.values()) > 1
    (claim,) = of_kind("postgresql", "PersistentVolumeClaim").values()
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]


@pytest.mark.parametrize("overlay", ["postgresql", "ray"])
def test_a_worker_is_called_as_its_pod_which_keeps_its_name(overlay: str) -> None:
    (workers,) = of_kind(overlay, "StatefulSet").values()
    (container,) = workers["spec"]["template"]["spec"]["containers"]
    name = {"name": "WORKER_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    assert name in container["env"]
    command = " ".join([*container.get("command", []), *container["args"]])
    assert command.endswith(("--name $(WORKER_NAME)", '--name "$WORKER_NAME"'))
    assert {mount["mountPath"] for mount in container["volumeMounts"]} >= {"/var/lib/moeplan", "/tmp"}


def test_only_moeplan_reaches_ray() -> None:
    policy = of_kind("ray", "NetworkPolicy")["moeplan-ray"]
    selected = policy["spec"]["podSelector"]["matchLabels"]
    found = {name for name, pod in pods("ray").items() if matches(selected, pod)}
    assert found == {"moeplan-ray-head", "moeplan-ray-node"}
    (rule,) = policy["spec"]["ingress"]
    for each in rule["from"]:
        assert [name for name, pod in pods("ray").items() if matches(each["podSelector"]["matchLabels"], pod)]
    settings = of_kind("ray", "ConfigMap")["moeplan"]["data"]
    service = settings["RAY_ADDRESS"].partition(":")[0]
    assert service in of_kind("ray", "Service")
    assert settings["MOEPLAN_PLAN_WORKERS"] == "ray"


def test_whoever_takes_part_in_ray_knows_its_token() -> None:
    token = {"name": "RAY_AUTH_TOKEN", "valueFrom": {"secretKeyRef": {"name": "moeplan-ray", "key": "token"}}}
    workloads = [*of_kind("ray", "Deployment").values(), *of_kind("ray", "StatefulSet").values()]
    containers = [each for workload in workloads for each in workload["spec"]["template"]["spec"]["containers"]]
    joining = [each for each in containers if "ray start" in " ".join(each.get("command", []) + each.get("args", []))]
    assert len(joining) == 3
    for container in joining:
        assert token in container["env"]
        assert {"name": "RAY_AUTH_MODE", "value": "token"} in container["env"]
