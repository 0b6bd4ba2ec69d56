"""What the acceptance on more GPUs runs on: models, their traffic in halves, and how much of it."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from placement.model_shape import ExpertShape
from tests.gpu.checkpoints import CHECKPOINTS
from tests.gpu.traffic import Traffic, domain_traffic


@dataclass(frozen=True)
class GridScale:
    """Sizes of a run.

    Attributes
    ----------
    checkpoint : str
        Name in CHECKPOINTS.
    redundant : tuple of int
        Redundant slots of the engines with an all-to-all; those of the first are the control's too.
    trained_redundant : int
        Of the trained model.
    requests, prompt_tokens : int
        Requests of each source and their length, in either half.
    trained_requests : int
        Of the trained model, from each source in either half.
    rounds, repeats, least_steps : int
    step_tokens : int
        Home tokens of one GPU in a full step.
    plan_s : float
        Time limit of one plan.
    """

    checkpoint: str
    redundant: tuple[int, ...]
    trained_redundant: int
    requests: int
    prompt_tokens: int
    trained_requests: int
    rounds: int
    repeats: int
    least_steps: int
    step_tokens: int
    plan_s: float

    @property
    def control_redundant(self) -> int:
        return self.redundant[0]


_FULL = {
    "requests": 32,
    "prompt_tokens": 1024,
    "trained_requests": 48,
    "rounds": 2,
    "repeats": 4,
    "least_steps": 15,
    "step_tokens": 8192,
    "plan_s": 10.0,
}
SCALES = {
    4: GridScale("four-domains", (16, 0, 32), 8, **_FULL),  # type: ignore[arg-type]
    8: GridScale("eight-domains", (32, 0, 64), 8, **_FULL),  # type: ignore[arg-type]
    2: GridScale(
        "small-soft-domains",
        (4, 0),
        4,
        requests=2,
        prompt_tokens=32,
        trained_requests=2,
        rounds=1,
        repeats=1,
        least_steps=1,
        step_tokens=64,
        plan_s=4.0,
    ),
}


@dataclass(frozen=True)
class ServedModel:
    """A model as the acceptance needs to know it.

    Attributes
    ----------
    folder : Path
    layers, experts, top_k : int
    expert : ExpertShape
    """

    folder: Path
    layers: int
    experts: int
    top_k: int
    expert: ExpertShape


def random_model(name: str, root: Path) -> ServedModel:
    """Return what a checkpoint of random weights will be."""
    sizes = CHECKPOINTS[name]
    expert = ExpertShape.from_config(sizes.config())
    return ServedModel(root / name, sizes.layers, sizes.experts, sizes.top_k, expert)


def trained_model(folder: Path) -> ServedModel:
    """Read a trained model's ``config.json``; all of its layers have experts."""
    config = json.loads((folder / "config.json").read_text())
    sizes = (config[key] for key in ("num_hidden_layers", "num_experts", "num_experts_per_tok"))
    return ServedModel(folder, *sizes, ExpertShape.from_config(config))


@dataclass(frozen=True)
class Case:
    """Traffic of one kind, split into a half to plan from and a half to measure.

    Attributes
    ----------
    homes : str
        ``random homes``: requests of any domain anywhere; ``domain homes``: each at the GPU of its domain.
    planned_from, judged_on : Traffic
    """

    homes: str
    planned_from: Traffic
    judged_on: Traffic

    @property
    def name(self) -> str:
        return self.homes.split()[0]


RANDOM_HOMES, DOMAIN_HOMES = "random homes", "domain homes"
HOMES = {RANDOM_HOMES: 0.0, DOMAIN_HOMES: 1.0}
"""Share of a GPU's requests that are of its domain for sure; the others are of any."""


def random_cases(scale: GridScale, *, gpus: int) -> list[Case]:
    """Return both kinds of traffic of random tokens."""
    return [
        Case(homes, *_of_domains(scale, gpus=gpus, at_home=at_home, seeds=(11, 12))) for homes, at_home in HOMES.items()
    ]


def calibration_traffic(scale: GridScale, *, gpus: int) -> list[Traffic]:
    """Return traffic that no layout is judged on."""
    return [
        traffic for at_home in HOMES.values() for traffic in _of_domains(scale, gpus=gpus, at_home=at_home, seeds=(21,))
    ]


def _of_domains(scale: GridScale, *, gpus: int, at_home: float, seeds: tuple[int, ...]) -> list[Traffic]:
    sizes = {"requests": scale.requests, "prompt_tokens": scale.prompt_tokens, "new_tokens": 1}
    model = CHECKPOINTS[scale.checkpoint]
    return [domain_traffic(model, sources=gpus, at_home=at_home, seed=seed, **sizes) for seed in seeds]  # type: ignore[arg-type]


def trained_cases(file: Path, scale: GridScale, *, gpus: int) -> list[Case]:
    """Return both kinds of traffic of prompts with a domain each (JSON list of {domain, input_ids}).

    Domains are dealt out to GPUs in the order of their names; prompts of a document may land in both halves.
    """
    by_home: dict[int, list[list[int]]] = defaultdict(list)
    prompts = json.loads(file.read_text())
    domains = sorted({prompt["domain"] for prompt in prompts})
    for prompt in prompts:
        by_home[domains.index(prompt["domain"]) * gpus // len(domains)].append(prompt["input_ids"])
    draw = random.Random(17)
    at_home = [draw.sample(by_home[gpu], 2 * scale.trained_requests) for gpu in range(gpus)]
    everywhere = [prompt for prompts in at_home for prompt in prompts]
    draw.shuffle(everywhere)
    size = 2 * scale.trained_requests
    anywhere = [everywhere[gpu * size : (gpu + 1) * size] for gpu in range(gpus)]
    return [
        Case(homes, *(Traffic(tuple(prompts[half::2] for prompts in prompts_S), 1) for half in (0, 1)))
        for homes, prompts_S in zip(HOMES, (anywhere, at_home), strict=True)
    ]
