"""What an engine is after a push, told from two readings and the layout that was pushed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from placement.layout import Layout
from profiler.engine.contract import Placement
from profiler.engine.map_rules import layout_hash
from profiler.engine.recognise import Found, recognise, sentence, was_restarted
from tests.profiler.engine.messages import placement


def running(base: Placement, map_LP: Any, **changes: Any) -> Placement:
    map_LP = np.asarray(map_LP, dtype=np.int32)
    return replace(base, map_LP=map_LP, layout_hash=layout_hash(map_LP), **changes)


BEFORE = running(placement(), placement().map_LP, generation=3, boot_id="first", push_in_progress=False)
NEW_LP = np.roll(BEFORE.map_LP, 1, axis=1)
OTHER_LP = np.roll(BEFORE.map_LP, 2, axis=1)
HALF_LP = np.concatenate([NEW_LP[:1], BEFORE.map_LP[1:]])
LAYOUT = Layout(NEW_LP, gpus=BEFORE.ep_size, experts=BEFORE.experts)

SEEN = {
    "new": (Found.NEW, running(BEFORE, NEW_LP, generation=4)),
    "old": (Found.OLD, BEFORE),
    "half": (Found.MIXED, running(BEFORE, HALF_LP, generation=4)),
    "somebody else's": (Found.OTHER, running(BEFORE, OTHER_LP, generation=5)),
    "under way": (Found.PUSHING, running(BEFORE, HALF_LP, push_in_progress=True)),
    "restarted, by its name": (Found.RESTARTED, running(BEFORE, BEFORE.map_LP, boot_id="second")),
    "restarted, by its pushes": (Found.RESTARTED, running(BEFORE, BEFORE.map_LP, boot_id="", generation=0)),
    "restarted with the pushed layout": (Found.NEW, running(BEFORE, NEW_LP, boot_id="second", generation=0)),
    "half, after a start between reading and pushing": (Found.MIXED, running(BEFORE, HALF_LP, boot_id="second")),
    "another ep_size": (Found.RESHAPED, running(BEFORE, NEW_LP, ep_size=1)),
    "other layers": (Found.RESHAPED, running(BEFORE, NEW_LP[:1], layers=1)),
}


@pytest.mark.parametrize("name", SEEN)
def test_every_state_is_recognised_and_has_its_sentence(name: str) -> None:
    found, seen = SEEN[name]
    assert recognise(seen, BEFORE, LAYOUT) is found
    told = sentence(found, seen, url="http://engine")
    assert seen.layout_hash[:12] in told
    assert told.startswith("http://engine ")
    assert told.endswith(".")


def test_the_start_is_told_by_its_name_where_both_readings_have_one() -> None:
    again = replace(BEFORE, generation=0)
    assert not was_restarted(again, BEFORE)  # the same start, whatever it counts
    assert was_restarted(replace(again, boot_id=""), BEFORE)
    assert was_restarted(replace(BEFORE, boot_id="second", generation=9), BEFORE)
