"""What a recording holds, for ``moeplan trace info``."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from placement.notice import Notice
from profiler.conservation import conservation_notices
from profiler.counting import count_ids
from profiler.trace import PHASE_NUMBERS, CountChunk, TokenChunk, TraceHeader, TraceReader

PHASE_NAMES = ("unknown", *(phase for phase, number in PHASE_NUMBERS.items() if number))


def recorded_facts(reader: TraceReader, *, extra: dict[str, object]) -> dict[str, object]:
    """Stream a recording once and return what it holds, ready for JSON.

    Parameters
    ----------
    reader : TraceReader
    extra : dict
        Facts only this format has; they follow the common ones.

    Returns
    -------
    dict
        ``warnings`` holds the notices as mappings; counts are routed tokens (a token with top-k = 8 counts 8).
    """
    header = reader.header
    seen = _Seen(reader)
    for chunk in reader.chunks():
        if isinstance(chunk, CountChunk):
            seen.add_counts(chunk)
        else:
            seen.add_tokens(chunk)
    facts: dict[str, object] = {
        "name": reader.name,
        "kind": header.kind,
        "engine": " ".join(part for part in (header.engine, header.engine_version) if part) or None,
        "model": header.model or None,
        "layers": header.layers,
        "moe_layers": [int(layer) for layer in np.flatnonzero(seen.tokens_LE.any(axis=1))],
        "experts": header.experts,
        "top_k": header.top_k,
        "routed_tokens": int(seen.tokens_LE.sum()),
        "windows": len(seen.sums_by_window),
        "window_routed_tokens": {name: int(sums_L.sum()) for name, sums_L in seen.sums_by_window.items()},
        "hottest_expert": _hottest(seen.tokens_LE),
        "source_ranks": header.source_ranks,
        "steps": seen.steps or None,
    }
    if header.kind == "tokens":
        facts |= seen.token_facts()
    notices = [*reader.notices, *seen.notices()]
    facts |= {key: value for key, value in extra.items() if key not in facts}
    return {**facts, "sha256": reader.content_hash, "warnings": [notice.to_dict() for notice in dict.fromkeys(notices)]}


class _Seen:
    """Sums over the chunks seen so far."""

    def __init__(self, reader: TraceReader) -> None:
        self._reader = reader
        self._header: TraceHeader = reader.header
        self.tokens_LE: npt.NDArray[np.int64] = np.zeros((self._header.layers, self._header.experts), dtype=np.int64)
        self.sums_by_window: dict[str, npt.NDArray[np.int64]] = {}
        self.steps = 0
        self._tokens_by_window: dict[str, int] = {}
        self._requests: set[int] = set()
        self._by_domain: npt.NDArray[np.int64] = np.zeros(len(self._header.domain_names) + 1, dtype=np.int64)
        self._by_source: npt.NDArray[np.int64] = np.zeros((self._header.source_ranks or 0) + 1, dtype=np.int64)
        self._by_phase: npt.NDArray[np.int64] = np.zeros(len(PHASE_NAMES), dtype=np.int64)

    def add_counts(self, chunk: CountChunk) -> None:
        tokens_LE = chunk.tokens_LSE.sum(axis=1)
        self._add(chunk.window or self._reader.name, tokens_LE)
        self.steps += chunk.steps

    def add_tokens(self, chunk: TokenChunk) -> None:
        tokens = len(chunk.request_id_T)
        if tokens == 0:
            return
        group_T = np.zeros(tokens, dtype=np.int64)
        window = chunk.window or self._reader.name
        self._add(window, count_ids(chunk.topk_LTK, group_T, groups=1, experts=self._header.experts)[0])
        self._tokens_by_window[window] = self._tokens_by_window.get(window, 0) + tokens
        self._requests.update(np.unique(chunk.request_id_T).tolist())
        self.steps = max(self.steps, int(chunk.step_T.max()) + 1)
        # Bin 0 is "unknown", which chunks write as -1; ids beyond the header's names are not this function's business.
        for totals, values in ((self._by_domain, chunk.domain_T), (self._by_source, chunk.source_T)):
            totals += np.bincount(np.clip(values, -1, len(totals) - 2) + 1, minlength=len(totals))
        self._by_phase += np.bincount(np.minimum(chunk.phase_T, len(PHASE_NAMES) - 1), minlength=len(self._by_phase))

    def token_facts(self) -> dict[str, object]:
        names = self._header.domain_names
        return {
            "tokens": sum(self._tokens_by_window.values()),
            "requests": len(self._requests),
            "domains": {name: int(count) for name, count in zip(names, self._by_domain[1:], strict=True)},
            "tokens_by_source": self._by_source[1:].tolist(),
            "tokens_by_phase": {
                name: int(count) for name, count in zip(PHASE_NAMES, self._by_phase, strict=True) if count
            },
        }

    def notices(self) -> list[Notice]:
        notices = []
        if not self.tokens_LE.any():
            detail = f"{self._reader.name} holds no routed tokens: was there traffic, and was recording on?"
            notices.append(Notice("EMPTY_PROFILE", detail))
        names = list(self.sums_by_window)
        if not names:
            return notices
        top_k = self._header.top_k
        if any(notice.code == "SHARED_EXPERT_IDS" for notice in self._reader.notices):
            top_k = None
        tokens = [self._tokens_by_window.get(name) for name in names]
        expected = [count * top_k if count and top_k else None for count in tokens]
        return [*notices, *conservation_notices(np.stack(list(self.sums_by_window.values())), names, expected)]

    def _add(self, window: str, tokens_LE: npt.NDArray[np.int64]) -> None:
        self.tokens_LE += tokens_LE
        sums_L = tokens_LE.sum(axis=1)
        self.sums_by_window[window] = self.sums_by_window.get(window, np.zeros_like(sums_L)) + sums_L


def _hottest(tokens_LE: npt.NDArray[np.int64]) -> dict[str, Any] | None:
    """Return the expert with the largest share of its layer, as a multiple of an even share."""
    sums_L = tokens_LE.sum(axis=1)
    if not sums_L.any():
        return None
    ratio_L = tokens_LE.max(axis=1) * tokens_LE.shape[1] / np.maximum(sums_L, 1)
    layer = int(np.argmax(ratio_L))
    return {"layer": layer, "expert": int(np.argmax(tokens_LE[layer])), "times_even": round(float(ratio_L[layer]), 3)}
