"""The private oracle: the only path from records to an algorithm.

    H(y) = 1/b * sum_{j in batch} clip(grad f(y, d_j), C)  +  Delta * sigma_g * N(0, I)      [N] Alg. 1, l. 8-13

sampler -> clipped sum -> noise -> charge. What comes back is private, so whatever an algorithm computes from it
and sends is post-processing. sigma_g = 0 and C = inf give the non-private algorithm by the same path.
"""

from __future__ import annotations

import functools
import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfl_plugin.core.balls import Normalised
from dpfl_plugin.core.devices import to_device
from dpfl_plugin.core.grid import has_room
from dpfl_plugin.core.shares import share_bounds
from dpfl_plugin.core.stopwatch import STOPPED, Stopwatch
from dpfl_plugin.core.streams import FreshStream, Source, Stream, Words, stream_key, words
from dpfl_plugin.core.vectors import Vectors
from dpfl_plugin.errors import UnplannedError, UnsupportedError
from dpfl_plugin.gradients.base import Engine, Records, clipped_sum_and_norms
from dpfl_plugin.gradients.blocks import filled
from dpfl_plugin.gradients.precision import check_products, unreduced
from dpfl_plugin.gradients.replay import Replayed
from dpfl_plugin.gradients.shares import Batches, Part, moved
from dpfl_plugin.gradients.smoothing import Convolution
from dpfl_plugin.gradients.stacked import MultiSiloEngine, Pool, Sums, SumsInTurn
from dpfl_plugin.gradients.views import several
from dpfl_plugin.privacy.clipping import Clipping, clip_update
from dpfl_plugin.privacy.cycles import Cycles
from dpfl_plugin.privacy.events import Charge
from dpfl_plugin.privacy.noise import Scale, SiloNoise
from dpfl_plugin.privacy.post_processing import Squares, check_released
from dpfl_plugin.privacy.rules import PrivacyRules
from dpfl_plugin.privacy.samplers import Cyclic, usual_most

# What is drawn at a time: batches of so many local steps, with this many records in all (256 KiB).
STEPS_AHEAD: Final = 32
RECORDS_AHEAD: Final = 2**15


@dataclass(frozen=True, slots=True)
class Draw:
    """Names the random bits of one computation of silos' answers.

    Attributes:
        noise_id: names them in the ledger, as RUN or RUN.COMPUTATION. Fresh bits have a name of their own for each
            computation, so that each is charged; seeded ones have the run's, and the same round counts once.
    """

    seed: int
    round: int
    noise_id: str = "seeded"

    @classmethod
    def fresh(cls, round: int, run: str) -> Draw:
        """Of bits from the operating system, under a name that nobody used before."""
        computation = secrets.token_hex(16)
        return cls(0, round, f"{run}.{computation}")

    def key(self, purpose: str, silo: int, step: int) -> bytes:
        """Of a seeded stream of this round."""
        return stream_key(self.seed, purpose, self.round, silo, step)


class PrivateOracle:
    """Answers one round of m silos, and keeps the charges of what it answered.

    Args:
        silos: their records; ``ids``: their ids, in the same order.
        draw: names the round, by which the schedule gives the noise, and its random streams.
        max_gradients: calls of `gradient` that the budget was checked for; one more is refused.
        share: the part of each silo's records that this round may read.
        layers: the model's, {name: number of parameters}, for clipping by layer.
        clip_norms: C_i of each silo, where the clipping adapts it; in the end, what it was adapted to.
        pool: has the records of these silos by id, for answering them together where the engine and the rules allow it.
        replayed: `sums_of` this engine, this pool and these rules, in place of our own; for a single silo, too.
        clock: takes the time of each part.
        cycles: of these silos, for batches in a cycle.
    """

    def __init__(
        self,
        rules: PrivacyRules,
        engine: Engine,
        silos: Sequence[Records],
        ids: Sequence[int],
        draw: Draw,
        *,
        max_gradients: int,
        share: tuple[float, float] = (0.0, 1.0),
        layers: Mapping[str, int] | None = None,
        clip_norms: Sequence[float] | None = None,
        pool: Pool | None = None,
        replayed: Replayed | None = None,
        clock: Stopwatch = STOPPED,
        cycles: Cycles | None = None,
    ) -> None:
        check_products(*(one.features.device for one in silos))  # again: a caller may have told it otherwise
        self.num_silos, self._cycles = len(silos), cycles
        self._rules, self._engine, self._draw, self._clock = rules, engine, draw, clock
        self._silos = [Part(records, share) for records in silos]
        self._rules_of = [rules.of(silo) for silo in ids]
        self._divisors = [
            own.sampler.divisor(len(records)) for own, records in zip(self._rules_of, self._silos, strict=True)
        ]
        self._most_records = longest_sum(rules, max(map(len, self._silos), default=0), cycles)
        self._ids, self._share, self._max_gradients = tuple(ids), share, max_gradients
        self._factors = rules.factors(draw.round, max_gradients)
        self._layer_sizes = tuple((layers or {}).values())
        self._bounds = rules.bounds(layers or {})
        self._bounds_of = [self._bounds if own is rules else own.bounds(layers or {}) for own in self._rules_of]
        self.clip_norms = list(clip_norms or [own.clip_norm for own in self._rules_of])
        alike = len(set(self._factors)) == 1 and not rules.clipping.adapts
        sums = self.num_silos * len(self._factors) if alike else 1  # of the same noise
        self._stream: Source = FreshStream(sums) if rules.fresh else Stream()
        self._ahead = max(1, min(STEPS_AHEAD, int(RECORDS_AHEAD // max(1.0, sum(self._divisors)))))
        self._batches: list[list[NDArray[np.int64] | None]] = []
        self._places: Batches = []  # the same on the records' device
        steps, chains = len(self._factors), () if cycles is None else cycles.chains
        self._sensitivities = [sensitivity_of(own) for own in self._rules_of]
        known = not (rules.clipping.adapts or rules.clipping.measures)
        self._noise = SiloNoise(
            *(rules, self._rules_of, self._ids, draw.key, self._stream, self._ahead, steps, chains),
            functools.partial(_scales, self._sensitivities, self._factors) if known else None,
        )
        self._gradient_calls, self._closed = 0, False
        self._released: list[Tensor] = []
        self._squares = Squares(self._rules_of, self._divisors, self._noise, self._released)
        at_once = replayed is not None or (self.num_silos > 1 and together(engine, rules))
        self._pool = pool if at_once else None
        self._sums = None if self._pool is None else sums_of(engine, self._pool, rules, layers)
        self._replayed, self._width, self._longest = replayed, 0, list[int]()
        if self._pool is not None:
            self._clip_to = None
            if together(engine, rules):
                self._clip_to = clip_norms_there(rules, self._bounds, self.clip_norms, self._pool.device)
            if replayed is not None:
                self._width = filled(max(usual_most(rules.sampler, size) for size in sizes_in(share, self._pool)))
        self._total = torch.empty(0, dtype=torch.float64)  # (d,), the sum of one silo's batch

    def gradient(self, y: Tensor) -> Tensor:
        """H(y), shape (m, d), plus the gradient of the regulariser.

        Raises:
            UnplannedError: the algorithm asks for more gradients than its plan said and the budget allowed.
        """
        # Asked first: to enter these takes as long as a step of many a small model.
        if torch.is_grad_enabled() or torch.is_autocast_enabled(y.device.type):
            with torch.no_grad(), unreduced(y.device):
                return self._gradient(y)
        return self._gradient(y)

    def _gradient(self, y: Tensor) -> Tensor:
        self._check_rows(y)
        y = y.detach()  # with no_grad: nothing may flow back from the noisy gradient to the records
        step = self._gradient_calls
        check_planned(step, self._max_gradients)
        check_room(self._most_records, y.shape[1])
        self._gradient_calls += 1
        if step == 0 and self._rules.unit != "silo":
            self._noise.begin(y)
        self._clock.lap("drift")
        if step % self._ahead == 0:
            self._look_ahead(range(step, min(step + self._ahead, self._max_gradients)))
        if self._sums is not None:
            out = self._gradients_together(self._sums, y, step)
        else:
            out = torch.empty_like(y, memory_format=torch.contiguous_format)
            for row in range(self.num_silos):
                self._one_gradient(y[row], row, step, out[row])
        return out.add_(y, alpha=self._rules.l2) if self._rules.l2 else out

    def _look_ahead(self, steps: range) -> None:
        """Batches and the names of the noise of the next steps: of each silo and step a stream of its own.

        For many steps at a time: between two gradients, whose numbers push all else out of the caches, it takes three
        times as long.
        """
        seek, key = self._stream.seek, self._draw.key

        def names(purpose: str, silo: int) -> list[Words]:
            return words([key(purpose, silo, step) for step in steps])

        self._batches = (
            self._cycles.batches(steps)
            if self._cycles is not None
            else [
                [own.sampler.draw(len(records), seek(name)) for name in names("batch", silo)]
                for silo, records, own in zip(self._ids, self._silos, self._rules_of, strict=True)
            ]
        )
        self._noise.names = [names("noise", silo) for silo in self._ids]
        self._clock.lap("sampling")
        if self._pool is not None:
            self._find(self._pool, len(steps))
        elif self._silos:
            self._places = moved(self._batches, self._silos[0].records.features.device)

    def _find(self, pool: Pool, num_steps: int) -> None:
        """Where the batches of the next steps are in the pool, moved to its device at once."""
        rows = [
            part.rows(batches[turn])
            for turn in range(num_steps)
            for part, batches in zip(self._silos, self._batches, strict=True)
        ]
        m = self.num_silos
        self._longest = [filled(max(map(len, rows[m * turn : m * (turn + 1)]))) for turn in range(num_steps)]
        self._index = pool.index(self._ids * num_steps, rows, self._width).view(num_steps, m, -1)
        self._clock.lap("gather")

    def _one_gradient(self, y: Tensor, row: int, step: int, out: Tensor) -> None:
        rules, turn = self._rules_of[row], step % self._ahead
        batch = self._silos[row].batch(self._places[row][turn])
        if rules.augmentation is not None:  # before clipping: what is clipped is their mean
            batch = several(rules.augmentation, batch, self._stream.seek(self._draw.key("views", self._ids[row], step)))
        self._clock.lap("gather")
        if isinstance(self._engine, Convolution):
            self._engine.rng = self._stream.seek(self._draw.key("algorithm", self._ids[row], step))
        total = self._total_like(y)
        if rules.unit == "silo":  # protected by `release`, not here
            self._engine.clipped_sum(y, batch.only_usable(), math.inf, total)
            out.copy_(total)
        elif rules.clipping.adapts:
            self._adaptive_sum(y, batch, row, step, total, out)
        else:
            clip_norm, bounds = rules.clip_norm, self._bounds_of[row]
            if rules.clipping.measures:  # which voids the guarantee, and is charged so
                batch = batch.only_usable()
                norms = clipped_sum_and_norms(self._engine, y, batch, 1.0, total)
                clip_norm = bounds = rules.clipping.measured(norms)
            elif math.isinf(clip_norm):
                batch = batch.only_usable()
            self._engine.clipped_sum(y, batch, bounds, total)
            self._clock.lap("forward/backward")
            # inf * 0: no clipping goes with no noise (checked in PrivacyRules)
            scale = rules.sampler.sensitivity * clip_norm, self._factors[step]
            self._noise.add_of(row, step, total, scale, out)
        out.mul_(1 / self._divisors[row])
        self._clock.lap("noise" if rules.unit != "silo" else "forward/backward")

    def _total_like(self, y: Tensor) -> Tensor:
        """(d,) float64, for a sum of gradients at ``y``; the same for every step."""
        if self._total.shape != y.shape or self._total.device != y.device:
            self._total = torch.empty_like(y, dtype=torch.float64)
        return self._total

    def _adaptive_sum(self, y: Tensor, batch: Records, row: int, step: int, total: Tensor, out: Tensor) -> None:
        """The clipped sum and the count of gradients within C_i, noised as one release; then the next C_i.

        Noise of multiplier z / sqrt(1 - w^2) on the one and z / w on the other is that of one Gaussian release with
        multiplier z of both, which is what is charged; the proof is at `Adaptive`.
        """
        clip_norm = self.clip_norms[row]
        norms = clipped_sum_and_norms(self._engine, y, batch, clip_norm, total)
        self._clock.lap("forward/backward")
        within = int((norms <= clip_norm).sum())
        of_sum, of_count = sum_and_count(self._rules, self._divisors[row], clip_norm, self._factors[step])
        self._noise.add_of(row, step, total, of_sum, out)
        self._adapt(row, step, within, batch.num_usable, of_count)

    def _adapt(self, row: int, step: int, within: int, num_drawn: int, of_count: Scale) -> None:
        """Release how many of ``num_drawn`` gradients, of usable records, are ``within`` C_i, and renew C_i."""
        rules, draw, stream, silo = self._rules, self._draw, self._stream, self._ids[row]
        size, clip_norm = self._divisors[row], self.clip_norms[row]
        count = torch.tensor([within - num_drawn / 2], dtype=torch.float64)
        sensitivity, factor = of_count
        rules.mechanism(count, sensitivity, stream.seek(draw.key("bits", silo, step)), count, factor)
        self.clip_norms[row] = rules.clipping.adapted(clip_norm, float(count) / size + 0.5, rules.clip_norm)

    def _gradients_together(self, sums: Sums | SumsInTurn, y: Tensor, step: int) -> Tensor:
        """`_one_gradient` of every silo, by one function of all of their batches."""
        rules, turn = self._rules, step % self._ahead
        if rules.clipping.adapts:
            self._clip_to = clip_norms_there(rules, self._bounds, self.clip_norms, y.device)
        answer: Callable[..., tuple[Tensor, ...]] = sums
        width = self._longest[turn]
        if self._replayed is not None and width <= self._width:  # else it was recorded for shorter ones: none is cut
            answer, width = self._replayed, self._width
        given = (y, self._index[turn, :, :width])
        totals, *norms = answer(*given) if self._clip_to is None else answer(*given, self._clip_to)
        out = torch.empty_like(y, memory_format=torch.contiguous_format)
        if rules.clipping.adapts:
            self._add_noise_and_adapt(totals, norms[0], step, out)
        else:
            self._clock.lap("forward/backward")
            # inf * 0: no clipping goes with no noise (checked in PrivacyRules)
            self._noise.add(totals, _scales(self._sensitivities, self._factors, step), 0, step, out)
        if step == 0:
            shares = torch.tensor([1 / divisor for divisor in self._divisors], dtype=out.dtype)
            self._shares = to_device(shares, out.device).unsqueeze(1)
        out.mul_(self._shares)
        self._clock.lap("noise")
        return out

    def _add_noise_and_adapt(self, totals: Tensor, norms: Tensor, step: int, out: Tensor) -> None:
        """`_adaptive_sum` of every silo at its own C_i, once the sums are there."""
        # A record that only fills up has the norm inf.
        within = (norms.squeeze(2) <= norms.new_tensor(self.clip_norms).unsqueeze(1)).sum(dim=1).tolist()
        self._clock.lap("forward/backward")
        factor, each = self._factors[step], zip(self._divisors, self.clip_norms, strict=True)
        pairs = [sum_and_count(self._rules, size, clip_norm, factor) for size, clip_norm in each]
        self._noise.add(totals, [of_sum for of_sum, _ in pairs], 0, step, out)
        for row, (_, of_count) in enumerate(pairs):
            num_drawn = self._silos[row].num_usable(self._batches[row][step % self._ahead])
            self._adapt(row, step, int(within[row]), num_drawn, of_count)

    @torch.no_grad()
    def release(self, update: Tensor) -> Tensor:
        """At record or person level ``update`` itself: it was computed from private gradients. At silo level

            clip(update, C) + Delta * sigma * N(0, I),  Delta = 2C (replace a silo) or C (add or remove one)

        [S] Alg. 1, l. 8 and Alg. 2, l. 7; charged once for each call.
        """
        if self._rules.unit != "silo":
            return update
        self._check_rows(update)
        rules = self._rules
        totals = update.to(torch.float64, memory_format=torch.contiguous_format, copy=True)
        self._clock.lap("drift")
        step = len(self._released)
        if step:
            raise UnplannedError(
                "the algorithm released twice in a round at silo level; the budget was checked for one."
            )
        self._noise.begin(update)
        if not math.isinf(rules.clip_norm):
            for total in totals:
                clip_update(total, self._bounds, self._layer_sizes)
        out = torch.empty_like(update, memory_format=torch.contiguous_format)
        self._noise.add(totals, _scales(self._sensitivities, self._factors, step), 0, step, out)
        self._released.append(out.clone())  # what was released, whatever the algorithm does to its copy
        self._clock.lap("noise")
        return out

    def squared_norm(self, update: Tensor, scale: float) -> Tensor:
        """See `Squares`."""
        self._check_rows(update)
        return self._squares(update, scale)

    def _check_rows(self, value: Tensor) -> None:
        """Raise UnplannedError unless there is a row for each silo: others would be neither noised nor charged."""
        if self._closed:
            raise UnplannedError(
                "the algorithm asked an oracle of a round that is over: it would not be charged. Ask the one that "
                "local_update is given, and keep no reference to it."
            )
        if value.dim() != 2 or value.shape[0] != self.num_silos:
            raise UnplannedError(f"the algorithm asked for shape {tuple(value.shape)}; it has {self.num_silos} silos.")

    def check_upload(self, up: Vectors) -> None:
        """Raise unless everything in ``up`` (m, d) may leave the silos.

        Raises:
            UnsupportedError: at silo level, a vector is not what `release` gave: its noise would not cover it.
        """
        if self._rules.unit == "silo":
            check_released(up, [*self._released, *self._squares.made])

    def close(self) -> None:
        """The round is over: what was asked is all that is charged, so nothing is answered any more."""
        self._closed = True

    def charges(self) -> list[Charge]:
        """What this round released, a charge for each silo and noise multiplier, in the order of the releases.

        To be in the ledger before any of it leaves.
        """
        draw = self._draw
        made = self._factors[: len(self._released) if self._rules.unit == "silo" else self._gradient_calls]
        rows = zip(self._ids, map(len, self._silos), self._rules_of, strict=True)
        return [
            Charge(round=draw.round, silo=silo, release=release, count=count, share=self._share, noise_id=draw.noise_id)
            for silo, size, rules in rows
            for release, count in rules.releases(rate_of(rules, size), made).items()
        ]


def _scales(sensitivities: Sequence[float], factors: Sequence[float], step: int) -> list[Scale]:
    """Of each row, where clipping norms do not follow from the records."""
    return [(sensitivity, factors[step]) for sensitivity in sensitivities]


def sensitivity_of(rules: PrivacyRules) -> float:
    """Of what a silo releases, clipped to the C that it begins with."""
    if rules.unit == "silo":
        return (2.0 if rules.neighbouring == "replace_one" else 1.0) * rules.clip_norm
    return rules.sampler.sensitivity * rules.clip_norm


def sum_and_count(rules: PrivacyRules, size: float, clip_norm: float, factor: float) -> tuple[Scale, Scale]:
    """What the noise on a silo's sum, and that on its count of gradients within C_i, has to be in proportion to."""
    # As 1/2 or -1/2, a record's bit moves the count by half as much as its clipped gradient moves the sum, over C.
    of_sum, of_count = rules.sampler.sensitivity * clip_norm, rules.sampler.sensitivity / 2
    w = rules.clipping.bit_weight(rules.release(1.0, factor).noise_multiplier, size, of_count)
    return (of_sum, factor / math.sqrt(1 - w**2)), (of_count, factor / w)


def rate_of(rules: PrivacyRules, size: int) -> float:
    """The rate at which a release of a silo of ``size`` records is charged."""
    return 1.0 if rules.unit == "silo" else rules.sampler.rate(size)


def check_planned(step: int, most: int) -> None:
    """Raise UnplannedError where a round has made as many gradients as it may."""
    if step >= most:
        raise UnplannedError(
            f"the algorithm asked for more than the {most} gradients of its round plan: "
            "raise num_gradients in round_plan, so that the budget is checked for what is released."
        )


def longest_sum(rules: PrivacyRules, most_records: int, cycles: Cycles | None) -> int:
    """How many steps of the grid of a sum of clipped gradients there may be, in those that one of them may have.

    Raises:
        UnsupportedError: batches are in a cycle, and nobody says where in it a silo is.
    """
    if not isinstance(rules.sampler, Cyclic):
        return most_records
    if cycles is None:
        raise UnsupportedError(
            "privacy.sampler='cyclic': here nobody keeps at which batch of its cycle a silo is. Use sampler: fixed."
        )
    return -(-most_records // rules.sampler.batches) * rules.sampler.correlation.reach


def check_room(num_records: int, d: int) -> None:
    """Raise UnsupportedError where sums of so many gradients (d,) do not fit into the integers of the noise."""
    if not has_room(num_records, d):
        raise UnsupportedError(
            f"a sum over {num_records} records of {d} numbers each does not fit into the integers that noise is added "
            "to: records times the root of the numbers must be at most 2^39. Split the silo."
        )


def clip_norms_there(
    rules: PrivacyRules, bounds: float | tuple[float, ...], clip_norms: Sequence[float], device: torch.device
) -> Tensor | None:
    """What each silo's gradients, or their L layers, are clipped to now: (m, 1 or L) float64; None: to nothing."""
    if rules.clipping.adapts:
        return to_device(torch.tensor(clip_norms, dtype=torch.float64), device).unsqueeze(1)
    each = bounds if isinstance(bounds, tuple) else (bounds,)
    if each == (math.inf,):
        return None
    return to_device(torch.tensor([each] * len(clip_norms), dtype=torch.float64), device)


def sizes_in(share: tuple[float, float], pool: Pool) -> set[int]:
    """How many records the silos of a pool have in a round's share: not only those that take part, so that the shape of
    what is recorded does not depend on who does."""
    bounds = (share_bounds(share, size) for size in {len(one) for one in pool.records.values()})
    return {last - first for first, last in bounds}


def together(engine: Engine | type[Engine], rules: PrivacyRules) -> bool:
    """Whether several silos' gradients are answered at once: the engine can, and the rules ask for clipped sums with
    bounds that are known before, and are those of all silos."""
    able = callable(getattr(engine, "clipped_sums", None)) and rules.unit == "record"
    # Of a stack all silos and layers have one gamma.
    of_all = getattr(engine, "normalises", False) and type(rules.clipping).bounds is Clipping.bounds
    alike = not rules.silos and rules.augmentation is None
    return able and alike and not rules.clipping.measures and (of_all or not rules.clipping.normalises)


def replayable(engine: Engine, rules: PrivacyRules) -> bool:
    """Whether what answers silos may be recorded once and replayed: it is a function of tensors, and where the engine
    answers them one after another, bounds are numbers that never change."""
    fixed = not (rules.clipping.adapts or rules.clipping.measures or math.isinf(rules.clip_norm))
    alone = rules.unit == "record" and not rules.silos and rules.augmentation is None and fixed
    return getattr(engine, "capturable", False) and (together(engine, rules) or alone)


def sums_of(
    engine: Engine, pool: Pool, rules: PrivacyRules, layers: Mapping[str, int] | None = None
) -> Sums | SumsInTurn:
    """What answers silos `together`, or in turn where they are not."""
    if not together(engine, rules):
        return SumsInTurn(engine, pool, rules.bounds(layers or {}))
    whole = rules.clipping.whole(rules.clip_norm)
    return Sums(cast(MultiSiloEngine, engine), pool, whole.gamma if isinstance(whole, Normalised) else None)
