"""The failing inputs of tests/cases, from the command line: code, exit status, nothing half-written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.api.cli.command import Moeplan, write_json
from tests.case_files import case, case_folder, case_json

SMALL = {"logical_count": [[40, 10, 30, 20, 5, 15, 25, 35]]}


def plan_arguments(request: dict[str, Any], folder: Path) -> list[object]:
    """Turn a case's request into the arguments of ``moeplan plan``."""
    counts = request.get("counts", [[1 + expert % 7 for expert in range(request["num_experts"])]])
    arguments: list[object] = [
        "plan", write_json(folder / "counts.json", {"logical_count": counts}), "--gpus", request["ep_size"],
        "--nodes", request.get("nnodes", 1), "--out", folder / "plan.json", "--json",
    ]  # fmt: skip
    if "num_redundant" in request:
        arguments += ["--redundant", request["num_redundant"]]
    if "num_groups" in request:
        arguments += ["--expert-groups", request["num_groups"]]
    return arguments


@pytest.mark.parametrize("name", ["L01", "L07"])
def test_slot_counts_are_refused_and_nothing_is_written(name: str, moeplan: Moeplan, tmp_path: Path) -> None:
    line = moeplan.refused(
        *plan_arguments(case_json(name, "request.json"), tmp_path), code=case(name)["expect"]["error_code"]
    )
    for value in case(name)["expect"]["oracle"].values():
        for number in value if isinstance(value, list) else [value]:
            assert str(number) in line
    assert not (tmp_path / "plan.json").exists()


def test_fewer_slots_than_experts(moeplan: Moeplan, tmp_path: Path) -> None:
    counts = write_json(tmp_path / "counts.json", SMALL)
    line = moeplan.refused(
        "plan", counts, "--gpus", 4, "--slots-per-gpu", 1, "--out", tmp_path / "p.json", code="SLOTS_BELOW_EXPERTS"
    )
    assert "at least 2 slots per GPU" in line


def test_no_slots_given_takes_the_fewest_that_fit(moeplan: Moeplan, tmp_path: Path) -> None:
    ran = moeplan(*plan_arguments(case_json("L02", "request.json"), tmp_path))
    assert ran.code == 0
    redundant = ran.json["slots_per_gpu"] * 48 - 160
    assert redundant == case("L02")["expect"]["oracle"]["num_redundant"]


@pytest.mark.parametrize("name", ["L04", "L05"])
def test_topologies_that_do_not_divide_are_planned_with_a_warning(name: str, moeplan: Moeplan, tmp_path: Path) -> None:
    ran = moeplan(*plan_arguments(case_json(name, "request.json"), tmp_path))
    assert ran.code == 0
    assert case(name)["expect"]["error_code"] in ran.warning_codes


def test_unused_experts_keep_one_slot_each(moeplan: Moeplan, tmp_path: Path) -> None:
    ran = moeplan(*plan_arguments(case_json("L10", "request.json"), tmp_path))
    assert ran.code == 0
    layout = read_plan_map(tmp_path)
    for expert in case("L10")["expect"]["oracle"]["unused"]:
        assert layout[0].count(expert) >= 1


def read_plan_map(folder: Path) -> list[list[int]]:
    written: list[list[int]] = json.loads((folder / "plan.json").read_text())["physical_to_logical_map"]
    return written


def test_draft_model_must_fit_the_gpus_too(moeplan: Moeplan, tmp_path: Path) -> None:
    counts = write_json(tmp_path / "counts.json", {"logical_count": [[1] * 256]})
    moeplan.refused(
        "plan", counts, "--gpus", 72, "--redundant", 32, "--draft-experts", 256, "--draft-redundant", 0,
        "--out", tmp_path / "p.json", code="DRAFT_SLOTS_NOT_DIVISIBLE",
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["not_square", "nan", "negative", "diagonal", "wrong_size"])
def test_bad_topology_matrix(kind: str, moeplan: Moeplan, tmp_path: Path) -> None:
    matrices = json.loads((case_folder("L14") / "cases.json").read_text())
    matrix = tmp_path / "matrix.json"
    matrix.write_text(json.dumps(matrices[kind]))
    counts = write_json(tmp_path / "counts.json", SMALL)
    # A file with NaN in it is not even JSON.
    moeplan.refused(
        "plan", counts, "--gpus", 2, "--topology", matrix, "--out", tmp_path / "p.json",
        code="BAD_JSON" if kind == "nan" else "BAD_TOPOLOGY",
    )  # fmt: skip


def test_too_few_live_slots(moeplan: Moeplan, tmp_path: Path) -> None:
    request = case_json("U23", "request.json")
    counts = write_json(tmp_path / "counts.json", SMALL)
    live = ",".join(str(rank) for rank, alive in enumerate(request["active_ranks"]) if alive)
    line = moeplan.refused(
        "plan", counts, "--gpus", 4, "--slots-per-gpu", request["slots_per_rank"], "--live-gpus", live,
        "--out", tmp_path / "p.json", code="NOT_ENOUGH_LIVE_SLOTS",
    )  # fmt: skip
    assert "at least 4 live GPUs" in line


def test_a_deadline_still_gives_a_plan_with_its_gap(moeplan: Moeplan, tmp_path: Path) -> None:
    request = case_json("L18", "request.json")
    counts = [[(expert * 37 + layer * 11) % 101 for expert in range(256)] for layer in range(request["num_layers"])]
    ran = moeplan(*plan_arguments({**request, "counts": counts}, tmp_path), "--time-limit", request["time_limit_s"])
    assert ran.code == 0
    assert "BEST_EFFORT_PLAN" in ran.warning_codes
    assert ran.json["gap"] is not None


def test_prefill_and_decode_apart(moeplan: Moeplan, tmp_path: Path) -> None:
    request, oracle = case_json("L15", "request.json"), case("L15")["expect"]["oracle"]
    for phase in ("prefill", "decode"):
        counts = write_json(tmp_path / f"{phase}.json", {"logical_count": request[phase]})
        ran = moeplan(
            "plan", counts, "--gpus", 2, "--slots-per-gpu", 2, "--objective", "balance",
            "--out", tmp_path / f"{phase}.plan.json", "--json",
        )  # fmt: skip
        mean = sum(request[phase][0]) / 2
        assert ran.json["metrics"]["imbalance"] == pytest.approx(oracle[f"{phase}_best_max"] / mean)


def test_plans_do_not_depend_on_the_scale_of_counts(moeplan: Moeplan, tmp_path: Path) -> None:
    hashes = set()
    for file in ("a.json", "b.json"):
        ran = moeplan(
            "plan", case_folder("P04") / file, "--gpus", 4, "--redundant", 4, "--out", tmp_path / file, "--json"
        )
        hashes.add(ran.json["layout_hash"])
    assert len(hashes) == 1


def test_workload_shift_is_noticed(moeplan: Moeplan) -> None:
    ran = moeplan(
        "compare", case_folder("L20") / "old.json", "--test", case_folder("L20") / "new.json",
        "--gpus", 2, "--slots-per-gpu", 3, "--json",
    )  # fmt: skip
    assert ran.code == 0
    assert "PROFILE_DRIFT" in ran.warning_codes
    detail = next(w["detail"] for w in ran.json["warnings"] if w["code"] == "PROFILE_DRIFT")
    assert f"{case('L20')['expect']['oracle']['total_variation']:.2f}" in detail


REFUSED_RECORDINGS = [
    ("P13", "dump.pt"), ("P23", "counts.json"), ("P24", "nan.json"), ("P24", "inf.json"), ("P25", "counts.json"),
    ("P27", "str.json"), ("P27", "null.json"), ("P27", "bool.json"), ("P27", "frac.json"), ("P27", "scalar.json"),
    ("P28", "half.pt"), ("P28", "empty.pt"), ("P29", "zip.pt"), ("P29", "plain.pt"),
    ("P19", "expert_distribution_recorder_10.0_0.pt"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "file"), REFUSED_RECORDINGS)
def test_recordings_that_must_not_be_planned_from(name: str, file: str, moeplan: Moeplan, tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    moeplan.refused(
        "plan", case_folder(name) / file, "--gpus", 1, "--out", out, code=case(name)["expect"]["error_code"]
    )
    assert list(tmp_path.iterdir()) == []
    must_not_exist = case(name)["expect"]["oracle"].get("must_not_exist")
    assert must_not_exist is None or not Path(must_not_exist).exists()


def test_missing_rank_is_told_and_planned_only_when_allowed(moeplan: Moeplan, tmp_path: Path) -> None:
    dump = case_folder("P18") / "expert_distribution_recorder_10.0_0.pt"
    ran = moeplan("trace", "info", dump, "--ranks", 2, "--json")
    assert ran.code == 0
    assert "MISSING_RANKS" in {warning["code"] for warning in ran.json["inputs"][0]["warnings"]}
    arguments = ["plan", dump, "--ranks", 2, "--gpus", 2, "--out", tmp_path / "p.json", "--json"]
    moeplan.refused(*arguments, code="MISSING_RANKS")
    allowed = moeplan(*arguments, "--allow-partial")
    assert allowed.code == 0
    assert "MISSING_RANKS" in allowed.warning_codes


def test_a_history_of_layouts_splits_the_recording(moeplan: Moeplan, tmp_path: Path) -> None:
    folder = case_folder("P19")
    ran = moeplan(
        "plan", folder / "expert_distribution_recorder_10.0_0.pt", "--map-history", folder / "map_history.json",
        "--gpus", 1, "--window-by", "none", "--out", tmp_path / "p.json", "--json",
    )  # fmt: skip
    assert ran.code == 0
    assert json.loads((tmp_path / "p.json").read_text())["heat"] == case("P19")["expect"]["oracle"]["right"]


REFUSED_LAYOUTS = [("U01", "map.json"), ("U02", "map.json"), ("U07", "flat.json"), ("U14", "expert_map.json")]


@pytest.mark.parametrize(("name", "file"), REFUSED_LAYOUTS)
def test_layouts_that_are_none(name: str, file: str, moeplan: Moeplan, tmp_path: Path) -> None:
    counts = write_json(tmp_path / "counts.json", {"logical_count": [[4, 3, 2, 1]]})
    moeplan.refused("evaluate", case_folder(name) / file, counts, "--gpus", 2, code=case(name)["expect"]["error_code"])


def test_diff_of_layouts_of_different_width(moeplan: Moeplan, tmp_path: Path) -> None:
    six = write_json(tmp_path / "six.json", {"physical_to_logical_map": [[0, 1, 2, 3, 0, 1]]})
    line = moeplan.refused("diff", six, case_folder("U04") / "map.json", "--gpus", 2, code="SLOT_COUNT_MISMATCH")
    assert "6" in line
    assert "8" in line


@pytest.mark.parametrize("file", ["map_with_extras.json"])
def test_extra_keys_are_repaired_on_export(file: str, moeplan: Moeplan, tmp_path: Path) -> None:
    counts = write_json(tmp_path / "counts.json", {"logical_count": [[4, 3, 2, 1]]})
    ran = moeplan("evaluate", case_folder("U06") / file, counts, "--gpus", 2, "--json")
    assert ran.code == 0
    assert "EXTRA_KEYS" in ran.warning_codes
    plan, out = tmp_path / "p.json", tmp_path / "layout.json"
    assert moeplan("plan", counts, "--gpus", 2, "--redundant", 2, "--out", plan, "--json").code == 0
    assert moeplan("export", plan, "--out", out).code == 0
    assert list(json.loads(out.read_text())) == case("U06")["expect"]["oracle"]["keys"]


def test_an_unknown_export_format_names_those_that_exist(moeplan: Moeplan, tmp_path: Path) -> None:
    counts = write_json(tmp_path / "counts.json", {"logical_count": [[4, 3, 2, 1]]})
    plan = tmp_path / "p.json"
    moeplan("plan", counts, "--gpus", 2, "--out", plan, "--json")
    line = moeplan.refused("export", plan, "--format", "nonsense", "--out", tmp_path / "x.json",
                           code="EXPORT_FORMAT_UNKNOWN")  # fmt: skip
    assert "sglang" in line
    assert not (tmp_path / "x.json").exists()


def test_a_restart_that_fails_can_go_back_to_the_layout_before(moeplan: Moeplan, tmp_path: Path) -> None:
    """Case U27: the engine does not start with the new file, and then starts with the old one."""
    counts = write_json(tmp_path / "counts.json", {"logical_count": [[4, 3, 2, 1]]})
    plan, out = tmp_path / "p.json", tmp_path / "layout.json"
    moeplan("plan", counts, "--gpus", 2, "--redundant", 2, "--out", plan, "--json")
    before = write_json(out, {"physical_to_logical_map": [[0, 1, 2, 3, 0, 1]]}).read_bytes()

    told: dict[str, Any] = {}
    calls = {
        "write_layout": lambda: told.update(moeplan("export", plan, "--out", out, "--print-restart", "--json").json),
        "restart": lambda: None,
        "restore_previous_layout": lambda: out.write_bytes(Path(told["kept"]).read_bytes()),
    }
    written = []
    for step in case_json("U27", "scenario.json")["steps"]:
        calls[step["call"]]()
        written.append(out.read_bytes())
    assert written[0] != before
    assert written[-1] == before
    assert case("U27")["expect"]["error_code"] in told["steps"][-1]
    assert f"--init-expert-location {told['kept']}" in told["steps"][-1]
    again = moeplan("export", plan, "--out", tmp_path / "other.json", "--print-restart", "--json").json
    assert again["kept"] is None
