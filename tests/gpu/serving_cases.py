"""What serving is measured on: models, mixes of requests, how many are in flight and for how long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.gpu.checkpoints import CHECKPOINTS
from tests.gpu.grid_cases import HOMES, Case
from tests.gpu.traffic import Traffic, domain_traffic

TEMPERATURE = 1.0
"""At 0 a random model repeats a few tokens for ever, and with them a few experts."""


@dataclass(frozen=True)
class Mix:
    """One kind of requests.

    Attributes
    ----------
    name : str
    prompt_tokens, new_tokens : int
    requests : int
        Different prompts of each GPU in either half.
    phase : {"prefill", "decode"}
        Where most of its time goes; plans for step time are made for steps of it.
    """

    name: str
    prompt_tokens: int
    new_tokens: int
    requests: int
    phase: str


MIXES = {
    mix.name: mix
    for mix in (
        Mix("prefill-heavy", 2048, 16, 32, "prefill"),
        Mix("decode-heavy", 64, 256, 32, "decode"),
    )
}


@dataclass(frozen=True)
class ServingScale:
    """Sizes of a run.

    Attributes
    ----------
    concurrency : tuple of int
        Requests in flight over all GPUs, one measurement each.
    tokens_per_event : int
    step_tokens : int
        Home tokens of one GPU in a full prefill step.
    ramp_s : float
        After the clients have started.
    settle_s : float
        After every push, before its window begins.
    window_s, count_s : float
        How long a layout is measured, and how long its tokens are counted afterwards.
    rounds : int
    plan_s : float
        Time limit of one plan.
    least_steps : int
        Full steps that each point of the profile's fit is a median of.
    """

    concurrency: tuple[int, ...]
    tokens_per_event: int = 8
    step_tokens: int = 8192
    ramp_s: float = 2.5
    settle_s: float = 1.5
    window_s: float = 3.0
    count_s: float = 1.5
    rounds: int = 4
    plan_s: float = 8.0
    least_steps: int = 8


SCALES = {8: ServingScale((256, 512)), 4: ServingScale((128, 256)), 2: ServingScale((64, 128))}


@dataclass(frozen=True)
class ServingCase:
    """One mix of requests at homes of one kind, in halves.

    Attributes
    ----------
    mix : Mix
    halves : Case
    """

    mix: Mix
    halves: Case

    @property
    def homes(self) -> str:
        return self.halves.homes

    @property
    def name(self) -> str:
        return f"{self.halves.name} {self.mix.name}"


def serving_cases(checkpoint: str, *, gpus: int, homes: Sequence[str], mixes: Sequence[str]) -> list[ServingCase]:
    """Return the cases asked for; ``homes`` as in :data:`~tests.gpu.grid_cases.HOMES`."""
    found = []
    for where in homes:
        for name in mixes:
            mix = MIXES[name]
            sizes = (mix.requests, mix.prompt_tokens, mix.new_tokens)
            halves = [_traffic(checkpoint, *sizes, gpus=gpus, at_home=HOMES[where], seed=seed) for seed in (31, 32)]
            found.append(ServingCase(mix, Case(where, *halves)))
    return found


def profile_traffic(checkpoint: str, *, gpus: int) -> list[Traffic]:
    """Return traffic that a profile is fitted on and no layout judged."""
    return [_traffic(checkpoint, 32, 1024, 1, gpus=gpus, at_home=at_home, seed=41) for at_home in HOMES.values()]


def _traffic(
    checkpoint: str, requests: int, prompt_tokens: int, new_tokens: int, *, gpus: int, at_home: float, seed: int
) -> Traffic:
    made = domain_traffic(
        CHECKPOINTS[checkpoint],
        sources=gpus,
        requests=requests,
        prompt_tokens=prompt_tokens,
        new_tokens=new_tokens,
        at_home=at_home,
        seed=seed,
    )
    return Traffic(made.prompts_S, new_tokens, TEMPERATURE)


def checkpoint_name(model: str, attention: str, *, gpus: int) -> str:
    """Return the checkpoint of a model on so many GPUs; its domains are as many as GPUs, of at least top-k experts.

    Raises
    ------
    ValueError
        There is none.
    """
    if model == "mixtral":
        return f"mixtral-{min(gpus, 4)}"
    if model != "lite" or attention not in ("mla", "plain"):
        raise ValueError(f"there is no model {model!r} with attention {attention!r}.")
    return f"lite-{attention}-{gpus}"


def config_file(root: Path, checkpoint: str) -> Path:
    return root / checkpoint / "config.json"
