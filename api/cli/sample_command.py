"""``moeplan sample``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from api.cli import options as cli
from api.cli.output import print_json, print_line, print_notices, progress_bar
from api.loading import read_model
from profiler.files import require_writable

# The client of engines loads httpx, so the command imports what it needs.


def sample(
    engine: cli.Url,
    prompts: Annotated[
        Path,
        typer.Option(
            help="One text a line, or JSON objects a line with text or input_ids, and sampling_params, domain, "
            "routed_dp_rank.",
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Option(help="moeplan trace to write (.parquet).", show_default=False)],
    max_new_tokens: Annotated[int, typer.Option(help="Tokens to generate for each prompt.", min=1)] = 64,
    concurrency: Annotated[int, typer.Option(help="Requests under way at a time.", min=1)] = 16,
    timeout: Annotated[float, typer.Option(help="Seconds for a whole request.")] = 300.0,
    model: cli.ModelConfig = None,
    key: cli.EngineKey = None,
    read_key: cli.EngineReadKey = None,
    as_json: cli.Json = False,
) -> None:
    """Send prompts to a live engine and write the experts of every token as a trace; needs no plugin."""
    from profiler.engine.client import EngineClient
    from profiler.engine.sample import sample as sample_requests
    from profiler.engine.sample_prompts import read_prompts
    from profiler.writers.parquet import import_trace

    require_writable(out)
    asked = read_prompts(prompts)
    shape = read_model(model) if model else None
    with EngineClient(engine, key, read_key=read_key) as client, progress_bar("sampling") as progress:
        sampled = sample_requests(
            client,
            asked,
            model=shape,
            sampling_params={"max_new_tokens": max_new_tokens},
            concurrency=concurrency,
            timeout_s=timeout,
            on_progress=progress or (lambda share: None),
        )
    facts = import_trace([sampled], out)
    if as_json:
        told = {"out": str(out), "requests": len(sampled.pieces), "failed": sampled.failed}
        print_json({**facts, **told, "simulated": sampled.simulated})
        return
    simulated = " (simulated)" if sampled.simulated else ""
    print_line(f"wrote {out}: {len(sampled.pieces)} requests, {sampled.tokens} tokens{simulated}")
    print_notices([notice.to_dict() for notice in sampled.notices])
