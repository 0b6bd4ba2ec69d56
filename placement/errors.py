"""What can go wrong while planning.

::

    CodedError                         one sentence with a code: what was found, the next valid value
     +-- PlacementError                everything below comes from this package
          +-- InvalidInput             the caller's values are unusable
          |    +-- SlotsNotDivisible, SlotsBelowExperts, RedundancyTooHigh, NotEnoughLiveSlots,
          |    |   DraftSlotsNotDivisible                          (slot arithmetic)
          |    +-- GpusNotPositive, BadTopology                     (topology)
          |    +-- BadDemandShape, NegativeCount, CountOutOfRange, EmptyProfile, SourceCountMismatch,
          |    |   BadWindow                                        (demand)
          |    +-- BadTokens                                        (token traces)
          |    +-- BadMapShape, ExpertIdRange, ExpertMissing, SlotCountMismatch, LayoutMismatch,
          |    |   DuplicateOnDevice                               (layout)
          |    +-- BadPlan                                          (plan)
          |    +-- BadModelConfig                                   (model shape)
          |    +-- BadHardwareProfile                               (hardware profile)
          |    +-- GroupsNotDivisible                              (expert groups of a baseline)
          |    +-- BadOption                                        (options of a problem)
          +-- Infeasible               the values are fine, but no layout meets all of them
               +-- NotEnoughMemory     the experts, or the cache beside them, do not fit into the GPUs

``code`` is the class name in capitals (``SlotsNotDivisible`` -> ``SLOTS_NOT_DIVISIBLE``), the same
on the command line, over REST and in plan files. The class docstring is the default message.
"""

from __future__ import annotations

import re


class CodedError(Exception):
    """Something went wrong, with a code that stays the same everywhere."""

    code: str = "ERROR"

    def __init_subclass__(cls) -> None:
        cls.code = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).upper()

    def __init__(self, detail: str = "", *, remedies: tuple[str, ...] = ()) -> None:
        self.detail = detail or (self.__doc__ or "").strip().splitlines()[0]
        self.remedies = remedies
        super().__init__(self.detail)


class PlacementError(CodedError):
    """Planning failed."""


class InvalidInput(PlacementError):
    """The input cannot be used."""


class SlotsNotDivisible(InvalidInput):
    """Experts + redundant slots is not a multiple of the number of GPUs."""


class SlotsBelowExperts(InvalidInput):
    """There are fewer slots than experts; every expert needs one."""


class RedundancyTooHigh(InvalidInput):
    """There are more slots than experts x GPUs, so two replicas of one expert would share a GPU."""


class NotEnoughLiveSlots(InvalidInput):
    """The GPUs that are alive have fewer slots than there are experts."""


class DraftSlotsNotDivisible(InvalidInput):
    """The redundant slots suit the target model but not its draft model."""


class GpusNotPositive(InvalidInput):
    """The number of GPUs and of nodes must be at least 1."""


class BadTopology(InvalidInput):
    """The topology is not a square matrix of finite, non-negative costs with a zero diagonal."""


class BadDemandShape(InvalidInput):
    """Demand must have the axes windows, layers, sources, experts."""


class NegativeCount(InvalidInput):
    """A count is negative."""


class CountOutOfRange(InvalidInput):
    """A count, or a sum of counts, does not fit into 64 bits."""


class EmptyProfile(InvalidInput):
    """Every count is zero: nothing was recorded, so there is nothing to plan from."""


class SourceCountMismatch(InvalidInput):
    """The demand was measured for another number of source GPUs."""


class BadWindow(InvalidInput):
    """The windows asked for do not exist in this demand."""


class BadTokens(InvalidInput):
    """Routed tokens do not fit together, or not to the problem they are given for."""


class BadMapShape(InvalidInput):
    """A layout is a list of layers, each a list of as many expert ids as there are slots."""


class ExpertIdRange(InvalidInput):
    """A layout names an expert that does not exist."""


class ExpertMissing(InvalidInput):
    """A layout has no slot for some expert."""


class SlotCountMismatch(InvalidInput):
    """The layout has another number of slots than the engine or problem it is meant for."""


class LayoutMismatch(InvalidInput):
    """Two things that must describe the same model (layout, demand) have different layers or experts."""


class DuplicateOnDevice(InvalidInput):
    """A device holds one expert twice, which the engine this layout is for cannot do."""


class BadPlan(InvalidInput):
    """The parts of a plan contradict each other, or one of them is not what it must be."""


class BadModelConfig(InvalidInput):
    """The model configuration lacks what is needed, or describes no Mixture-of-Experts model."""


class BadHardwareProfile(InvalidInput):
    """The hardware profile lacks a figure, or one of them is not what it must be."""


class GroupsNotDivisible(InvalidInput):
    """Expert groups do not divide the experts, or the nodes do not divide the groups."""


class BadOption(InvalidInput):
    """An option has a value outside its range."""


class Infeasible(PlacementError):
    """No layout meets all limits."""


class NotEnoughMemory(Infeasible):
    """The weights, or the key-value cache beside them, do not fit into the memory of the GPUs."""
