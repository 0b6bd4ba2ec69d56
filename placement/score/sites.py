"""Which sites (GPUs or nodes) a token must be sent to: exactly, under the engine's dispatch.

A token is sent once to every site that serves any of its experts. Where the engine draws a replica per token, the
draws of a token's experts are independent, so a site that serves expert k with probability p_k is needed with
probability 1 - prod_k (1 - p_k). The token's own site is never counted. Without homes a token lives on every GPU with
the same probability.

Most of this can be told without probabilities: where every expert's server is fixed, the sites of a token are the
union of bit masks, and unions are counted by histogram.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

BITS_PER_HISTOGRAM = 8
"""Sites in one histogram of masks: 256 bins stay in the processor's nearest cache."""

TILE_NUMBERS = 2**18
"""Probabilities worked out at once: 1 MiB in float32."""

Masks = npt.NDArray[np.uint8]


class Needed(NamedTuple):
    """Sites that tokens need besides their own.

    Attributes
    ----------
    tokens_SM : ndarray
        float64 [S, M], tokens that live on GPU s and need site m; S is the number of GPUs, also without homes.
    sites_T : ndarray
        float64 [T], sites that each token needs.
    """

    tokens_SM: npt.NDArray[np.float64]
    sites_T: npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class SiteTable:
    """Where the experts of one layer are served, for the tokens of every GPU; made by :meth:`of`.

    Attributes
    ----------
    stays_SEM : ndarray
        float32 [S, E + 1, M]: probability that expert e does not bring a token of GPU s to site m. 1 for the own site,
        and for the row behind the last expert, which stands for "no expert".
    masks_SEB : ndarray
        uint8 [S, E + 1, B]: the sites that an expert brings a token to for certain, eight to a byte.
    plain_EB : ndarray
        uint8 [E + 1, B]: the same for every source, but for the source's own site.
    is_plain_E, is_fixed_E : ndarray
        bool [E + 1]: ``plain_EB`` says all; ``masks_SEB`` says all.
    own_S : ndarray
        int64 [S], the site of GPU s.
    """

    stays_SEM: npt.NDArray[np.float32]
    masks_SEB: Masks
    plain_EB: Masks
    is_plain_E: npt.NDArray[np.bool_]
    is_fixed_E: npt.NDArray[np.bool_]
    own_S: npt.NDArray[np.int64]

    @classmethod
    def of(cls, share_SEM: npt.NDArray[np.float64], own_S: npt.NDArray[np.int64]) -> SiteTable:
        """Build the table from the share of source s's tokens for expert e that site m serves."""
        sources, experts, sites = share_SEM.shape
        remote_SEM = np.zeros((sources, experts + 1, sites))
        remote_SEM[:, :experts] = share_SEM
        remote_SEM[np.arange(sources), :, own_S] = 0.0
        certain_SEM = remote_SEM >= 1.0
        own_SM = own_S[:, None] == np.arange(sites)
        plain_EM = certain_SEM.any(axis=0)
        is_fixed_E = ((remote_SEM == 0.0) | certain_SEM).all(axis=(0, 2))
        is_plain_E = is_fixed_E & (certain_SEM == (plain_EM & ~own_SM[:, None])).all(axis=(0, 2))
        return cls(
            stays_SEM=(1.0 - remote_SEM).astype(np.float32),
            masks_SEB=np.packbits(certain_SEM, axis=2, bitorder="little"),
            plain_EB=np.packbits(plain_EM, axis=1, bitorder="little"),
            is_plain_E=is_plain_E,
            is_fixed_E=is_fixed_E,
            own_S=own_S,
        )

    @property
    def sites(self) -> int:
        return int(self.stays_SEM.shape[2])

    def needed(self, experts_TK: npt.NDArray[np.uint16], home_T: npt.NDArray[np.int32] | None) -> Needed:
        """Count the sites that tokens need besides their own.

        Parameters
        ----------
        experts_TK : ndarray
            Ids of E and above are no experts.
        home_T : ndarray or None
            None where tokens are spread evenly over all GPUs.
        """
        rows_TK = np.minimum(experts_TK, len(self.is_plain_E) - 1)
        uncertain_T = ~self.is_fixed_E[rows_TK].all(axis=1)
        total_SM = np.zeros((len(self.own_S), self.sites))
        sites_T = np.zeros(len(rows_TK))
        if home_T is not None:
            parts = ((~uncertain_T, self._by_masks_at_home), (uncertain_T, self._by_chance_at_home))
            for chosen_T, count in parts:
                if chosen_T.any():
                    found = count(rows_TK[chosen_T], home_T[chosen_T])
                    total_SM += found.tokens_SM
                    sites_T[chosen_T] = found.sites_T
            return Needed(total_SM, sites_T)
        varying_T = ~uncertain_T & ~self.is_plain_E[rows_TK].all(axis=1)
        for chosen_T, count_all in (
            (~uncertain_T & ~varying_T, self._by_plain_masks),
            (varying_T, self._by_masks_of_all_sources),
            (uncertain_T, self._by_chance_of_all_sources),
        ):
            if chosen_T.any():
                found = count_all(rows_TK[chosen_T])
                total_SM += found.tokens_SM
                sites_T[chosen_T] = found.sites_T
        return Needed(total_SM, sites_T)

    def _by_plain_masks(self, rows_TK: npt.NDArray[np.uint16]) -> Needed:
        """Count where all sources need the same sites, but for their own."""
        union_TB = _union(self.plain_EB, rows_TK)
        tokens_M = _tokens_by_site(union_TB, sites=self.sites)
        sources = len(self.own_S)
        tokens_SM = np.tile(tokens_M / sources, (sources, 1))
        tokens_SM[np.arange(sources), self.own_S] = 0.0
        # A needed site is the own one of as many sources as live there.
        residents_M = np.bincount(self.own_S, minlength=self.sites)
        weight_M = 1.0 - residents_M / sources
        return Needed(tokens_SM, _weighted_bits(union_TB, weight_M))

    def _by_masks_of_all_sources(self, rows_TK: npt.NDArray[np.uint16]) -> Needed:
        sources = len(self.own_S)
        tokens_SM = np.zeros((sources, self.sites))
        sites_T = np.zeros(len(rows_TK))
        ones_M = np.ones(self.sites)
        for source in range(sources):
            union_TB = _union(self.masks_SEB[source], rows_TK)
            tokens_SM[source] = _tokens_by_site(union_TB, sites=self.sites) / sources
            sites_T += _weighted_bits(union_TB, ones_M) / sources
        return Needed(tokens_SM, sites_T)

    def _by_chance_of_all_sources(self, rows_TK: npt.NDArray[np.uint16]) -> Needed:
        sources = len(self.own_S)
        stays_EX = np.ascontiguousarray(self.stays_SEM.transpose(1, 0, 2)).reshape(len(self.is_plain_E), -1)
        missed_X = np.zeros(stays_EX.shape[1])
        sites_T = np.empty(len(rows_TK))
        for tile in _tiles(len(rows_TK), stays_EX.shape[1]):
            stays_TX = _product(stays_EX, rows_TK[tile])
            missed_X += stays_TX.sum(axis=0, dtype=np.float64)
            sites_T[tile] = (stays_EX.shape[1] - stays_TX.sum(axis=1, dtype=np.float64)) / sources
        tokens_SM = (len(rows_TK) - missed_X).reshape(sources, self.sites) / sources
        return Needed(tokens_SM, sites_T)

    def _by_masks_at_home(self, rows_TK: npt.NDArray[np.uint16], home_T: npt.NDArray[np.int32]) -> Needed:
        width = len(self.is_plain_E)
        masks_XB = self.masks_SEB.reshape(-1, self.masks_SEB.shape[2])
        union_TB = _union(masks_XB, rows_TK + home_T[:, None].astype(np.int64) * width)
        sources = len(self.own_S)
        tokens_SM = np.zeros((sources, self.sites))
        for byte in range(union_TB.shape[1]):
            bins = np.bincount(home_T.astype(np.int64) * 256 + union_TB[:, byte], minlength=sources * 256)
            first = byte * BITS_PER_HISTOGRAM
            bits = min(BITS_PER_HISTOGRAM, self.sites - first)
            tokens_SM[:, first : first + bits] = bins.reshape(sources, 256) @ BITS_OF_BYTE[:, :bits]
        return Needed(tokens_SM, _weighted_bits(union_TB, np.ones(self.sites)))

    def _by_chance_at_home(self, rows_TK: npt.NDArray[np.uint16], home_T: npt.NDArray[np.int32]) -> Needed:
        order_T = np.argsort(home_T, kind="stable")
        tokens_SM = np.zeros((len(self.own_S), self.sites))
        sites_T = np.empty(len(rows_TK))
        for tile in _tiles(len(rows_TK), self.sites):
            token_X = order_T[tile]
            home_X = home_T[token_X].astype(np.int64)
            cells_XK = rows_TK[token_X] + home_X[:, None] * len(self.is_plain_E)
            needs_XM = 1.0 - _product(self.stays_SEM.reshape(-1, self.sites), cells_XK).astype(np.float64)
            sites_T[token_X] = needs_XM.sum(axis=1)
            starts = np.flatnonzero(np.diff(home_X, prepend=-1))
            tokens_SM[home_X[starts]] += np.add.reduceat(needs_XM, starts, axis=0)
        return Needed(tokens_SM, sites_T)


BITS_OF_BYTE = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little").astype(np.int64)
"""int64 [256, 8]: the bits of every byte."""


def _union(masks_XB: Masks, rows_TK: npt.NDArray[np.integer]) -> Masks:
    """Return the union of the masks of each token's rows; uint8 [T, B]."""
    union_TB: Masks = masks_XB[rows_TK[:, 0]]
    for column in range(1, rows_TK.shape[1]):
        union_TB |= masks_XB[rows_TK[:, column]]
    return union_TB


def _tokens_by_site(union_TB: Masks, *, sites: int) -> npt.NDArray[np.float64]:
    """Return how many tokens have each site in their mask; float64 [M]."""
    counts = [np.bincount(union_TB[:, byte], minlength=256) @ BITS_OF_BYTE for byte in range(union_TB.shape[1])]
    tokens_M: npt.NDArray[np.float64] = np.concatenate(counts)[:sites].astype(np.float64)
    return tokens_M


def _weighted_bits(union_TB: Masks, weight_M: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the weights of each token's sites, added up; float64 [T]."""
    sums_T = np.zeros(len(union_TB))
    for byte in range(union_TB.shape[1]):
        first = byte * BITS_PER_HISTOGRAM
        weights = weight_M[first : first + BITS_PER_HISTOGRAM]
        sums_T += (BITS_OF_BYTE[:, : len(weights)] @ weights)[union_TB[:, byte]]
    return sums_T


def _product(stays_XM: npt.NDArray[np.float32], rows_TK: npt.NDArray[np.integer]) -> npt.NDArray[np.float32]:
    product_TM: npt.NDArray[np.float32] = stays_XM[rows_TK[:, 0]]
    for column in range(1, rows_TK.shape[1]):
        product_TM *= stays_XM[rows_TK[:, column]]
    return product_TM


def _tiles(tokens: int, width: int) -> list[slice]:
    size = max(1, TILE_NUMBERS // width)
    return [slice(start, min(start + size, tokens)) for start in range(0, tokens, size)]
