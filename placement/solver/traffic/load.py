"""Loads of one layer while experts change their hosts, and how far they are above a ceiling."""

from __future__ import annotations

import numpy as np

from placement.solver.instance import Bools, Floats, Instance


class LayerLoad:
    """Loads of a layer under hosts that change.

    Parameters
    ----------
    instance : Instance
        Of this layer alone.
    hosts_EG : ndarray
        bool.
    ceiling : float
        Load, in means, above which a GPU counts as overloaded.
    """

    def __init__(self, instance: Instance, hosts_EG: Bools, *, ceiling: float) -> None:
        self.ceiling = ceiling
        self._instance = instance
        self.share_WEG = self._shares(list(range(instance.experts)), hosts_EG)
        self.load_WG: Floats = self.share_WEG.sum(axis=1)

    @property
    def excess(self) -> float:
        """Load above the ceiling, in means, all windows and GPUs added up."""
        return self.excess_of(self.load_WG)

    def excess_of(self, load_WG: Floats) -> float:
        return float(np.maximum(load_WG - self.ceiling, 0.0).sum())

    def with_hosts(self, experts: list[int], hosts_KG: Bools) -> tuple[Floats, Floats]:
        """Return the new shares of some experts [W, K, G], and all loads with them [W, G]."""
        share_WKG = self._shares(experts, hosts_KG)
        return share_WKG, self.load_WG + (share_WKG - self.share_WEG[:, experts]).sum(axis=1)

    def apply(self, experts: list[int], share_WKG: Floats, load_WG: Floats) -> None:
        self.share_WEG[:, experts] = share_WKG
        self.load_WG = load_WG

    def recount(self) -> None:
        """Add the shares up again; what changes left behind in rounding goes."""
        self.load_WG = self.share_WEG.sum(axis=1)

    def _shares(self, experts: list[int], hosts_KG: Bools) -> Floats:
        return self._instance.loads_of(np.zeros(len(experts), dtype=np.int64), np.array(experts), hosts_KG)
