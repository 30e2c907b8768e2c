"""A small federation whose algorithm is monitored: every argument, question to the oracle, upload and state."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from dpfl_plugin.algorithms.base import Algorithm, Oracle, RoundPlan, Setting, SquaringOracle
from dpfl_plugin.config.schema import Config
from dpfl_plugin.core.vectors import Vectors
from dpfl_plugin.federation.planning import Planner
from dpfl_plugin.federation.silo_group import SiloGroup
from dpfl_plugin.oracle import Draw
from dpfl_plugin.privacy.events import Charge
from dpfl_plugin.runs.build import Parts, build
from dpfl_plugin.runtimes.in_process import InProcess

__tracebackhide__ = True


class ContractError(AssertionError):
    """An algorithm breaks its contract: what is wrong, where, and how to fix it."""

    __module__ = "dpfl_plugin.testing"  # where it is imported from


Query = tuple[str, Tensor, Tensor]
"""(method of the oracle, its argument (m, d), its answer)"""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of `local_update`, for ``num_silos`` silos; vectors as they were when it began and ended."""

    round: int
    num_silos: int
    plan: RoundPlan
    down: Vectors
    silos: Vectors
    queries: tuple[Query, ...]
    up: Vectors
    new: Vectors


@dataclass(slots=True)
class Steps:
    """What a run left behind, round by round: states, calls, plans and means of the uploads."""

    servers: list[Vectors] = field(default_factory=list)
    states: list[Vectors] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    plans: list[RoundPlan] = field(default_factory=list)
    means: list[Vectors] = field(default_factory=list)
    charges: list[Charge] = field(default_factory=list)


class OracleMonitor:
    """The oracle of a run, whose questions and answers are recorded."""

    def __init__(self, oracle: Oracle, plan: RoundPlan, where: str) -> None:
        self.num_silos = oracle.num_silos
        self._oracle, self._plan, self._where = oracle, plan, where
        self.queries: list[Query] = []

    def gradient(self, y: Tensor) -> Tensor:
        done = sum(kind == "gradient" for kind, _, _ in self.queries)
        if done >= self._plan.num_gradients:
            raise ContractError(
                f"local_update asks for gradient {done + 1}{self._where}, but its round_plan says num_gradients="
                f"{self._plan.num_gradients}, which the budget was checked for. Plan as many as are asked for."
            )
        return self._ask("gradient", y, self._oracle.gradient)

    def release(self, update: Tensor) -> Tensor:
        return self._ask("release", update, self._oracle.release)

    def squared_norm(self, update: Tensor, scale: float) -> Tensor:
        oracle = cast(SquaringOracle, self._oracle)
        return self._ask("squared_norm", update, functools.partial(oracle.squared_norm, scale=scale))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise ContractError(
            f"local_update reads oracle.{name}{self._where}: an algorithm never sees records. Use oracle.gradient(y), "
            "oracle.release(update) and oracle.num_silos, which is all that an oracle has."
        )

    def _ask(self, kind: str, value: Tensor, ask: Any) -> Tensor:
        what = "a point" if kind == "gradient" else "an update"
        if not isinstance(value, Tensor) or value.dim() != 2 or len(value) != self.num_silos:
            raise ContractError(
                f"local_update gives oracle.{kind} {_shape(value)}{self._where}: {what} for each silo is needed, "
                f"({self.num_silos}, d). Begin with y = down['model'].expand(oracle.num_silos, -1), and keep the rows."
            )
        given = value.detach().clone()
        answer: Tensor = ask(value)
        self.queries.append((kind, given, answer.detach().clone()))
        return answer


class AlgorithmMonitor:
    """An algorithm whose every call is checked: shapes, names, types, and arguments that stay as they were."""

    def __init__(self, algorithm: Algorithm) -> None:
        self.algorithm = algorithm
        self.round = 0
        self.steps = Steps()
        self._dtype, self._d = torch.float32, 0

    def init_server(self, model: Tensor, setting: Setting) -> Vectors:
        self._dtype, self._d = model.dtype, model.numel()
        before = model.clone()
        server = self.algorithm.init_server(model, setting)
        _unchanged({"model": before}, {"model": model}, "init_server changes", "the model")
        self._check_server(server, "init_server")
        return server

    def init_silos(self, model: Tensor, num_silos: int) -> Vectors:
        silos = self.algorithm.init_silos(model, num_silos)
        _check_vectors(silos, (num_silos, model.numel()), model.dtype, "init_silos", "a state", "(m, d)")
        _check_apart(silos, "init_silos")
        return silos

    def round_plan(self, server: Vectors, round: int, setting: Setting, rng: np.random.Generator) -> RoundPlan:
        before = _copy(server)
        plan = self.algorithm.round_plan(server, round, setting, rng)
        _unchanged(before, server, "round_plan changes", "the server's state")
        if not isinstance(plan, RoundPlan) or plan.num_gradients < 1:
            raise ContractError(
                f"round_plan returns {plan!r} in round {round}: a RoundPlan is needed, with num_gradients of 1 or more."
            )
        return plan

    def download(self, server: Vectors) -> Vectors:
        before = _copy(server)
        down = self.algorithm.download(server)
        _unchanged(before, server, "download changes", "the server's state")
        _check_vectors(down, (self._d,), self._dtype, "download", "a vector", "(d,)")
        return down

    def local_update(self, down: Vectors, silos: Vectors, oracle: Oracle, plan: RoundPlan) -> tuple[Vectors, Vectors]:
        m, where = oracle.num_silos, f" (round {self.round}, m = {oracle.num_silos})"
        down_before, silos_before = _copy(down), _copy(silos)
        monitor = OracleMonitor(oracle, plan, where)
        result = self.algorithm.local_update(down, silos, monitor, plan)
        if not (isinstance(result, tuple) and len(result) == 2):
            raise ContractError(f"local_update returns {type(result).__name__}{where}: it must be (uploads, states).")
        up, new = result
        _unchanged(down_before, down, "local_update changes", f"the download{where}")
        _unchanged(silos_before, silos, "local_update changes", f"the silos' old states{where}")
        _check_uploads(up, m, self._d, self._dtype, where)
        _check_vectors(new, (m, self._d), self._dtype, "local_update", "a silo state", f"(m, d){where}")
        unknown = sorted(set(new) - set(silos))
        if unknown:
            raise ContractError(
                f"local_update keeps the state {unknown[0]!r}{where}, which init_silos does not begin: it has "
                f"{sorted(silos) or 'none'}. Give it its first value there."
            )
        call = Call(self.round, m, plan, down_before, silos_before, tuple(monitor.queries), _copy(up), _copy(new))
        self.steps.calls.append(call)
        return up, new

    def aggregate(self, server: Vectors, mean_up: Vectors, plan: RoundPlan) -> Vectors:
        before, mean_before = _copy(server), _copy(mean_up)
        after = self.algorithm.aggregate(server, mean_up, plan)
        _unchanged(before, server, "aggregate changes", "the server's state in place")
        _unchanged(mean_before, mean_up, "aggregate changes", "the mean of the uploads in place")
        self._check_server(after, "aggregate")
        if set(after) != set(server):
            raise ContractError(
                f"aggregate returns the states {sorted(after)} in round {self.round}, and got {sorted(server)}: the "
                "names must stay, since a checkpoint holds them. Begin all of them in init_server."
            )
        return after

    def notes(self, server: Vectors) -> list[str]:
        notes = self.algorithm.notes(server)
        if not isinstance(notes, list) or not all(isinstance(note, str) for note in notes):
            raise ContractError(f"notes returns {notes!r}: a list of sentences is needed, [] for none.")
        return notes

    def _check_server(self, server: Any, method: str) -> None:
        where = f" (round {self.round})" if method == "aggregate" else ""
        if not isinstance(server, dict) or "model" not in server:
            raise ContractError(f"{method} returns no 'model'{where}: the server's state is a dict of tensors with it.")
        if not all(isinstance(value, Tensor) for value in server.values()):
            raise ContractError(f"{method} returns a state that is not a tensor{where}: a checkpoint cannot hold it.")
        _check_vectors({"model": server["model"]}, (self._d,), self._dtype, method, "the model", f"(d,){where}")
        for name, value in server.items():
            if value.is_floating_point() and not bool(torch.isfinite(value).all()):
                raise ContractError(f"{method} returns {name!r} with entries that are not finite{where}.")
        _check_apart(server, method)


class Trial:
    """A run of a configuration in memory, monitored.

    Args:
        stack: silos advanced together.
    """

    def __init__(self, config: Config, *, stack: int = 1) -> None:
        self.parts: Parts = build(config, Path())
        parts = self.parts
        self.monitor = AlgorithmMonitor(parts.algorithm)
        self.steps = self.monitor.steps
        self.server = self.monitor.init_server(parts.model, parts.setting)
        self.host = SiloGroup(
            model=parts.module,
            loss=parts.loss,
            algorithm=self.monitor,
            rules=parts.rules,
            engine=parts.engine,
            train=parts.train,
            test=parts.test,
            states=self.monitor.init_silos(parts.model, parts.setting.num_silos),
        )
        self._runtime = InProcess(self.host, self, stack_size=stack)
        self._planner = Planner(self.monitor, parts.setting, parts.setting.weights, config.public_seed)
        self._rounds = config.rounds or 1

    def append(self, charges: Sequence[Charge]) -> None:
        """Take the runtime's charges, as a ledger does."""
        self.steps.charges += charges

    def sync(self) -> None:
        """Do nothing: the charges are in memory."""

    def run(self) -> Steps:
        """All rounds."""
        for round in range(self._rounds):
            self.monitor.round = round
            plan = self._planner.plan(self.server, round)
            assert plan is not None
            draw = Draw(self._planner.seed, round)
            mean_up = self._runtime.run_round(self.monitor.download(self.server), plan, draw)
            self.steps.means.append(_copy(mean_up))
            self.server = self.monitor.aggregate(self.server, mean_up, plan)
            self._runtime.commit()
            self.steps.plans.append(plan)
            self.steps.servers.append(_copy(self.server))
            self.steps.states.append(_copy(self._runtime.states()))
        self.monitor.notes(self.server)
        return self.steps


def _copy(vectors: Vectors) -> Vectors:
    return {name: value.detach().clone() for name, value in vectors.items()}


def difference(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> str | None:
    """The first name under which two sets of vectors are not the same bits, and by how much; None if they are."""
    for name in sorted({*first, *second}):
        if name not in first or name not in second:
            return f"{name!r} is in one of them only"
        a, b = first[name], second[name]
        if a.shape != b.shape:
            return f"{name!r} has the shapes {tuple(a.shape)} and {tuple(b.shape)}"
        if not torch.equal(a, b):
            return f"{name!r} differs by up to {float((a.double() - b.double()).abs().max()):.3g}"
    return None


def _unchanged(before: Vectors, after: Vectors, what: str, whose: str) -> None:
    mismatch = difference(before, after)
    if mismatch is not None:
        raise ContractError(
            f"{what} {whose}: {mismatch}. It is read again: compute a new tensor (y = y - g, not y -= g), or "
            "clone it first."
        )


def _check_vectors(vectors: Any, shape: tuple[int, ...], dtype: torch.dtype, method: str, what: str, form: str) -> None:
    if not isinstance(vectors, dict):
        raise ContractError(f"{method} returns {type(vectors).__name__}: a dict of named tensors is needed, {form}.")
    for name, value in vectors.items():
        if not isinstance(value, Tensor) or tuple(value.shape) != shape:
            raise ContractError(
                f"{method} returns {what}, {name!r}, of {_shape(value)}; it must be {form}, here {shape}. Keep the "
                "axis of silos even where there is one silo: no squeeze, no indexing of rows."
            )
        _check_numbers(value, dtype, f"{method} returns {what}, {name!r},")


def _check_uploads(uploads: Any, num_silos: int, d: int, dtype: torch.dtype, where: str) -> None:
    if not isinstance(uploads, dict):
        raise ContractError(
            f"local_update returns {type(uploads).__name__} as uploads{where}: return a dict of tensors."
        )
    for name, value in uploads.items():
        if not isinstance(value, Tensor) or value.shape not in ((num_silos, d), (num_silos, 1), (num_silos,)):
            raise ContractError(
                f"local_update returns an upload, {name!r}, of {_shape(value)}{where}; it must be (m, d), (m, 1) or "
                f"(m,), here ({num_silos}, {d}), ({num_silos}, 1) or ({num_silos},). Keep a row for each silo, even "
                "where there is one silo: no squeeze, no indexing of rows, no mean over dim 0."
            )
        _check_numbers(value, dtype, f"local_update returns an upload, {name!r},")


def _check_numbers(value: Tensor, dtype: torch.dtype, what: str) -> None:
    if value.dtype != dtype:
        raise ContractError(
            f"{what} of {value.dtype}; the model is {dtype}. Make tensors from those that are given: "
            "x.new_zeros(...), torch.zeros_like(x)."
        )
    if not bool(torch.isfinite(value).all()):
        raise ContractError(f"{what} with entries that are not finite.")


def _check_apart(vectors: Vectors, method: str) -> None:
    """Raise if two states, or two rows of one, are the same memory: writing to one would write to the other."""
    owners: dict[int, str] = {}
    for name, value in vectors.items():
        place = value.untyped_storage().data_ptr()
        if value.numel() and (place in owners or not value.is_contiguous()):
            raise ContractError(
                f"{method} returns {name!r} in the memory of {owners.get(place, 'itself, by expand or a view')}: "
                "states are written to and saved one by one. Use .clone()."
            )
        owners[place] = repr(name)


def _shape(value: Any) -> str:
    return f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"type {type(value).__name__}"
