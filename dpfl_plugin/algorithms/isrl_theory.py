"""The schedules of Gao, Lowy, Zhou and Wright, ICML 2024 ([G]), as functions of public numbers.

Letters in all of them: n records of a silo, N silos of which M take part in a round, d parameters, L the Lipschitz
constant of a record's loss, D the diameter of the constraint set, beta its smoothness; natural logarithms. Where the
paper says "of the order of", the constant is 1.
"""

from __future__ import annotations

import math


def num_phases(n: int) -> int:
    """tau = floor(log2 n). Alg. 1 and 4, first lines."""
    return n.bit_length() - 1


def exponent(n: int, M: int) -> float:
    """p = max(log_n(M) / 2 + 1, 3). Alg. 1, l. 2; Alg. 4, l. 2."""
    return max(math.log(M) / (2 * math.log(n)) + 1, 3.0) if n > 1 else 3.0


def regularisation(*, L: float, D: float, n: int, M: int, d: int, epsilon: float, delta: float) -> float:
    """lambda = L / (D n sqrt(M)) max{sqrt(n), sqrt(d ln(1/delta)) / epsilon}. Theorem C.1, (15)."""
    return L / (D * n * math.sqrt(M)) * max(math.sqrt(n), math.sqrt(d * math.log(1 / delta)) / epsilon)


def step_size(*, L: float, D: float, n: int, M: int, d: int, epsilon: float, delta: float) -> float:
    """eta = D sqrt(M) / L min{1 / sqrt(n), epsilon / sqrt(d ln(1/delta))}. Theorem G.1, (34)."""
    return D * math.sqrt(M) / L * min(1 / math.sqrt(n), epsilon / math.sqrt(d * math.log(1 / delta)))


def smooth_rounds(
    *,
    beta: float,
    lambda_i: float,
    gap: float,
    L: float,
    n_i: int,
    N: int,
    M: int,
    K_i: float,
    d: int,
    epsilon: float,
    delta: float,
    always_sampled: bool = False,
) -> int:
    """R_i of Theorems C.1 and E.2, at least 1; ``gap`` is Delta_i >= F_i(w_{i-1}) - min F_i.

    Where every record of all silos is read in a round (M K_i = N n_i), their term of the sampling is left out.
    Theorem D.5 has it in any case: batches of Alg. 7 are Poisson's, and its points random (``always_sampled``).
    """
    accelerated = math.sqrt((beta + lambda_i) / lambda_i) * math.log(
        gap * lambda_i * M * epsilon**2 * n_i**2 / (L**2 * d)
    )
    sampled = epsilon**2 * n_i**2 / (K_i * d * math.log(1 / delta)) if M * K_i < N * n_i or always_sampled else 0.0
    return math.ceil(max(1.0, accelerated, sampled))


def nonsmooth_rounds(*, n_i: int, M: int, d: int, epsilon: float) -> int:
    """R_i = min(M n_i, M epsilon^2 n_i^2 / d) + 1, rounded up. Theorem G.1."""
    return math.ceil(min(M * n_i, M * epsilon**2 * n_i**2 / d)) + 1


def least_batch(*, n_i: int, R_i: int, epsilon: float, delta: float) -> float:
    """K_i >= epsilon n_i / (4 sqrt(2 R_i ln(2/delta))), at least 1. Theorems C.1, G.1."""
    return max(1.0, epsilon * n_i / (4 * math.sqrt(2 * R_i * math.log(2 / delta))))


def noise_std(*, L: float, n_i: int, R_i: int, epsilon: float, delta: float) -> float:
    """sigma_i, by sigma_i^2 = 256 L^2 R_i ln(2.5 R_i / delta) ln(2/delta) / (n_i^2 epsilon^2). Theorems C.1, G.1.

    The standard deviation of the noise on a silo's mean gradient. An accountant proves far less to be enough.
    """
    return math.sqrt(256 * R_i * math.log(2.5 * R_i / delta) * math.log(2 / delta)) * L / (n_i * epsilon)


def smoothing_radius(*, D: float, n: int, M: int, d: int, epsilon: float, delta: float) -> float:
    """s = D / sqrt(M) (1 / sqrt(n) + sqrt(d ln(1/delta)) / (epsilon n)). Theorem D.5."""
    return D / math.sqrt(M) * (1 / math.sqrt(n) + math.sqrt(d * math.log(1 / delta)) / (epsilon * n))


def convolved_smoothness(*, L: float, d: int, radius: float) -> float:
    """beta = L sqrt(d) / s, of a loss smoothed by convolution. Theorem D.5."""
    return L * math.sqrt(d) / radius


def envelope_smoothness(*, L: float, D: float, n: int, M: int, d: int, epsilon: float, delta: float) -> float:
    """beta = L sqrt(M) / D min{sqrt(n), epsilon n / sqrt(d ln(1/delta))}. App. E, proof of Theorem E.2."""
    return L * math.sqrt(M) / D * min(math.sqrt(n), epsilon * n / math.sqrt(d * math.log(1 / delta)))


def stage_rounds(k: int, *, beta: float, mu: float, L: float, gap: float) -> int:
    """R^(k) = ceil(max{4 sqrt(2 beta / mu), 128 L^2 / (3 mu Delta 2^-(k+1))}). Alg. 5, l. 2."""
    return math.ceil(max(4 * math.sqrt(2 * beta / mu), 128 * L**2 / (3 * mu * gap * 2.0 ** -(k + 1))))


def stage_scale(k: int, *, beta: float, mu: float, variance: float, gap: float, R: int) -> float:
    """v_k = max{2 beta, sqrt(mu V^2 / (3 Delta 2^-(k-1) R (R+1) (R+2)))}; ``variance`` is V^2. Alg. 5, l. 3."""
    noisy = mu * variance / (3 * gap * 2.0 ** -(k - 1) * R * (R + 1) * (R + 2))
    return max(2 * beta, math.sqrt(noisy))


def excess_risk(*, L: float, D: float, n: int, M: int, d: int, epsilon: float, delta: float) -> float:
    """What the excess risk is O~ of, without constants and logarithms: (16), (29), and Theorems E.2 and G.1.

    L D / sqrt(M) (1 / sqrt(n) + sqrt(d ln(1/delta)) / (epsilon n)).
    """
    return L * smoothing_radius(D=D, n=n, M=M, d=d, epsilon=epsilon, delta=delta)
