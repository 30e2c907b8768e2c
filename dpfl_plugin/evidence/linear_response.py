"""How uploads depend on releases: an algorithm's linear response, found by running it on impulses.

Along a coordinate an algorithm sees its silo's releases (private gradients, or released updates) and the downloads.
What it uploads is a linear function of both; the server knows the downloads, so it can take their part off and is
left with uploads = R releases. R says which combinations of releases the server sees, and with what noise.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfl_plugin.algorithms.base import Algorithm, RoundPlan
from dpfl_plugin.core.streams import stream
from dpfl_plugin.core.vectors import Vectors
from dpfl_plugin.errors import ConfigError, UnsupportedError
from dpfl_plugin.privacy.rules import PrivacyRules

Array = NDArray[np.float64]

BLOCK = 2048  # releases whose impulses are answered together
TRIALS = 4  # coordinates on which linearity is tried out
MOST_RELEASES, MOST_ROWS = 20_000, 3_000
_LINEAR = 1e-6  # relative error up to which a response in float64 counts as linear
_REDUNDANT = 1e-6  # share of its variance that an upload must add to those before it


@dataclass(frozen=True, slots=True)
class SeenRound:
    """A round as the server saw it, on the coordinates behind the model's.

    Attributes:
        silos: rows, among the canary silos, that took part.
        down: (w,) each; up: (len(silos), w) each. In float64.
        scales: (len(silos), releases): the claimed noise of each, in the unit of all; None: 1.
    """

    plan: RoundPlan
    silos: tuple[int, ...]
    down: Vectors
    up: Vectors
    scales: Array | None = None


class _Told:
    """Stands in for the oracle: its releases are what it is told."""

    def __init__(self, num_silos: int, rules: PrivacyRules, answer: Callable[[int], Tensor]) -> None:
        self.num_silos, self.calls = num_silos, 0
        self._rules, self._answer = rules, answer

    def _next(self) -> Tensor:
        self.calls += 1
        return self._answer(self.calls - 1).repeat(self.num_silos, 1)

    def gradient(self, y: Tensor) -> Tensor:
        return torch.zeros_like(y) if self._rules.unit == "silo" else self._next() + self._rules.l2 * y

    def release(self, update: Tensor) -> Tensor:
        return self._next() if self._rules.unit == "silo" else update

    def squared_norm(self, update: Tensor, scale: float) -> Tensor:
        return update.square().sum(dim=1, keepdim=True)


Answers = Callable[[int, int], Tensor]
"""(round, step) -> what a release says, (w,), the same at each silo."""


def _replay(
    algorithm: Algorithm,
    rules: PrivacyRules,
    rounds: Sequence[SeenRound],
    num_silos: int,
    downloads: Sequence[Vectors],
    answers: Answers,
) -> tuple[list[Vectors], list[int]]:
    """Uploads of all rounds, and how many releases each of them made, with ``answers`` in place of the oracle's."""
    width = next(iter(downloads[0].values())).numel()
    states = algorithm.init_silos(torch.zeros(width, dtype=torch.float64), num_silos)
    uploads, calls = [], []
    for number, (seen, down) in enumerate(zip(rounds, downloads, strict=True)):
        rows = list(seen.silos)
        oracle = _Told(len(rows), rules, functools.partial(answers, number))
        old = {name: value[rows] for name, value in states.items()}
        up, new = algorithm.local_update(down, old, oracle, seen.plan)
        for name, value in new.items():
            states[name][rows] = value
        uploads.append(up)
        calls.append(oracle.calls)
    return uploads, calls


@dataclass(frozen=True, slots=True)
class Response:
    """What the server sees of one silo's releases, each of which has noise of standard deviation 1.

    Attributes:
        names: (round, upload) of each innovation: what an upload adds to all that was uploaded before it.
        factor: (n, n) lower triangular; it times the innovations is what was uploaded.
        mean: (n,) innovations if each release were 1.
        uploads: (n, w) less the part of the downloads.
    """

    names: list[tuple[int, str]]
    factor: Array
    mean: Array
    uploads: Array

    def innovations(self, std: float) -> Array:
        """(n, w): independent, of standard deviation 1 where a release's noise has the standard deviation ``std``."""
        from scipy.linalg import solve_triangular

        return np.asarray(solve_triangular(self.factor, self.uploads, lower=True) / std)


def responses(
    algorithm: Algorithm, rules: PrivacyRules, rounds: Sequence[SeenRound], num_silos: int
) -> tuple[list[Response], list[int]]:
    """The response of each silo, and the number of releases of each round.

    Raises:
        UnsupportedError: uploads are not a linear function of releases and downloads.
        ConfigError: there are too many rounds.
    """
    trials = _Trials(len(rounds))
    downloads = [_widened(seen.down) for seen in rounds]
    quiet = torch.zeros(next(iter(downloads[0].values())).numel(), dtype=torch.float64)
    silent, calls = _replay(algorithm, rules, rounds, num_silos, downloads, lambda t, k: trials.behind(quiet, t, k))
    columns = [(t, k) for t, count in enumerate(calls) for k in range(count)]
    names = [[(t, n) for t, seen in enumerate(rounds) if s in seen.silos for n in seen.up] for s in range(num_silos)]
    most = max(map(len, names))
    if len(columns) > MOST_RELEASES or most > MOST_ROWS:
        raise ConfigError(
            f"{len(columns)} releases and {most} uploads of each silo are more than an audit can read (at most "
            f"{MOST_RELEASES} and {MOST_ROWS}). Use --rounds for fewer rounds."
        )
    moments = [_Moments(len(own)) for own in names]
    for first in range(0, len(columns), BLOCK):
        block = columns[first : first + BLOCK]
        answered = _impulses(algorithm, rules, rounds, num_silos, block)
        drawn = np.stack([trials.draw(t, k).numpy() for t, k in block])
        for silo, own in enumerate(names):
            if own:
                moments[silo].add(_of(answered, rounds, silo, own), drawn, _scales(rounds, silo, block))
    found = []
    for silo, own in enumerate(names):
        seen_rows = _of([seen.up for seen in rounds], rounds, silo, own) if own else np.zeros((0, 0))
        offset = _of(silent, rounds, silo, own) if own else np.zeros((0, TRIALS))
        _check_linear(offset, moments[silo].trials)
        found.append(_response(own, moments[silo], seen_rows - offset[:, : offset.shape[1] - TRIALS]))
    return found, calls


class _Trials:
    """Random releases on copies of the first coordinates, by which linearity is checked."""

    def __init__(self, num_rounds: int) -> None:
        self._rngs = [stream(0, "audit", round + 1) for round in range(num_rounds)]
        self._drawn: dict[tuple[int, int], Tensor] = {}

    def draw(self, round: int, step: int) -> Tensor:
        if (round, step) not in self._drawn:
            self._drawn[round, step] = torch.from_numpy(self._rngs[round].standard_normal(TRIALS))
        return self._drawn[round, step]

    def behind(self, quiet: Tensor, round: int, step: int) -> Tensor:
        answer = quiet.clone()
        answer[-TRIALS:] = self.draw(round, step)
        return answer


def _widened(down: Vectors) -> Vectors:
    return {name: torch.cat([value, value[:TRIALS]]) for name, value in down.items()}


def _check_linear(offset: Array, predicted: Array) -> None:
    found = offset[:, -TRIALS:] - offset[:, :TRIALS]
    size = max(float(np.abs(found).max(initial=0.0)), float(np.abs(predicted).max(initial=0.0)))
    if float(np.abs(found - predicted).max(initial=0.0)) > _LINEAR * size:
        raise UnsupportedError(
            "dpfl audit reads what uploads tell of releases by the algorithm's linear response, and this algorithm's "
            "uploads are not a linear function of its private gradients and downloads. Nothing was found wrong with it."
        )


def _impulses(
    algorithm: Algorithm, rules: PrivacyRules, rounds: Sequence[SeenRound], num_silos: int, block: list[tuple[int, int]]
) -> list[Vectors]:
    """Uploads with a coordinate for each release of ``block``, on which it is 1 and all others are 0."""
    place = {column: i for i, column in enumerate(block)}

    def answers(t: int, k: int) -> Tensor:
        answer = torch.zeros(len(block), dtype=torch.float64)
        if (t, k) in place:
            answer[place[t, k]] = 1.0
        return answer

    nothing = torch.zeros(len(block), dtype=torch.float64)
    downloads = [dict.fromkeys(seen.down, nothing) for seen in rounds]
    return _replay(algorithm, rules, rounds, num_silos, downloads, answers)[0]


def _of(uploads: Sequence[Vectors], rounds: Sequence[SeenRound], silo: int, names: list[tuple[int, str]]) -> Array:
    """(len(names), w): the uploads of one silo."""
    return np.stack([uploads[t][name][rounds[t].silos.index(silo)].double().numpy() for t, name in names])


def _scales(rounds: Sequence[SeenRound], silo: int, block: list[tuple[int, int]]) -> Array:
    """(len(block),) the silo's noise in each release; 1 in those it did not make."""
    found = np.ones(len(block))
    for i, (t, k) in enumerate(block):
        seen = rounds[t]
        if seen.scales is not None and silo in seen.silos:
            found[i] = seen.scales[seen.silos.index(silo), k]
    return found


class _Moments:
    """R R^T and R 1, with each release in units of its noise, and R times the trials, of the blocks of R."""

    def __init__(self, rows: int) -> None:
        self.square, self.ones, self.trials = np.zeros((rows, rows)), np.zeros(rows), np.zeros((rows, TRIALS))

    def add(self, block: Array, drawn: Array, scales: Array) -> None:
        self.trials += block @ drawn
        scaled = block * scales
        self.square += scaled @ scaled.T
        self.ones += scaled.sum(axis=1)


def _response(names: list[tuple[int, str]], moments: _Moments, uploads: Array) -> Response:
    """Gram and Schmidt in the order in which uploads came; those that tell nothing new are left out."""
    from scipy.linalg import solve_triangular

    kept: list[int] = []
    factor = np.zeros((len(names), len(names)))
    for row in range(len(names)):
        n = len(kept)
        known = moments.square[kept, row]
        part = solve_triangular(factor[:n, :n], known, lower=True) if n else known
        new = moments.square[row, row] - float(part @ part)
        if new > _REDUNDANT * moments.square[row, row]:
            factor[n, :n], factor[n, n] = part, np.sqrt(new)
            kept.append(row)
    lower = factor[: len(kept), : len(kept)]
    mean = solve_triangular(lower, moments.ones[kept], lower=True) if kept else np.zeros(0)
    return Response([names[row] for row in kept], lower, mean, uploads[kept])
