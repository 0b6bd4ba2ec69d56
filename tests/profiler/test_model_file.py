"""The models that moeplan knows by name, beside what their makers published."""

from __future__ import annotations

from pathlib import Path

import pytest

from placement.errors import BadModelConfig
from placement.sizing import ModelWeights
from profiler.errors import InputNotFound
from profiler.model_file import model_names, read_model_config
from tests.api.cli.command import write_json

PUBLISHED_BILLIONS = {
    "mixtral-8x7b": 46.7,
    "deepseek-v2-lite": 15.7,
    "deepseek-v2": 235.7,
    "deepseek-v3": 671.0,
    "qwen3-30b-a3b": 30.5,
    "qwen3-235b-a22b": 235.1,
    "gpt-oss-20b": 20.9,
    "gpt-oss-120b": 116.8,
}


def test_the_names_are_those_of_the_table() -> None:
    assert set(model_names()) == set(PUBLISHED_BILLIONS)


@pytest.mark.parametrize("name", PUBLISHED_BILLIONS)
def test_parameters_add_up_to_the_published_total(name: str) -> None:
    weights = ModelWeights.from_config(read_model_config(name))
    assert weights.parameters / 1e9 == pytest.approx(PUBLISHED_BILLIONS[name], abs=0.06)


def test_names_are_found_in_any_case() -> None:
    assert read_model_config("DeepSeek_V3") == read_model_config("deepseek-v3")


def test_a_file_or_its_folder_is_read(tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", {"hidden_size": 5})
    assert read_model_config(tmp_path) == read_model_config(tmp_path / "config.json") == {"hidden_size": 5}


def test_an_unknown_name_lists_those_there_are() -> None:
    with pytest.raises(InputNotFound, match="deepseek-v2, deepseek-v2-lite, deepseek-v3"):
        read_model_config("llama-7b")


def test_a_file_that_is_no_object_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadModelConfig, match="JSON object"):
        read_model_config(write_json(tmp_path / "config.json", [1]))
