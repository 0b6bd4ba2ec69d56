"""Going back, and pushes whose end is not what the engine answered."""

from __future__ import annotations

import json
import stat
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from placement.layout import Layout
from profiler.engine.client import EngineClient
from profiler.engine.contract_push import PushRequest
from profiler.engine.history import KEPT_PUSHES, LayoutHistory
from profiler.engine.map_rules import layout_hash
from profiler.engine.push import push
from profiler.engine.rollback import rollback
from profiler.errors import (
    ApplyStalled,
    BadJson,
    EngineAnswerInvalid,
    EngineError,
    EngineFailed,
    EngineRestarted,
    NoPreviousLayout,
    OutputNotWritable,
    PartialApply,
    PostPushCheckFailed,
)
from profiler.replay import Faults
from profiler.replay.weights import TENSORS
from tests.case_files import case
from tests.profiler.engine.messages import placement, push_answer
from tests.profiler.engine.servers import answer, engine_that_answers, hangs_up, healthy_routes, in_turn
from tests.profiler.engine.test_push import any_layout, engine

URL = "http://engine:30000"


@pytest.fixture
def history(tmp_path) -> LayoutHistory:
    return LayoutHistory(tmp_path / "layouts")


# ------------------------------------------------------------------ rolling back


def test_rolling_back_restores_the_layout_and_its_weights_and_twice_returns(history):
    with engine() as client:
        before = client.placement(checksums=True)
        push(client, any_layout(1), history=history, layers_per_chunk=1)
        back = rollback(client, history=history)
        restored = client.placement(checksums=True)
        forth = rollback(client, history=history)
        assert client.placement().layout_hash == any_layout(1).hash
    assert (back.status, forth.status) == ("applied", "applied")
    assert back.weights_checked
    assert (restored.layout_hash, restored.checksums) == (before.layout_hash, before.checksums)


def test_an_older_layout_is_found_by_the_first_digits_of_its_hash(history):
    with engine() as client:
        first = client.placement().layout_hash
        for seed in (1, 2, 3):
            push(client, any_layout(seed), history=history)
        rollback(client, history=history, to_hash=first[:12])
        assert client.placement().layout_hash == first
        rollback(client, history=history, to_hash=any_layout(2).hash.upper())
        assert client.placement().layout_hash == any_layout(2).hash


@pytest.mark.parametrize("to_hash", ["", "0" * 12, "zzzzzzzz"])
def test_a_hash_that_names_no_remembered_layout_lists_those_there_are(history, to_hash):
    with engine() as client:
        first = client.placement().layout_hash
        push(client, any_layout(1), history=history)
        with pytest.raises(NoPreviousLayout, match=first[:12]):
            rollback(client, history=history, to_hash=to_hash)


def test_too_few_digits_name_nothing(history):
    with engine() as client:
        first = client.placement().layout_hash
        push(client, any_layout(1), history=history)
        with pytest.raises(NoPreviousLayout):
            rollback(client, history=history, to_hash=first[:7])


def test_without_a_push_there_is_nothing_to_go_back_to(history):
    with engine() as client, pytest.raises(NoPreviousLayout, match="no push into this engine"):
        rollback(client, history=history)


def test_what_somebody_else_has_pushed_since_is_not_rolled_over(history):
    with engine() as client:
        push(client, any_layout(1), history=history)
        client.put_placement(PushRequest(any_layout(2).slot_to_expert_LP))
        with pytest.raises(NoPreviousLayout, match="somebody else"):
            rollback(client, history=history)
        assert client.placement().layout_hash == any_layout(2).hash


def test_a_push_that_stopped_half_way_is_mended(history):
    with engine(faults=Faults(fail_chunk=3)) as client:
        before = client.placement(checksums=True)
        with pytest.raises(PartialApply):
            push(client, any_layout(1), history=history, layers_per_chunk=1)
        result = rollback(client, history=history)
        after = client.placement(checksums=True)
    assert result.weights_checked
    assert (after.layout_hash, after.checksums) == (before.layout_hash, before.checksums)


@pytest.mark.parametrize(("left_behind", "number"), [(TENSORS, "U09"), (("w13_weight",), "U10")])
def test_a_push_whose_weights_stayed_behind_can_be_taken_back(history, left_behind, number):
    assert case(number)["expect"]["outcome"] == "rollback"
    with engine(faults=Faults(left_behind=left_behind)) as client:
        before = client.placement(checksums=True)
        with pytest.raises(PostPushCheckFailed) as caught:
            push(client, any_layout(1), history=history)
        assert any("rollback" in remedy for remedy in caught.value.remedies)
        rollback(client, history=history)
        after = client.placement(checksums=True)
    assert (after.layout_hash, after.checksums) == (before.layout_hash, before.checksums)


def test_a_rollback_is_judged_by_the_weights_of_before_the_push_that_failed(history):
    """The slots' own weights prove nothing after a push that was never verified."""
    with engine(faults=Faults(left_behind=("w2_weight",))) as client:
        truth = client.placement(checksums=True)
        with pytest.raises(PostPushCheckFailed):
            push(client, any_layout(1), history=history)
        (remembered,) = history.pushes(client.url)
    assert remembered.outcome == "failed"
    assert remembered.before.checksums == truth.checksums


# ------------------------------------------------------------------ answers that are lost or lie


def scripted(put, *placements, **more) -> dict:
    """Return an engine that reports placements in turn, and answers pushes with ``put``."""
    reads = in_turn(*(answer(seen.to_json()) for seen in placements))
    return {**healthy_routes(), ("GET", "/moeplan/placement"): reads, ("PUT", "/moeplan/placement"): put, **more}


OLD = placement()
PUSHED = Layout(np.array([[0, 1, 2, 1], [2, 1, 0, 0]]), gpus=2, experts=3)


def after_push(map_LP: np.ndarray, **changes) -> object:
    """Return the placement of an engine that runs a map with the right weights."""
    letters = ("abc", "def")
    rows = tuple(tuple(letters[layer][expert] for expert in row) for layer, row in enumerate(map_LP.tolist()))
    digest = layout_hash(map_LP)
    fields = {
        "map_LP": map_LP,
        "layout_hash": digest,
        "rank_hashes": (digest,) * 2,
        "checksums": {"w": rows},
        **changes,
    }
    return replace(OLD, **fields)


NEW = after_push(PUSHED.slot_to_expert_LP)
HALF = after_push(np.stack([PUSHED.slot_to_expert_LP[0], OLD.map_LP[1]]))
APPLIED = answer({**push_answer().to_json(), "status": "applied", "layout_hash": PUSHED.hash})
PARTIAL = answer(push_answer().to_json(), status=500)
BROKEN = answer({"error": {"code": "ENGINE_FAILED", "detail": "rank 1: out of memory."}}, status=500)


def pushed_into(routes: dict, history: LayoutHistory | None = None, **options):
    with engine_that_answers(routes) as (url, _), EngineClient(url, timeout_s=2) as client:
        return push(client, PUSHED, history=history, **options)


def test_an_engine_that_applies_is_believed_once_it_was_read():
    result = pushed_into(scripted(APPLIED, OLD, NEW))
    assert (result.status, result.weights_checked) == ("applied", True)


@pytest.mark.parametrize(
    ("after", "words"),
    [
        (OLD, "2 of 2 layers differ, the first is 0"),
        (HALF, "1 of 2 layers differ, the first is 1"),
        (replace(NEW, rank_hashes=(NEW.layout_hash, OLD.layout_hash)), r"ranks \[1\] run another one"),
        (replace(NEW, rank_hashes=(NEW.layout_hash,)), "1 of 2 ranks answered"),
        (replace(NEW, checksums={"w": (("a", "b", "c", "a"), NEW.checksums["w"][1])}), "layer 0, slot 3"),
        (replace(NEW, checksums={**NEW.checksums, "w_scale": NEW.checksums["w"]}), "before the push and of"),
    ],
)
def test_an_engine_that_says_applied_but_is_not_is_found_out(history, after, words):
    with pytest.raises(PostPushCheckFailed, match=words):
        pushed_into(scripted(APPLIED, OLD, after), history)


@pytest.mark.parametrize("lost", [hangs_up, answer(raw=b"<html>bad gateway</html>"), BROKEN])
def test_a_lost_answer_of_a_push_that_was_applied_is_made_up_for_by_reading(lost):
    busy = replace(OLD, push_in_progress=True)
    result = pushed_into(scripted(lost, OLD, busy, busy, NEW))
    assert result.status == "applied"
    assert result.answer is None
    assert result.move_seconds is None
    assert result.changed_slots == 2


@pytest.mark.parametrize(("lost", "error"), [(hangs_up, EngineAnswerInvalid), (BROKEN, EngineFailed)])
def test_a_lost_answer_of_a_push_that_moved_nothing_says_so(lost, error):
    with pytest.raises(error, match=f"still runs layout {OLD.layout_hash[:12]}"):
        pushed_into(scripted(lost, OLD))


@pytest.mark.parametrize("put", [hangs_up, PARTIAL, BROKEN])
def test_a_push_that_is_found_half_applied_names_the_layers_it_found(put):
    with pytest.raises(PartialApply) as caught:
        pushed_into(scripted(put, OLD, HALF))
    assert (caught.value.new_layers, caught.value.old_layers) == ((0,), (1,))


def test_an_engine_that_is_gone_after_the_push_leaves_it_unknown(history):
    routes = scripted(hangs_up, OLD)
    routes["GET", "/moeplan/placement"] = in_turn(answer(OLD.to_json()), hangs_up)
    with pytest.raises(EngineAnswerInvalid, match="Whether it was applied is unknown"):
        pushed_into(routes, history)


def test_a_push_that_never_ends_is_reported_as_it_stands():
    busy = replace(HALF, push_in_progress=True)
    with pytest.raises(ApplyStalled, match="still under way"):
        pushed_into(scripted(hangs_up, OLD, busy), timeout_s=0.3)


WIDE_LP = np.array([[0, 1, 2, 0, 1, 2]] * 2, dtype=np.int32)
OTHER_LP = np.array([[2, 1, 0, 2], [0, 1, 2, 1]], dtype=np.int32)


def restarted(map_LP: np.ndarray, **changes) -> object:
    digest = layout_hash(map_LP)
    fields = {"map_LP": map_LP, "layout_hash": digest, "slots": map_LP.shape[1], "checksums": None, "generation": 0}
    return replace(OLD, **{**fields, "rank_hashes": (digest,) * changes.get("ep_size", 2), **changes})


@pytest.mark.parametrize("lost", [hangs_up, BROKEN, PARTIAL])
@pytest.mark.parametrize(
    ("after", "words"),
    [
        (restarted(WIDE_LP), "another shape: 2 layers of 6 slots on 2 ranks instead of 2 layers of 4 slots on 2 ranks"),
        (restarted(OTHER_LP, ep_size=4), "4 slots on 4 ranks instead of"),
        (restarted(OTHER_LP), "which no push has brought"),
        (restarted(HALF.map_LP), "which no push has brought"),
        (restarted(OTHER_LP, generation=OLD.generation), "which no push has brought"),
    ],
)
def test_an_engine_that_was_started_anew_meanwhile_is_not_taken_for_the_one_before(history, lost, after, words):
    with pytest.raises(EngineRestarted, match=words) as caught:
        pushed_into(scripted(lost, OLD, after), history)
    assert not any("rollback" in remedy for remedy in caught.value.remedies)
    assert remembered_outcomes(history) == ["failed"]


@pytest.mark.parametrize("after", [restarted(WIDE_LP), restarted(OTHER_LP, ep_size=4)])
def test_an_engine_of_another_shape_after_its_answer_is_found_out(history, after):
    with pytest.raises(EngineRestarted, match="plan for it anew"):
        pushed_into(scripted(APPLIED, OLD, after), history)


def test_somebody_elses_push_after_a_lost_answer_is_not_taken_for_half_of_ours(history):
    after = replace(restarted(OTHER_LP), generation=OLD.generation + 2)
    with pytest.raises(PostPushCheckFailed, match="somebody else has pushed"):
        pushed_into(scripted(hangs_up, OLD, after), history)
    assert remembered_outcomes(history) == ["failed"], "what ran before us stays known"


def test_a_rank_that_is_gone_after_a_lost_answer_is_named(history):
    with pytest.raises(PostPushCheckFailed, match="1 of 2 ranks answered"):
        pushed_into(scripted(hangs_up, OLD, replace(NEW, rank_hashes=(NEW.layout_hash,))), history)


# ------------------------------------------------------------------ the history


def remembered_outcomes(history: LayoutHistory) -> list[str]:
    return [json.loads(path.read_text())["outcome"] for path in sorted(history.folder.glob("*/*.json"))]


@pytest.mark.parametrize(
    ("routes", "outcomes"),
    [
        (scripted(APPLIED, OLD, NEW), ["applied"]),
        (scripted(APPLIED, OLD, OLD), ["failed"]),
        (scripted(PARTIAL, OLD, HALF), ["failed"]),
        (scripted(answer({"error": {"code": "LAYOUT_HASH_MISMATCH", "detail": "d"}}, status=409), OLD), []),
        (scripted(answer({"error": {"code": "EXPERT_MISSING", "detail": "d"}}, status=400), OLD), []),
    ],
)
def test_what_became_of_a_push_is_written_down(history, routes, outcomes):
    with suppress(EngineError):
        pushed_into(routes, history)
    assert remembered_outcomes(history) == outcomes


def test_the_layout_before_is_on_disk_before_anything_is_sent(history):
    seen = []

    def put(request):
        seen.extend(remembered_outcomes(history))
        APPLIED(request)

    pushed_into(scripted(put, OLD, NEW), history)
    assert seen == ["started"]


def test_where_nothing_can_be_remembered_nothing_is_pushed(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    with engine() as client:
        with pytest.raises(OutputNotWritable, match="cannot be made"):
            push(client, any_layout(1), history=LayoutHistory(blocked / "layouts"))
        assert client.placement().generation == 0


def test_a_client_that_was_killed_during_its_push_can_be_followed_by_a_rollback(history):
    with engine() as client:
        before = client.placement(checksums=True)
        history.begin(client.url, before, any_layout(1).slot_to_expert_LP)
        client.put_placement(PushRequest(any_layout(1).slot_to_expert_LP, layers=(0, 2)))
        rollback(client, history=history)
        after = client.placement(checksums=True)
    assert (after.layout_hash, after.checksums) == (before.layout_hash, before.checksums)


def test_engines_have_histories_of_their_own_and_old_pushes_are_forgotten(history):
    for _ in range(KEPT_PUSHES + 5):
        push_ = history.begin(URL, OLD, PUSHED.slot_to_expert_LP)
        history.finish(push_, "applied")
    history.begin("http://other:30000", OLD, PUSHED.slot_to_expert_LP)
    assert len(history.pushes(URL)) == KEPT_PUSHES + 1, (
        "the first push stays: from it the engine can go back to its start"
    )
    assert len(history.pushes("http://other:30000")) == 1
    assert history.pushes(URL)[0].before.checksums is None
    assert history.pushes("http://other:30000")[0].before.checksums == OLD.checksums


def test_the_folder_is_the_users_own(history):
    history.begin(URL, OLD, PUSHED.slot_to_expert_LP)
    (folder,) = history.folder.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("text", ["", "{}", '{"format": "moeplan-layout-history", "format_version": 2}', "[1]", "\x00"])
def test_a_damaged_history_is_named(history, text):
    push_ = history.begin(URL, OLD, PUSHED.slot_to_expert_LP)
    push_.path.write_text(text)
    with pytest.raises(BadJson, match=push_.path.name):
        history.pushes(URL)


def test_the_users_history_follows_the_settings():
    assert LayoutHistory.of_user({"MOEPLAN_DATA_DIR": "/data"}).folder == Path("/data/layouts")
    assert LayoutHistory.of_user({"XDG_STATE_HOME": "/state"}).folder == Path("/state/moeplan/layouts")
    assert LayoutHistory.of_user({}).folder == Path.home() / ".local/state/moeplan/layouts"
