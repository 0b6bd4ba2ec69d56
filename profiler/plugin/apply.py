"""A push on one rank: checked as a whole, then applied chunk by chunk, each chunk layer by layer.

Every rank runs the same steps at the same point between two batches. What can be refused is refused on all ranks
before any weight moves; after that a layer is the unit: SGLang's updater moves its weights and then switches its
row of the map.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from profiler.engine.contract_push import MAX_PAUSE_S
from profiler.engine.json_fields import Fields
from profiler.engine.map_rules import (
    changed_layers,
    check_map,
    chunks_of_layers,
    layout_hash,
    map_from_json,
    slot_changes,
)
from profiler.plugin.orders import OrderRefused
from profiler.plugin.placement_state import current_map
from profiler.plugin.rank_view import (
    RankView,
    copied_metadata,
    location_metadata,
    metadata_of_map,
    moe_layers,
    set_rows,
    wait_for_device,
    weights_of_layers,
)

logger = logging.getLogger(__name__)

ABANDONED_AFTER_S = 2 * MAX_PAUSE_S
"""A push whose next chunk has not come for so long was lost with its HTTP process; another may begin."""


@dataclass
class OpenPush:
    """A push between its first check and its end.

    Attributes
    ----------
    push_id : str
    result_LP : ndarray
        int32 [L, P], the map once all chunks are applied.
    metadata : Any
        SGLang's metadata; rows of chunks to come are made when it is their turn, unless all were made at once.
    made_at_once : bool
    chunks : tuple of tuple of int
        Layers.
    applied_layers : list of int
    touched_s : float
        When it was last heard of.
    """

    push_id: str
    result_LP: npt.NDArray[np.int32]
    metadata: Any
    made_at_once: bool
    chunks: tuple[tuple[int, ...], ...]
    applied_layers: list[int] = field(default_factory=list)
    touched_s: float = 0.0

    @property
    def abandoned(self) -> bool:
        return time.monotonic() - self.touched_s > ABANDONED_AFTER_S


class PlacementApplier:
    """Applies pushes on one rank.

    Attributes
    ----------
    generation : int
        Pushes since start of which at least one layer was applied.
    """

    def __init__(self) -> None:
        self.generation = 0
        self._open: OpenPush | None = None

    @property
    def in_progress(self) -> bool:
        return self._open is not None and not self._open.abandoned

    def plan(
        self, order: Fields, *, model_runner: Any, server_args: Any, view: RankView
    ) -> tuple[dict[str, Any], OpenPush]:
        """Check a push and cut it into chunks; nothing changes.

        Raises
        ------
        OrderRefused, ContractViolation
            When a push is under way, another layout runs than expected, or the map is not one for this engine.
        """
        if self.in_progress:
            raise OrderRefused(
                "another push is under way; wait for it and read the layout anew.", code="PUSH_IN_PROGRESS"
            )
        metadata = location_metadata()
        old_LP = current_map(metadata)
        old_hash = layout_hash(old_LP)
        expected = order.optional("expected_layout_hash", order.text)
        if expected is not None and expected != old_hash:
            raise OrderRefused(
                f"the engine runs layout {old_hash[:12]}, not {expected[:12]}; plan from the present layout.",
                code="LAYOUT_HASH_MISMATCH",
            )
        new_LP = map_from_json(order.value("map"), "physical_to_logical_map")
        check_map(
            new_LP,
            layers=metadata.num_layers,
            slots=metadata.num_physical_experts,
            experts=metadata.num_logical_experts,
        )
        layers = self._layers_to_change(order, old_LP, new_LP, moe_layers(model_runner.model))
        size = order.optional("layers_per_chunk", lambda name: order.integer(name, minimum=1))
        chunks = chunks_of_layers(layers, layers_per_chunk=size) if layers else ()
        result_LP = old_LP.copy()
        result_LP[list(layers)] = new_LP[list(layers)]
        # Static dispatch draws one table through all layers. Otherwise layers are independent, and making the
        # metadata of all of them at once would stop the engine for longer than moving a chunk does.
        at_once = view.dispatch == "static"
        pushed = OpenPush(
            push_id=order.text("push_id"),
            result_LP=result_LP,
            metadata=self._metadata(metadata, result_LP, model_runner=model_runner, server_args=server_args, view=view)
            if at_once
            else copied_metadata(metadata),
            made_at_once=at_once,
            chunks=chunks,
            touched_s=time.monotonic(),
        )
        planned = [self._planned_chunk(chunk, old_LP, new_LP, gpus=view.ep_size) for chunk in chunks]
        return {
            "previous_layout_hash": old_hash,
            "generation": self.generation,
            "chunks": planned,
        }, pushed

    def open(self, push: OpenPush) -> None:
        """Begin a push that every rank found valid."""
        self._open = push

    def chunk(self, push_id: str, index: int) -> tuple[int, ...]:
        """Return the layers of a chunk of the open push.

        Raises
        ------
        OrderRefused
            ``PUSH_LOST`` when that push is not the open one.
        """
        if self._open is None or self._open.push_id != push_id:
            raise OrderRefused("this push is not open any more on this rank.", code="PUSH_LOST")
        return self._open.chunks[index]

    def apply(
        self,
        layers: tuple[int, ...],
        *,
        model_runner: Any,
        server_args: Any,
        view: RankView,
    ) -> dict[str, Any]:
        """Move weights and switch maps of some layers of the open push; returns the seconds it took.

        Raises
        ------
        OrderRefused
            ``ENGINE_FAILED`` naming the layer at which SGLang's updater failed. Layers before it are applied, the
            layer itself must be verified by its checksums, later ones are untouched.
        """
        push = self._open
        if push is None:
            raise OrderRefused("no push is open on this rank.", code="PUSH_LOST")
        started_s = time.perf_counter()
        weights = weights_of_layers(model_runner.model)
        if not push.made_at_once:
            rows_LP = push.result_LP[list(layers)]
            rows = self._metadata(push.metadata, rows_LP, model_runner=model_runner, server_args=server_args, view=view)
            set_rows(push.metadata, layers, rows)
        wait_for_device()
        for layer in layers:
            try:
                missing = model_runner.expert_location_updater.update(
                    weights, push.metadata, update_layer_ids=[layer], nnodes=view.nodes, rank=view.tp_rank
                )
            except Exception as error:
                logger.exception("moeplan: layer %s of push %s failed", layer, push.push_id)
                raise OrderRefused(
                    f"layer {layer} failed: {type(error).__name__}: {error}", code="ENGINE_FAILED"
                ) from error
            if missing:
                raise OrderRefused(f"layer {layer} lost experts {missing}.", code="ENGINE_FAILED")
            self._note_applied(push, layer)
        wait_for_device()
        push.touched_s = time.monotonic()
        return {"seconds": time.perf_counter() - started_s}

    def close(self, push_id: str) -> dict[str, Any]:
        """End a push, finished or not, and report which layout runs."""
        metadata = location_metadata()
        applied: list[int] = []
        if self._open is not None and self._open.push_id == push_id:
            push, self._open = self._open, None
            applied = sorted(push.applied_layers)
            whole = applied == sorted(layer for chunk in push.chunks for layer in chunk)
            if whole and push.made_at_once:  # rows that did not change have another part of the one static table now
                wait_for_device()
                metadata.update(push.metadata, update_layer_ids=list(range(metadata.num_layers)))
        map_LP = current_map(metadata)
        return {"applied_layers": applied, "layout_hash": layout_hash(map_LP), "generation": self.generation}

    def _note_applied(self, push: OpenPush, layer: int) -> None:
        if not push.applied_layers:
            self.generation += 1
        push.applied_layers.append(layer)

    @staticmethod
    def _metadata(
        metadata: Any, map_LP: npt.NDArray[np.int32], *, model_runner: Any, server_args: Any, view: RankView
    ) -> Any:
        map_tensor = _tensor_like(metadata, map_LP)
        return metadata_of_map(server_args, model_runner.model_config, map_tensor, ep_rank=view.ep_rank)

    @staticmethod
    def _layers_to_change(
        order: Fields, old_LP: npt.NDArray[np.int32], new_LP: npt.NDArray[np.int32], with_experts: tuple[int, ...]
    ) -> tuple[int, ...]:
        asked = order.optional("layers", order.integers)
        among = with_experts if asked is None else tuple(layer for layer in asked if layer in with_experts)
        return changed_layers(old_LP, new_LP, among=among)

    @staticmethod
    def _planned_chunk(
        layers: tuple[int, ...], old_LP: npt.NDArray[np.int32], new_LP: npt.NDArray[np.int32], *, gpus: int
    ) -> dict[str, Any]:
        changes = slot_changes(old_LP, new_LP, layers=layers, gpus=gpus)
        return {"layers": list(layers), "changed_slots": changes.changed_slots, "moved_slots": changes.moved_slots}


def _tensor_like(metadata: Any, map_LP: npt.NDArray[np.int32]) -> Any:
    import torch

    return torch.tensor(map_LP, dtype=metadata.physical_to_logical_map.dtype)
