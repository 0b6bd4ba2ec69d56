"""Tokens one by one, with the windows, homes and hold-out of their demand."""

from __future__ import annotations

import numpy as np
import pytest

from placement.step_counts import StepTally
from placement.tokens import NO_EXPERT, UNKNOWN_STEP
from profiler.inputs import open_inputs
from profiler.readers.options import ReadOptions
from profiler.token_stream import NUMBERS_PER_INPUT
from profiler.window_by import WindowBy
from profiler.windows import DemandResult, build_demand
from tests.profiler.recordings import ListedReader, count_chunk, write_token_npz
from tests.profiler.test_windows import COUNTS


def _result(tmp_path, *, files: int = 1, gpus: int = 2, window_by: str = "file", **options) -> DemandResult:
    paths = []
    for number in range(files):
        generator = np.random.default_rng(number)
        topk = generator.integers(0, 8, (3, 60, 2)).astype(np.int16)
        topk[0] = -1
        arrays = {
            "source": generator.integers(0, 2, 60),
            "step": np.arange(60) // 6,
            "domain": np.arange(60) // 20 % 2,
            "domain_names": np.array(["law", "code"]),
        }
        paths.append(write_token_npz(tmp_path / f"{number}.npz", topk, **arrays))
    readers = open_inputs(paths, ReadOptions())
    return build_demand(readers, window_by=WindowBy.parse(window_by), gpus=gpus, **options)


def _added_up(stream, demand) -> np.ndarray:
    """Count the tokens of a stream again, token by token."""
    tokens = np.zeros_like(demand.tokens_WLSE)
    for piece in stream:
        home_T = np.zeros(piece.tokens, dtype=int) if piece.home_T is None else piece.home_T
        for (layer, token, _), expert in np.ndenumerate(piece.experts_LTK):
            if expert != NO_EXPERT:
                tokens[piece.window_T[token], layer, home_T[token], expert] += 1
    return tokens


@pytest.mark.parametrize("gpus", [2, 4])
@pytest.mark.parametrize("window_by", ["file", "domain", "steps:3", "none"])
@pytest.mark.parametrize("holdout", [None, 0.3])
def test_tokens_add_up_to_their_demand(tmp_path, gpus, window_by, holdout):
    result = _result(tmp_path, files=2, gpus=gpus, window_by=window_by, holdout=holdout)

    np.testing.assert_array_equal(_added_up(result.tokens, result.demand), result.demand.tokens_WLSE)
    if holdout is None:
        assert result.holdout_tokens is None
    else:
        held = result.holdout_demand
        np.testing.assert_array_equal(_added_up(result.holdout_tokens, held), held.tokens_WLSE)


def test_a_stream_can_be_gone_through_again(tmp_path):
    stream = _result(tmp_path).tokens
    first, second = ([piece.experts_LTK for piece in stream] for _ in range(2))
    np.testing.assert_array_equal(np.concatenate(first, axis=1), np.concatenate(second, axis=1))


def test_requests_and_steps_of_two_inputs_differ(tmp_path):
    pieces = list(_result(tmp_path, files=2).tokens)
    assert [int(piece.request_T.max()) // NUMBERS_PER_INPUT for piece in pieces] == [0, 1]
    assert not set(pieces[0].step_T.tolist()) & set(pieces[1].step_T.tolist())


def test_unknown_steps_stay_unknown(tmp_path):
    path = write_token_npz(tmp_path / "plain.npz", np.zeros((1, 4, 1), dtype=np.int16))
    result = build_demand(open_inputs([path], ReadOptions()), window_by=WindowBy(), gpus=2)
    (piece,) = result.tokens
    assert set(piece.step_T.tolist()) == {UNKNOWN_STEP}
    assert piece.home_T is None


def test_steps_add_up_to_the_demand(tmp_path):
    result = _result(tmp_path, files=2)
    tally = StepTally(gpus=2, most_bytes=2**20, seed=0)
    for piece in result.tokens:
        tally.add(piece)
    np.testing.assert_array_equal(tally.counts().tokens_ZLSE.sum(axis=0), result.demand.tokens_WLSE.sum(axis=0))
    assert tally.counts().steps == 20


def test_counts_have_no_tokens(tmp_path):
    counted = ListedReader(COUNTS, [count_chunk([[[1, 2, 3, 4]]] * 2, window="w")])
    assert build_demand([counted], window_by=WindowBy(), gpus=2).tokens is None
