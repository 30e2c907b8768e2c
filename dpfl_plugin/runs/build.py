"""From a checked configuration to the parts of a run; every option of every plugin is checked here, before work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from dpfl_plugin.algorithms.base import Algorithm, Setting
from dpfl_plugin.config.schema import Config
from dpfl_plugin.core.outcomes import Outcome
from dpfl_plugin.core.validation_scores import DEFAULT_SCORE, ValidationScore
from dpfl_plugin.core.vectors import Layout
from dpfl_plugin.data import base as base_data
from dpfl_plugin.data.base import Holding
from dpfl_plugin.errors import UnsupportedError
from dpfl_plugin.federation.memory import Memory
from dpfl_plugin.federation.silo_group import SiloGroup
from dpfl_plugin.gradients import base as engines
from dpfl_plugin.gradients import smoothing
from dpfl_plugin.gradients.base import Records
from dpfl_plugin.gradients.choice import PassedTrials
from dpfl_plugin.gradients.replay import cuda_graph
from dpfl_plugin.models.fixed import Before, state_before
from dpfl_plugin.privacy.accountants import Accountant
from dpfl_plugin.privacy.costs import RoundCost
from dpfl_plugin.privacy.extra_releases import ExtraPlan
from dpfl_plugin.privacy.rules import PrivacyRules
from dpfl_plugin.runs.algorithm_setting import make_setting
from dpfl_plugin.runs.engines import (
    check_engine,
    choose_engine,
    compiled,
    graphs_of,
    lockstep_of,
    may_be_together,
    plan_memory,
    stack_of,
)
from dpfl_plugin.runs.extra_plan import extra_plan, statistics_of, statistics_planned
from dpfl_plugin.runs.first_round import check_first_round
from dpfl_plugin.runs.forecast import Forecast
from dpfl_plugin.runs.models import check_begins, flat_model, model_and_loss, records_of, validation_score
from dpfl_plugin.runs.plugins import make_accountant, make_algorithm
from dpfl_plugin.runs.privacy_rules import no_guarantee, privacy_rules, weak_claims
from dpfl_plugin.runs.records import check_records, hold_all
from dpfl_plugin.runs.silo_settings import (
    NO_OWN,
    OwnSettings,
    noise_of,
    others,
    own_settings,
    uniform_config,
    weights_by_noise,
    with_own,
)
from dpfl_plugin.runs.statement import HeldBy

Hold = Callable[[Config, Path], Holding]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a run is made of.

    Attributes:
        noise_multiplier: what the mechanism was made with: given, or solved for.
        model: the initial global model (d,).
        holding: what is known of all records, without those themselves.
        engine_reason: why this engine.
        memory: what this process may use.
        extra_plan: what silos release beside the algorithm's rounds.
        module, loss, engine: the model and its per-example gradients.
        planned: what all rounds cost, how many of each, where noise was solved for them; else None.
        train, test: records by silo id, of the silos that this process holds: in process all of them.
        state: what the model's file may hold besides what is trained, as it was made.
        score: what validation scores are the mean of; None where there are none.
        stack: silos advanced together; lockstep: whether they are answered together, too.
        own: silos with privacy settings of their own; their noise multipliers are in ``rules``.
    """

    host: SiloGroup
    algorithm: Algorithm
    setting: Setting
    rules: PrivacyRules
    noise_multiplier: float
    planned: Counter[RoundCost] | None
    accountant: Accountant
    model: torch.Tensor
    holding: Holding
    caveats: tuple[str, ...]
    engine_reason: str
    memory: Memory
    extra_plan: ExtraPlan
    module: torch.nn.Module
    loss: engines.Loss
    engine: engines.Engine
    train: dict[int, Records]
    test: dict[int, Records]
    state: Before
    score: ValidationScore | None
    stack: int
    lockstep: bool
    own: OwnSettings = NO_OWN

    @property
    def num_records(self) -> tuple[int, ...]:
        """Training records of each silo."""
        return self.holding.survey.num_records

    @property
    def num_test_records(self) -> tuple[int, ...]:
        return self.holding.survey.num_test_records

    @property
    def data_sha256(self) -> str:
        """By what all records are known again, when a run is resumed or shares a ledger: see `Survey`."""
        return self.holding.survey.data_sha256

    @property
    def outcome(self) -> Outcome:
        """What labels are."""
        return self.holding.survey.outcome

    @property
    def inputs(self) -> base_data.Inputs | None:
        """What a record is before preprocessing, where that is known."""
        return self.holding.survey.inputs

    @property
    def held_by(self) -> HeldBy | None:
        """Who holds the records; None where a runtime of others does not say."""
        if len(self.holding.digests) == len(self.num_records):
            return "process"
        return "ranks" if self.holding.hosts else None

    @property
    def notes(self) -> tuple[str, ...]:
        """What the owner of the records should look at before training; not to be published."""
        return self.holding.notes

    @property
    def names(self) -> Mapping[int, str]:
        """Of silos, by id, where the data have any; not to be published."""
        return self.holding.names

    @property
    def layout(self) -> Layout:
        return Layout.of(self.module)

    @property
    def plugins(self) -> tuple[object, ...]:
        """What computes the releases."""
        rules, modules = self.rules, self.module.modules()
        made_by = (rules.mechanism, rules.clipping, rules.schedule, rules.sampler)
        return (self.algorithm, *made_by, self.engine, self.module, *modules, self.loss)


def refuse_outcome(parts: Parts, what: str) -> None:
    """Raise UnsupportedError, for ``what`` knows classes only."""
    if parts.outcome.kind != "classes":
        raise UnsupportedError(
            f"{what} knows labels that are classes only; here they are {parts.outcome.kind}. The guarantee does not "
            "need it: clipping bounds each record's gradient, whatever the loss."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Draft:
    """What is decided before noise is solved for. Attributes are those of `Parts`; trial is two made-up records."""

    algorithm: Algorithm
    accountant: Accountant
    holding: Holding
    module: torch.nn.Module
    loss: engines.Loss
    trial: torch.Tensor
    state: Before
    score: ValidationScore | None
    own: OwnSettings
    setting: Setting
    model: torch.Tensor
    train: dict[int, Records]
    test: dict[int, Records]
    room: Memory
    engine: engines.Engine
    engine_reason: str


def build(
    config: Config,
    base: Path,
    noise_multiplier: float | None = None,
    hold: Hold = hold_all,
    chunk_bytes: int | None = None,
    module: torch.nn.Module | None = None,
    loss: engines.Loss | None = None,
    silo_noise: Mapping[int, float] | None = None,
    passed: PassedTrials | None = None,
) -> Parts:
    """All parts of a run; ``base`` is the folder from which a configuration's relative paths start.

    Args:
        noise_multiplier: what was solved for when the run began; None to solve now, if the configuration asks for it.
        hold: loads this process's records. chunk_bytes: for gradients of single examples at once; None: by free memory.
        module, loss: a model and its loss where somebody else made them; None for what the configuration names.
        silo_noise: as ``noise_multiplier``, of silos with settings of their own, by id. passed: trials of engines.

    Raises:
        ConfigError, DataError: something in the configuration or in the data files is wrong.
    """
    draft = _draft(config, base, hold, chunk_bytes, module, loss, passed)
    own, survey, setting, extra = draft.own, draft.holding.survey, draft.setting, extra_plan(config, draft.accountant)
    noise, planned = _noise(config, draft, noise_multiplier)
    if own.of and silo_noise is None:
        silo_noise = noise_of(config, own, survey.num_records, lambda c, n: _forecast(c, draft, n).noise())
    rules = with_own(privacy_rules(config, noise), config, own, silo_noise or {})
    if config.silo_weights == "noise":
        setting = replace(setting, weights=weights_by_noise(rules, survey.num_records))
    check_engine(draft.engine, rules, draft.module, draft.loss, draft.model, draft.trial)
    lockstep = lockstep_of(config, draft.engine, rules)
    first = check_first_round(config, draft.algorithm, setting, rules, draft.model)
    for round in {0, (setting.rounds or 1) - 1}:
        rules.factors(round, first.num_gradients)
    if first.smoothing is not None:
        smoothing.engine(first.smoothing, draft.module, draft.loss)
    return Parts(
        host=_silo_group(config, draft, rules, extra, lockstep=lockstep),
        algorithm=draft.algorithm,
        setting=setting,
        rules=rules,
        noise_multiplier=noise,
        planned=planned,
        accountant=draft.accountant,
        model=draft.model,
        holding=replace(draft.holding, silos={}),
        caveats=(*survey.caveats, *weak_claims(config, rules, survey.num_records), *no_guarantee(rules)),
        engine_reason=draft.engine_reason,
        memory=draft.room,
        extra_plan=extra,
        module=draft.module,
        loss=draft.loss,
        engine=draft.engine,
        train=draft.train,
        test=draft.test,
        state=draft.state,
        score=draft.score,
        stack=stack_of(config, lockstep),
        lockstep=lockstep,
        own=own,
    )


def _draft(
    config: Config,
    base: Path,
    hold: Hold,
    chunk_bytes: int | None,
    module: torch.nn.Module | None,
    loss: engines.Loss | None,
    passed: PassedTrials | None,
) -> _Draft:
    # Cheap parts first, so that a misspelt option is found before data are loaded.
    algorithm, accountant, rules = make_algorithm(config), make_accountant(config), privacy_rules(config)
    holding = hold(config, base)
    num_records = holding.survey.num_records
    module, loss, trial = model_and_loss(config, holding, module, loss)
    state = state_before(module)
    score = validation_score(config, holding.survey.outcome, holding.survey.num_classes)
    known = holding.survey
    statistics_of(config, known.inputs, known.outcome, known.num_classes)
    check_begins(config, module, known.outcome, known.num_classes)
    own = own_settings(config, len(num_records), holding.names)
    check_records(config, with_own(rules, config, own, dict.fromkeys(own.of, 1.0)), num_records, holding.names)
    setting = make_setting(config, num_records, holding.names)
    model = flat_model(module)
    train, test = records_of(holding, trial)
    stack = stack_of(config, may_be_together(config, rules, module, loss))
    room = plan_memory(config, algorithm, setting, rules, model, train, test, stack, chunk_bytes)
    engine, reason = choose_engine(
        config, rules, module, loss, holding.survey, trial, room, passed, compiled=compiled(algorithm, setting)
    )
    return _Draft(
        algorithm=algorithm,
        accountant=accountant,
        holding=holding,
        module=module,
        loss=loss,
        trial=trial,
        state=state,
        score=score,
        own=own,
        setting=setting,
        model=model,
        train=train,
        test=test,
        room=room,
        engine=engine,
        engine_reason=reason,
    )


def _noise(config: Config, draft: _Draft, begun_with: float | None) -> tuple[float, Counter[RoundCost] | None]:
    """The noise multiplier that is given, or was solved for before, or is solved for now; and then what it was for."""
    given = config.privacy.noise_multiplier
    if given is not None:
        return given, None
    if begun_with is not None:
        return begun_with, None
    return _forecast(uniform_config(config, None), draft, others(draft.own, draft.holding.survey.num_records)).solved()


def _forecast(config: Config, draft: _Draft, num_records: tuple[int, ...]) -> Forecast:
    return Forecast(config, draft.algorithm, draft.accountant, draft.setting, num_records, privacy_rules)


def _silo_group(config: Config, draft: _Draft, rules: PrivacyRules, extra: ExtraPlan, *, lockstep: bool) -> SiloGroup:
    known = draft.holding.survey
    graphs = bool(draft.train) and graphs_of(config, draft.engine, rules)
    return SiloGroup(
        model=draft.module,
        loss=draft.loss,
        algorithm=draft.algorithm,
        rules=rules,
        engine=draft.engine,
        train=draft.train,
        test=draft.test,
        states=draft.algorithm.init_silos(draft.model, len(draft.train)),
        scores=extra.scores,
        validation=draft.score or DEFAULT_SCORE,
        chunk_bytes=draft.room.chunk,
        lockstep=lockstep,
        record=cuda_graph if graphs else None,
        outcome=known.outcome,
        statistics=statistics_planned(config, known.inputs, known.outcome, known.num_classes, extra),
    )
