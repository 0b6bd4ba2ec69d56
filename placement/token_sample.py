"""A bounded, uniform part of a token trace."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placement.errors import BadOption, BadTokens
from placement.step_counts import StepCounts, StepTally, hashed
from placement.tokens import Tokens, TokenStream

SAMPLE_IDS = 2**23
"""Routed ids that a plan is made from: 16 MiB, and more do not change a plan."""

STEP_BYTES = 2**27
"""Counts of single steps that are kept."""


@dataclass(frozen=True, eq=False)
class TokenSample:
    """A bounded part of a token trace, small enough to be kept in memory and sent to workers.

    Attributes
    ----------
    tokens : Tokens
        Whole requests, drawn uniformly among all.
    recorded_tokens : int
        Tokens of the whole recording.
    steps : StepCounts or None
        None where the recording does not say in which step a token was.
    """

    tokens: Tokens
    recorded_tokens: int
    steps: StepCounts | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.tokens.tokens <= self.recorded_tokens:
            raise BadTokens(
                f"a sample of {self.tokens.tokens} tokens was taken from {self.recorded_tokens}; it holds 1 at least, "
                "and no more than were recorded."
            )

    @property
    def is_whole(self) -> bool:
        """Whether every recorded token is in it."""
        return self.tokens.tokens == self.recorded_tokens


class RequestTally:
    """Keeps whole requests of a token trace, as many as fit, piece by piece.

    Which ones depends on their numbers and the seed alone, not on how the trace is cut into pieces: those whose hash
    is smallest, up to ``most_tokens`` together. Of a single request that is longer the first tokens are kept.
    """

    def __init__(self, *, most_tokens: int, seed: int) -> None:
        if most_tokens < 1:
            raise BadOption(f"a sample of {most_tokens} tokens was asked for; it holds 1 at least.")
        self._most_tokens = most_tokens
        self._seed = seed
        self._cutoff = np.uint64(2**64 - 1)
        self._pieces: list[Tokens] = []
        self._kept = 0
        self.recorded_tokens = 0

    def add(self, piece: Tokens) -> None:
        """Take the tokens of a piece whose requests are still in."""
        self.recorded_tokens += piece.tokens
        chosen_T = hashed(piece.request_T, seed=self._seed) <= self._cutoff
        if not chosen_T.any():
            return
        # A copy: a slice of a large array would keep all of it in memory.
        self._pieces.append(piece.pick(chosen_T))
        self._kept += int(chosen_T.sum())
        if self._kept > 2 * self._most_tokens:
            self._drop()

    def tokens(self) -> Tokens | None:
        """Return what was kept, in the order of the trace; None where there were no tokens."""
        if not self._pieces:
            return None
        self._drop()
        return self._pieces[0]

    def _drop(self) -> None:
        """Join the pieces and drop the requests with the largest hashes while there are too many tokens."""
        joined = joined_tokens(self._pieces)
        if joined.tokens > self._most_tokens:
            hash_T = hashed(joined.request_T, seed=self._seed)
            hashes_R, tokens_R = np.unique(hash_T, return_counts=True)
            fitting = int(np.searchsorted(np.cumsum(tokens_R), self._most_tokens, side="right"))
            # Below the first that does not fit: one that lies between the two may still come.
            self._cutoff = hashes_R[fitting] - np.uint64(1) if fitting else hashes_R[0]
            chosen_T = np.flatnonzero(hash_T <= self._cutoff)[: self._most_tokens]
            joined = joined.pick(chosen_T)
        self._pieces = [joined]
        self._kept = joined.tokens


def joined_tokens(pieces: list[Tokens]) -> Tokens:
    """Return several runs of tokens as one."""
    if len(pieces) == 1:
        return pieces[0]
    homes = [piece.home_T for piece in pieces if piece.home_T is not None]
    return Tokens(
        experts_LTK=np.concatenate([piece.experts_LTK for piece in pieces], axis=1),
        experts=pieces[0].experts,
        home_T=np.concatenate(homes) if homes else None,
        window_T=np.concatenate([piece.window_T for piece in pieces]),
        request_T=np.concatenate([piece.request_T for piece in pieces]),
        step_T=np.concatenate([piece.step_T for piece in pieces]),
        phase_T=np.concatenate([piece.phase_T for piece in pieces]),
    )


def take_sample(
    stream: TokenStream, *, gpus: int, most_tokens: int | None = None, step_bytes: int = STEP_BYTES, seed: int = 0
) -> TokenSample | None:
    """Go through a token trace once and keep a bounded part of it.

    Parameters
    ----------
    stream
    gpus : int
        GPUs that homes are of, where they are known.
    most_tokens : int, optional
        Without it as many as hold :data:`SAMPLE_IDS` routed ids.
    step_bytes : int
        Memory for the counts of single steps.
    seed : int

    Returns
    -------
    TokenSample or None
        None where the trace has no tokens.
    """
    requests: RequestTally | None = None
    steps = StepTally(gpus=gpus, most_bytes=step_bytes, seed=seed)
    for piece in stream:
        if piece.tokens == 0:
            continue
        if requests is None:
            ids_per_token = max(1, len(piece.moe_layers) * piece.top_k)
            requests = RequestTally(most_tokens=most_tokens or max(1, SAMPLE_IDS // ids_per_token), seed=seed)
        requests.add(piece)
        steps.add(piece)
    tokens = None if requests is None else requests.tokens()
    if requests is None or tokens is None:
        return None
    return TokenSample(tokens=tokens, recorded_tokens=requests.recorded_tokens, steps=steps.counts())
