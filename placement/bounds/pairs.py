"""How many pairs of experts that tokens choose together can share a GPU: an eigenvalue bound on partitions.

W is symmetric with an empty diagonal: W[i, j] tokens have both i and j. Let every expert be on one GPU, S at most on
each, and Z[i, j] = 1 where i and j share theirs. Pairs together are <W, Z> / 2. Whatever the partition, Z is positive
semidefinite with eigenvalues up to S that add up to E, has ones on the diagonal, and no negative entry. So for any
vector u and any symmetric M >= 0 with an empty diagonal

    <W, Z>  <=  <W + diag(u) + M, Z> - sum(u)  <=  S (the E / S largest eigenvalues of W + diag(u) + M) - sum(u)

(Fan 1949; Donath and Hoffman 1973, doi:10.1147/rd.175.0420). Where all GPUs are full (E = G S), rows of Z add up to S
too, so the all-ones vector is an eigenvector of S and the other G - 1 live beside it (Rendl and Wolkowicz 1995,
doi:10.1007/BF01585937). The right side is convex in u and M; subgradient steps make it small, and it holds at any of
them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

ROUNDING = 1e-9
"""Part by which eigenvalues may be off, far above what they are."""

AIM, PATIENCE = 0.04, 8
"""Steps aim at so much less than the best so far, and at half of it after so many steps without progress."""

LEAST_AIM = 1e-4


def most_pairs_together(weight_EE: Floats, *, gpus: int, slots_per_gpu: int, rounds: int) -> float:
    """Bound from above how many pairs share a GPU, whatever the layout without replicas, or any way to serve with them.

    Parameters
    ----------
    weight_EE
        Symmetric, >= 0, diagonal 0.
    gpus, slots_per_gpu
    rounds
        Steps; with 0 the bound is that of u = 0 and M = 0.
    """
    relaxation = _Relaxation.of(len(weight_EE), gpus=gpus, slots_per_gpu=slots_per_gpu)
    outside_EE = ~np.eye(len(weight_EE), dtype=np.bool_)
    # W + diag(u) + M
    raised_EE, best, aim, idle = weight_EE.copy(), np.inf, AIM, 0
    for _ in range(rounds + 1):
        value, together_EE = relaxation.solve(raised_EE)
        value -= float(np.trace(raised_EE))
        idle = 0 if value < best * (1 - 0.1 * aim) else idle + 1
        best = min(best, value)
        if idle > PATIENCE:
            aim, idle = aim / 2, 0
        # Diagonal: ones are wanted. Elsewhere: entries below 0 raise M, others lower it, but not below W.
        slope_EE = together_EE - np.eye(len(weight_EE))
        slope_EE[(raised_EE <= weight_EE) & (slope_EE > 0) & outside_EE] = 0.0
        length = float((slope_EE**2).sum())
        if length <= ROUNDING or aim < LEAST_AIM:
            break
        raised_EE = raised_EE - (value - best * (1 - aim)) / length * slope_EE
        raised_EE[outside_EE] = np.maximum(raised_EE, weight_EE)[outside_EE]
    return max(0.0, best) * (1 + ROUNDING) / 2


class _Relaxation:
    """What partitions are relaxed to: Z = fixed part + basis @ (eigenvalues up to S) @ basis.T."""

    def __init__(self, basis_EX: Floats | None, fixed: float, share_X: Floats) -> None:
        self._basis_EX, self._fixed, self._share_X = basis_EX, fixed, share_X

    @classmethod
    def of(cls, experts: int, *, gpus: int, slots_per_gpu: int) -> _Relaxation:
        if gpus * slots_per_gpu > experts:
            whole, rest = divmod(experts, slots_per_gpu)
            share_X = np.array([float(slots_per_gpu)] * whole + ([float(rest)] if rest else []))
            return cls(None, 0.0, share_X)
        ones_first = np.column_stack([np.ones(experts), np.eye(experts)[:, 1:]])
        basis_EX = np.linalg.qr(ones_first)[0][:, 1:]
        return cls(basis_EX, slots_per_gpu / experts, np.full(gpus - 1, float(slots_per_gpu)))

    def solve(self, weight_EE: Floats) -> tuple[float, Floats]:
        """Return the largest <weight, Z> and a Z that has it."""
        basis_EX = self._basis_EX
        inside = weight_EE if basis_EX is None else basis_EX.T @ weight_EE @ basis_EX
        values_X, vectors = np.linalg.eigh(inside)
        count = len(self._share_X)
        top = vectors[:, ::-1][:, :count]
        top = top if basis_EX is None else basis_EX @ top
        value = self._fixed * float(weight_EE.sum()) + float(self._share_X @ values_X[::-1][:count])
        return value, (top * self._share_X) @ top.T + self._fixed
