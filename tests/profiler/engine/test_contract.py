"""Messages: what is sent is what is read; whatever else is read ends in one sentence."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from dataclasses import fields, is_dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiler.engine.contract import Placement, PluginHealth
from profiler.engine.contract_demand import DemandAnswer
from profiler.engine.contract_push import PushRequest
from profiler.engine.counts_codec import decode_counts, encode_counts
from profiler.engine.json_fields import ContractViolation
from tests.profiler.engine.messages import MESSAGES, demand_answer, health, placement

junk = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


def same(one: object, other: object) -> bool:
    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and one.dtype == other.dtype and np.array_equal(one, other)
    if is_dataclass(one):
        return type(one) is type(other) and all(
            same(getattr(one, field.name), getattr(other, field.name)) for field in fields(one)
        )
    if isinstance(one, tuple):
        return isinstance(other, tuple) and len(one) == len(other) and all(map(same, one, other))
    return one == other


def on_the_wire(message: object) -> dict:
    return json.loads(json.dumps(message.to_json()))


@pytest.mark.parametrize("name", MESSAGES)
def test_what_is_sent_is_what_is_read(name):
    message = MESSAGES[name]
    assert same(type(message).from_json(on_the_wire(message)), message)


def paths(message: object, above: tuple = ()) -> list[tuple]:
    """Return the path of every value inside a JSON message."""
    inner = message.items() if isinstance(message, dict) else enumerate(message) if isinstance(message, list) else ()
    return [above, *(path for key, value in inner for path in paths(value, (*above, key)))]


def replaced(message: object, path: tuple, value: object) -> object:
    if not path:
        return value
    changed = copy.deepcopy(message)
    place = changed
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return changed


def refusal_of(kind: type, message: object) -> str | None:
    """Return why a message is refused; any other exception than the contract's is a failure."""
    try:
        kind.from_json(message)
    except ContractViolation as violation:
        return violation.detail
    return None


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(sorted(MESSAGES)), st.data())
def test_any_other_message_is_read_or_refused_with_a_sentence(name, data):
    message = on_the_wire(MESSAGES[name])
    broken = replaced(message, data.draw(st.sampled_from(paths(message))), data.draw(junk))
    detail = refusal_of(type(MESSAGES[name]), broken)
    assert detail is None or (detail.endswith(".") and "\n" not in detail)


@pytest.mark.parametrize("name", MESSAGES)
def test_a_field_that_is_missing_is_named(name):
    message = on_the_wire(MESSAGES[name])
    optional = {
        "layers",
        "expected_layout_hash",
        "layers_per_chunk",
        "pause_s",
        "dry_run",
        "ring_windows",
        "max_steps",
        "window_seconds",
        "window_steps",
        "checksums",
        "free_bytes",
        "top_k",
        "quantization",
        "dispatch",
        "local_gpu",
        "local_node",
        "imbalance",
        "gpus_per_token",
        "nodes_per_token",
        "load_LG",
        "ranks_agree",
        "balancer",
        "lease_seconds",
        "owner",
        "take_over",
        "taken_over_from",
        "weight_updates",
        "boot_id",
        "unused_tokens",
    }
    for field in set(message) - optional:
        with pytest.raises(ContractViolation, match=f"'{field}'"):
            type(MESSAGES[name]).from_json({key: value for key, value in message.items() if key != field})


def test_unknown_fields_are_left_alone():
    assert PluginHealth.from_json({**health().to_json(), "new": 1}).ranks == (0, 1)


def test_an_ability_the_plugin_does_not_name_does_not_work():
    message = health().to_json()
    del message["abilities"]["demand"]
    assert not PluginHealth.from_json(message).abilities["demand"].works


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"layout_hash": "0" * 64}, "not the hash of its map"),
        ({"slots": 5}, "2 layers x 4 slots but says"),
        ({"ep_size": 3}, "3 ranks"),
        ({"moe_layers": [0, 2]}, "layers from 0 to 1"),
        ({"moe_layers": [0, 0]}, "each once"),
        ({"checksums": {"w": [["a"], []]}}, "2 lists of 4 texts"),
        ({"checksums": {"w": [[1, 2, 3, 4], []]}}, "2 lists of 4 texts"),
        ({"checksums": []}, "an object"),
        ({"phase": "training"}, "one of both, prefill, decode"),
    ],
)
def test_a_placement_that_contradicts_itself_is_refused(changes, words):
    with pytest.raises(ContractViolation, match=words):
        Placement.from_json({**on_the_wire(placement()), **changes})


@pytest.mark.parametrize(
    ("map_LP", "code"),
    [
        ("text", "BAD_MAP_SHAPE"),
        ([], "BAD_MAP_SHAPE"),
        ([[]], "BAD_MAP_SHAPE"),
        ([[0, 1], [0]], "BAD_MAP_SHAPE"),
        ([0, 1], "BAD_MAP_SHAPE"),
        ([[0, 1.0]], "BAD_MAP_SHAPE"),
        ([[0, True]], "BAD_MAP_SHAPE"),
        ([[0, None]], "BAD_MAP_SHAPE"),
        ([[0, 2**40]], "BAD_MAP_SHAPE"),
    ],
)
def test_a_map_that_is_no_table_of_integers_is_refused(map_LP, code):
    with pytest.raises(ContractViolation) as caught:
        PushRequest.from_json({"physical_to_logical_map": map_LP})
    assert caught.value.code == code


@pytest.mark.parametrize("pause_s", [-1, 61, "1", float("nan"), float("inf")])
def test_a_pause_out_of_range_is_refused(pause_s):
    with pytest.raises(ContractViolation, match="pause_s"):
        PushRequest.from_json({"physical_to_logical_map": [[0]], "pause_s": pause_s})


# ------------------------------------------------------------------ counts


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 2**63 - 1), min_size=6, max_size=6))
def test_counts_of_any_size_survive(values):
    counts = np.array(values, dtype=np.int64).reshape(1, 2, 3)
    np.testing.assert_array_equal(decode_counts(encode_counts(counts), "c", shape=(1, 2, 3)), counts)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"shape": [3, 2, 1]}, "it must be"),
        ({"encoding": "int32"}, "one of"),
        ({"data": "!!!"}, "not base64"),
        ({"data": "AAAA"}, "not base64 of zlib data"),
    ],
)
def test_counts_that_are_packed_otherwise_are_refused(change, words):
    with pytest.raises(ContractViolation, match=words):
        decode_counts({**encode_counts(np.ones((1, 2, 3))), **change}, "counts", shape=(1, 2, 3))


def test_data_that_unpack_to_more_than_their_shape_are_refused_without_unpacking_them_all():
    message = demand_answer().to_json()
    bomb = encode_counts(np.zeros(2_000_000, dtype=np.int64))
    message["windows"][0]["phases"][0]["counts_LSE"]["data"] = bomb["data"]
    with pytest.raises(ContractViolation, match="unpacks to 97 bytes; 96 are needed"):
        DemandAnswer.from_json(message)


def test_negative_counts_are_refused():
    with pytest.raises(ContractViolation, match="counts are >= 0"):
        decode_counts(encode_counts(np.array([-1])), "counts", shape=(1,))


# ------------------------------------------------------------------ what the engine side may import


def test_the_contract_needs_only_the_standard_library_and_numpy():
    code = """
import sys
import profiler.engine.contract, profiler.engine.contract_push, profiler.engine.contract_demand
import profiler.engine.contract_measured, profiler.engine.map_rules, profiler.engine.counts_codec
loaded = {name.split(".")[0] for name in sys.modules}
foreign = {"httpx", "fastapi", "pydantic", "uvicorn", "torch", "ortools", "networkx", "pyarrow", "placement", "api"}
print(sorted(loaded & foreign))
"""
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "[]"
