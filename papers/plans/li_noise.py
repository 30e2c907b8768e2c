"""The noise that Li, Wang, Wu claim to be enough: for comparison only, no ledger uses it.

[L] is "Convergence Analysis for Differentially Private Federated Averaging in Heterogeneous Settings", Mathematics
2025, 13(3), 497. Its Lemma 3 treats a round of Q batches of b records, drawn afresh for every local step, as one sample
of Q b records without replacement. It gives no proof of that; its Lemma 1 (Dwork and Roth 2014) is for epsilon below 1,
which the epsilon before amplification often passes, as it does in [L] sec. 4. Over a run its Theorem 2 has a constant
that is not stated, so that no number follows from it.
"""

from __future__ import annotations

import math

from dpfl_plugin.errors import require


def noise_scale(*, local_steps: int, batch_size: int, num_records: int, epsilon: float, delta: float) -> float:
    """sigma_k / (G eta): the standard deviation of the noise on silo k's model that [L] eq. 20 wants for a round.

    sqrt(2 ln(1.25 / delta')) (4 Q G eta) / epsilon', where epsilon' = epsilon / (2 q), delta' = delta / q, q = Q b / n.
    """
    q = _share(local_steps, batch_size, num_records)
    require(0 < epsilon < math.inf, "epsilon", epsilon, "be positive and finite")
    return 2 * q / epsilon * 4 * local_steps * _quantile(q, delta)


def claimed_epsilon(
    noise_multiplier: float, *, local_steps: int, batch_size: int, num_records: int, delta: float
) -> float:
    """The epsilon of a round for which [L] eq. 20 wants just the noise of ``noise_multiplier``.

    That is relative to the proven sensitivity 2 Q G eta (see `dpfl_plugin.algorithms.fedavg_sync`), half of [L]'s.
    """
    q = _share(local_steps, batch_size, num_records)
    require(0 < noise_multiplier < math.inf, "noise_multiplier", noise_multiplier, "be positive and finite")
    return 2 * q * 2 * _quantile(q, delta) / noise_multiplier


def _share(local_steps: int, batch_size: int, num_records: int) -> float:
    q = local_steps * batch_size / num_records
    require(0 < q <= 0.5, "Q b / n", q, "be in (0, 1/2], where [L] Theorem 1 promises an amplification")
    return q


def _quantile(q: float, delta: float) -> float:
    require(0 < delta < q, "delta", delta, f"be in (0, Q b / n = {q:g})")
    return math.sqrt(2 * math.log(1.25 * q / delta))
