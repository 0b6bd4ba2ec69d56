"""What fits into a GPU: a model's weights, the engine's key-value cache, and what slots buy and cost."""

from placement.sizing.by_slots import PlannedSlots, plan_by_slots, slots_worth_planning
from placement.sizing.curve import SizeCurve, SizeQuestion, SizeRow, size_curve
from placement.sizing.engine_memory import EngineMemory, MemoryUse
from placement.sizing.model_weights import ModelWeights
from placement.sizing.weight_group import Split, WeightGroup

__all__ = [
    "EngineMemory",
    "MemoryUse",
    "ModelWeights",
    "PlannedSlots",
    "SizeCurve",
    "SizeQuestion",
    "SizeRow",
    "Split",
    "WeightGroup",
    "plan_by_slots",
    "size_curve",
    "slots_worth_planning",
]
