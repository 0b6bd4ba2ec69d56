"""Taking in files: counted and hashed while they come, stored whole, their names checked and then only remembered."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from fastapi import Request
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.datastructures import FormData, UploadFile

from api.errors import BadRequest
from api.service.context import Service
from api.store.files import PIECE_BYTES, StoredFile, plain_name

MAX_FIELD_BYTES = 2**20
FIELDS = ("name", "engine_id", "model", "experts", "ranks", "allow_partial", "map_history")
JSON_FIELDS = {"model": "the model's config.json", "map_history": "a list of layouts that ran while recording"}


class UploadFields(BaseModel):
    """The form's fields beside the files."""

    model_config = ConfigDict(extra="forbid")

    name: str | None = Field(default=None, min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")
    engine_id: str | None = Field(default=None, max_length=40)
    model: dict[str, Any] | None = None
    experts: int | None = Field(default=None, ge=1, le=65536)
    ranks: int | None = Field(default=None, ge=1, le=65536)
    allow_partial: bool = False
    map_history: list[dict[str, Any]] | None = Field(default=None, max_length=10_000)

    def read_options(self) -> dict[str, Any]:
        """Return how the files are to be read."""
        return self.model_dump(exclude={"name", "engine_id"}, exclude_none=True)


@dataclass
class Upload:
    """What a form held."""

    fields: UploadFields
    files: dict[str, StoredFile] = field(default_factory=dict)

    def told(self) -> dict[str, Any]:
        """Return what makes an upload the same as another."""
        return {**self.fields.model_dump(), "files": {name: stored.sha256 for name, stored in self.files.items()}}


async def take_in(request: Request, service: Service) -> Upload:
    """Read a multipart form and store its files.

    Raises
    ------
    BadRequest, BadPath
        It is no such form, a field or a name is wrong, or a name comes twice.
    """
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        raise BadRequest("send the files as multipart/form-data, in the field files.")
    async with request.form(
        max_files=service.settings.max_upload_files, max_fields=len(FIELDS), max_part_size=MAX_FIELD_BYTES
    ) as form:
        upload = Upload(_fields(form))
        for name, value in form.multi_items():
            if not isinstance(value, UploadFile):
                continue
            if name != "files":
                raise BadRequest(f"there is a file in the field {name[:40]!r}; files belong into the field files.")
            file_name = plain_name(value.filename or "")
            if file_name in upload.files:
                raise BadRequest(f"two files are named {file_name}.")
            upload.files[file_name] = await run_in_threadpool(_store, service, value)
    return upload


def _store(service: Service, sent: UploadFile) -> StoredFile:
    with service.files.incoming() as file:
        while piece := sent.file.read(PIECE_BYTES):
            file.write(piece)
    return file.stored


def _fields(form: FormData) -> UploadFields:
    texts: dict[str, Any] = {}
    for name, value in form.multi_items():
        if isinstance(value, str) and value != "":
            if name in texts:
                raise BadRequest(f"the field {name[:40]!r} is there twice.")
            texts[name] = value
    for name in texts.keys() & JSON_FIELDS.keys():
        try:
            texts[name] = json.loads(texts[name])
        except (ValueError, RecursionError):
            raise BadRequest(f"the field {name} is not JSON; it is {JSON_FIELDS[name]}.") from None
    try:
        return UploadFields.model_validate(texts)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise BadRequest(f"the field {place[:80]}: {first['msg'][:1].lower()}{first['msg'][1:]}.") from None
