"""Times measured for this project on H200s of one host (NV18 all to all), bf16, medians.

Expert products: grouped matrix products and SiLU, torch 2.11. Layouts: SGLang 0.5.16 with DeepEP's normal kernels over
NVLink on 4 GPUs, prefill of 8192 tokens per GPU in 4 MoE layers of 64 experts of 2048 x 1408, top-8, layouts pushed
into the running engine; all-to-all is dispatch and combine of one layer.
"""

from __future__ import annotations

from dataclasses import dataclass

from placement.model_shape import ExpertShape
from profiler.hardware.fitting import ExpertSample

GPUS = 4
TOKENS_PER_GPU = 8192
TOP_K = 8
LAYERS = 4

V2_LITE, V3, MIXTRAL = (
    ExpertShape(hidden, width, 6 * hidden * width) for hidden, width in ((2048, 1408), (7168, 2048), (4096, 14336))
)

_MICROSECONDS: dict[ExpertShape, dict[int, dict[int, int]]] = {
    V2_LITE: {
        384: {8: 140, 16: 160, 24: 196, 32: 262, 64: 447},
        3072: {8: 178, 16: 190, 24: 200, 32: 259, 64: 439},
        24576: {8: 815, 16: 825, 24: 840, 32: 845, 64: 1031},
        49152: {8: 1616, 16: 1636, 24: 1674, 32: 1674, 64: 1692},
    },
    V3: {
        384: {8: 292, 32: 1035, 40: 1263, 64: 1918},
        3072: {8: 549, 32: 903, 40: 1154, 64: 1850},
        24576: {8: 3163, 32: 3311, 40: 3974, 64: 4346},
        49152: {8: 6578, 32: 7096, 40: 7306, 64: 7125},
    },
    MIXTRAL: {
        384: {1: 412, 2: 420, 4: 503, 5: 688, 8: 1053},
        3072: {1: 1711, 2: 1739, 4: 1792, 5: 2154, 8: 2198},
        24576: {1: 15511, 2: 15422, 4: 15059, 5: 16531, 8: 15879},
        49152: {1: 31986, 2: 34028, 4: 31419, 5: 32033, 8: 31529},
    },
}

EXPERT_SAMPLES = tuple(
    ExpertSample(expert, rows, active, microseconds * 1e-6)
    for expert, by_rows in _MICROSECONDS.items()
    for rows, by_active in by_rows.items()
    for active, microseconds in by_active.items()
)


@dataclass(frozen=True)
class MeasuredLayout:
    """One pushed layout.

    Attributes
    ----------
    name : str
        Own-GPU share and what is special.
    copies_per_token : float
        To other GPUs, per token and layer.
    busiest_load : float
        Routed tokens of the busiest GPU over the mean.
    received_by_busiest : float
        Copies that the GPU which receives most gets, over the mean.
    slots_per_gpu : int
    step_s : float
        The middle where a range was measured.
    all_to_all_s : float or None
        Per layer; not measured for the unbalanced layout.
    """

    name: str
    copies_per_token: float
    busiest_load: float
    received_by_busiest: float
    slots_per_gpu: int
    step_s: float
    all_to_all_s: float | None


LAYOUTS = (
    MeasuredLayout("23 % (contiguous)", 2.89, 1.0, 1.0, 16, (33.4e-3 + 35.3e-3) / 2, 2.3e-3),
    MeasuredLayout("61 %", 2.33, 1.0, 1.0, 16, (32.0e-3 + 33.8e-3) / 2, 2.2e-3),
    MeasuredLayout("80 %", 1.59, 1.0, 1.0, 16, 32.5e-3, 1.9e-3),
    MeasuredLayout("100 %", 0.0, 1.0, 1.0, 16, (28.9e-3 + 30.0e-3) / 2, 1.2e-3),
    MeasuredLayout("0 %, one other GPU", 1.0, 1.0, 1.0, 16, (30.1e-3 + 31.7e-3) / 2, 1.55e-3),
    # Of every domain of tokens the two experts that are not at home are on one GPU: on the last one for the three
    # other domains, which so receives three times the mean.
    MeasuredLayout("87 % by replicas, load 1.24", 0.77, 1.24, 3.0, 20, 36.0e-3, None),
)
