"""No code of a .pt file ever runs: whatever asks for anything but tensors and plain containers is refused by name."""

from __future__ import annotations

import collections
import contextlib
import datetime
import functools
import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from profiler.errors import UnreadableDump, UnsafePickle
from profiler.readers.pt_archive import load_pt
from tests.case_files import case, case_folder
from tests.profiler.readers.pt_files import instruction_global, number, tensor, text, tuple_of, write_archive

FORBIDDEN = Path(case("P29")["expect"]["oracle"]["must_not_exist"])


@pytest.fixture(autouse=True)
def nothing_ran(tmp_path: Path) -> Any:
    """Every test here ends with the payloads' folders still missing."""
    assert not FORBIDDEN.exists()
    yield
    assert not FORBIDDEN.exists()
    assert not (tmp_path / "ran").exists()


def call(name: str, *arguments: bytes) -> bytes:
    return instruction_global(name) + tuple_of(arguments) + b"R"


@pytest.mark.parametrize("name", ["zip.pt", "plain.pt"])
def test_the_payloads_of_the_case_are_refused(name: str) -> None:
    with pytest.raises(UnsafePickle, match="mkdir") as caught:
        load_pt(case_folder("P29") / name)
    assert caught.value.code == "UNSAFE_PICKLE"


def payloads(folder: str) -> dict[str, tuple[int, bytes]]:
    """Return protocol and pickle of things that would make a folder, or could."""
    make = call("os mkdir", text(folder))
    return {
        "a call": (2, make),
        "a call in a list": (2, b"](" + number(1) + make + b"e"),
        "a call as the value of a key": (2, b"}" + text("logical_count") + make + b"s"),
        "a call behind a tensor": (2, b"](" + tensor() + make + b"e"),
        "a call that is thrown away": (2, make + b"0" + b"]"),
        "a call among a tensor's arguments": (2, call("torch._utils _rebuild_tensor_v2", make)),
        "eval": (2, call("builtins eval", text(f"__import__('os').mkdir({folder!r})"))),
        "exec under its old name": (2, call("__builtin__ eval", text("1"))),
        "an attribute of torch": (2, call("torch load", text(folder))),
        "a name with dots": (2, call("torch._utils os.mkdir", text(folder))),
        "an allowed name in another module": (2, call("evil _rebuild_tensor_v2", text(folder))),
        "a class": (2, instruction_global("pathlib Path") + tuple_of([text(folder)]) + b"\x81"),
        "an instance": (2, b"(" + text(folder) + b"ios\nmkdir\n"),
        "an object": (2, b"(" + instruction_global("os mkdir") + text(folder) + b"o"),
        "a state": (2, instruction_global("collections OrderedDict") + b")R}" + text("a") + number(1) + b"sb"),
        "a registered extension": (2, b"\x82\x01"),
        "a name from the stack": (4, b"\x8c\x02os\x8c\x05mkdir\x93" + tuple_of([text(folder)]) + b"R"),
        "a name from the memo": (
            4,
            b"\x8c\x02os\x94\x8c\x05mkdir\x9400h\x00h\x01\x93" + tuple_of([text(folder)]) + b"R",
        ),
        "an own persistent id": (0, b"P" + b"os.mkdir\n"),
    }


@pytest.mark.parametrize("what", payloads(""))
def test_payloads_in_an_archive_are_refused(tmp_path: Path, what: str) -> None:
    protocol, value = payloads(str(tmp_path / "ran"))[what]
    with pytest.raises(UnsafePickle):
        load_pt(write_archive(tmp_path / "payload.pt", value, protocol=protocol))


@pytest.mark.parametrize("what", payloads(""))
def test_payloads_in_a_bare_pickle_are_refused(tmp_path: Path, what: str) -> None:
    protocol, value = payloads(str(tmp_path / "ran"))[what]
    path = tmp_path / "payload.pt"
    path.write_bytes(b"\x80" + bytes([protocol]) + value + b".")
    with pytest.raises(UnsafePickle):
        load_pt(path)


class MakesFolder:
    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def __reduce__(self) -> Any:
        import os

        return os.mkdir, (self.folder,)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("zipped", [True, False])
def test_payloads_of_real_picklers_are_refused(tmp_path: Path, protocol: int, zipped: bool) -> None:
    value = {"records": [MakesFolder(tmp_path / "ran")]}
    path = tmp_path / "payload.pt"
    if zipped:
        torch.save(value, path, pickle_protocol=protocol)
    else:
        path.write_bytes(pickle.dumps(value, protocol=protocol))
    with pytest.raises(UnsafePickle, match="mkdir"):
        load_pt(path)


@pytest.mark.parametrize(
    "value",
    [
        np.arange(3),
        np.array([{}, None], dtype=object),
        np.float64(1.5),
        datetime.date(2026, 1, 1),
        collections.Counter("aab"),
        {1, 2},
        b"bytes",
        torch.float32,
        torch.device("cpu"),
        complex(1, 2),
        range(3),
        slice(1, 2),
    ],
    ids=lambda value: type(value).__name__,
)
def test_harmless_objects_are_refused_as_well(tmp_path: Path, value: Any) -> None:
    torch.save({"logical_count": value}, tmp_path / "object.pt")
    with pytest.raises(UnsafePickle):
        load_pt(tmp_path / "object.pt")


def test_what_others_allowed_in_this_process_is_not_allowed_here(tmp_path: Path) -> None:
    torch.save({"logical_count": collections.Counter("ab")}, tmp_path / "object.pt")
    with torch.serialization.safe_globals([collections.Counter]), pytest.raises(UnsafePickle, match="Counter"):
        load_pt(tmp_path / "object.pt")


@functools.cache
def good_members() -> dict[str, bytes]:
    content = io.BytesIO()
    record = {"forward_pass_id": 3, "input_ids": [7, 300, 70000], "topk_ids_of_layer": torch.zeros((2, 3, 8)).int()}
    torch.save({"records": [record, record], "last_physical_to_logical_map": torch.arange(8).reshape(1, 8)}, content)
    with zipfile.ZipFile(content) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_changed_pickles_load_or_are_refused(tmp_path: Path, data: st.DataObject) -> None:
    """Checksums are right here, so that the pickle is followed and, where it passes, torch sees it."""
    members = dict(good_members())
    (name,) = (name for name in members if name.endswith("/data.pkl"))
    changed = bytearray(members[name])
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(changed) - 1))
        changed[start : start + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    members[name] = bytes(changed)
    path = tmp_path / "changed.pt"
    with zipfile.ZipFile(path, "w") as archive:
        for member, content in members.items():
            archive.writestr(member, content)
    with contextlib.suppress(UnreadableDump, UnsafePickle):
        load_pt(path)
