"""``moeplan size``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from api.cli import options as cli
from api.cli.exit_codes import TARGET_MISSED
from api.cli.here_or_there import on_local_copies
from api.cli.option_groups import flattened
from api.cli.output import print_json, print_notices, progress_bar
from api.cli.plan_options import SharedFlags
from api.cli.service_flags import ServiceFlags
from api.cli.size_output import print_size
from api.sizing import SizeRequest, size_from_files

ModelName = Annotated[
    str,
    typer.Option(
        help="The model's config.json, or a name like deepseek-v3 (a wrong one lists all).",
        show_default=False,
    ),
]
Memory = Annotated[float, typer.Option(help="Memory of one GPU in GiB, as nvidia-smi shows it.", show_default=False)]
Target = Annotated[
    float | None,
    typer.Option(
        help="Wanted share on the home GPU. Not reachable: exit code 4. Without it 0.6, and no failure.",
        show_default=False,
    ),
]
AttentionRanks = Annotated[
    int | None,
    typer.Option(
        help="Data-parallel attention ranks (SGLang's --dp with --enable-dp-attention). Default: one per GPU, and 1 "
        "with --dispatch even.",
        show_default=False,
    ),
]
Fraction = Annotated[
    float | None,
    typer.Option(
        "--mem-fraction-static",
        help="SGLang's option of that name; without it what SGLang takes by itself.",
        show_default=False,
    ),
]
Context = Annotated[
    float, typer.Option("--context-gib", help="GiB taken before weights are loaded: CUDA context, communicators.")
]
KvCache = Annotated[Literal["auto", "fp8"], typer.Option(help="Number format of the key-value cache.")]
Page = Annotated[int, typer.Option("--page-size", help="Tokens of a cache page (SGLang's --page-size).")]
DraftLayers = Annotated[int, typer.Option(help="Draft (MTP) layers that are loaded too, for speculative decoding.")]
MinCacheTokens = Annotated[int, typer.Option(help="Fewest tokens that one GPU's cache must hold.")]
Rows = Annotated[int, typer.Option(help="Most numbers of slots to plan for.")]


@dataclass(frozen=True, kw_only=True)
class SizeFlags(SharedFlags):
    """What ``size`` is asked with; every field is a field of :class:`api.sizing.SizeRequest` too."""

    model: ModelName
    gpu_memory_gib: Memory
    local_target: Target = None
    attention_ranks: AttentionRanks = None
    memory_fraction: Fraction = None
    context_gib: Context = 1.5
    kv_cache: KvCache = "auto"
    page_tokens: Page = 1
    draft_layers: DraftLayers = 0
    min_cache_tokens: MinCacheTokens = 1
    rows: Rows = 6
    threads: Annotated[int, typer.Option(help="Threads of the solver.")] = 1

    def request(self) -> SizeRequest:
        """Turn the flags into a request."""
        return SizeRequest(**{**self.given(), "local_target": 0.6 if self.local_target is None else self.local_target})


@flattened
@on_local_copies("inputs")
def size(inputs: cli.Inputs, *, asked: SizeFlags, at: ServiceFlags, as_json: cli.Json = False) -> None:
    """Weigh slots per GPU against key-value cache: locality, balance and time of every number of slots that fits."""
    with progress_bar("sizing") as advance:
        curve, notices = size_from_files([Path(path) for path in inputs], asked.request(), progress=advance)
    warnings = [notice.to_dict() for notice in notices]
    if as_json:
        print_json({**curve.to_dict(), "warnings": warnings})
    else:
        print_size(curve, gpus=asked.gpus, memory_gib=asked.gpu_memory_gib)
        print_notices(warnings)
    if asked.local_target is not None and curve.target_row is None:
        raise typer.Exit(TARGET_MISSED)
