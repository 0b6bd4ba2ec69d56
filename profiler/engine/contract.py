"""The engine plugin's messages for health, placement and push, as JSON on the wire and frozen values in Python.

Shared by the client, the replay engine and the engine-side plugin, so it imports only the standard library and numpy.
Every route is protected at SGLang's admin level.

====================================  ======================  ======================================
route                                 request                 answer
====================================  ======================  ======================================
``GET /moeplan/health``               -                       :class:`PluginHealth`
``GET /moeplan/placement``            ``?checksums=1``        :class:`Placement`
``PUT /moeplan/placement``            ``PushRequest``         ``PushAnswer``; 500 where only some layers
                                                              were applied (``contract_push``)
``POST /moeplan/demand/start``        ``DemandOptions``       ``DemandState`` (``contract_demand``)
``POST /moeplan/demand/stop``         -                       ``DemandState``
``GET /moeplan/demand``               ``?max_windows=N``      ``DemandAnswer``
====================================  ======================  ======================================

A refusal is ``{"error": {"code", "detail"}}``: 400 for a bad message or map, 409 with ``LAYOUT_HASH_MISMATCH`` when
another layout runs than expected and with ``PUSH_IN_PROGRESS`` or ``RECORDING_IN_PROGRESS`` when somebody else is at
it, 500 when the engine failed, 503 when its ranks do not answer. Keys are refused with 401 or 403 in SGLang's words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from profiler.engine.json_fields import ContractViolation, Fields
from profiler.engine.map_rules import layout_hash, map_from_json

CONTRACT_VERSION = 1
"""Rises when a message changes so that an older reader would misunderstand it; new fields alone do not raise it."""

ABILITIES = ("placement", "checksums", "push", "demand")
"""What a plugin may be able to do on an engine."""

BALANCERS = ("none", "sglang", "moeplan")
"""Who may change layouts beside pushes."""

REPLAY_ENGINE = "moeplan-replay"
"""The ``engine`` of every answer of the replay engine; its figures are simulated."""


@dataclass(frozen=True)
class Ability:
    """Whether one part of the contract works on this engine, and why not."""

    works: bool
    reason: str = ""


@dataclass(frozen=True)
class PluginHealth:
    """Answer of ``GET /moeplan/health``.

    Attributes
    ----------
    contract : int
        :data:`CONTRACT_VERSION` of the sender.
    engine : str
        ``sglang`` or :data:`REPLAY_ENGINE`.
    simulated : bool
        True when seconds, bytes and throughput of this engine are no measurements.
    moeplan_version, engine_version : str
        Of the plugin, and of SGLang (of the rules replayed, for a replay).
    ranks : tuple of int
        EP ranks that answered.
    ranks_expected : int
        Number of EP ranks.
    abilities : mapping of str to Ability
        One per name of :data:`ABILITIES`.
    balancer : {"none", "sglang", "moeplan"}
        Who changes layouts by itself (``--enable-eplb``): nobody, SGLang's own algorithm, or the plugin's in its
        place. Unless it is nobody, pushes are refused.
    """

    contract: int
    engine: str
    simulated: bool
    moeplan_version: str
    engine_version: str
    ranks: tuple[int, ...]
    ranks_expected: int
    abilities: Mapping[str, Ability]
    balancer: str = "none"

    def to_json(self) -> dict[str, Any]:
        abilities = {name: {"works": a.works, "reason": a.reason} for name, a in self.abilities.items()}
        return {**vars(self), "ranks": list(self.ranks), "abilities": abilities}

    @classmethod
    def from_json(cls, message: object) -> PluginHealth:
        fields = Fields(message, "health")
        abilities = Fields(fields.value("abilities"), "health.abilities")
        return cls(
            contract=fields.integer("contract", minimum=1),
            engine=fields.text("engine"),
            simulated=fields.flag("simulated"),
            moeplan_version=fields.text("moeplan_version"),
            engine_version=fields.text("engine_version"),
            ranks=fields.integers("ranks"),
            ranks_expected=fields.integer("ranks_expected", minimum=1),
            abilities={name: _ability(abilities, name) for name in ABILITIES},
            balancer=fields.text("balancer", allowed=BALANCERS) if "balancer" in fields else "none",
        )


def _ability(abilities: Fields, name: str) -> Ability:
    if name not in abilities:
        return Ability(works=False, reason="the plugin does not know it")
    fields = Fields(abilities.value(name), f"health.abilities.{name}")
    return Ability(works=fields.flag("works"), reason=fields.text("reason"))


@dataclass(frozen=True, eq=False)
class Placement:
    """Answer of ``GET /moeplan/placement``: what the engine is and which layout it runs.

    Attributes
    ----------
    engine : str
    simulated : bool
        As in :class:`PluginHealth`.
    engine_version, model : str
        SGLang's version; the model's name or path, empty where unknown.
    layers : int
        Decoder layers, dense ones included: rows of the map.
    moe_layers : tuple of int
        Layers that have experts.
    experts, slots : int
        Logical experts, and slots per layer over all GPUs.
    top_k : int or None
        Experts per token.
    ep_size, nodes : int
        GPUs (EP ranks) and nodes.
    dispatch : str or None
        ``--ep-dispatch-algorithm``; None when the engine was started without one.
    a2a_backend : str
        ``--moe-a2a-backend``; ``none`` when every rank sees every token.
    quantization : str or None
    phase : {"both", "prefill", "decode"}
        What this engine serves.
    expert_bytes : int
        Bytes of one expert of one layer, weights and scales.
    free_bytes : int or None
        Least free memory of any GPU.
    map_LP : ndarray
        int32 [L, P], ``physical_to_logical_map``.
    layout_hash : str
        :func:`profiler.engine.map_rules.layout_hash` of the map.
    rank_hashes : tuple of str
        The hash of the map each rank runs, by rank.
    generation : int
        Pushes since start that changed at least one layer.
    push_in_progress : bool
        True between the first and the last chunk of a push.
    weight_updates : int
        Updates of the model's weights since start (a new checkpoint, weights from a trainer): checksums from before
        one say nothing about the slots after it. 0 where the engine does not count them.
    boot_id : str
        Differs for every start of the engine; empty where the engine does not say.
    checksums : mapping of str to tuple of tuple of str, or None
        For every per-expert tensor (weights and scales) a text [L][P]: equal texts mean equal bytes. Empty
        rows for layers without experts. None when not asked for.
    """

    engine: str
    simulated: bool
    engine_version: str
    model: str
    layers: int
    moe_layers: tuple[int, ...]
    experts: int
    slots: int
    top_k: int | None
    ep_size: int
    nodes: int
    dispatch: str | None
    a2a_backend: str
    quantization: str | None
    phase: str
    expert_bytes: int
    free_bytes: int | None
    map_LP: npt.NDArray[np.int32]
    layout_hash: str
    rank_hashes: tuple[str, ...]
    generation: int
    push_in_progress: bool
    weight_updates: int = 0
    boot_id: str = ""
    checksums: Mapping[str, tuple[tuple[str, ...], ...]] | None = None

    @property
    def ranks_agree(self) -> bool:
        """Whether every rank answered and runs the same map."""
        return len(self.rank_hashes) == self.ep_size and set(self.rank_hashes) == {self.layout_hash}

    def to_json(self) -> dict[str, Any]:
        message = {name: value for name, value in vars(self).items() if name != "map_LP"}
        message["physical_to_logical_map"] = self.map_LP.tolist()
        message["ranks_agree"] = self.ranks_agree
        return message

    @classmethod
    def from_json(cls, message: object) -> Placement:
        fields = Fields(message, "placement")
        layers = fields.integer("layers", minimum=1)
        slots = fields.integer("slots", minimum=1)
        ep_size = fields.integer("ep_size", minimum=1)
        map_LP = map_from_json(fields.value("physical_to_logical_map"), "placement.physical_to_logical_map")
        if map_LP.shape != (layers, slots) or slots % ep_size:
            raise ContractViolation(
                f"placement has a map of {map_LP.shape[0]} layers x {map_LP.shape[1]} slots but says "
                f"{layers} layers, {slots} slots and {ep_size} ranks."
            )
        reported_hash = fields.text("layout_hash")
        if reported_hash != layout_hash(map_LP):
            raise ContractViolation(f"placement.layout_hash {reported_hash[:12]} is not the hash of its map.")
        return cls(
            engine=fields.text("engine"),
            simulated=fields.flag("simulated"),
            engine_version=fields.text("engine_version"),
            model=fields.text("model"),
            layers=layers,
            moe_layers=layers_from(fields, "moe_layers", layers=layers),
            experts=fields.integer("experts", minimum=1),
            slots=slots,
            top_k=fields.optional("top_k", lambda name: fields.integer(name, minimum=1)),
            ep_size=ep_size,
            nodes=fields.integer("nodes", minimum=1),
            dispatch=fields.optional("dispatch", fields.text),
            a2a_backend=fields.text("a2a_backend"),
            quantization=fields.optional("quantization", fields.text),
            phase=fields.text("phase", allowed=("both", "prefill", "decode")),
            expert_bytes=fields.integer("expert_bytes"),
            free_bytes=fields.optional("free_bytes", fields.integer),
            map_LP=map_LP,
            layout_hash=reported_hash,
            rank_hashes=fields.texts("rank_hashes"),
            generation=fields.integer("generation"),
            push_in_progress=fields.flag("push_in_progress"),
            weight_updates=fields.integer("weight_updates") if "weight_updates" in fields else 0,
            boot_id=fields.text("boot_id") if "boot_id" in fields else "",
            checksums=_checksums(fields, layers=layers, slots=slots) if "checksums" in fields else None,
        )


def layers_from(fields: Fields, name: str, *, layers: int) -> tuple[int, ...]:
    """Read a list of distinct decoder layers, returned in ascending order."""
    found = fields.integers(name)
    if len(set(found)) != len(found) or max(found, default=0) >= layers:
        raise ContractViolation(
            f"{fields.where}.{name} must list layers from 0 to {layers - 1}, each once.", code="LAYOUT_MISMATCH"
        )
    return tuple(sorted(found))


def _checksums(fields: Fields, *, layers: int, slots: int) -> dict[str, tuple[tuple[str, ...], ...]]:
    tensors = fields.value("checksums")
    if not isinstance(tensors, Mapping):
        raise ContractViolation("placement.checksums must be an object: a list of layers for each tensor.")
    checked = {}
    for tensor in tensors:
        where = f"placement.checksums.{tensor}"
        rows = Fields(tensors, "placement.checksums").items(tensor)
        widths = {len(row) if isinstance(row, list) else -1 for row in rows}
        texts = all(isinstance(text, str) for row in rows if isinstance(row, list) for text in row)
        if len(rows) != layers or not widths <= {0, slots} or not texts:
            raise ContractViolation(f"{where} must be {layers} lists of {slots} texts (empty for dense layers).")
        checked[str(tensor)] = tuple(tuple(row) for row in rows)
    return checked


@dataclass(frozen=True)
class Refusal:
    """Body of every answer that is not a success: ``{"error": {"code", "detail"}}``."""

    code: str
    detail: str

    def to_json(self) -> dict[str, Any]:
        return {"error": vars(self).copy()}

    @classmethod
    def from_json(cls, message: object) -> Refusal:
        fields = Fields(Fields(message, "answer").value("error"), "answer.error")
        return cls(code=fields.text("code"), detail=fields.text("detail"))
