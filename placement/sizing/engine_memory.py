"""How much key-value cache an engine has beside the weights, as SGLang works it out.

Read in SGLang 0.5.16 and 0.5.23: the pool gets what is free after loading less ``(1 - mem_fraction_static)`` of what
was free before (``srt/mem_cache/kv_cache_configurator.py``), divided by the bytes of a token in all layers
(``srt/model_executor/pool_configurator.py``). The fraction, where it is not given, leaves room for activations, graphs
and buffers (``_handle_gpu_memory_settings``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from placement.errors import BadOption
from placement.sizing.model_weights import ModelWeights
from placement.sizing.weight_group import Split, WeightGroup

GIB = 2**30

MOST_MEMORY_GIB = 65536.0

GRAPH_STEPS = ((4, 33, 4), (48, 257, 16), (288, 513, 32), (576, 1025, 64), (1280, 4097, 256))
"""Batch sizes for which prefill graphs are captured up to 4096; beyond it every 512."""

CLASSES = (
    (20, 2048, 8, 8),
    (35, 2048, 24, 80),
    (60, 4096, 32, 160),
    (160, 8192, 256, 512),
    (math.inf, 16384, 512, 512),
)
"""Up to so many GiB of GPU memory: tokens of a prefill chunk, largest decode graph on fewer than 4 GPUs and on more."""


@dataclass(frozen=True, kw_only=True)
class EngineMemory:
    """How an engine uses GPU memory.

    Attributes
    ----------
    gpus : int
        GPUs (EP ranks) of the engine.
    gpu_memory_gib : float
        Of one GPU.
    attention_ranks : int
        Data-parallel attention ranks, a divisor of ``gpus``; 1 without DP attention.
    all_to_all : bool
        Whether there is an all-to-all backend: then shared experts are whole on every GPU.
    memory_fraction : float or None
        ``--mem-fraction-static``; None for what SGLang takes by itself.
    context_gib : float
        Taken before weights are loaded: CUDA context and communicators.
    cache_bytes_per_value : float
        2 for bf16, 1 for fp8 (``--kv-cache-dtype``).
    sliding_share : float
        ``--swa-full-tokens-ratio``. With ``--max-running-requests`` and without the radix cache SGLang sizes that pool
        by requests instead, which is not looked at here.
    page_tokens : int
        ``--page-size``.
    draft_layers : int
        Draft (MTP) layers that are loaded too; each has as many slots as a MoE layer.

    Raises
    ------
    BadOption
        Naming the value.
    """

    gpus: int
    gpu_memory_gib: float
    attention_ranks: int = 1
    all_to_all: bool = True
    memory_fraction: float | None = None
    context_gib: float = 1.5
    cache_bytes_per_value: float = 2.0
    sliding_share: float = 0.8
    page_tokens: int = 1
    draft_layers: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.gpu_memory_gib <= MOST_MEMORY_GIB:
            raise BadOption(
                f"the GPU memory is {self.gpu_memory_gib} GiB; it is above 0 and up to {MOST_MEMORY_GIB:g}, like 80."
            )
        if not 0 <= self.context_gib < self.gpu_memory_gib:
            raise BadOption(f"{self.context_gib} GiB are taken before loading; 0 to below the GPU's memory can be.")
        if self.memory_fraction is not None and not 0 < self.memory_fraction < 1:
            raise BadOption(f"the memory fraction is {self.memory_fraction}; it is between 0 and 1, like 0.88.")
        if self.attention_ranks < 1 or self.gpus % self.attention_ranks:
            raise BadOption(f"{self.attention_ranks} attention ranks do not divide {self.gpus} GPUs; give a divisor.")
        if not 0 < self.sliding_share <= 1:
            raise BadOption(f"the share of sliding tokens is {self.sliding_share}; it is above 0 and up to 1.")
        if self.page_tokens < 1 or self.draft_layers < 0:
            raise BadOption(
                f"a page has {self.page_tokens} tokens and there are {self.draft_layers} draft layers; at least 1 and "
                "0 are possible."
            )

    def fraction(self, model: ModelWeights) -> float:
        """Return the share of the free memory that weights and cache may take."""
        if self.memory_fraction is not None:
            return self.memory_fraction
        total_mib = self.gpu_memory_gib * 1024
        return max(0.0, round((total_mib - self._reserved_mib(latent=model.cache.latent)) / total_mib, 3))

    def use(self, model: ModelWeights, *, slots_per_gpu: int) -> MemoryUse:
        """Work out one GPU's memory with so many slots in every MoE layer."""
        moe_layers = len(model.shape.moe_layers) + self.draft_layers
        groups = (*model.groups, *(self.draft_layers * model.draft_groups))
        free_bytes = (self.gpu_memory_gib - self.context_gib) * GIB
        expert_bytes = moe_layers * slots_per_gpu * model.expert.weight_bytes
        other_bytes = math.ceil(sum(self._bytes_on_gpu(group) for group in groups))
        cache_bytes = int(free_bytes * self.fraction(model)) - expert_bytes - other_bytes
        token_bytes = self.token_bytes(model)
        tokens = int(max(0, cache_bytes) // token_bytes) // self.page_tokens * self.page_tokens
        return MemoryUse(
            slots_per_gpu=slots_per_gpu,
            expert_bytes=expert_bytes,
            other_weight_bytes=other_bytes,
            cache_bytes=cache_bytes,
            cache_tokens=tokens,
            all_cache_tokens=tokens * self.attention_ranks,
        )

    def token_bytes(self, model: ModelWeights) -> float:
        """Return the bytes of one token in the cache of one GPU, draft layers included."""
        ranks = self.gpus // self.attention_ranks
        alone = model.cache.bytes_per_token(
            ranks=ranks, bytes_per_value=self.cache_bytes_per_value, sliding_share=self.sliding_share
        )
        return alone * (1 + self.draft_layers / model.shape.layers)

    def most_slots(self, model: ModelWeights, *, cache_tokens: int) -> int:
        """Return the most slots per GPU that leave room for so many tokens; 0 where not even none would."""
        empty = self.use(model, slots_per_gpu=0)
        spare_bytes = empty.cache_bytes - cache_tokens * self.token_bytes(model)
        slot_bytes = (len(model.shape.moe_layers) + self.draft_layers) * model.expert.weight_bytes
        return max(0, int(spare_bytes // slot_bytes))

    def _bytes_on_gpu(self, group: WeightGroup) -> float:
        match group.split:
            case Split.ATTENTION:
                return group.bytes_on_gpu(self.gpus // self.attention_ranks)
            case Split.TENSOR:
                return group.bytes_on_gpu(self.gpus)
            case Split.SHARED:
                return group.bytes_on_gpu(1 if self.all_to_all else self.gpus)
            case Split.WHOLE:
                return group.bytes_on_gpu(1)

    def _reserved_mib(self, *, latent: bool) -> float:
        """What SGLang leaves for activations, graphs and buffers, in its own heuristic's units."""
        chunk, graph = self._chunk_and_graph()
        # 1. metadata, 1.5 MiB for each token of a prefill chunk, more for many GPUs
        reserved = 512 + 1.5 * chunk + self.gpus / 8 * 1024
        # 2. decode graphs, with padding for DP attention; prefill graphs
        reserved += 2 * graph
        if self.attention_ranks > 1:
            reserved += (4.5 if graph > 300 else 3.0) * graph * self.attention_ranks
        reserved += 1536 if latent else 8 * self._prefill_graphs(chunk)
        # 3. at least 10 GiB on large GPUs, and DeepEP's buffers
        if self.gpu_memory_gib > 60:
            reserved = max(reserved, 10 * 1024)
        return reserved + (2048 if self.all_to_all else 0)

    def _chunk_and_graph(self) -> tuple[int, int]:
        for most_gib, chunk, few_gpus, many_gpus in CLASSES:
            if self.gpu_memory_gib < most_gib:
                return chunk, few_gpus if self.gpus < 4 else many_gpus
        raise BadOption(f"the GPU memory is {self.gpu_memory_gib} GiB; no default of SGLang covers it.")

    def _prefill_graphs(self, chunk: int) -> int:
        small = sum(len([size for size in range(*step) if size <= chunk]) for step in GRAPH_STEPS)
        return small + len(range(4608, chunk + 1, 512))


@dataclass(frozen=True)
class MemoryUse:
    """One GPU's memory with so many slots.

    Attributes
    ----------
    slots_per_gpu : int
    expert_bytes, other_weight_bytes : int
        Weights of the slots, and all others.
    cache_bytes : int
        Left for the key-value cache; negative where weights alone do not fit.
    cache_tokens : int
        Tokens in the cache of one GPU: what SGLang reports as ``max_total_num_tokens``.
    all_cache_tokens : int
        Of all data-parallel attention ranks together.
    """

    slots_per_gpu: int
    expert_bytes: int
    other_weight_bytes: int
    cache_bytes: int
    cache_tokens: int
    all_cache_tokens: int
