"""Dumps with anything in the place of anything else: read, or refused with a code and one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from placement.errors import CodedError
from tests.profiler.readers.sglang_files import (
    count,
    decode,
    opened,
    popularity,
    prefill,
    random_layout,
    rng,
    route,
    to_slots,
    write_counts,
    write_tokens,
)

LAYERS, EXPERTS = 2, 6
LAYOUT = random_layout(rng(3), layers=LAYERS, experts=EXPERTS, redundant=2)

junk = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=3),
    st.lists(st.integers(-3, 2**40), max_size=4),
    st.dictionaries(st.sampled_from(["records", "rank", "logical_count"]), st.integers(), max_size=2),
    st.builds(
        lambda shape, dtype, value: torch.full(shape, value).to(dtype),
        st.lists(st.integers(0, 3), max_size=4),
        st.sampled_from([torch.int8, torch.int32, torch.int64, torch.float32, torch.bool, torch.uint8]),
        st.integers(-2, 9),
    ),
)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Return every (container, key) of a dump whose value can be replaced."""
    if isinstance(value, dict):
        return [place for key, item in value.items() for place in [(value, key), *places(item)]]
    if isinstance(value, list):
        return [place for index, item in enumerate(value) for place in [(value, index), *places(item)]]
    return []


def dump(folder: Path, kind: str) -> Path:
    popular_LE = popularity(rng(1), layers=LAYERS, experts=EXPERTS)
    long, short = (to_slots(rng(), route(rng(), popular_LE, tokens=tokens, top_k=2), LAYOUT) for tokens in (7, 2))
    if kind == "per_token":
        return write_tokens(folder, 0, [prefill(3, long, lengths=[4, 3]), decode(4, short, [4, 3])], LAYOUT)
    if kind == "per_pass":
        return write_counts(folder, 0, [count(long, 8), count(short, 8)], LAYOUT)
    path = folder / "stat.pt"
    torch.save({"rank": 0, "logical_count": torch.ones((3, LAYERS, EXPERTS), dtype=torch.int32)}, path)
    return path


@pytest.mark.parametrize("kind", ["stat", "per_pass", "per_token"])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_anything_in_the_place_of_anything_is_read_or_refused(tmp_path: Path, kind: str, data: st.DataObject) -> None:
    path = dump(tmp_path, kind)
    content = torch.load(path, weights_only=True)
    for _ in range(data.draw(st.integers(1, 2))):
        container, key = data.draw(st.sampled_from(places(content)))
        if data.draw(st.booleans()) or isinstance(container, list):
            container[key] = data.draw(junk)
        else:
            container.pop(key, None)
    torch.save(content, path)
    refused: CodedError | None = None
    try:
        reader = opened(path)
        total = sum(chunk_total(chunk) for chunk in reader.chunks())
    except CodedError as error:
        refused = error
    if refused is None:
        assert total >= 0
        assert reader.facts()
    else:
        assert refused.detail.rstrip().endswith((".", "?"))
        assert "\n" not in refused.detail


def chunk_total(chunk: Any) -> int:
    if hasattr(chunk, "tokens_LSE"):
        assert (chunk.tokens_LSE >= 0).all()
        return int(chunk.tokens_LSE.sum())
    assert ((chunk.topk_LTK < EXPERTS) | (chunk.topk_LTK == 0xFFFF)).all()
    return int(np.count_nonzero(chunk.topk_LTK != 0xFFFF))
