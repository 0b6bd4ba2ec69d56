"""A model for which SGLang has no expert location: refused with the reason, and what still works does work."""

from __future__ import annotations

import json
from pathlib import Path

from profiler.engine.contract import ABILITIES, PluginHealth
from tests.api.cli.command import Moeplan, write_json
from tests.engine.engine_server import EngineServer
from tests.engine.traffic import NEW_TOKENS, prompts

LAYERS, EXPERTS, TOP_K, GPUS = 2, 8, 2, 2
CODE = "MODEL_WITHOUT_EXPERT_LOCATION"


def test_health_says_what_does_not_work_and_why(mixtral_engine: EngineServer) -> None:
    health = PluginHealth.from_json(mixtral_engine.get("/moeplan/health").json())
    assert health.ranks == (0, 1)
    assert {name for name, ability in health.abilities.items() if ability.works} == set()
    for name in ABILITIES:
        assert "expert location" in health.abilities[name].reason


def test_a_push_is_refused_and_says_what_still_works(
    mixtral_engine: EngineServer, moeplan: Moeplan, tmp_path: Path
) -> None:
    rows = [list(range(EXPERTS)) for _ in range(LAYERS)]
    layout = write_json(tmp_path / "layout.json", {"physical_to_logical_map": rows})
    sentence = moeplan.refused("push", layout, "--engine", mixtral_engine.url, code=CODE)
    assert "MixtralForCausalLM" in sentence
    assert "none can be run" in moeplan("push", layout, "--engine", mixtral_engine.url).err


def test_what_remains_is_a_plan_and_its_file(mixtral_engine: EngineServer, moeplan: Moeplan, tmp_path: Path) -> None:
    asked, trace = tmp_path / "prompts.jsonl", tmp_path / "trace.parquet"
    asked.write_text("".join(json.dumps({"input_ids": prompt}) + "\n" for prompt in prompts(4, seed=91)))
    sampling = ("--max-new-tokens", NEW_TOKENS)
    sampled = moeplan("sample", "--engine", mixtral_engine.url, "--prompts", asked, *sampling, "--out", trace, "--json")
    assert sampled.code == 0, sampled.err
    plan, out = tmp_path / "plan.json", tmp_path / "layout.json"
    size = ("--gpus", GPUS, "--slots-per-gpu", 5, "--dispatch", "even", "--objective", "balance", "--time-limit", 5)
    planned = moeplan("plan", trace, *size, "--out", plan, "--json")
    assert planned.code == 0, planned.err
    assert moeplan("export", plan, "--out", out).code == 0
    assert len(json.loads(out.read_text())["physical_to_logical_map"]) == LAYERS
    moeplan.refused("export", plan, "--out", tmp_path / "x.json", "--engine", mixtral_engine.url, code=CODE)
    assert not (tmp_path / "x.json").exists()


def test_the_doctor_says_the_same(mixtral_engine: EngineServer, moeplan: Moeplan) -> None:
    told = moeplan("doctor", "--engine", mixtral_engine.url, "--json").json
    checks = {check["name"]: check for check in told["checks"]}
    assert not told["ready"]
    assert told["architectures"] == ["MixtralForCausalLM"]
    assert (checks["push"]["state"], checks["layout_at_start"]["state"]) == ("missing", "missing")
    assert "MixtralForCausalLM" in checks["push"]["detail"]
    assert (checks["sample"]["state"], checks["dispatch"]["state"]) == ("works", "works")
