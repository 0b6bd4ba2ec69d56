"""A profile with round figures, and the experts that go with it."""

from __future__ import annotations

from placement.hardware import AllToAll, ExpertTimes, HardwareProfile, Sends
from placement.model_shape import ExpertShape

EXPERT = ExpertShape(hidden=100, width=50, weight_bytes=30_000)
"""30,000 FLOPs per row."""

EXPERT_TIMES = ExpertTimes(fixed_s=1e-6, weight_bytes_per_s=3e10, overlap=1.0, flops_per_s={"bf16": 3e10})
"""A row and an active expert take a microsecond each."""

PREFILL = AllToAll(
    Sends.PER_GPU,
    fixed_s=5e-6,
    nvlink_bytes_per_s=4e8,
    rdma_bytes_per_s=4e7,
    dispatch_bytes_per_value=2.0,
    combine_bytes_per_value=2.0,
)
"""A copy takes a microsecond over NVLink and ten over RDMA."""

DECODE = AllToAll(
    Sends.PER_EXPERT,
    fixed_s=2e-6,
    nvlink_bytes_per_s=4e8,
    rdma_bytes_per_s=4e7,
    dispatch_bytes_per_value=2.0,
    combine_bytes_per_value=2.0,
)

PROFILE = HardwareProfile(
    name="round",
    gpu="a GPU with round figures",
    memory_gib=80.0,
    expert=EXPERT_TIMES,
    prefill=PREFILL,
    decode=DECODE,
    sources={"memory_gib": "made up", "expert": "made up", "prefill": "made up", "decode": "made up"},
)
