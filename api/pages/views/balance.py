"""One load, and the numbers that several engines would call its balance.

They are different figures of the same tokens, so none stands without its definition. Layers without traffic are in
none of them: an average that counts an empty layer as perfectly balanced looks better than the engine is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from api.report.numbers import ratio


@dataclass(frozen=True)
class BalanceRow:
    """A definition and its value.

    Attributes
    ----------
    name : str
    whose : str
        Who shows it.
    definition : str
    even : str
        Its value for an even load.
    value : float
    """

    name: str
    whose: str
    definition: str
    even: str
    value: float

    @property
    def shown(self) -> str:
        return ratio(self.value)


def balance_rows(load_RG: npt.NDArray[np.float64]) -> tuple[BalanceRow, ...]:
    """Return the definitions for a load; empty without traffic.

    Parameters
    ----------
    load_RG
        Tokens that every GPU computes, [rows, G]; a row is one layer of one window.

    Notes
    -----
    Read in: sglang ``srt/eplb/expert_distribution.py``; vLLM ``eplb_state.py``; TensorRT-LLM
    ``ep_load_balancer/README.md``; vllm-ascend's peak-to-average ratio.
    """
    busy_RG = load_RG[load_RG.sum(axis=1) > 0]
    if not busy_RG.size:
        return ()
    most_R, mean_R = busy_RG.max(axis=1), busy_RG.mean(axis=1)
    imbalance = float(most_R.sum() / mean_R.sum())
    of_layer_R, whole = most_R / mean_R, "largest / mean load"
    sglang = float((1 / of_layer_R).mean())
    return (
        BalanceRow("imbalance", "moeplan", "sum of largest loads / sum of mean loads", "1", imbalance),
        BalanceRow("balancedness", "moeplan, vLLM", "sum of mean loads / sum of largest loads", "1", 1 / imbalance),
        BalanceRow("sglang_balancedness", "SGLang", "mean over layers of mean / largest load", "1", sglang),
        BalanceRow(
            "imbalance ratio", "TensorRT-LLM", f"mean over layers of {whole}, less 1", "0", float(of_layer_R.mean() - 1)
        ),
        BalanceRow("peak to average", "vllm-ascend", f"largest over layers of {whole}", "1", float(of_layer_R.max())),
    )
