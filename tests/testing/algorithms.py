"""An algorithm with uploads of every shape, and algorithms with one fault each, which the contract has to notice."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import torch

from dpfl_plugin.algorithms.base import RoundPlan
from dpfl_plugin.algorithms.fedavg import FedAvg


@dataclass(frozen=True, kw_only=True)
class ShortUploads(FedAvg):
    """Sends a number beside its update, as [m, 1] and as [m], and steps by their means."""

    def local_update(self, down, silos, oracle, plan):
        up, new = super().local_update(down, silos, oracle, plan)
        norm = up["model"].norm(dim=1, keepdim=True)
        return {**up, "column": norm, "number": norm.squeeze(1)}, new

    def aggregate(self, server, mean_up, plan):
        assert mean_up["column"].shape == mean_up["number"].shape == (1,)
        return {**server, "model": server["model"] + mean_up["model"] / (mean_up["column"] + mean_up["number"])}


class NotFrozen(FedAvg):
    pass


@dataclass(frozen=True, kw_only=True)
class OptionsThatChange(FedAvg):
    """Draws what a resumed run would draw anew."""

    salt: float = 0.0

    def __post_init__(self):
        object.__setattr__(self, "salt", random.random())


@dataclass(frozen=True, kw_only=True)
class ReadsRecords(FedAvg):
    def local_update(self, down, silos, oracle, plan):
        return {"model": oracle.records[0].features.mean() + down["model"].expand(oracle.num_silos, -1)}, {}


@dataclass(frozen=True, kw_only=True)
class StateOnSelf(FedAvg):
    kept: dict = field(default_factory=dict, init=False, compare=False)

    def aggregate(self, server, mean_up, plan):
        v = 0.9 * self.kept.get("velocity", 0) + mean_up["model"]
        self.kept["velocity"] = v
        return {**server, "model": server["model"] + v}


SLOPE = {"rounds": 0}


@dataclass(frozen=True, kw_only=True)
class StateInAGlobal(FedAvg):
    """Counts rounds in a module: a resumed run begins where another one ended."""

    def aggregate(self, server, mean_up, plan):
        SLOPE["rounds"] += 1
        return {**server, "model": server["model"] + mean_up["model"] / SLOPE["rounds"]}


@dataclass(frozen=True, kw_only=True)
class CoinsOfItsOwn(FedAvg):
    def aggregate(self, server, mean_up, plan):
        return {**server, "model": server["model"] + random.random() * mean_up["model"]}


@dataclass(frozen=True, kw_only=True)
class MoreGradients(FedAvg):
    def local_update(self, down, silos, oracle, plan):
        x = down["model"].expand(oracle.num_silos, -1)
        oracle.gradient(x)
        return super().local_update(down, silos, oracle, plan)


@dataclass(frozen=True, kw_only=True)
class FewerGradients(FedAvg):
    def round_plan(self, server, round, setting, rng):
        K = self.local_steps
        return RoundPlan(local_steps=K, local_lr=0.1, num_gradients=K + 1)


@dataclass(frozen=True, kw_only=True)
class PlanOfItsOwn(FedAvg):
    def round_plan(self, server, round, setting, rng):
        K = random.randint(1, 1_000_000)
        return RoundPlan(local_steps=3, local_lr=0.1 / K, num_gradients=3)


@dataclass(frozen=True, kw_only=True)
class ChangesTheServer(FedAvg):
    def aggregate(self, server, mean_up, plan):
        server["model"] += mean_up["model"]
        return server


@dataclass(frozen=True, kw_only=True)
class ChangesTheMean(FedAvg):
    def aggregate(self, server, mean_up, plan):
        return {"model": mean_up["model"].add_(server["model"])}


@dataclass(frozen=True, kw_only=True)
class ChangesTheDownload(FedAvg):
    def local_update(self, down, silos, oracle, plan):
        down["model"] -= plan.local_lr * oracle.gradient(down["model"].expand(oracle.num_silos, -1)).mean()
        return super().local_update(down, silos, oracle, RoundPlan(local_steps=2, local_lr=0.1, num_gradients=2))


@dataclass(frozen=True, kw_only=True)
class Squeezes(FedAvg):
    """Right for more than one silo."""

    def local_update(self, down, silos, oracle, plan):
        up, new = super().local_update(down, silos, oracle, plan)
        return {"model": up["model"].squeeze(0)}, new


@dataclass(frozen=True, kw_only=True)
class OnePointForAll(FedAvg):
    def local_update(self, down, silos, oracle, plan):
        return {"model": -oracle.gradient(down["model"])}, {}


@dataclass(frozen=True, kw_only=True)
class OfAnotherType(FedAvg):
    def init_silos(self, model, num_silos):
        return {"control": torch.zeros(num_silos, len(model))}


@dataclass(frozen=True, kw_only=True)
class StatesInOneMemory(FedAvg):
    def init_silos(self, model, num_silos):
        zeros = model.new_zeros(num_silos, len(model))
        return {"control": zeros, "update": zeros}


@dataclass(frozen=True, kw_only=True)
class RowsInOneMemory(FedAvg):
    def init_silos(self, model, num_silos):
        return {"anchor": model.expand(num_silos, -1)}


@dataclass(frozen=True, kw_only=True)
class StateFromNowhere(FedAvg):
    def local_update(self, down, silos, oracle, plan):
        up, _ = super().local_update(down, silos, oracle, plan)
        return up, {"last": up["model"]}


@dataclass(frozen=True, kw_only=True)
class NameThatComesLater(FedAvg):
    def aggregate(self, server, mean_up, plan):
        return {"model": server["model"] + mean_up["model"], "velocity": mean_up["model"].clone()}


@dataclass(frozen=True, kw_only=True)
class MixesSilos(FedAvg):
    def local_update(self, down, silos, oracle, plan):
        up, new = super().local_update(down, silos, oracle, plan)
        return {"model": up["model"] / up["model"].norm()}, new


@dataclass(frozen=True, kw_only=True)
class SendsWhatWasNotReleased(FedAvg):
    def local_update(self, down, silos, oracle, plan):
        x = down["model"].expand(oracle.num_silos, -1)
        y = x
        for _ in range(plan.local_steps):
            y = y - plan.local_lr * oracle.gradient(y)
        oracle.release(y - x)
        return {"model": y - x}, {}


@dataclass(frozen=True, kw_only=True)
class SendsMoreThanWasReleased(FedAvg):
    def local_update(self, down, silos, oracle, plan):
        up, new = super().local_update(down, silos, oracle, plan)
        return {**up, "half": up["model"] / 2}, new


@dataclass(frozen=True, kw_only=True)
class IgnoresTheSiloRate(FedAvg):
    def round_plan(self, server, round, setting, rng):
        return RoundPlan(local_steps=3, local_lr=0.1, num_gradients=3, participation="all")


@dataclass(frozen=True, kw_only=True)
class NotesAreText(FedAvg):
    def notes(self, server):
        return "one string"


@dataclass(frozen=True, kw_only=True)
class CoinsInLocalUpdate(FedAvg):
    def local_update(self, down, silos, oracle, plan):
        up, new = super().local_update(down, silos, oracle, plan)
        return {"model": up["model"] * random.random()}, new
