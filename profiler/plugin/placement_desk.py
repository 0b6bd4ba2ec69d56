"""HTTP side of health and placement: what the ranks report becomes one answer."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np

from profiler.engine.contract import ABILITIES, CONTRACT_VERSION, Ability, Placement, PluginHealth
from profiler.plugin.carrier import HEALTH_TIMEOUT_S, RankCarrier
from profiler.plugin.orders import OrderRefused
from profiler.plugin.push_desk import ENGINE
from profiler.plugin.versions import installed_engine, moeplan_version

logger = logging.getLogger(__name__)


class PlacementDesk:
    """Answers health and placement.

    Parameters
    ----------
    ranks_expected : int
        EP ranks by the server's arguments, for when none answers.
    """

    def __init__(self, carrier: RankCarrier, *, ranks_expected: int) -> None:
        self._carrier = carrier
        self._ranks_expected = ranks_expected

    async def health(self) -> PluginHealth:
        """Say what works and why not the rest; answers also when the ranks do not."""
        try:
            parts = await self._carrier.order("health", timeout_s=HEALTH_TIMEOUT_S)
        except OrderRefused as refusal:
            reason = f"{refusal.code}: {refusal.detail}"
            parts = []
            abilities = {name: Ability(works=False, reason=reason) for name in ABILITIES}
        else:
            abilities = {name: _common([part["abilities"][name] for part in parts]) for name in ABILITIES}
        return PluginHealth(
            contract=CONTRACT_VERSION,
            engine=ENGINE,
            simulated=False,
            moeplan_version=moeplan_version(),
            engine_version=installed_engine().text,
            ranks=tuple(sorted(part["rank"] for part in parts)),
            ranks_expected=parts[0]["ranks"] if parts else self._ranks_expected,
            abilities=abilities,
            balancer=parts[0]["balancer"] if parts else "none",
        )

    async def placement(self) -> Placement:
        """Read the layout and what it lives on."""
        return _placement(await self._carrier.order("placement"), checksums=None)

    async def placement_with_checksums(self) -> Placement:
        """Read layout and fingerprints, one layer at a time so that batches run in between.

        Raises
        ------
        OrderRefused
            ``PUSH_IN_PROGRESS`` when the layout changed meanwhile: the fingerprints would be of two layouts.
        """
        before = await self._carrier.order("placement")
        rows = {}
        for layer in before[0]["moe_layers"]:
            rows[layer] = await self._carrier.order("checksums", layers=[layer])
        after = await self._carrier.order("placement")
        same = all(a["layout_hash"] == b["layout_hash"] for a, b in zip(before, after, strict=True))
        if after[0]["push_in_progress"] or not same or after[0]["generation"] != before[0]["generation"]:
            raise OrderRefused("the layout changed while its checksums were read.", code="PUSH_IN_PROGRESS")
        return _placement(after, checksums=_checksums(rows, layers=int(after[0]["layers"])))


def _common(abilities: list[dict[str, Any]]) -> Ability:
    broken = next((ability for ability in abilities if not ability["works"]), None)
    return Ability(works=broken is None, reason="" if broken is None else str(broken["reason"]))


def _placement(
    parts: list[dict[str, Any]], *, checksums: Mapping[str, tuple[tuple[str, ...], ...]] | None
) -> Placement:
    first = parts[0]
    free = [part["free_bytes"] for part in parts if part["free_bytes"] is not None]
    by_rank = sorted(parts, key=lambda part: int(part["rank"]))
    return Placement(
        engine=ENGINE,
        simulated=False,
        engine_version=installed_engine().text,
        **{name: first[name] for name in _PLAIN_FIELDS},
        moe_layers=tuple(first["moe_layers"]),
        free_bytes=min(free) if free else None,
        map_LP=np.asarray(first["map"], dtype=np.int32),
        # The engine keeps a second copy of the map on the host; a rank where they differ runs no layout we know.
        rank_hashes=tuple(part["layout_hash"] if part["host_copy_agrees"] else "" for part in by_rank),
        boot_id=str(by_rank[0]["boot_id"]),
        checksums=checksums,
    )


_PLAIN_FIELDS = (
    "model",
    "layers",
    "experts",
    "slots",
    "top_k",
    "ep_size",
    "nodes",
    "dispatch",
    "a2a_backend",
    "quantization",
    "phase",
    "expert_bytes",
    "layout_hash",
    "generation",
    "push_in_progress",
    "weight_updates",
)


def _checksums(rows: Mapping[int, list[dict[str, Any]]], *, layers: int) -> dict[str, tuple[tuple[str, ...], ...]]:
    """Put the ranks' slots side by side: tensor -> [layers][slots]; dense layers stay empty."""
    table: dict[str, list[tuple[str, ...]]] = {}
    for layer, parts in rows.items():
        by_rank = sorted(parts, key=lambda part: int(part["rank"]))
        for tensor in by_rank[0]["layers"][str(layer)]:
            texts = [text for part in by_rank for text in part["layers"][str(layer)][tensor]]
            table.setdefault(tensor, [()] * layers)[layer] = tuple(texts)
    return {tensor: tuple(rows_L) for tensor, rows_L in table.items()}
