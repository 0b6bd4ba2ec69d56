"""The Compose file: by its schema, and whether what it names is there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from api.settings import Settings
from tests.deploy.moeplan_commands import require_command, unknown_settings
from tests.deploy.tools import DEPLOY, ROOT

FOLDER = DEPLOY / "compose"
FILE = FOLDER / "compose.yaml"
SCHEMA = Path(__file__).parent / "compose_spec" / "compose-spec.json"


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(FILE.read_text())
    return found


@pytest.fixture(scope="module")
def ours(compose: dict[str, Any]) -> dict[str, Any]:
    return {name: each for name, each in compose["services"].items() if each["image"].startswith("moeplan:")}


def test_it_is_a_compose_file(compose: dict[str, Any]) -> None:
    jsonschema.Draft7Validator(json.loads(SCHEMA.read_text())).validate(compose)


def test_the_schema_refuses_what_is_none(compose: dict[str, Any]) -> None:
    broken = {**compose, "services": {**compose["services"], "service": {"image": "moeplan", "prots": []}}}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft7Validator(json.loads(SCHEMA.read_text())).validate(broken)


def test_what_it_names_is_there(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        assert set(service.get("secrets", [])) <= set(compose["secrets"]), name
        depends = service.get("depends_on", {})
        assert set(depends) <= set(compose["services"]), name
        for volume in service.get("volumes", []):
            source, separator, _ = volume.partition(":")
            if not separator:
                continue  # a volume of the container's own
            if source.startswith("."):
                assert (FOLDER / source).exists(), volume
            else:
                assert source in compose["volumes"], volume
        if "build" in service:
            context = (FOLDER / service["build"]["context"]).resolve()
            assert context == ROOT
            assert (context / service["build"]["dockerfile"]).is_file()


def test_moeplan_is_run_with_commands_and_settings_that_it_has(ours: dict[str, Any]) -> None:
    assert unknown_settings(FILE.read_text()) == set()
    for service in ours.values():
        require_command(service["command"])


def test_secrets_are_files_named_as_settings(compose: dict[str, Any], ours: dict[str, Any]) -> None:
    fields = {f"moeplan_{name}" for name in Settings.model_fields}
    for name, service in ours.items():
        assert service["environment"]["MOEPLAN_SECRETS_DIR"] == "/run/secrets"
        assert set(service["secrets"]) - {"engine_key"} <= fields, name
    for secret in compose["secrets"].values():
        assert secret["file"].startswith("./secrets/")
    assert "password@" not in FILE.read_text().lower()


def test_the_schema_is_brought_up_to_date_before_anything_starts(ours: dict[str, Any]) -> None:
    for name, service in ours.items():
        if name == "database-upgrade":
            assert service["depends_on"]["postgresql"]["condition"] == "service_healthy"
        else:
            assert service["depends_on"]["database-upgrade"]["condition"] == "service_completed_successfully"


def test_nothing_is_reachable_from_outside_and_nothing_may_more_than_it_must(
    compose: dict[str, Any], ours: dict[str, Any]
) -> None:
    for name, service in compose["services"].items():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name
    for service in ours.values():
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
        assert "no-new-privileges:true" in service["security_opt"]


def test_workers_have_names_of_their_own(ours: dict[str, Any]) -> None:
    names = [service["command"] for service in ours.values() if service["command"][0] == "worker"]
    assert names
    assert len({tuple(name) for name in names}) == len(names)
    assert all("--name" in name for name in names)
