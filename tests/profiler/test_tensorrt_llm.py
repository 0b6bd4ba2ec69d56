"""TensorRT-LLM statistics folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import save_file

from placement.errors import CodedError, NegativeCount
from profiler.errors import BadCountShape, BadCountType, BadJson, MissingRanks, UnknownFormat, UnreadableDump
from profiler.inputs import open_inputs
from profiler.readers.options import ReadOptions
from tests.profiler.recordings import codes, counts_by_window, shape, total_LE

META = {"num_experts": 4, "num_experts_per_token": 2}
Rank = dict[str, npt.NDArray[Any]]


def random_rank(rank: int, *, iterations: range = range(100, 103), layers: tuple[int, ...] = (2, 3)) -> Rank:
    rng = np.random.default_rng(rank)
    return {f"{step}_{layer}": rng.integers(0, 9, 4) for step in iterations for layer in layers}


def write_folder(folder: Path, ranks: dict[int, Rank], meta: object = META) -> Path:
    (folder / "meta_info.json").write_text(meta if isinstance(meta, str) else json.dumps(meta))
    for rank, tensors in ranks.items():
        save_file(tensors, folder / f"rank{rank}.safetensors")
    return folder


def open_folder(folder: Path, options: ReadOptions = ReadOptions()) -> Any:  # noqa: B008 - frozen
    (reader,) = open_inputs([folder], options)
    return reader


def test_iterations_are_steps_of_one_window_and_ranks_are_home_gpus(tmp_path: Path) -> None:
    ranks = {rank: random_rank(rank) for rank in range(3)}
    reader = open_folder(write_folder(tmp_path, ranks))
    header = reader.header
    assert (header.engine, header.layers, header.experts, header.top_k, header.source_ranks) == (
        "tensorrt-llm",
        4,
        4,
        2,
        3,
    )
    ((_, tokens_LSE),) = counts_by_window(reader).items()
    for rank, tensors in ranks.items():
        for layer in (2, 3):
            expected = sum(tensors[f"{step}_{layer}"] for step in range(100, 103))
            assert tokens_LSE[layer, rank].tolist() == expected.tolist()
    assert [chunk.steps for chunk in reader.chunks()] == [1, 1, 1]
    assert reader.facts() == {"ranks_merged": [0, 1, 2], "iterations": [100, 102]}
    assert reader.notices == ()


def test_raw_ids_and_other_files_beside_the_counts_are_not_mixed_in(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, {0: random_rank(0), 1: random_rank(1)})
    before = total_LE(open_folder(folder))
    save_file({"100_2": np.zeros((7, 2), dtype=np.int32)}, folder / "rank0_raw.safetensors")
    save_file({"100_2": np.zeros((4, 4), dtype=np.int32)}, folder / "cooccurrence_rank0.safetensors")
    assert np.array_equal(total_LE(open_folder(folder)), before)


def test_a_layer_that_some_rank_lacks_is_zero_there(tmp_path: Path) -> None:
    ranks = {0: random_rank(0), 1: random_rank(1)}
    del ranks[1]["101_3"]
    reader = open_folder(write_folder(tmp_path, ranks))
    second = list(reader.chunks())[1]
    assert second.tokens_LSE[3, 1].tolist() == [0, 0, 0, 0]
    assert second.tokens_LSE[3, 0].tolist() == ranks[0]["101_3"].tolist()


def test_a_layer_that_every_rank_lacks_is_a_cut_recording(tmp_path: Path) -> None:
    ranks = {0: random_rank(0), 1: random_rank(1)}
    for tensors in ranks.values():
        del tensors["101_3"]
    with pytest.raises(BadCountShape, match="layer 3 in iteration 101"):
        open_folder(write_folder(tmp_path, ranks))


def test_ranks_that_counted_every_token_say_nothing_about_sources(tmp_path: Path) -> None:
    reader = open_folder(write_folder(tmp_path, {0: random_rank(7), 1: random_rank(7)}))
    assert reader.header.source_ranks is None
    assert codes(reader.notices) == ["SOURCES_REPEATED"]
    assert next(iter(reader.chunks())).tokens_LSE.shape == (4, 1, 4)


@pytest.mark.parametrize(
    ("ranks", "meta", "missing"), [((0, 2), META, "rank 1"), ((0, 1), {**META, "ep_size": 4}, "rank 2, 3")]
)
def test_missing_ranks_keep_from_planning(tmp_path: Path, ranks: tuple[int, ...], meta: object, missing: str) -> None:
    folder = write_folder(tmp_path, {rank: random_rank(rank) for rank in ranks}, meta)
    reader = open_folder(folder)
    assert codes(reader.notices) == ["MISSING_RANKS"]
    assert reader.header.source_ranks is None
    with pytest.raises(MissingRanks, match=missing):
        reader.require_complete()
    open_folder(folder, ReadOptions(allow_partial=True)).require_complete()


def test_slot_counts_are_refused_when_the_model_is_known(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, {0: random_rank(0)})
    with pytest.raises(BadCountShape, match="counts 4 slots, the model has 3 experts"):
        open_folder(folder, ReadOptions(experts=3))
    assert open_folder(folder, ReadOptions(experts=4)).header.experts == 4


def test_layers_are_placed_by_the_model_and_draft_layers_left_out(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, {0: random_rank(0, layers=(2, 3, 4))})
    reader = open_folder(folder, ReadOptions(model=shape(4, 4, dense=2, draft=1)))
    assert reader.header.layers == 4
    assert codes(reader.notices) == ["DRAFT_LAYERS_LEFT_OUT"]


@pytest.mark.parametrize(
    ("tensor", "error", "message"),
    [
        (np.ones(5, dtype=np.int64), BadCountShape, r"\[4\] is needed"),
        (np.ones((4, 1), dtype=np.int64), BadCountShape, r"100_2"),
        (np.array([1, -1, 0, 0]), NegativeCount, r"100_2 .*\[1\] is -1"),
        (np.array([1.5, 1, 0, 0]), BadCountType, r"\[0\] is 1\.5"),
        (np.array([True, False, True, True]), BadCountType, "BOOL"),
    ],
)
def test_wrong_tensors_are_named(
    tmp_path: Path, tensor: npt.NDArray[Any], error: type[CodedError], message: str
) -> None:
    folder = write_folder(tmp_path, {0: {**random_rank(0), "100_2": tensor}})
    with pytest.raises(error, match=message):
        total_LE(open_folder(folder))


@pytest.mark.parametrize(
    ("meta", "error", "message"),
    [
        ("{", BadJson, "meta_info.json"),
        ([], UnreadableDump, "no JSON object"),
        ({"num_experts": 4}, UnreadableDump, "num_experts_per_token None"),
        ({**META, "num_experts": True}, UnreadableDump, "num_experts True"),
        ({**META, "num_experts": 10**9}, UnreadableDump, "1 to 65534"),
    ],
)
def test_wrong_meta_info_is_named(tmp_path: Path, meta: object, error: type[CodedError], message: str) -> None:
    with pytest.raises(error, match=message):
        open_folder(write_folder(tmp_path, {0: random_rank(0)}, meta))


@pytest.mark.parametrize("size", [0, 5, 40, 200])
def test_truncated_rank_files_are_refused(tmp_path: Path, size: int) -> None:
    folder = write_folder(tmp_path, {0: random_rank(0)})
    path = folder / "rank0.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(UnreadableDump, match="rank0"):
        open_folder(folder)


def test_foreign_keys_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnreadableDump, match=r"model\.layers"):
        open_folder(write_folder(tmp_path, {0: {"model.layers.0.weight": np.zeros(4)}}))


def test_meta_info_alone_is_no_recording(tmp_path: Path) -> None:
    (tmp_path / "meta_info.json").write_text("{}")
    with pytest.raises(UnknownFormat, match="no rank<r>"):
        open_folder(tmp_path)
