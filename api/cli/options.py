"""Options that several commands share, each declared once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from api.loading import read_options
from profiler.readers.options import ReadOptions

Inputs = Annotated[
    list[Path],
    typer.Argument(
        help="Recordings: SGLang .pt dumps (file or folder of rank files), JSON or .npz counts, .npz token traces, "
        "rank CSVs, TensorRT-LLM statistics, moeplan Parquet.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]
Gpus = Annotated[int, typer.Option(help="Number of GPUs (EP ranks).", show_default=False)]
Nodes = Annotated[int, typer.Option(help="Number of nodes the GPUs are spread over.")]
TopologyFile = Annotated[
    Path | None,
    typer.Option(
        "--topology",
        help="JSON file: square matrix, the cost of the link from rank to rank; replaces --nodes.",
        show_default=False,
    ),
]
WindowByText = Annotated[
    str,
    typer.Option(
        "--window-by",
        help="How traffic is cut into windows; the limit on imbalance holds in every one. "
        "file (as recorded), domain, steps:N, seconds:N or none (added up).",
    ),
]
SourcesMode = Annotated[
    str,
    typer.Option(
        "--sources",
        help="Where tokens live: auto takes the recorded home GPUs where they fit --gpus; "
        "uniform spreads tokens evenly over all GPUs.",
    ),
]
ModelConfig = Annotated[
    Path | None,
    typer.Option(
        "--model",
        help="The model's config.json, or a name like deepseek-v3 (a wrong one lists all): tells layer rows and fused "
        "shared experts apart, and how large an expert is.",
        show_default=False,
    ),
]
Experts = Annotated[
    int | None, typer.Option(help="Number of routed experts, where the recording does not say.", show_default=False)
]
Ranks = Annotated[
    int | None, typer.Option(help="Number of ranks that recorded; missing files are then noticed.", show_default=False)
]
AllowPartial = Annotated[
    bool, typer.Option("--allow-partial", help="Use recordings that lack the files of some ranks.")
]
MapHistory = Annotated[
    Path | None,
    typer.Option(
        help="JSON list of {from_pass, physical_to_logical_map}: layouts that ran while recording.", show_default=False
    ),
]


@dataclass(frozen=True, kw_only=True)
class ReadFlags:
    """How recordings are read."""

    model: ModelConfig = None
    experts: Experts = None
    ranks: Ranks = None
    allow_partial: AllowPartial = False
    map_history: MapHistory = None

    def options(self) -> ReadOptions:
        """Turn the flags into reader options."""
        return read_options(
            model=self.model,
            experts=self.experts,
            ranks=self.ranks,
            allow_partial=self.allow_partial,
            map_history=self.map_history,
        )


CapacityFactor = Annotated[
    float,
    typer.Option(help="A GPU's capacity, as a multiple of the mean GPU load: what is above is overflow_share."),
]
SampleTokens = Annotated[
    int | None,
    typer.Option(
        help="Count copies of this many tokens of a token trace (whole requests, drawn at random), with confidence "
        "intervals; without it of all.",
        show_default=False,
    ),
]
Seed = Annotated[int, typer.Option(help="Seed of everything random; equal seeds give equal plans.")]
Url = Annotated[str, typer.Option("--engine", help="URL of the engine.", show_default=False)]
EngineKey = Annotated[
    str | None,
    typer.Option("--engine-key", envvar="MOEPLAN_ENGINE_KEY", help="The engine's (admin) API key.", show_default=False),
]
EngineReadKey = Annotated[
    str | None,
    typer.Option(
        "--engine-read-key",
        envvar="MOEPLAN_ENGINE_READ_KEY",
        help="The engine's API key, where it has an admin key too.",
        show_default=False,
    ),
]
