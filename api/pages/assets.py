"""Scripts, style sheets and the vendored chart library: in memory, compressed once, kept by browsers for good."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fastapi import Request, Response

from api.errors import NotFound

STATIC_DIR = Path(__file__).parent / "static"
MEDIA_TYPES: Mapping[str, str] = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""Files of other kinds (licences, hashes) are no part of any page and are not served."""

HASH_DIGITS = 16


@dataclass(frozen=True)
class Asset:
    """A file as it is sent."""

    content: bytes
    media_type: str

    @cached_property
    def compressed(self) -> bytes:
        return gzip.compress(self.content, compresslevel=9, mtime=0)


class Assets:
    """All files of a folder, under an address that changes with any of them.

    Modules import each other by relative addresses, so the hash stands in the folder's name and not in each file's.
    """

    def __init__(self, folder: Path = STATIC_DIR) -> None:
        found = {
            path.relative_to(folder).as_posix(): Asset(path.read_bytes(), MEDIA_TYPES[path.suffix])
            for path in sorted(folder.rglob("*"))
            if path.suffix in MEDIA_TYPES
        }
        digest = hashlib.sha256()
        for name, asset in found.items():
            digest.update(f"{name} {len(asset.content)}\n".encode() + asset.content)
        self._found = found
        self.version = digest.hexdigest()[:HASH_DIGITS]

    def url(self, name: str) -> str:
        """Return the address of a file, for templates. Raises KeyError for a file that is not there."""
        self._found[name]
        return f"/static/{self.version}/{name}"

    def answer(self, request: Request, version: str, name: str) -> Response:
        """Send a file. Raises :class:`NotFound`, also for files of an earlier version: their pages are gone too."""
        asset = self._found.get(name)
        if asset is None or version != self.version:
            raise NotFound(f"there is no file {name[:80]} of this version; load the page again.")
        headers = {"Cache-Control": "public, max-age=31536000, immutable", "Vary": "Accept-Encoding"}
        content = asset.content
        if "gzip" in request.headers.get("accept-encoding", ""):
            content, headers["Content-Encoding"] = asset.compressed, "gzip"
        return Response(content, media_type=asset.media_type, headers=headers)
