"""DP-FedAvg with noise at synchronisation: clipped local steps without noise, one noisy release a round.

[L] is Li, Wang, Wu, "Convergence Analysis for Differentially Private Federated Averaging in Heterogeneous Settings",
Mathematics 2025, 13(3), 497, Alg. 1.

What is proven, and charged (``privacy: {unit: silo, clip_norm: G}``): steps of sizes eta_1..eta_Q along gradients of
norm at most G move a silo's model by at most G sum eta, whatever its records are. So (x - y) / sum eta has norm at most
G, its release with noise on it is a Gaussian mechanism of sensitivity 2 G, and the sensitivity of the model is
2 G sum eta: for a whole silo replaced, hence also for one of its records. No credit is taken for batches: a record
influences every iterate after the batch it is in, and [L] gives no proof that a round is one sample of Q b records.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import numpy as np
import torch

from dpfl_plugin.algorithms.averages import AveragedModels
from dpfl_plugin.algorithms.base import Oracle, RoundPlan, Setting, algorithm
from dpfl_plugin.core.exact import floor_share
from dpfl_plugin.core.vectors import Vectors
from dpfl_plugin.errors import require


@algorithm
class FedAvgSync(AveragedModels):
    """Q SGD steps with clipped batch gradients; noise on the round's update only. [L] Alg. 1.

    The upload is the update divided by -sum eta, so that the noise shrinks with the step sizes as in [L] eq. 20 while
    ``privacy.clip_norm`` stays G. The L2 regulariser, part of F_k in [L], is clipped with the gradient.

    Attributes:
        local_steps: Q.
        gradient_clip: G, the L2 bound of a batch's mean gradient ([L] eq. 14); give ``privacy.clip_norm`` the same.
        local_lr: eta_0, unless the schedule is "strongly_convex".
        schedule: eta_t at iteration t = 0, 1, ... of the run: "constant" eta_0; "inverse_sqrt" eta_0 / sqrt(1 + t)
            ([L] sec. 4, whose root is lost in copies of its text); "inverse" eta_0 / (1 + t); "strongly_convex"
            2 / (mu (alpha + t)) ([L] Theorem 3).
        mu, alpha: of that schedule; Theorem 3 wants alpha >= max(8 L / mu, Q).
        silo_sampling: the K = S silos of a round are drawn "without_replacement", each as likely as any other, or
            "with_replacement", with the probabilities p_k; [L] Assumption 5.
    """

    refuses: ClassVar[Mapping[str, str]] = {
        "server_optimizer": (
            "the server's step is the sum of the eta_t, of which the theorems of Li, Wang, Wu 2025 are. Leave it out, "
            "or use fedavg with unit: silo."
        )
    }

    sends_releases_alone: ClassVar[bool] = True

    local_steps: int
    gradient_clip: float
    local_lr: float | None = None
    schedule: Literal["constant", "inverse_sqrt", "inverse", "strongly_convex"] = "constant"
    mu: float | None = None
    alpha: float | None = None
    silo_sampling: Literal["without_replacement", "with_replacement"] = "without_replacement"

    def __post_init__(self) -> None:
        require(self.local_steps >= 1, "local_steps", self.local_steps, "be at least 1")
        require(self.gradient_clip > 0, "gradient_clip", self.gradient_clip, "be positive (inf: no clipping)")
        _ = self.averages  # checks its own options
        for key in ("local_lr", "mu", "alpha"):
            value, wanted = getattr(self, key), (key == "local_lr") != (self.schedule == "strongly_convex")
            require(
                (0 < value < math.inf) if wanted and value is not None else value is None and not wanted,
                key,
                value,
                f"be {'positive and finite' if wanted else 'left out'} with schedule: {self.schedule}",
            )

    def init_server(self, model: torch.Tensor, setting: Setting) -> Vectors:
        facts = [setting.num_silos, setting.num_participants, setting.record_rate or 0.0, setting.silo_rate]
        known = torch.tensor(facts, dtype=torch.float64, device=model.device)
        return {"model": model, "setting": known, **self.begin_average(model, setting)}

    def init_silos(self, model: torch.Tensor, num_silos: int) -> Vectors:
        return {}

    def round_plan(self, server: Vectors, round: int, setting: Setting, rng: np.random.Generator) -> RoundPlan:
        Q = self.local_steps
        sampled = "sampled" if self.silo_sampling == "without_replacement" else "sampled_with_replacement"
        return RoundPlan(local_steps=Q, local_lr=self._rate(round * Q), num_gradients=Q, participation=sampled)

    def _rate(self, t: int) -> float:
        """eta_t."""
        if self.schedule == "strongly_convex":
            assert self.mu is not None and self.alpha is not None
            return 2 / (self.mu * (self.alpha + t))
        assert self.local_lr is not None
        falls: float = {"constant": 1, "inverse_sqrt": math.sqrt(1 + t), "inverse": 1 + t}[self.schedule]
        return self.local_lr / falls

    def _rates(self, plan: RoundPlan) -> list[float]:
        """eta_t of a round's Q iterations, from the first of them: 1/eta_t, or its square, grows linearly."""
        if self.schedule == "inverse_sqrt":
            grows, first = 1 / self._rate(0) ** 2, 1 / plan.local_lr**2
            return [1 / math.sqrt(first + grows * q) for q in range(plan.local_steps)]
        slope = 0.0 if self.schedule == "constant" else 1 / self._rate(1) - 1 / self._rate(0)
        return [1 / (1 / plan.local_lr + slope * q) for q in range(plan.local_steps)]

    def download(self, server: Vectors) -> Vectors:
        return {"model": self.sent(server)}

    def local_update(self, down: Vectors, silos: Vectors, oracle: Oracle, plan: RoundPlan) -> tuple[Vectors, Vectors]:
        x, G, etas = down["model"], self.gradient_clip, self._rates(plan)
        y = x.expand(oracle.num_silos, -1)
        for eta in etas:
            g = oracle.gradient(y)  # [L] Alg. 1, l. 5
            g = g / (torch.linalg.vector_norm(g, dim=1, keepdim=True) / G).clamp(min=1)  # l. 6
            y = y - eta * g  # l. 8
        return {"direction": oracle.release((x - y) / math.fsum(etas))}, {}  # l. 10: its noise

    def aggregate(self, server: Vectors, mean_up: Vectors, plan: RoundPlan) -> Vectors:
        """x - N/K sum_{k in S} p_k (x - y_k); with replacement x - 1/K sum_{k in S} (x - y_k). [L] l. 13, Assumption 5.

        Without replacement [L] has N/K sum p_k y_k, which equals it in expectation, and always where N/K sum_S p_k = 1
        (as with equal p_k); else it would also stretch x by that factor.
        """
        num_silos, num_participants, *_ = server["setting"].tolist()
        # mean_up has the weights p_k / sum_S p_k, and silo_share is sum_S p_k: their product is the sum that is meant.
        # With replacement a weight is how often the silo was drawn, over K.
        with_replacement = self.silo_sampling == "with_replacement"
        unbiased = 1.0 if with_replacement else num_silos / num_participants * plan.silo_share
        step = math.fsum(self._rates(plan)) * unbiased
        return {**server, **self.averaged(server, self.sent(server) - step * mean_up["direction"])}

    def regroup(
        self, server: Vectors, silos: Vectors, ids: Sequence[int], weights: Sequence[float]
    ) -> tuple[Vectors, Vectors]:
        """N and K are those of the silos that go on."""
        _, _, record_rate, silo_rate = server["setting"].tolist()
        facts = [len(ids), max(1, floor_share(silo_rate, len(ids))), record_rate, silo_rate]
        return {**server, "setting": server["setting"].new_tensor(facts)}, silos

    def notes(self, server: Vectors) -> list[str]:
        Q = self.local_steps
        q = Q * float(server["setting"][2])  # 0 if batches are not a share of the records
        notes = [
            "fedavg_sync: with unit: silo and clip_norm equal to gradient_clip, a round is one Gaussian release whose "
            "sensitivity 2 G sum eta needs no lemma: that is what epsilon here is of. At record level the noise is in "
            "every gradient instead, which is not Li, Wang, Wu 2025."
        ]
        if 0 < q <= 0.5:
            notes.append(
                "fedavg_sync: the claim of Li, Wang, Wu 2025 (eq. 20; not proven, and not the ledger's) counts a round "
                f"as one sample of a share q = Q b / n = {q:.4g} of the records (of 1 - (1 - 1/n)^(Q b), less, if "
                "batches are drawn with replacement). Up to logarithms that divides epsilon "
                f"by 1 / (2 q) = {1 / (2 * q):.4g}; its sensitivity 4 Q G eta, twice the proven one where steps are "
                f"equal, doubles it. At the same noise it claims about {4 * q:.4g} times a round's proven epsilon."
            )
        if not self._rate(0) <= 2 * self._rate(Q):
            proven, claimed = 2 * math.fsum(self._rate(t) for t in range(Q)), 4 * Q * self._rate(Q)
            notes.append(
                "fedavg_sync: eta_t <= 2 eta_(t+Q), which Lemma 2 and Theorems 3 and 4 of Li, Wang, Wu 2025 presume, "
                f"fails in the first round: they do not apply. Lemma 2 would have its sensitivity {claimed:.4g} G; "
                f"{proven:.4g} G is proven, and used."
            )
        return notes + self.average_notes(server)
