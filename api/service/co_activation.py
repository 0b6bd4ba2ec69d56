"""An order of experts in which those that tokens choose together stand next to each other."""

from __future__ import annotations

import json

import numpy as np
import numpy.typing as npt

from api.errors import BadRequest
from api.loading import load_demand, read_options
from api.service.context import Service
from api.service.frames import PhaseAsked
from api.service.traces import require_ready
from api.store.models import Trace
from placement.tokens import NO_EXPERT

SAMPLED_TOKENS = 8192
"""The first ones of a recording: an order for the eye needs no more, and 60 layers take a few seconds."""


def co_activation_order(service: Service, trace: Trace, phase: PhaseAsked | None) -> bytes:
    """Return, as JSON, the experts of every layer in the order of the co-activation graph's second eigenvector.

    Raises
    ------
    BadRequest
        The recording holds counts, which do not tell who was chosen together.
    """
    path = service.files.path(str(require_ready(trace).sha256))
    loaded = load_demand([path], read_options(), gpus=1, window_by="file", sources="uniform", phase=phase)
    if loaded.tokens is None:
        raise BadRequest(
            f"the trace {trace.id} holds counts; which experts tokens choose together needs a token trace "
            "(moeplan sample, or SGLang's per_token recording)."
        )
    pieces, seen = [], 0
    for piece in loaded.tokens:
        pieces.append(piece.experts_LTK[:, : SAMPLED_TOKENS - seen])
        seen += pieces[-1].shape[1]
        if seen >= SAMPLED_TOKENS:
            break
    experts_LTK = np.concatenate(pieces, axis=1)
    order = [spectral_order(_together_EE(chosen_TK, loaded.demand.experts)).tolist() for chosen_TK in experts_LTK]
    return json.dumps({"tokens": seen, "order": order}, separators=(",", ":")).encode()


def spectral_order(together_EE: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Return nodes of a graph by the second eigenvector of its normalised Laplacian, int64 [E].

    Nodes without edges come last, in their own order.

    Source: Fiedler (1973); normalised as by Shi and Malik, Normalized Cuts (2000).
    """
    degree_E = together_EE.sum(axis=1)
    connected_E = np.flatnonzero(degree_E > 0)
    if connected_E.size < 3:
        return np.arange(len(degree_E))
    root_E = np.sqrt(degree_E[connected_E])
    similar_EE = together_EE[np.ix_(connected_E, connected_E)] / (root_E[:, None] * root_E[None, :])
    _, vectors_EE = np.linalg.eigh(similar_EE)
    place_E = vectors_EE[:, -2] / root_E
    order_E = connected_E[np.argsort(place_E * _sign(place_E), kind="stable")]
    return np.concatenate([order_E, np.flatnonzero(degree_E <= 0)])


def _together_EE(chosen_TK: npt.NDArray[np.uint16], experts: int) -> npt.NDArray[np.float64]:
    tokens_T, _ = np.nonzero(chosen_TK != NO_EXPERT)
    chosen_TE = np.zeros((len(chosen_TK), experts), dtype=np.float32)
    chosen_TE[tokens_T, chosen_TK[chosen_TK != NO_EXPERT]] = 1.0
    together_EE: npt.NDArray[np.float64] = (chosen_TE.T @ chosen_TE).astype(np.float64)
    np.fill_diagonal(together_EE, 0.0)
    return together_EE


def _sign(vector_E: npt.NDArray[np.float64]) -> float:
    """An eigenvector may come with either sign; take the one whose largest entry is positive."""
    return 1.0 if vector_E[int(np.abs(vector_E).argmax())] >= 0 else -1.0
