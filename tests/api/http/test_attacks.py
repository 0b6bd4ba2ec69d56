"""Uploads that want out of their folder or more memory than they have bytes: through the door, and through the job."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient

from api.service.context import Service

pytestmark = pytest.mark.one_database

BOMB_BYTES = 2**30
MEMORY_BYTES = 3 * 2**30
"""Address space of the reading process: libraries alone map about two thirds of it, the bomb would not fit."""

IMPORT = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[3]), int(sys.argv[3])))
from api.jobs.import_task import run
from placement.errors import CodedError
files = [{"name": sys.argv[1].rsplit("/", 1)[-1], "path": sys.argv[1]}]
try:
    run({"files": files, "read": {}, "out": sys.argv[2], "name": "attack"}, lambda share, step: None)
except CodedError as error:
    print(error.code)
"""


def everything(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "name",
    [
        "../../escaped.json", "/tmp/escaped.json", "..\\escaped.json", ".hidden.json", "a/b.json", "..", " ",
        "counts.json\x00.txt", "counts\r\nX: y.json", "x" * 300 + ".json", "%2e%2e%2fescaped.json", "c\u2044d.json",
    ],
)  # fmt: skip
def test_names_that_lead_elsewhere_are_refused(service: Service, admin: TestClient, tmp_path: Path, name: str) -> None:
    before = everything(tmp_path)
    refused = admin.post("/v1/traces", files={"files": (name, b"{}")})
    assert refused.status_code == 422, refused.text
    assert admin.get("/v1/traces").json()["items"] == []
    left = everything(tmp_path) - before
    assert all(path.is_relative_to(service.files.folder / "files") for path in left)
    assert not Path("/tmp/escaped.json").exists()


@pytest.mark.parametrize(
    "path",
    [
        "/v1/traces/..%2f..%2fetc%2fpasswd/content", "/v1/traces/%2e%2e/content", "/v1/plans/../../etc/passwd/file",
        "/v1/plans/%2fetc%2fpasswd/export", "/v1/jobs/..%5c..%5cx/events", "/v1/keys/%00",
    ],
)  # fmt: skip
def test_ids_are_no_paths(admin: TestClient, path: str) -> None:
    answered = admin.get(path)
    assert answered.status_code in (404, 422)
    assert "root:" not in answered.text


@pytest.mark.parametrize(
    ("path", "params"),
    [("/v1/plans", {"engine_id": "\0"}), ("/v1/audit", {"subject_id": "a\0b"}), ("/v1/jobs/%00", {})],
)
def test_a_nul_is_no_text(admin: TestClient, path: str, params: dict[str, str]) -> None:
    assert admin.get(path, params=params).status_code in (200, 404, 422)
    assert admin.get("/v1/engines").status_code == 200  # the connection is whole


def test_a_nul_inside_a_field_that_is_kept(admin: TestClient) -> None:
    model = {"model_type": "\0", "architectures": ["A\0"]}
    sent = admin.post("/v1/traces", files={"files": ("a.json", b"{}")}, data={"model": json.dumps(model)})
    assert sent.status_code in (202, 422)


def test_a_body_is_not_unpacked(admin: TestClient) -> None:
    headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
    refused = admin.post("/v1/engines", content=gzip.compress(b" " * 10**7), headers=headers)
    assert refused.status_code in (400, 422)


def zip_bomb(folder: Path, name: str, member: str) -> Path:
    file = folder / name
    with (
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open(member, "w", force_zip64=True) as out,
    ):
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(
            header, {"descr": "<i8", "fortran_order": False, "shape": (1, 1, BOMB_BYTES // 8)}
        )
        out.write(header.getvalue())
        for _ in range(BOMB_BYTES // 2**20):
            out.write(b"\0" * 2**20)
    assert file.stat().st_size < BOMB_BYTES / 500
    return file


def escaping_zip(folder: Path, name: str, member: str) -> Path:
    """Return an archive with members that an unpacker would write elsewhere, a symbolic link among them."""
    file = folder / name
    link = zipfile.ZipInfo(member)
    link.external_attr = (0o120777) << 16
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(link, "/etc/passwd")
        archive.writestr("../../escaped", b"x")
        archive.writestr("/tmp/escaped", b"x")
    return file


def tar(folder: Path) -> Path:
    file = folder / "recording.pt"
    with tarfile.open(file, "w") as archive:
        archive.addfile(tarfile.TarInfo("../../escaped"), io.BytesIO())
    return file


def deep_json(folder: Path) -> Path:
    file = folder / "counts.json"
    file.write_bytes(b'{"logical_count": ' + b"[" * 10**6 + b"]" * 10**6 + b"}")
    return file


ATTACKS = {
    "npz bomb": lambda folder: zip_bomb(folder, "bomb.npz", "counts.npy"),
    "pt bomb": lambda folder: zip_bomb(folder, "bomb.pt", "archive/data.pkl"),
    "npz with paths": lambda folder: escaping_zip(folder, "paths.npz", "counts.npy"),
    "pt with paths": lambda folder: escaping_zip(folder, "paths.pt", "archive/data.pkl"),
    "tar": tar,
    "deep JSON": deep_json,
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_files_of_attackers_are_refused_in_little_memory(tmp_path: Path, attack: str) -> None:
    sent = tmp_path / "sent"
    sent.mkdir()
    file = ATTACKS[attack](sent)
    before, out = everything(tmp_path), tmp_path / "out.parquet"
    done = subprocess.run(
        [sys.executable, "-c", IMPORT, str(file), str(out), str(MEMORY_BYTES)], capture_output=True, text=True,
        timeout=120, env={**os.environ, "TMPDIR": str(tmp_path), "OPENBLAS_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() in ("ARCHIVE_INFLATES", "UNREADABLE_DUMP", "UNKNOWN_FORMAT", "BAD_JSON"), done.stdout
    assert everything(tmp_path) == before
