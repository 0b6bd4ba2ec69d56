"""What the replay engine does wrong on purpose, and its own record of pushes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from placement.layout import Layout
from profiler.engine.client import EngineClient
from profiler.engine.contract_push import PushRequest
from profiler.engine.preflight import check_ranks_agree
from profiler.engine.push import push
from profiler.engine.recognise import was_restarted
from profiler.errors import EngineFailed, EngineRestarted, EngineUnreachable, PostPushCheckFailed
from profiler.replay import Faults
from tests.profiler.replay.clients import client_of_replay
from tests.profiler.replay.traces import made_up

LAYERS, EXPERTS, GPUS, SLOTS = 4, 8, 2, 10


@contextmanager
def engine(faults: Faults) -> Iterator[EngineClient]:
    with client_of_replay(made_up([(6, 2)] * 3), gpus=GPUS, slots_per_gpu=5, steps_per_s=0, faults=faults) as client:
        yield client


def turned(client: EngineClient) -> Layout:
    """Return a layout in which every layer is another one than now."""
    return Layout(np.roll(client.placement().map_LP, 5, axis=1), gpus=GPUS, experts=EXPERTS)


def test_an_answer_that_is_lost_leaves_the_push_done():
    with engine(Faults(lose_answer=1)) as client:
        layout = turned(client)
        with pytest.raises(EngineUnreachable, match="peer closed"):
            client.put_placement(PushRequest(map_LP=layout.slot_to_expert_LP))
        assert client.placement().layout_hash == layout.hash
        back = turned(client)
        assert push(client, back, history=None).answer is not None  # the second one is heard
        assert [entry["status"] for entry in client.replayed_pushes()] == ["applied", "applied"]


def test_a_push_whose_answer_is_lost_is_told_by_reading():
    with engine(Faults(lose_answer=1)) as client:
        result = push(client, turned(client), history=None)
    assert (result.status, result.answer, result.weights_checked) == ("applied", None, True)


def test_an_engine_that_starts_anew_in_the_middle_of_a_push_says_so():
    with engine(Faults(restart_chunk=3)) as client:
        push(client, turned(client), history=None, layers_per_chunk=4)  # one chunk: not reached
        before, layout = client.placement(), turned(client)
        with pytest.raises(EngineRestarted):
            push(client, Layout(np.roll(before.map_LP, 3, axis=1), gpus=GPUS, experts=EXPERTS),
                 history=None, layers_per_chunk=1)  # fmt: skip
        after = client.placement()
        assert was_restarted(after, before)
        assert (after.generation, after.push_in_progress) == (0, False)
        assert after.layout_hash == layout.hash  # turning it twice comes to the first layout
        first, cut = client.replayed_pushes()
    assert (first["status"], cut["status"], len(cut["layout_hashes"])) == ("applied", "cut off", 2)
    assert first["boot_id"] == cut["boot_id"] == before.boot_id


def test_a_rank_that_disagrees_does_so_from_the_first_push_on():
    with engine(Faults(odd_rank=1)) as client:
        check_ranks_agree(client.placement())
        with pytest.raises(PostPushCheckFailed, match=r"ranks \[1\]"):
            push(client, turned(client), history=None)


def test_an_engine_that_stops_after_a_push_answers_that_one_alone():
    with engine(Faults(end_after_push=True)) as client:
        answer = client.put_placement(PushRequest(map_LP=turned(client).slot_to_expert_LP))
        assert answer.status == "applied"
        with pytest.raises(EngineUnreachable):
            client.require_alive()
        with pytest.raises(EngineFailed, match="stopped"):
            client.placement()


def test_pushes_are_written_down_in_order_and_dry_runs_are_not():
    with engine(Faults(fail_chunk=2)) as client:
        before, layout = client.placement(), turned(client)
        client.put_placement(PushRequest(map_LP=layout.slot_to_expert_LP, dry_run=True))
        assert client.replayed_pushes() == []
        partial = client.put_placement(PushRequest(map_LP=layout.slot_to_expert_LP, layers_per_chunk=2))
        whole = client.put_placement(PushRequest(map_LP=layout.slot_to_expert_LP))
        first, second = client.replayed_pushes()
    assert (first["number"], first["status"], first["layout_hashes"]) == (1, "partial", [partial.layout_hash])
    assert (second["number"], second["status"], second["layout_hashes"]) == (2, "applied", [whole.layout_hash])
    assert first["previous_layout_hash"] == before.layout_hash
    assert first["pushed_layout_hash"] == second["pushed_layout_hash"] == layout.hash
