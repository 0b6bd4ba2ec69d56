from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from placement.errors import BadHardwareProfile
from profiler.errors import InputNotFound, UnreadableInput
from profiler.hardware import hardware_names, read_hardware, write_hardware
from profiler.hardware.profile_file import parse_hardware
from tests.placement.hardware.profiles import PROFILE


def test_presets_are_there_and_every_figure_names_its_source() -> None:
    assert set(hardware_names()) == {"b200", "h100", "h20", "h200"}
    for name in hardware_names():
        profile = read_hardware(name)
        assert profile.name == name
        assert all(len(text) > 20 for text in profile.sources.values())


def test_the_h200_profile_says_what_was_measured() -> None:
    sources = read_hardware("H200").sources
    assert "not measured" not in sources["expert.flops_per_s.bf16"]
    assert "not measured" in sources["expert.flops_per_s.fp8"]
    assert "not measured" in read_hardware("b200").sources["expert.flops_per_s.bf16"]


def test_a_written_profile_reads_back_equal(tmp_path: Path) -> None:
    path = tmp_path / "measured.toml"
    write_hardware(PROFILE, path)
    assert read_hardware(str(path)) == PROFILE


def test_any_text_survives(tmp_path: Path) -> None:
    path = tmp_path / "odd.toml"
    odd = parse_hardware({**PROFILE.to_dict(), "gpu": 'a "quoted"\n\x7f\\ GPU é'}, name="odd")
    write_hardware(odd, path)
    assert read_hardware(str(path)).gpu == 'a "quoted"\n\x7f\\ GPU é'


def test_an_unknown_name_lists_the_presets() -> None:
    with pytest.raises(InputNotFound, match="b200, h100, h20, h200"):
        read_hardware("h300")


def test_text_that_is_no_toml_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "broken.toml"
    path.write_text("format = ")
    with pytest.raises(UnreadableInput, match=r"broken\.toml is no TOML file"):
        read_hardware(str(path))


def changed(path: str, value: Any) -> dict[str, Any]:
    document: dict[str, Any] = tomllib.loads(tomllib_text())
    *tables, key = path.split(".")
    inner = document
    for table in tables:
        inner = inner[table]
    if value is None:
        del inner[key]
    else:
        inner[key] = value
    return document


def tomllib_text() -> str:
    from profiler.hardware.profile_file import render_hardware

    return render_hardware(PROFILE)


@pytest.mark.parametrize(
    ("path", "value", "sentence"),
    [
        ("format", "something", 'no format = "moeplan-hardware"'),
        ("format_version", 2, "format version 2; this moeplan reads up to 1"),
        ("expert.fixed_s", None, r"expert\.fixed_s: field required"),
        ("expert.speed", 1.0, r"expert\.speed: extra inputs"),
        ("prefill.sends", "everything", r"prefill\.sends: .*found 'everything'"),
        ("prefill.fixed_s", "fast", r"prefill\.fixed_s: .*found 'fast'"),
        ("decode.rdma_bytes_per_s", -1.0, r"rdma_bytes_per_s is -1.0"),
        ("sources.decode", None, r"no entry for decode"),
    ],
)
def test_each_fault_is_one_sentence(path: str, value: Any, sentence: str) -> None:
    with pytest.raises(BadHardwareProfile, match=sentence) as caught:
        parse_hardware(changed(path, value), name="x.toml")
    assert "\n" not in caught.value.detail
    assert caught.value.detail.startswith("x.toml")
