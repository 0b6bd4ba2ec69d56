from __future__ import annotations

import pytest

from profiler.plugin.versions import ALLOW_UNTESTED_VARIABLE, EngineVersion, Trust


@pytest.mark.parametrize(
    ("text", "trust", "needs_backport"),
    [
        ("0.5.16", Trust.TESTED, True),
        ("0.5.16.post1", Trust.TESTED, True),
        ("0.5.17", Trust.BETWEEN, True),
        ("0.5.18", Trust.BETWEEN, False),
        ("v0.5.23", Trust.TESTED, False),
        ("0.5.15", Trust.UNKNOWN, True),
        ("0.6.0", Trust.UNKNOWN, False),
        ("main", Trust.UNKNOWN, False),
    ],
)
def test_trust_follows_what_was_run(text: str, trust: Trust, needs_backport: bool) -> None:
    version = EngineVersion.parse(text)
    assert version.trust is trust
    assert version.needs_backport is needs_backport


def test_unknown_version_is_refused_with_the_tested_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ALLOW_UNTESTED_VARIABLE, raising=False)
    refusal = EngineVersion.parse("0.7.1").refusal()
    assert "0.5.16 and 0.5.23" in refusal
    assert ALLOW_UNTESTED_VARIABLE in refusal
    assert EngineVersion.parse("0.5.20").refusal() == ""


def test_operator_can_take_the_risk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALLOW_UNTESTED_VARIABLE, "1")
    assert EngineVersion.parse("0.7.1").refusal() == ""
