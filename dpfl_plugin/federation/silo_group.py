"""Silos of one process: their records, their states, and the work of a round. Every runtime has one."""

from __future__ import annotations

import contextlib
import copy
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from dpfl_plugin.algorithms.base import Algorithm, RoundPlan
from dpfl_plugin.core.outcomes import CLASSES, Outcome
from dpfl_plugin.core.scaling import Scaling
from dpfl_plugin.core.stopwatch import STOPPED, Stopwatch
from dpfl_plugin.core.streams import FreshStream, Source, Stream
from dpfl_plugin.core.validation_scores import CLIPPED_SHARE, DEFAULT_SCORE, ValidationScore
from dpfl_plugin.core.vectors import Layout, Vectors, columns, stack
from dpfl_plugin.errors import MemoryShortError, PluginError, TrainingError
from dpfl_plugin.federation.measuring import SiloAnswers, labels_of, measures, of_each
from dpfl_plugin.federation.memory import is_short
from dpfl_plugin.federation.scaled_records import noisy_sums, scaled, scaling_of
from dpfl_plugin.federation.validation import num_correct, outputs_of, summed
from dpfl_plugin.gradients import smoothing
from dpfl_plugin.gradients.base import Engine, Loss, Records, clipped_sum_and_norms, layers
from dpfl_plugin.gradients.fixed_state import FixedState
from dpfl_plugin.gradients.losses import Weighted, cross_entropy, logistic, unweighted
from dpfl_plugin.gradients.persons import MeanLoss, by_person
from dpfl_plugin.gradients.replay import Record, Replayed
from dpfl_plugin.gradients.shares import part_of
from dpfl_plugin.gradients.stacked import Pool
from dpfl_plugin.gradients.views import single
from dpfl_plugin.measures.answers import Answers, answers
from dpfl_plugin.measures.tables import score
from dpfl_plugin.oracle import Draw, PrivateOracle, sums_of, together
from dpfl_plugin.privacy.cycles import OF_CYCLES, STEP, Cycles, check_round, first_states
from dpfl_plugin.privacy.events import Charge, ChargeKind, SampledGaussian
from dpfl_plugin.privacy.rules import PrivacyRules
from dpfl_plugin.privacy.samplers import Cyclic
from dpfl_plugin.privacy.scores import Scores
from dpfl_plugin.privacy.statistics import Statistics

# A silo's state beside the algorithm's, which never sees it: C_i (m, 1), where the clipping adapts it.
CLIP_NORM = "oracle.clip_norm"
OF_THE_ORACLE = (CLIP_NORM, *OF_CYCLES)


@dataclass(frozen=True, slots=True)
class SiloMetrics:
    """A silo's mean training loss and its score on test records, the accuracy or what else its outcome is ranked by;
    ``gradient`` (d,) of its training loss where asked for.

    ``personalised_score`` is that of the silo's own model on its test records, once it has one.
    """

    train_loss: float
    test_score: float
    gradient: Tensor | None = None
    personalised_score: float | None = None


def begun(states: Vectors, rules: PrivacyRules, num_silos: int, dimension: int) -> Vectors:
    """With C_i, where the clipping adapts it, in float64 on any device, so that a checkpoint has all of it; with where
    each silo is in its cycle, where batches have one."""
    if rules.clipping.adapts:
        return {**states, CLIP_NORM: torch.full((num_silos, 1), rules.clip_norm, dtype=torch.float64)}
    if isinstance(rules.sampler, Cyclic):
        return {**states, **first_states(rules.sampler, num_silos, dimension)}
    return states


def _cycles(rules: PrivacyRules, sizes: Sequence[int], states: Vectors, plan: RoundPlan) -> Cycles | None:
    """Where silos of these sizes, and with these states, are in their cycles, if batches have any."""
    if STEP not in states:
        return None
    check_round(plan.share, plan.smoothing)
    return Cycles(rules, sizes, states)


def _renewed(states: Vectors, oracle: PrivateOracle, cycles: Cycles | None) -> Vectors:
    """What the oracle of a round leaves of what `begun` put into ``states``."""
    if CLIP_NORM in states:
        return {CLIP_NORM: states[CLIP_NORM].new_tensor(oracle.clip_norms).unsqueeze(1)}
    if cycles is not None:
        return {name: value.to(states[name].device) for name, value in cycles.states().items()}
    return {}


@contextlib.contextmanager
def _told_if_short(where: str, device: torch.device) -> Iterator[None]:
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        if not is_short(error):
            raise
        public = f"out of memory at {where}" + ("" if device.type == "cpu" else f" on {device}")
        raise MemoryShortError(f"{public}: {str(error).splitlines()[0].rstrip('.')}", public) from error


class SiloGroup:
    """Runs rounds for the silos whose records it holds.

    Args:
        train, test: records by silo id.
        states: (len(train), d) each, rows in the order of ascending ids.
        scores, statistics: how validation scores, and statistics of columns, are released, if they are.
        validation: what scores are the mean of.
        chunk_bytes: for the gradients of single examples at a time, where another engine is made.
        lockstep: silos that are advanced together are answered together, if the engine and the rules allow it. Sums
            then round by who is in a stack.
        record: records sums once for each shape, to be replayed, where they are `replayable`; None: they are computed.
        outcome: what labels are.

    Attributes:
        clock: takes the time of each part of the work; nobody's, unless one is put there.
        fixed_state: checks that modes, buffers and frozen parameters stay as they were.
    """

    def __init__(
        self,
        *,
        model: torch.nn.Module,
        loss: Loss,
        algorithm: Algorithm,
        rules: PrivacyRules,
        engine: Engine,
        train: Mapping[int, Records],
        test: Mapping[int, Records],
        states: Vectors,
        scores: Scores | None = None,
        validation: ValidationScore = DEFAULT_SCORE,
        chunk_bytes: int = smoothing.CHUNK_BYTES,
        lockstep: bool = False,
        record: Record | None = None,
        outcome: Outcome = CLASSES,
        statistics: Statistics | None = None,
    ) -> None:
        self.clock: Stopwatch = STOPPED
        self.ids = sorted(train)
        self._row = {silo: row for row, silo in enumerate(self.ids)}
        self._model, self._loss, self._layout = model.eval(), loss, Layout.of(model)
        self._algorithm, self._rules, self._engine = algorithm, rules, engine
        self._layers, self._device = layers(self._layout), next(model.parameters()).device
        self._held = functools.partial(
            _held, engine=engine, rules=rules, layers=self._layers, lockstep=lockstep, record=record
        )
        self._train, self._pool, self._replayed = self._held(train)
        self._test, self._outcome, self._statistics = test, outcome, statistics
        self.scaling: tuple[Tensor, Scaling] | None = None  # (the sums that it is made of, it) once there is one
        self.states = begun(states, rules, len(train), self._layout.dimension)
        self._evaluator: torch.nn.Module | None = None
        self._pending: list[tuple[list[int], Vectors]] = []
        self._smoothed: dict[smoothing.Smoothing, Engine] = {}
        self._scores, self._validation, self._chunk_bytes = scores, validation, chunk_bytes
        self._personal: dict[int, Tensor] = {}  # models that never leave their silo
        self.fixed_state = FixedState(model, loss, getattr(engine, "runs", None))

    @property
    def engine(self) -> Engine:
        return self._engine

    @property
    def train(self) -> Mapping[int, Records]:
        """The training records by silo id, as the engine prepared them."""
        return self._train

    def planted(self, engine: Engine, train: Mapping[int, Records], states: Vectors) -> SiloGroup:
        """The same silos with an engine around their own, and with records that theirs has prepared; for audits.

        They are answered together, where these are.
        """
        other = copy.copy(self)
        other._pool = None if self._pool is None else Pool(train)
        other._train = dict(train) if other._pool is None else other._pool.records
        other._engine, other._pending, other._replayed = engine, [], None
        other.states = begun(states, self._rules, len(train), self._layout.dimension)
        return other

    def run(self, ids: Sequence[int], down: Vectors, plan: RoundPlan, draw: Draw) -> tuple[Vectors, list[Charge]]:
        """(uploads (m, d), charges) of the silos ``ids``, advanced together.

        The charges must be in the ledger before anything else is done with the uploads. New states wait for `commit`.

        Raises:
            MemoryShortError: there is no memory left; nothing of these silos was released.
            ChangedError: a buffer, a mode or a frozen parameter changed; nothing of these silos may leave.
        """
        with _told_if_short(f"silos {', '.join(map(str, ids))} in round {draw.round + 1}", self._device):
            answer = self._run(ids, down, plan, draw)
            self.fixed_state.check()
        return answer

    def _run(self, ids: Sequence[int], down: Vectors, plan: RoundPlan, draw: Draw) -> tuple[Vectors, list[Charge]]:
        if plan.task == "statistics":
            return self._sums(ids, plan, draw)
        if plan.task == "scale":
            self._scale(down)
            return {}, []
        if plan.task == "score":
            return self._score(ids, down["model"], draw)
        if plan.task == "personalise":
            return {}, self._personalise(ids, down["model"], plan, draw)
        if self._rules.unit == "silo" and len(ids) > 1:
            # Rows of a stack are raw gradients here: one silo at a time, none can end up in another's upload.
            parts = [self._run([silo], down, plan, draw) for silo in ids]
            return stack([up for up, _ in parts]), [charge for _, charges in parts for charge in charges]
        rows, sizes = [self._row[silo] for silo in ids], [len(self._train[silo]) for silo in ids]
        cycles = _cycles(self._rules, sizes, {n: v[rows] for n, v in self.states.items()}, plan)
        oracle = self._oracle(ids, plan, draw, cycles)
        old = {name: value[rows] for name, value in self.states.items() if name not in OF_THE_ORACLE}
        up, new = self._algorithm.local_update(down, old, oracle, plan)
        up = columns(up)
        oracle.close()
        oracle.check_upload(up)
        self._pending.append((rows, {**new, **_renewed(self.states, oracle, cycles)}))
        self.clock.lap("drift")
        return up, oracle.charges()

    def _oracle(self, ids: Sequence[int], plan: RoundPlan, draw: Draw, cycles: Cycles | None = None) -> PrivateOracle:
        rows = [self._row[silo] for silo in ids]
        return PrivateOracle(
            self._rules,
            self._engine_for(plan),
            [self._train[silo] for silo in ids],
            ids,
            draw,
            max_gradients=plan.num_gradients,
            share=plan.share,
            layers=self._layers,
            clip_norms=self.states[CLIP_NORM][rows, 0].tolist() if CLIP_NORM in self.states else None,
            pool=self._pool,
            replayed=self._replayed,
            clock=self.clock,
            cycles=cycles,
        )

    @torch.no_grad()
    def _score(self, ids: Sequence[int], model: Tensor, draw: Draw) -> tuple[Vectors, list[Charge]]:
        """({"score": (m, 1) or (m, 2 bins)}, charges): noisy sums, or counts, over the number of validation records.

        To divide by that number is public post-processing. Of clipped gradients a record adds 0 or 1, whatever the
        other records are: whether its own gradient at ``model`` is longer than a public norm.

        Raises:
            PluginError: clipped gradients are counted, and the engine does not return norms.
        """
        assert self._scores is not None
        share, evaluator = self._scores.share, self._at(model)
        source: Source = FreshStream() if self._rules.fresh else Stream()
        values, persons = [], self._rules.unit == "person"
        for silo in ids:
            records, rng = part_of(self._train[silo], share), source.seek(draw.key("score", silo, 0))
            if self._validation.measure == CLIPPED_SHARE:
                total = self._is_clipped(model, records).sum(dtype=torch.float64).reshape(1).cpu()
            else:
                total = summed(evaluator, records, self._outcome, self._validation, persons=persons)
            values.append(self._scores.noisy(total, self._rules.neighbouring, rng) / len(records))
        self.clock.lap("evaluation")
        charges = _once(ids, draw, "score", self._scores.release(self._rules.neighbouring, self._rules.unit), share)
        return {"score": torch.stack(values)}, charges

    @torch.no_grad()
    def _sums(self, ids: Sequence[int], plan: RoundPlan, draw: Draw) -> tuple[Vectors, list[Charge]]:
        """({"sums": (m, D)}, charges): noisy sums, of which statistics of columns are made."""
        statistics, rules = self._statistics, self._rules
        assert statistics is not None
        charges = _once(ids, draw, "statistics", statistics.release(rules.neighbouring, rules.unit), plan.share)
        return {"sums": noisy_sums(statistics, self._train, ids, plan.share, rules, draw)}, charges

    def _scale(self, down: Vectors) -> None:
        """Have the records of all silos of this process scaled, and classes weighted, by what was released; nothing
        leaves."""
        assert self._statistics is not None
        if self.scaling is None:
            scaling = scaling_of(self._statistics, down["sums"], self._rules.neighbouring)
            self._train, self._pool, self._replayed = self._held(scaled(self._train, scaling))
            self._test = scaled(self._test, scaling)
            if isinstance(self._loss, Weighted) and self._loss.balanced:
                self._loss.weights.copy_(torch.tensor(list(scaling.class_weights.values())))
            self.scaling = down["sums"].clone(), scaling
        elif not torch.equal(self.scaling[0], down["sums"]):
            raise TrainingError("records are scaled already, by other statistics. Begin a session anew.")

    @torch.no_grad()
    def _personalise(self, ids: Sequence[int], model: Tensor, plan: RoundPlan, draw: Draw) -> list[Charge]:
        """Each silo takes private steps of its own from the global model, and keeps what comes of them."""
        oracle = self._oracle(ids, plan, draw)
        y = model.expand(len(ids), -1)
        for _ in range(plan.local_steps):
            y = y - plan.local_lr * oracle.gradient(y)
        self._personal.update(zip(ids, y, strict=True))
        return [replace(charge, kind="personalise") for charge in oracle.charges()]

    def _own_model(self, silo: int) -> Tensor | None:
        """The model (d,) of the silo's own, that was made at the end or that the algorithm keeps there; or None."""
        if silo in self._personal:
            return self._personal[silo]
        kept = getattr(self._algorithm, "own_model", None)
        return self.states[kept][self._row[silo]] if kept in self.states else None

    def _at(self, model: Tensor) -> Callable[[Tensor], Tensor]:
        """The module with ``model`` (d,) as its parameters, until it is asked for with the next."""
        parameters = self._layout.unflatten(model.clone())  # which a model's code may write to
        if self._evaluator is None:
            made = _copy(self._model)
            if made is None:
                return lambda features: functional_call(self._model, parameters, (features,))
            self._evaluator = made.requires_grad_(False)
            self.fixed_state.watch(self._evaluator)
        # Its own parameters made views: functional_call takes longer than a small silo's forward pass.
        for name, value in parameters.items():
            self._evaluator.get_parameter(name).data = value
        return self._evaluator

    def _engine_for(self, plan: RoundPlan) -> Engine:
        if plan.smoothing is None:
            return self._engine
        assert self._rules.unit != "person" and self._rules.augmentation is None  # refused before the run
        if plan.smoothing not in self._smoothed:
            self._smoothed[plan.smoothing] = smoothing.engine(
                plan.smoothing, self._model, self._loss, self._chunk_bytes
            )
        return self._smoothed[plan.smoothing]

    def staged(self) -> Vectors:
        """The states as `commit` would leave them, for a process that may end before it; nothing changes here."""
        return _put(self._pending, {name: value.clone() for name, value in self.states.items()})

    def commit(self) -> None:
        _put(self._pending, self.states)
        self._pending.clear()
        self.clock.lap("drift")

    def discard(self, refused: Sequence[int] = ()) -> None:
        """Forget the new states of a round that does not count, and own models of silos that were refused theirs."""
        self._pending.clear()
        for silo in refused:
            self._personal.pop(silo, None)

    def evaluate(self, model: Tensor, dissimilarity: bool) -> dict[int, SiloMetrics]:
        with _told_if_short("an evaluation", self._device):
            return self._evaluate(model, dissimilarity)

    @torch.no_grad()
    def _evaluate(self, model: Tensor, dissimilarity: bool) -> dict[int, SiloMetrics]:
        metrics = {}
        for silo in self.ids:
            train, test, evaluator = self._train[silo].only_usable(), self._test[silo], self._at(model)
            of_train, loss_of_one = evaluator, self._loss
            if self._rules.unit == "person":  # whose loss is what is minimised
                of_train, loss_of_one = by_person(evaluator), MeanLoss(self._loss)
            loss = 0.0
            for outputs, labels in outputs_of(of_train, train):
                loss += float(loss_of_one(outputs, labels).double().sum())
            gradient = None
            if dissimilarity:
                total = torch.empty_like(model, dtype=torch.float64)
                alone = train if self._rules.augmentation is None else single(train)  # as they are
                self._engine.clipped_sum(model, alone, math.inf, total)
                gradient = (total / max(1, len(train))).to(model.dtype)
            found, own = self._score_of(evaluator, test), self._own_model(silo)
            personalised = None if own is None else self._score_of(self._at(own), test)
            metrics[silo] = SiloMetrics(loss / max(1, len(train)), found, gradient, personalised)
        self.clock.lap("evaluation")
        return metrics

    def _score_of(self, evaluator: Callable[[Tensor], Tensor], test: Records) -> float:
        if self._outcome.kind == "classes":
            return num_correct(evaluator, test, self._outcome) / max(1, len(test))  # 0 of none that can be used
        return score(self._outcome, self._answers(evaluator, test)[0], labels_of(test))

    def _answers(self, evaluator: Callable[[Tensor], Tensor], test: Records) -> tuple[Answers, int]:
        """(what a model says of records, classes or labels that it knows)"""
        outputs = torch.cat([outputs for outputs, _ in outputs_of(evaluator, test)]).double().cpu().numpy()
        outputs = outputs.reshape(len(test), -1)
        probabilistic = unweighted(self._loss) in (cross_entropy, logistic)
        width = outputs.shape[1]
        names = max(2, width) if self._outcome.kind == "classes" else width + (self._outcome.kind == "ordinal")
        return answers(self._outcome, outputs, probabilistic=probabilistic), names

    def measures(self, model: Tensor) -> dict[str, Any]:
        """All measures of ``model`` (d,), and of silos' own models, on their test records: `measuring.measures`."""
        found, share = self._measured(model, measures), None if self._rules.fresh else self._clipped_share(model)
        return found if share is None or not found else {**found, "clipped_share": share}

    def measures_of_each(self, model: Tensor) -> dict[int, dict[str, Any]]:
        """As `measures`, of each silo by itself: `measuring.of_each`."""
        return self._measured(model, of_each)

    @torch.no_grad()
    def _clipped_share(self, model: Tensor) -> float | None:
        """The share of the training records whose gradients at ``model`` (d,) are cut; None where norms are not known
        or nothing is cut. Of simulations: it is computed from records without noise."""
        rules = self._rules
        if rules.unit == "silo" or rules.augmentation or math.isinf(rules.clip_norm):
            return None
        if rules.clipping.adapts or rules.clipping.measures or rules.clipping.normalises:
            return None
        try:
            clipped = sum(int(self._is_clipped(model, self._train[silo]).sum()) for silo in self.ids)
        except PluginError:  # the engine keeps norms to itself
            return None
        count = sum(self._train[silo].num_usable for silo in self.ids)
        return clipped / count if count else None

    def _is_clipped(self, model: Tensor, records: Records) -> Tensor:
        """(n,) whether a record's gradient at ``model`` (d,) is longer than C, or a layer's than its own C; False of
        records that cannot be used."""
        bounds, total = self._rules.bounds(self._layers), torch.empty_like(model, dtype=torch.float64)
        norms = clipped_sum_and_norms(self._engine, model, records, bounds, total)
        over = norms > torch.tensor(bounds, dtype=norms.dtype, device=norms.device)
        clipped = over if over.dim() == 1 else over.any(dim=1)
        return clipped if records.usable is None else clipped & records.usable

    @torch.no_grad()
    def _measured(self, model: Tensor, made_of: Callable[..., dict[Any, Any]]) -> dict[Any, Any]:
        by_silo, names, persons = {}, 0, self._rules.unit == "person"
        with _told_if_short("an evaluation", self._device):
            for silo in self.ids:
                test, own = self._test[silo], self._own_model(silo)
                training = labels_of(self._train[silo].only_usable(), persons=persons)
                if not len(test) or not len(training):  # none of them can be used
                    continue
                answers, names = self._answers(self._at(model), test)
                of_own = None if own is None else self._answers(self._at(own), test)[0]
                by_silo[silo] = SiloAnswers(answers, labels_of(test), training, of_own)
            measures = made_of(self._outcome, by_silo, names) if by_silo else {}
        self.clock.lap("evaluation")
        return measures


def _copy(model: torch.nn.Module) -> torch.nn.Module | None:
    """A copy with parameters of its own; None where a stranger's module does not let itself be copied, or not so."""
    try:
        made = copy.deepcopy(model)
    except Exception:
        return None
    trained = {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
    return None if any(id(parameter) in trained for parameter in made.parameters()) else made


def _put(pending: Sequence[tuple[list[int], Vectors]], states: Vectors) -> Vectors:
    for rows, new in pending:
        for name, value in new.items():
            states[name][rows] = value
    return states


def _held(
    train: Mapping[int, Records],
    *,
    engine: Engine,
    rules: PrivacyRules,
    layers: Mapping[str, int],
    lockstep: bool,
    record: Record | None,
) -> tuple[dict[int, Records], Pool | None, Replayed | None]:
    """(records as the engine prepares them, the pool that they are views of, what replays sums over it)"""
    prepared = {silo: engine.prepare(records) for silo, records in train.items()}
    if not prepared or (record is None and not (lockstep and together(engine, rules))):
        return prepared, None, None
    pool = Pool(prepared)
    return pool.records, pool, None if record is None else Replayed(sums_of(engine, pool, rules, layers), record)


def _once(
    ids: Sequence[int], draw: Draw, kind: ChargeKind, release: SampledGaussian, share: tuple[float, float]
) -> list[Charge]:
    """One release of each silo, beside the rounds."""
    return [
        Charge(round=draw.round, silo=silo, release=release, count=1, share=share, noise_id=draw.noise_id, kind=kind)
        for silo in ids
    ]
