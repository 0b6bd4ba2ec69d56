"""From slots back to experts, with the layout that the engine had in each pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from placement.errors import CodedError
from placement.layout import Layout
from profiler.errors import BadJson, InputsDisagree, MapChanged, UnreadableDump
from profiler.formats.expert_ids import slot_table
from profiler.json_file import read_json
from profiler.readers.counts import MAX_EXPERTS
from profiler.readers.options import ReadOptions
from profiler.readers.sglang_records import RankFile
from profiler.trace import NO_EXPERT

SHARED_EXPERT = np.uint16(NO_EXPERT - 1)
"""Stands for an id behind the last slot: a shared expert that is fused into the routed ones."""


@dataclass(frozen=True, eq=False)
class MapPeriod:
    """A layout and the first pass that ran with it.

    Attributes
    ----------
    from_pass : int
    map_LP : ndarray
        int64 [L, P].
    experts : int
    """

    from_pass: int
    map_LP: npt.NDArray[np.int64]
    experts: int

    @cached_property
    def expert_of_id_LQ(self) -> npt.NDArray[np.uint16]:
        """Expert by ``id + 1``, uint16 [L, P + 2]: nothing for -1, a shared expert from P on."""
        layers, slots = self.map_LP.shape
        table = np.full((layers, slots + 2), SHARED_EXPERT, dtype=np.uint16)
        table[:, 0] = NO_EXPERT
        table[:, 1:-1] = self.map_LP
        return table

    @cached_property
    def _slots_by_expert(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        cells = (self.map_LP + np.arange(len(self.map_LP))[:, None] * self.experts).ravel()
        order = np.argsort(cells, kind="stable")
        return order, np.searchsorted(cells[order], np.arange(len(self.map_LP) * self.experts))

    def experts_of_ids(self, ids_LTX: npt.NDArray[np.signedinteger[Any]]) -> npt.NDArray[np.uint16]:
        """Turn slot ids into experts, :data:`NO_EXPERT` and :data:`SHARED_EXPERT`."""
        layers, slots = self.map_LP.shape
        row_L11 = (np.arange(layers, dtype=np.int64) * (slots + 2) + 1)[:, None, None]
        experts_LTX: npt.NDArray[np.uint16] = self.expert_of_id_LQ.ravel()[np.minimum(ids_LTX, slots) + row_L11]
        return experts_LTX

    def experts_of_counts(self, counts_LP: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Add up the slots of every expert, int64 [L, E]."""
        order, starts = self._slots_by_expert
        return np.add.reduceat(counts_LP.ravel()[order], starts).reshape(-1, self.experts)


@dataclass(frozen=True, eq=False)
class SlotMaps:
    """The layouts of a recording.

    Attributes
    ----------
    periods : tuple of MapPeriod
        In order; the last one is the layout of the dump.
    from_history : bool
        Whether the caller gave them, so that a change is accounted for.
    """

    periods: tuple[MapPeriod, ...]
    from_history: bool

    @property
    def last(self) -> MapPeriod:
        return self.periods[-1]

    @property
    def experts(self) -> int:
        return self.last.experts

    def at(self, pass_id: int) -> MapPeriod:
        """Return the layout of a pass."""
        return next(period for period in reversed(self.periods) if period.from_pass <= pass_id)


def trivial_map(layers: int, slots: int, experts: int) -> npt.NDArray[np.int64]:
    """Return the layout an engine starts with unless told otherwise: slot ``p`` holds expert ``p mod E``."""
    return np.tile(np.arange(slots, dtype=np.int64) % experts, (layers, 1))


def identity_maps(maps: SlotMaps) -> SlotMaps:
    """Return maps for a recording whose ids are experts already, as wide as the slots."""
    last = maps.last
    layers, slots = last.map_LP.shape
    map_LP = trivial_map(layers, slots, last.experts)
    return SlotMaps((MapPeriod(0, map_LP, last.experts),), from_history=maps.from_history)


def slot_maps(files: Sequence[RankFile], options: ReadOptions, *, name: str) -> SlotMaps:
    """Find the layouts a recording was made with.

    Raises
    ------
    MapChanged
        Ranks hold different layouts, or the history does not end in the layout of the dump.
    InputsDisagree
        A layout has another number of experts than the caller gave.
    UnreadableDump, BadJson
        No layout and no number of experts, or one that no engine can have.
    """
    recorded = {file.rank: file.map_LP for file in files if file.map_LP is not None}
    last_LP = next(iter(recorded.values())) if recorded else _assumed_map(files, options, name)
    shapes = {map_LP.shape for map_LP in recorded.values()}
    if len(shapes) > 1:
        raise InputsDisagree(f"the ranks of {name} have layouts of different shapes: {sorted(shapes)}.")
    _require_fitting_records(files, last_LP, name)
    differing = [rank for rank, map_LP in recorded.items() if not np.array_equal(map_LP, last_LP)]
    if differing:
        raise MapChanged(
            f"rank {differing[0]} of {name} was dumped with another layout than rank {min(recorded)}: the layout "
            "changed while the files were written; record again."
        )
    experts = _checked_experts(last_LP, options, name)
    if options.map_history is None:
        return SlotMaps((MapPeriod(0, last_LP, experts),), from_history=False)
    periods = _history(options.map_history, last_LP, experts)
    first_pass = min((entry.pass_id for file in files for entry in file.passes), default=periods[0].from_pass)
    if first_pass < periods[0].from_pass:
        raise MapChanged(
            f"{options.map_history.name} begins with pass {periods[0].from_pass}, but {name} with pass {first_pass}: "
            "the history is not complete."
        )
    return SlotMaps(periods, from_history=True)


def _assumed_map(files: Sequence[RankFile], options: ReadOptions, name: str) -> npt.NDArray[np.int64]:
    experts = options.known_experts
    arrays = [array for file in files for entry in file.passes for array in (entry.counts_LP, entry.ids_LTX)]
    sized = next((array for array in arrays if array is not None), None)
    if experts is None or sized is None:
        raise UnreadableDump(
            f"{name} has no last_physical_to_logical_map; give the number of experts if its ids are experts."
        )
    if sized.ndim == 2 and sized.shape[1] != experts:
        raise UnreadableDump(
            f"{name} counts {sized.shape[1]} slots for {experts} experts and has no last_physical_to_logical_map: "
            "nothing says which expert a slot held."
        )
    return trivial_map(len(sized), experts, experts)


def _require_fitting_records(files: Sequence[RankFile], last_LP: npt.NDArray[np.int64], name: str) -> None:
    for file in files:
        for entry in file.passes[:1]:  # the records of one file agree with each other
            layers = {len(array) for array in (entry.counts_LP, entry.ids_LTX) if array is not None}
            slots = last_LP.shape[1] if entry.counts_LP is None else entry.counts_LP.shape[1]
            if layers != {len(last_LP)} or slots != last_LP.shape[1]:
                raise UnreadableDump(
                    f"the records of rank {file.rank} of {name} have {max(layers)} layers and {slots} slots, its "
                    f"layout has {last_LP.shape[0]} and {last_LP.shape[1]}."
                )


def _checked_experts(map_LP: npt.NDArray[np.int64], options: ReadOptions, name: str) -> int:
    experts = int(map_LP.max()) + 1
    if experts > MAX_EXPERTS:
        raise UnreadableDump(f"last_physical_to_logical_map of {name} names expert {experts - 1}; that is damage.")
    known = options.known_experts
    if known is not None and known != experts:
        raise InputsDisagree(f"the layout of {name} has {experts} experts, {known} were given: is it the same model?")
    try:
        Layout.of_any_width(map_LP, gpus=1, experts=experts)
    except CodedError as error:
        raise UnreadableDump(f"last_physical_to_logical_map of {name} is damaged: {error.detail}") from error
    return experts


def _history(path: Path, last_LP: npt.NDArray[np.int64], experts: int) -> tuple[MapPeriod, ...]:
    entries = read_json(path)
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
        raise BadJson(f'{path.name} must be a list of {{"from_pass": n, "physical_to_logical_map": [[...]]}}.')
    periods: list[MapPeriod] = []
    for index, entry in enumerate(entries):
        from_pass = entry.get("from_pass")
        if type(from_pass) is not int or (periods and from_pass <= periods[-1].from_pass):
            raise BadJson(f"from_pass of entry {index} in {path.name} is {from_pass!r}; ascending pass ids are needed.")
        map_LP, _ = slot_table(entry.get("physical_to_logical_map"), key=f"entry {index} of {path.name}")
        if map_LP.shape != last_LP.shape:
            raise InputsDisagree(
                f"entry {index} of {path.name} is a layout of {list(map_LP.shape)} layers and slots, the recording has "
                f"{list(last_LP.shape)}."
            )
        Layout(map_LP, gpus=1, experts=experts)
        periods.append(MapPeriod(from_pass, map_LP.astype(np.int64), experts))
    if not np.array_equal(periods[-1].map_LP, last_LP):
        raise MapChanged(f"the last layout in {path.name} is not the one of the dump: the history is not complete.")
    return tuple(periods)
