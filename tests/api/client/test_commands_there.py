"""The command line against a running service: the same output, the same files, the same exit codes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from api.cli.app import run
from profiler.recordings import MIXED, recording_path
from tests.api.cli.command import Moeplan, write_json
from tests.api.client.serving import running_service
from tests.api.services import GPUS, SLOTS_PER_GPU, replay_engine

ADMIN_KEY = "admin-key-of-the-tests"
SHAPE = ("--gpus", GPUS, "--slots-per-gpu", SLOTS_PER_GPU)
RECORDING = recording_path(MIXED)
COUNTS = [[[90, 30, 20, 10, 5, 5], [5, 5, 10, 20, 30, 90]]] * 2 + [[[10, 30, 90, 10, 5, 5], [5, 9, 10, 20, 30, 60]]]
SECONDS = r"solved in [0-9.]+ s|\"solve_seconds\": [0-9.]+"


@pytest.fixture(scope="module")
def engine_url() -> Iterator[str]:
    with replay_engine() as url:
        yield url


@pytest.fixture(scope="module")
def service_url(tmp_path_factory: pytest.TempPathFactory, engine_url: str) -> Iterator[str]:
    """A service with an engine; what the tests of this module store in it stays."""
    folder = tmp_path_factory.mktemp("service")
    token = folder / "token"
    token.write_text(f"{ADMIN_KEY}\n")
    with running_service(folder, admin_api_key=ADMIN_KEY) as url:
        code = run(["engines", "add", "replay", engine_url, "--url", url, "--token-file", str(token)])
        assert code == 0
        yield url


@pytest.fixture
def there(service_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("MOEPLAN_URL", service_url)
    monkeypatch.setenv("MOEPLAN_TOKEN", ADMIN_KEY)
    return service_url


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MOEPLAN_URL", raising=False)
    monkeypatch.delenv("MOEPLAN_TOKEN", raising=False)


@pytest.fixture
def moeplan(capsys: pytest.CaptureFixture[str]) -> Moeplan:
    return Moeplan(capsys)


STORED_AS = r"the service keeps it as pln_.*\n|,?\s*\"plan_id\": \"pln_\w+\""
"""What a service adds: the id that the next command takes."""


def without_seconds(text: str) -> str:
    return re.sub(SECONDS, "", text)


def ids(moeplan: Moeplan, *command: str) -> list[str]:
    return [item["id"] for item in moeplan(*command, "--json").json["items"]]


def same_but_for_the_input(one: Path, other: Path) -> None:
    a, b = json.loads(one.read_text()), json.loads(other.read_text())
    a.pop("inputs"), b.pop("inputs")
    assert a == b


@pytest.mark.parametrize(
    "options", [("--holdout", 0.4, "--window-by", "none"), ("--current", "current.json", "--pareto", "--json")]
)
def test_a_plan_made_there_is_the_plan_made_here(
    moeplan: Moeplan, service_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[Any, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_json(tmp_path / "counts.json", {"logical_count": COUNTS})
    write_json(tmp_path / "current.json", {"physical_to_logical_map": [[0, 1, 2, 3, 4, 5, 0, 1]] * 2})
    asked = ("counts.json", "--gpus", 2, "--slots-per-gpu", 4, "--seed", 3, *options)
    made_here = moeplan("plan", *asked, "--out", "here.json")
    monkeypatch.setenv("MOEPLAN_TOKEN", ADMIN_KEY)
    made_there = moeplan("plan", *asked, "--out", "there.json", "--url", service_url)
    assert (made_there.code, made_here.code) == (0, 0), made_there.err
    printed = without_seconds(made_there.out).replace("there.json", "here.json")
    (kept_as,) = re.findall(STORED_AS, printed)
    assert re.sub(STORED_AS, "", printed) == without_seconds(made_here.out)
    assert moeplan("plans", "show", re.findall(r"pln_\w+", kept_as)[0], "--url", service_url).code == 0
    assert made_there.err == made_here.err
    assert re.search(SECONDS, made_there.out)
    same_but_for_the_input(tmp_path / "here.json", tmp_path / "there.json")


@pytest.mark.usefixtures("there")
class TestExitCodes:
    def test_a_missed_target(self, moeplan: Moeplan, tmp_path: Path) -> None:
        counts = write_json(tmp_path / "counts.json", {"logical_count": COUNTS})
        asked = ("plan", counts, "--gpus", 2, "--local-target", 0.99, "--out", tmp_path / "p.json")
        assert moeplan(*asked).code == 4
        assert (tmp_path / "p.json").exists()

    def test_what_nothing_meets(self, moeplan: Moeplan, tmp_path: Path) -> None:
        counts = write_json(tmp_path / "counts.json", {"logical_count": [[100, 1, 1, 1]]})
        asked = ("plan", counts, "--gpus", 2, "--slots-per-gpu", 2, "--max-overflow", 0.0, "--out", tmp_path / "p.json")
        said = moeplan.refused(*asked, code="INFEASIBLE", exit_code=3)
        monkey = pytest.MonkeyPatch()
        with monkey.context() as environment:
            environment.delenv("MOEPLAN_URL")
            assert moeplan.refused(*asked, code="INFEASIBLE", exit_code=3) == said
        assert not (tmp_path / "p.json").exists()

    @pytest.mark.parametrize(
        ("command", "code"),
        [
            (("plan", RECORDING, "--gpus", 8, "--slots-per-gpu", 2, "--out", "p.json"), "SLOTS_BELOW_EXPERTS"),
            (("plan", "trc_01k3x9v4e7q8w2m5n6p7r8s9t0", *SHAPE, "--out", "p.json"), "NOT_FOUND"),
            (("plan", "missing.npz", *SHAPE, "--out", "p.json"), "INPUT_NOT_FOUND"),
            (("plan", RECORDING, *SHAPE, "--per-window", "--out", "p.json"), "BAD_OPTION"),
            (("plan", RECORDING, *SHAPE, "--workers", 2, "--out", "p.json"), "BAD_OPTION"),
            (("plan", RECORDING, *SHAPE, "--for-engine", "nobody", "--out", "p.json"), "NOT_FOUND"),
            (("engines", "show", "nobody"), "NOT_FOUND"), (("jobs", "show", "job_x"), "NOT_FOUND"),
            (("push", "plan.json", "--engine", "replay"), "BAD_OPTION"),
            (("capture", "--engine", "replay", "--dump-dir", "/tmp"), "BAD_OPTION"),
            (("capture", "--engine", "replay"), "BAD_REQUEST"),
        ],
    )  # fmt: skip
    def test_bad_input(
        self, moeplan: Moeplan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Any, code: str
    ) -> None:
        monkeypatch.chdir(tmp_path)
        moeplan.refused(*command, code=code)
        assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("there")
def test_from_recording_to_rollback(moeplan: Moeplan, tmp_path: Path) -> None:
    captured = moeplan("capture", "--engine", "replay", "--steps", 20, "--out", tmp_path / "t.parquet")
    assert captured.code == 0, captured.err
    trace_id = ids(moeplan, "trace", "list")[0]
    assert trace_id in captured.out
    assert moeplan("trace", "info", trace_id, "--json").json["inputs"][0]["sha256"]
    assert (tmp_path / "t.parquet").read_bytes().startswith(b"PAR1")

    compared = moeplan("compare", trace_id, *SHAPE, "--for-engine", "replay", "--json")
    assert compared.code == 0, compared.err
    assert "current" in compared.json["baselines"]
    plan_id = ids(moeplan, "plans", "list", "--engine", "replay")[0]
    assert moeplan("plans", "show", plan_id, "--json").json["comparison"]["layout_hash"] == compared.json["layout_hash"]

    evaluated = moeplan("evaluate", plan_id, trace_id, "--gpus", GPUS, "--json").json["metrics"]
    assert evaluated["local_gpu"] == pytest.approx(compared.json["metrics"]["local_gpu"])
    for command in (
        ("export", plan_id, "--out", tmp_path / "layout.json"), ("report", plan_id, "--out", tmp_path / "plan.html"),
        ("diff", plan_id, plan_id), ("plans", "download", plan_id, "--out", tmp_path / "plan.json"),
    ):  # fmt: skip
        assert moeplan(*command).code == 0, command

    moves = moeplan("push", plan_id, "--engine", "replay", "--dry-run", "--json").json["moved_slots"]
    assert moves > 0
    moeplan.refused("push", plan_id, "--engine", "replay", code="APPROVAL_NEEDED")
    assert moeplan("plans", "approve", plan_id, "--reason", "ticket 7").code == 0
    pushed = moeplan("push", plan_id, "--engine", "replay", "--layers-per-chunk", 2, "--measure-seconds", 0)
    assert pushed.code == 0, pushed.err
    assert "is applied" in pushed.out
    assert moeplan("push", plan_id, "--engine", "replay", "--dry-run", "--json").json["moved_slots"] == 0
    assert "is applied" in moeplan("rollback", "--engine", "replay", "--reason", "only tried").out
    assert [row["state"] for row in moeplan("rollouts", "list", "--json").json["items"]][:2] == [
        "applied",
        "rolled_back",
    ]
    assert "ticket 7" in moeplan("keys", "audit", "--of", plan_id).out


@pytest.mark.usefixtures("there")
def test_equal_recordings_are_stored_once(moeplan: Moeplan, tmp_path: Path) -> None:
    file = write_json(tmp_path / "counts of the evening.json", {"logical_count": [[[4, 3, 2, 1]], [[1, 2, 3, 4]]]})
    first, second = (moeplan("trace", "import", file, "--json").json["traces"][0] for _ in range(2))
    assert first["id"] == second["id"]
    assert first["name"] == "counts of the evening.json"
    assert moeplan("trace", "keep", first["id"]).out.strip() == f"{first['id']} is kept"
    assert moeplan("trace", "remove", first["id"]).code == 0
    again = moeplan("trace", "import", file, "--json").json["traces"][0]
    assert again["id"] != first["id"]


@pytest.mark.usefixtures("there")
def test_rank_files_of_one_recording_are_one_trace(moeplan: Moeplan, tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / f"rank{rank}.csv").write_text("layer_id,expert_id,count\n0,0,5\n0,1,7\n")
    stored = moeplan("trace", "import", tmp_path / "rank0.csv", tmp_path / "rank1.csv", "--json")
    assert stored.code == 0, stored.err
    (trace,) = stored.json["traces"]
    assert trace["facts"]["layers"] == 1


@pytest.mark.usefixtures("there")
def test_jobs_are_listed_watched_and_stopped(moeplan: Moeplan) -> None:
    job_id = ids(moeplan, "jobs", "list", "--state", "succeeded")[0]
    watched = moeplan("jobs", "watch", job_id)
    assert watched.code == 0
    assert watched.out.splitlines()[-1] == f"{job_id} has succeeded"
    moeplan.refused("jobs", "cancel", job_id, code="WRONG_STATE")


@pytest.mark.usefixtures("there")
def test_keys_are_made_shown_once_and_revoked(moeplan: Moeplan, monkeypatch: pytest.MonkeyPatch) -> None:
    made = moeplan("keys", "make", "grafana", "--level", "read")
    secret = made.out.strip()
    assert secret not in made.err
    monkeypatch.setenv("MOEPLAN_TOKEN", secret)
    listed = moeplan("engines", "list")
    assert listed.code == 0
    moeplan.refused("engines", "remove", "replay", code="ADMIN_NEEDED")
    monkeypatch.setenv("MOEPLAN_TOKEN", ADMIN_KEY)
    shown = moeplan("keys", "list", "--json")
    assert secret not in shown.out
    assert moeplan("keys", "revoke", shown.json["items"][0]["id"]).code == 0
    monkeypatch.setenv("MOEPLAN_TOKEN", secret)
    moeplan.refused("engines", "list", code="KEY_REFUSED")


def test_without_a_token_and_with_one_from_a_file(
    moeplan: Moeplan, service_url: str, tmp_path: Path, here: None
) -> None:
    moeplan.refused("engines", "list", "--url", service_url, code="KEY_MISSING")
    token = tmp_path / "token"
    token.write_text(ADMIN_KEY + "\n")
    assert moeplan("engines", "list", "--url", service_url, "--token-file", token).code == 0
    token.write_text("")
    line = moeplan.refused("engines", "list", "--url", service_url, "--token-file", token, code="BAD_SETTING")
    assert ADMIN_KEY not in line


def test_what_a_service_keeps_needs_one(moeplan: Moeplan, here: None, tmp_path: Path) -> None:
    stored = "pln_01k3x9v4e7q8w2m5n6p7r8s9t0"
    trace = "trc_01k3x9v4e7q8w2m5n6p7r8s9t0"
    for command in (
        ("jobs", "list"), ("report", stored, "--out", tmp_path / "p.html"), ("plan", trace, *SHAPE, "--out", "p.json"),
        ("evaluate", stored, trace, "--gpus", 8), ("trace", "import", RECORDING), ("capture", "--engine", "http://x"),
    ):  # fmt: skip
        moeplan.refused(*command, code="BAD_OPTION")
