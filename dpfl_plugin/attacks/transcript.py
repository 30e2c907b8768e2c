"""The honest-but-curious server: what it gets from one silo, and what the messages reveal of its gradients.

It knows the algorithm, the models that it sent and every upload; it follows the protocol. Uploads are affine in the
gradients that the silo asked its oracle for, so that it can solve for them, and for the state that the silo keeps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from dpfl_plugin.algorithms.base import Algorithm, RoundPlan, Setting
from dpfl_plugin.config.schema import Config
from dpfl_plugin.core.vectors import Vectors, rows
from dpfl_plugin.errors import UnsupportedError
from dpfl_plugin.federation.planning import Planner
from dpfl_plugin.oracle import Draw
from dpfl_plugin.privacy.costs import MOST_ROUNDS
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.runs.accounting import make_account
from dpfl_plugin.runs.build import Parts
from dpfl_plugin.runtimes.in_process import InProcess

# Of the largest entry of an upload: float32 keeps 1e-7, and K steps of it lose a few digits.
_REPLAY_TOLERANCE = 1e-3


@dataclass(slots=True)
class Scripted:
    """Stands in for the oracle of one silo: answers with given gradients (G, d), one after another."""

    script: Tensor
    l2: float = 0.0
    num_silos: int = 1
    calls: int = 0

    def gradient(self, y: Tensor) -> Tensor:
        answer = self.script[self.calls].expand_as(y)
        self.calls += 1
        return answer + self.l2 * y

    def release(self, update: Tensor) -> Tensor:
        return update

    def squared_norm(self, update: Tensor, scale: float) -> Tensor:
        return update.square().sum(dim=1, keepdim=True)


@dataclass(frozen=True, slots=True)
class Seen:
    """A round as the server sees it.

    Attributes:
        state: what the silo kept from earlier rounds, (1, d) each.
        mean: (d,) mean of the round's gradients H_k, with ``weights`` (G,) that add up to 1.
    """

    round: int
    down: Vectors
    plan: RoundPlan
    state: Vectors
    mean: Tensor
    weights: Tensor


class Listener:
    """Solves one silo's uploads for its gradients, round after round.

    Args:
        l2: lambda of the regulariser, whose gradient is public.
    """

    def __init__(self, algorithm: Algorithm, setting: Setting, model: Tensor, l2: float) -> None:
        self._algorithm, self._setting, self._l2 = algorithm, setting, l2
        self._state = algorithm.init_silos(model, 1)

    def hear(self, round: int, down: Vectors, plan: RoundPlan, up: Vectors) -> Seen:
        """What the uploads ``up`` (1, d) each of a round say.

        The gradients of least norm that explain them are U^+ (up - up of gradients that are 0), with U the uploads'
        dependence on each gradient. Played back, they give the silo's new state.

        Raises:
            UnsupportedError: they do not explain the uploads, which then are not affine in the gradients.
        """
        before, model = self._state, down["model"]
        inverse, mean_weights = self._response(plan)
        silent, _ = self._play(down, plan, model.new_zeros(plan.num_gradients, model.numel()))
        script = sum(
            (inverse[name].to(model).outer((up[name] - silent[name])[0]) for name in inverse),
            model.new_zeros(plan.num_gradients, model.numel()),
        )
        again, self._state = self._play(down, plan, script)
        for name, value in up.items():
            scale = float(value.abs().max())
            if not torch.allclose(again[name], value, rtol=0, atol=_REPLAY_TOLERANCE * scale + 1e-12):
                raise UnsupportedError(
                    f"algorithm: the upload {name!r} is not an affine function of this round's private gradients, so "
                    "this attack cannot read it. It knows fedavg, fedsgd, scaffold, scaffold_warm and their like."
                )
        strength = float(mean_weights.sum())
        mean = script.mean(dim=0) / strength
        return Seen(round, down, plan, before, mean, mean_weights / strength)

    def _play(self, down: Vectors, plan: RoundPlan, script: Tensor) -> tuple[Vectors, Vectors]:
        return self._algorithm.local_update(down, self._state, Scripted(script, self._l2), plan)

    def _response(self, plan: RoundPlan) -> tuple[dict[str, Tensor], Tensor]:
        """(U^+ by upload, (G,) each; weights (G,) of the gradients in the mean of the explaining ones)."""
        count = plan.num_gradients
        nothing = torch.zeros(count, dtype=torch.float64)
        down = self._algorithm.download(self._algorithm.init_server(nothing, self._setting))
        up = {}
        for key, script in (("0", torch.zeros(count, count)), ("1", torch.eye(count))):
            oracle = Scripted(script.double(), self._l2)
            state = self._algorithm.init_silos(nothing, 1)
            up[key], _ = self._algorithm.local_update(down, state, oracle, plan)  # gradient k in coordinate k
        matrix = torch.cat([up["1"][name] - up["0"][name] for name in up["1"]])
        inverse = torch.linalg.pinv(matrix)
        weights = (inverse @ matrix).mean(dim=0)
        if not float(weights.sum()) > 0:
            raise UnsupportedError("algorithm: this round's uploads do not depend on the gradients: nothing to attack.")
        return dict(zip(up["1"], inverse.t(), strict=True)), weights


def listen(config: Config, parts: Parts, silo: int, ledger: Ledger, run: str) -> Iterator[Seen]:
    """Run ``config`` in memory, and yield what the server sees of ``silo`` in each round it takes part in.

    A simulation: the run has noise of its own (``run`` names it), and charges go to ``ledger`` alone. It ends after the
    configuration's rounds, or where its budget ends.

    Raises:
        UnsupportedError: as `Listener.hear`.
    """
    algorithm = parts.algorithm
    planner = Planner(algorithm, parts.setting, parts.setting.weights, config.public_seed)
    account = make_account(
        config,
        rules=parts.rules,
        accountant=parts.accountant,
        setting=parts.setting,
        num_records=parts.num_records,
        ledger=ledger,
    )
    uploads: dict[int, Vectors] = {}

    def observe(round: int, ids, up: Vectors) -> None:  # type: ignore[no-untyped-def]
        uploads.clear()
        uploads.update({i: rows(up, row) for row, i in enumerate(ids)})

    runtime = InProcess(parts.host, account, observers=[observe])
    listener = Listener(algorithm, parts.setting, parts.model, parts.rules.l2)
    server = algorithm.init_server(parts.model, parts.setting)
    for round in range(config.rounds or MOST_ROUNDS):
        plan = planner.plan(server, round, account.eligible())
        if plan is None or not account.affords(round, plan):
            return
        account.begin_round(round, plan)
        down = algorithm.download(server)
        mean_up = runtime.run_round(down, plan, Draw(config.public_seed, round, run))
        runtime.commit()
        server = algorithm.aggregate(server, mean_up, plan)
        if silo in uploads:
            yield listener.hear(round, down, plan, uploads[silo])
