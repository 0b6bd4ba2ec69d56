"""Prompt files: texts or JSON, a line each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiler.engine.sample_prompts import Prompt, read_prompts
from profiler.errors import BadJson, InputNotFound, ProfilerError, UnreadableInput


def prompts_of(tmp_path: Path, content: str | bytes) -> tuple[Prompt, ...]:
    path = tmp_path / "prompts"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_prompts(path)


def test_lines_of_text_are_prompts_and_blank_ones_are_none(tmp_path: Path) -> None:
    assert prompts_of(tmp_path, "one\n\n  two words \r\n[3]\n") == (
        Prompt(text="one"),
        Prompt(text="two words"),
        Prompt(text="[3]"),
    )


def test_json_lines_are_read_field_by_field(tmp_path: Path) -> None:
    line = {"input_ids": [1, 2], "sampling_params": {"temperature": 0}, "domain": "code", "routed_dp_rank": 1}
    assert prompts_of(tmp_path, f'{{"text": "a\u2028b"}}\n{json.dumps(line)}\n') == (
        Prompt(text="a\u2028b"),
        Prompt(input_ids=(1, 2), sampling_params={"temperature": 0}, domain="code", routed_dp_rank=1),
    )


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"text": "a"', "line 2 is not JSON"),
        ("[1]", "line 2 is .*must be a JSON object"),
        ("plain", "line 2 is not JSON"),
        ('{"prompt": "a"}', "'prompt'"),
        ("{}", "either text or input_ids"),
        ('{"text": "a", "input_ids": [1]}', "not both"),
        ('{"text": ""}', "empty prompt"),
        ('{"input_ids": []}', "empty prompt"),
        ('{"input_ids": [1.0]}', "whole number"),
        ('{"input_ids": [-1]}', "at least 0"),
        ('{"input_ids": [2147483648]}', r"below 2\^31"),
        ('{"text": "a", "text": "b"}', "twice"),
        ('{"text": "a", "sampling_params": []}', "sampling_params must be"),
        ('{"text": "a", "sampling_params": {"n": 2}}', "n is 2"),
        ('{"text": "a", "sampling_params": {"temperature": NaN}}', "NaN"),
        ('{"text": "a", "sampling_params": {"temperature": 1e999}}', "too large"),
        ('{"text": "\\ud800"}', "surrogate"),
        ('{"text": "a", "domain": 3}', "domain"),
        ('{"text": "a", "routed_dp_rank": -1}', "at least 0"),
    ],
)
def test_a_line_that_is_no_prompt_is_named(tmp_path: Path, line: str, words: str) -> None:
    with pytest.raises(BadJson, match=words) as caught:
        prompts_of(tmp_path, f'{{"text": "fine"}}\n{line}\n')
    assert "line 2" in caught.value.detail


@pytest.mark.parametrize(("content", "words"), [(b"", "no prompt"), (b" \n\n", "no prompt"), (b"a\xff", "byte 1")])
def test_a_file_without_prompts_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    with pytest.raises(UnreadableInput, match=words):
        prompts_of(tmp_path, content)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputNotFound):
        read_prompts(tmp_path / "nothing")


@given(st.binary(max_size=60).map(lambda tail: b'{"text": "a"}\n' + tail))
def test_any_file_is_read_or_refused_with_a_sentence(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    sentence = ""
    try:
        found = prompts_of(tmp_path_factory.getbasetemp(), content)
    except ProfilerError as error:
        sentence = error.detail
    else:
        assert found
        assert all((prompt.text is None) != (prompt.input_ids is None) for prompt in found)
    assert not sentence or sentence.endswith(".")
