"""What an algorithm is: a page of a paper that sees flat vectors and a private oracle, never records.

Download, uploads and states are named vectors (`Vectors`). The server's are (d,), silos' are stacks (m, d), so
that one implementation serves one silo in an adapter and a GPU full of them.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, dataclass_transform, runtime_checkable

import numpy as np

from dpfl_plugin.core.vectors import Vectors
from dpfl_plugin.errors import ConfigError, refusal
from dpfl_plugin.late import torch
from dpfl_plugin.synonyms import meant

if TYPE_CHECKING:
    from torch import Tensor

Class = TypeVar("Class", bound=type)


@dataclass_transform(frozen_default=True, kw_only_default=True)
def algorithm(cls: Class) -> Class:
    """A frozen dataclass of options, which tells a program a misspelt or missing one as a file is told.

    Its instances raise:
        ConfigError: there is no option of such a name, or one without a default is missing.
    """
    made: Any = dataclass(frozen=True, kw_only=True)(cls)
    plain = made.__init__  # ``made`` is ``cls``
    options = {one.name: one for one in dataclasses.fields(made) if one.init}
    needed = [name for name, one in options.items() if one.default is one.default_factory is dataclasses.MISSING]

    @functools.wraps(plain)
    def checked(self: Any, /, *args: Any, **given: Any) -> None:
        known = f"Known options: {', '.join(options) or 'none'}."
        if args:
            raise ConfigError(f"{cls.__name__}({args[0]!r}): its options are given by name. {known}")
        for name in given:
            if name not in options:
                if why := refusal(cls, name):
                    raise ConfigError(f"{cls.__name__}: {name}: {why}")
                near = meant(name, options, "algorithm")
                raise ConfigError(f"{cls.__name__}: {name} is not a known option{near}.{'' if near else f' {known}'}")
        missing = [name for name in needed if name not in given]
        if missing:
            raise ConfigError(f"{cls.__name__}: {', '.join(missing)} is missing. {known}")
        plain(self, **given)

    made.__init__ = checked
    return cls


class Oracle(Protocol):
    """What an algorithm may ask of the silos it advances; see `dpfl_plugin.oracle`."""

    num_silos: int

    def gradient(self, y: Tensor) -> Tensor:
        """Private gradients (m, d) at ``y`` (m, d): a fresh batch and fresh noise at each call.

        The answer is the caller's, who may change it in place, as ``y`` between calls.
        """
        ...

    def release(self, update: Tensor) -> Tensor:
        """``update`` (m, d), fit to be sent at the run's privacy unit."""
        ...


class SquaringOracle(Oracle, Protocol):
    """An oracle of this package, which knows the noise on what it answered."""

    def squared_norm(self, update: Tensor, scale: float) -> Tensor:
        """||update||^2 (m, 1), less what the round's noise adds to it in the mean, fit to be sent as it is.

        Args:
            update: what is sent: ``scale`` times the sum of the round's gradients and what is known without them.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Public facts about a federation, for planning.

    Attributes:
        num_silos: M.
        num_participants: S = floor(l M), silos in a round of sampled participation; at least 1.
        silo_rate: l.
        record_rate: s, the share of a silo's records in a batch, if it is the same for all silos.
        batch_size: the number of records in a batch, if that is the same for all silos.
        num_records: n, training records of the smallest silo; None where nobody counted.
        rounds: T; None if only a budget ends the run.
        clip_norm: C, if it is finite and the same in all rounds.
        epsilon, delta: of the configuration; epsilon is None if there is no budget.
        weights: p_k, each silo's in the mean, adding up to 1; () where silos are not drawn by them.
    """

    num_silos: int
    num_participants: int
    silo_rate: float
    record_rate: float | None
    batch_size: int | None = None
    num_records: int | None = None
    rounds: int | None = None
    clip_norm: float | None = None
    epsilon: float | None = None
    delta: float | None = None
    weights: tuple[float, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundPlan:
    """What a round does, decided by the algorithm at the server before the round starts.

    Attributes:
        local_steps: K.
        local_lr: eta_l of this round.
        num_gradients: private gradients that each participant will ask for; what the budget is checked for.
        most_gradients: the most that any sampled round of a run may ask for, whoever is drawn; to be given if that
            changes from round to round, as a third party's epsilon has to hold for all draws.
        participation: "all" silos; "sampled", S of them without replacement; or "sampled_with_replacement", S draws
            with the silos' weights as probabilities, where a silo that is drawn twice sends once, with double weight.
            Drawn by the framework, which accounts for it. Rounds of all silos come before those of drawn ones: where a
            budget ends a run early, rounds that it did not come to count as the last one.
        share: the part [first, last) of each silo's records, in a fixed random order, that may be read.
        smoothing: what replaces every record's loss, see `dpfl_plugin.gradients.smoothing`: ("convolution", radius)
            or ("moreau", beta); None for nothing.
        phase: a name that the algorithm gives the round.
        task: what silos do: a round of the algorithm, or what the framework asks of them beside its rounds.
        participants: ids, ascending; filled in by the framework.
        weights: of each participant's upload in the mean, adding up to 1; filled in by the framework. How often it
            was drawn over S, with replacement.
        silo_share: S/M, or the participants' part of all silos' weights; filled in by the framework.
    """

    local_steps: int
    local_lr: float
    num_gradients: int
    most_gradients: int | None = None
    participation: str = "sampled"
    share: tuple[float, float] = (0.0, 1.0)
    phase: str = "train"
    smoothing: tuple[str, float] | None = None
    task: Literal["train", "statistics", "scale", "score", "personalise"] = "train"
    participants: tuple[int, ...] = ()
    weights: tuple[float, ...] = field(default=(), repr=False)
    silo_share: float = 1.0


class Algorithm(Protocol):
    """A federated algorithm. Implementations are frozen dataclasses of their options.

    One whose silos keep models of their own names that state in a class attribute, ``own_model = "own"``: evaluations
    measure it beside the global model.

    One whose silos send what they released as it is, and nothing else, states ``sends_releases_alone = True``: see
    `in_sums`.

    One that has no option of a name that users may look for says why in ``refuses = {option: why}``, another.
    """

    def init_server(self, model: Tensor, setting: Setting) -> Vectors:
        """The server's state before the first round; "model" (d,) is the global model."""
        ...

    def init_silos(self, model: Tensor, num_silos: int) -> Vectors:
        """State (m, d) that silos keep between rounds; {} for none."""
        ...

    def round_plan(self, server: Vectors, round: int, setting: Setting, rng: np.random.Generator) -> RoundPlan:
        """What round ``round`` (from 0) does; ``rng`` is the server's stream of this round."""
        ...

    def download(self, server: Vectors) -> Vectors:
        """What the server sends to every participant, (d,) each."""
        ...

    def local_update(self, down: Vectors, silos: Vectors, oracle: Oracle, plan: RoundPlan) -> tuple[Vectors, Vectors]:
        """(uploads, new silo states) of m silos advanced together: (m, d) each; uploads may be (m, 1) or (m,), too."""
        ...

    def aggregate(self, server: Vectors, mean_up: Vectors, plan: RoundPlan) -> Vectors:
        """The server's next state, from the weighted mean of the uploads, (d,) or (1,). Must not change ``server``."""
        ...

    def notes(self, server: Vectors) -> list[str]:
        """What a reader of the result should know about this run."""
        ...


def in_sums(algorithm: Algorithm) -> bool:
    """Whether models are made of sums of silos' releases alone: silos keep nothing between rounds, and send what they
    released as it is, and nothing else. Only then has what a model tells of a silo the noise of all of a round.

    The second an algorithm says itself, by a true attribute ``sends_releases_alone``; without one it is not believed.
    Nor is one whose class has another `local_update` or `aggregate` than the class that says so, or, if it is not of
    this package, any method of its own.
    """
    order = type(algorithm).__mro__
    said = next((place for place, kind in enumerate(order) if "sends_releases_alone" in vars(kind)), len(order))
    return (
        not any(map(_changes_what_is_sent, order[:said]))
        and bool(getattr(algorithm, "sends_releases_alone", False))
        and not algorithm.init_silos(torch.zeros(1), 1)
    )


def _changes_what_is_sent(kind: type) -> bool:
    if kind.__module__.startswith("dpfl_plugin."):
        return any(name in vars(kind) for name in ("local_update", "aggregate"))
    return any(callable(value) or hasattr(value, "__get__") for name, value in vars(kind).items() if name[:2] != "__")


@runtime_checkable
class Regrouping(Protocol):
    """An algorithm that keeps state at silos, and says what becomes of it when the federation changes.

    Without it such an algorithm cannot go on when silos are lost (``runtime.on_silo_failure: continue``).
    """

    def regroup(
        self, server: Vectors, silos: Vectors, ids: Sequence[int], weights: Sequence[float]
    ) -> tuple[Vectors, Vectors]:
        """(server's state, silos' states) with which the silos ``ids`` go on by themselves, between two rounds.

        Whatever the two keep in common, such as a server's mean of the silos' states, has to hold for these silos.
        Must not change its arguments; may compute from what was released only.

        Args:
            silos: the states (m, d) of the silos ``ids``, ascending.
            weights: of each in a mean, adding up to 1.
        """
        ...
