"""Token traces in NumPy archives: ``topk`` and ``request_id``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from placement.errors import ExpertIdRange
from placement.notice import Notice
from profiler.errors import BadCountShape, BadCountType, InputsDisagree
from profiler.files import content_hash
from profiler.readers.counts import (
    MAX_EXPERTS,
    MAX_SHARED_EXPERTS,
    experts_assumed_notice,
    require_sane_size,
    routed_experts,
    shared_experts_notice,
)
from profiler.readers.layer_rows import decoder_layer_rows
from profiler.readers.npz_archive import NpzArchive
from profiler.readers.options import ReadOptions
from profiler.trace import NO_EXPERT, PHASE_NUMBERS, TokenChunk, TraceHeader

IDS_PER_CHUNK = 2**20
"""Routed ids in one chunk: small against a file, large against Python's cost per chunk."""


@dataclass(frozen=True, eq=False)
class _TokenColumns:
    """What is known of each token besides its experts, one entry per token."""

    request_id_T: npt.NDArray[np.int64]
    position_T: npt.NDArray[np.int32]
    source_T: npt.NDArray[np.int32]
    domain_T: npt.NDArray[np.int32]
    phase_T: npt.NDArray[np.uint8]
    step_T: npt.NDArray[np.int64]


class TokenNpzReader:
    """Token trace in an ``.npz`` file; see :func:`profiler.readers.npz.open_npz`.

    The ids are unpacked whole when the trace is streamed (once the file, decompressed) and handed on in pieces.
    """

    def __init__(self, path: Path, archive: NpzArchive, options: ReadOptions) -> None:
        self._path = path
        self._archive = archive
        member = archive.members["topk"]
        if len(member.shape) != 3 or 0 in member.shape:
            raise BadCountShape(f"topk of {path.name} has shape {list(member.shape)}; [layers, tokens, k] is needed.")
        if member.dtype.kind not in "iu":
            raise BadCountType(f"topk of {path.name} holds {member.dtype} values; expert ids are whole numbers.")
        rows, self._tokens, self._columns_per_token = member.shape
        self._rows = decoder_layer_rows(
            name=path.name, row_count=rows, labels=archive.layer_labels(rows), model=options.model
        )
        self._notices: list[Notice] = list(self._rows.notices)
        self._shared_total = 0
        experts = self._experts(options)
        require_sane_size(self._rows.layers, experts, name=path.name)
        domain_names = self._domain_names()
        model = options.model
        self._header = TraceHeader(
            kind="tokens",
            layers=self._rows.layers,
            experts=experts,
            top_k=self._top_k(options),
            source_ranks=self._source_ranks(),
            model=model.name if model else "",
            domain_names=domain_names,
        )

    @property
    def header(self) -> TraceHeader:
        return self._header

    @property
    def name(self) -> str:
        return self._path.name

    @cached_property
    def content_hash(self) -> str:
        return content_hash([self._path])

    @property
    def notices(self) -> tuple[Notice, ...]:
        shared: tuple[Notice, ...] = ()
        if self._shared_total:
            shared = (shared_experts_notice(self.name, self._header.experts, self._shared_total),)
        return (*self._notices, *shared)

    def facts(self) -> dict[str, object]:
        """Return the arrays of the archive and the number of tokens."""
        return {"arrays": self._archive.summary(), "tokens": self._tokens}

    def require_complete(self) -> None:
        """Do nothing: one archive is a whole recording."""

    def chunks(self) -> Iterator[TokenChunk]:
        """Yield the tokens in order, about a million ids at a time."""
        columns = self._token_columns()
        ids_RTK = self._archive.read("topk")
        self._shared_total = 0
        _, tokens, width = ids_RTK.shape
        step = max(1, IDS_PER_CHUNK // (self._rows.layers * width))
        for start in range(0, tokens, step):
            stop = min(start + step, tokens)
            topk_RTK = self._logical_ids(ids_RTK[:, start:stop], first_token=start)
            yield TokenChunk(
                topk_LTK=self._rows.place(topk_RTK, fill=int(NO_EXPERT)),
                request_id_T=columns.request_id_T[start:stop],
                position_T=columns.position_T[start:stop],
                source_T=columns.source_T[start:stop],
                domain_T=columns.domain_T[start:stop],
                phase_T=columns.phase_T[start:stop],
                step_T=columns.step_T[start:stop],
            )

    def _logical_ids(self, ids_RTK: npt.NDArray[Any], *, first_token: int) -> npt.NDArray[np.uint16]:
        """Return routed ids as uint16; negative ids and fused shared experts become :data:`NO_EXPERT`."""
        experts = self._header.experts
        lowest, highest = int(ids_RTK.min()), int(ids_RTK.max())
        unsigned_filler = ids_RTK.dtype.kind == "u" and highest == np.iinfo(ids_RTK.dtype).max and highest >= experts
        if highest < experts and lowest >= -1:
            return ids_RTK.astype(np.uint16)  # -1 becomes 0xFFFF, which is NO_EXPERT
        beyond = ids_RTK >= experts
        if unsigned_filler:
            beyond &= ids_RTK != highest
        wrong = beyond & (ids_RTK >= experts + MAX_SHARED_EXPERTS)
        if wrong.any():
            row, token, column = (int(value) for value in np.argwhere(wrong)[0])
            raise ExpertIdRange(
                f"topk[{row}, {first_token + token}, {column}] of {self.name} is {int(ids_RTK[row, token, column])}; "
                f"with {experts} experts ids go up to {experts - 1}."
            )
        self._shared_total += int(beyond.sum())
        return np.where((ids_RTK < 0) | (ids_RTK >= experts), NO_EXPERT, ids_RTK.astype(np.uint16))

    def _experts(self, options: ReadOptions) -> int:
        archive, known = self._archive, options.known_experts
        if "num_experts" in archive.members:
            stated = archive.read_number("num_experts")
            return routed_experts(stated, options, name=self.name)
        if known is not None:
            return known
        highest = int(archive.read("topk").max())
        if not 0 <= highest < MAX_EXPERTS:
            raise BadCountShape(f"topk of {self.name} has ids up to {highest}; expert ids are 0 to {MAX_EXPERTS - 1}.")
        self._notices.append(experts_assumed_notice(self.name, highest + 1))
        return highest + 1

    def _top_k(self, options: ReadOptions) -> int:
        width, model = self._columns_per_token, options.model
        if model is not None and model.top_k > width:
            raise InputsDisagree(f"{self.name} has {width} experts per token, the model {model.top_k}: is it the same?")
        return model.top_k if model is not None else width

    def _domain_names(self) -> tuple[str, ...]:
        members = self._archive.members
        if "domain_names" in members:
            return self._archive.read_texts("domain_names")
        if "domain" not in members and "req_domain" not in members:
            return ()
        domains = int(self._per_token("domain", self._request_ids()).max()) + 1
        if not 0 <= domains <= MAX_EXPERTS:
            raise BadCountShape(f"domains of {self.name} are numbered up to {domains - 1}; give domain_names.")
        return tuple(str(domain) for domain in range(domains))

    def _source_ranks(self) -> int | None:
        """Return the number of ranks, or None where the rank of some token is unknown."""
        if not {"source", "req_source"} & set(self._archive.members):
            return None
        sources = self._per_token_int32("source", self._request_ids())
        if int(sources.min()) < 0:
            return None
        return int(sources.max()) + 1

    def _request_ids(self) -> npt.NDArray[np.int64]:
        request_ids = self._archive.read_whole_numbers("request_id", shape=(self._tokens,))
        if int(request_ids.min()) < 0:
            token = int(np.argmax(request_ids < 0))
            raise BadCountShape(f"request_id[{token}] of {self.name} is {request_ids[token]}; requests count from 0.")
        return request_ids

    def _per_token(self, what: str, request_ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return ``what`` [T], or ``req_<what>`` [R] spread over the tokens of each request, or -1 for all."""
        if what in self._archive.members:
            return self._archive.read_whole_numbers(what, shape=(self._tokens,))
        if f"req_{what}" not in self._archive.members:
            return np.broadcast_to(np.int64(-1), (self._tokens,))  # takes no memory
        return self._per_request(f"req_{what}", request_ids)[request_ids]

    def _per_token_int32(self, what: str, request_ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
        """Return the same as int32; everything negative is "unknown" and becomes -1."""
        if not {what, f"req_{what}"} & set(self._archive.members):
            return np.broadcast_to(np.int32(-1), (self._tokens,))
        values = self._per_token(what, request_ids)
        if int(values.max()) > np.iinfo(np.int32).max:
            raise BadCountShape(f"{what} of {self.name} goes up to {values.max()}; it must fit into 32 bits.")
        return np.maximum(values, -1).astype(np.int32)

    def _per_request(self, name: str, request_ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        shape = self._archive.members[name].shape
        values = self._archive.read_whole_numbers(name, shape=shape if len(shape) == 1 else (self._tokens,))
        highest = int(request_ids.max())
        if highest >= values.size:
            raise BadCountShape(
                f"{name} of {self.name} has {values.size} entries, but request_id goes up to {highest}; one per "
                "request, numbered from 0, is needed."
            )
        return values

    def _token_columns(self) -> _TokenColumns:
        request_ids = self._request_ids()
        positions = self._per_token_int32("position", request_ids)
        phases = np.broadcast_to(np.uint8(PHASE_NUMBERS["mixed"]), (self._tokens,))
        if "req_prompt_tokens" in self._archive.members and "position" in self._archive.members:
            prompt_tokens = self._per_request("req_prompt_tokens", request_ids)[request_ids]
            prefill, decode = np.uint8(PHASE_NUMBERS["prefill"]), np.uint8(PHASE_NUMBERS["decode"])
            phases = np.where(positions < prompt_tokens, prefill, decode)
        return _TokenColumns(
            request_id_T=request_ids,
            position_T=positions,
            source_T=self._per_token_int32("source", request_ids),
            domain_T=self._checked_domains(request_ids),
            phase_T=phases,
            step_T=self._per_token("step", request_ids),
        )

    def _checked_domains(self, request_ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
        domains = self._per_token_int32("domain", request_ids)
        names = len(self._header.domain_names)
        if int(domains.max()) >= max(names, 1):
            raise BadCountShape(f"{self.name} has a domain {int(domains.max())}, but {names} domain_names.")
        return domains
