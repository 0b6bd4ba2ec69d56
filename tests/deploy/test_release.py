"""A release is one: its version, changes, image tags, description and benchmark table say the same."""

from __future__ import annotations

import json
import re
import tomllib
from datetime import date

from tests.deploy.tools import DEPLOY, ROOT

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def numbers() -> str:
    """Return the README's section with the figures of this version."""
    (_, after) = (ROOT / "README.md").read_text().split("\n## Numbers\n")
    return after.split("\n## ")[0]


def test_the_newest_changes_are_those_of_this_version() -> None:
    headings = re.findall(r"^## \[(.+?)\](?: - (\S+))?$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    (unreleased, newest, *_) = headings
    assert unreleased == ("Unreleased", "")
    assert newest[0] == VERSION
    assert date.fromisoformat(newest[1]) >= date(2026, 11, 30)


def test_images_and_description_have_this_version() -> None:
    tagged = [DEPLOY / "Containerfile", DEPLOY / "compose" / "compose.yaml", *DEPLOY.rglob("kustomization.yaml")]
    found = {tag for file in tagged for tag in re.findall(r"(?:moeplan:|newTag: )(\d+\.\d+\.\d+)", file.read_text())}
    assert found == {VERSION}
    assert json.loads((DEPLOY / "openapi.json").read_text())["info"]["version"] == VERSION


def test_every_benchmark_is_in_the_table_of_this_version() -> None:
    section = numbers()
    assert f"moeplan {VERSION}" in section
    there = {file.stem for file in (ROOT / "tests" / "bench").glob("*.py")} - {"__init__"}
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert there - named == set(), "these print tables that nobody is told of"
