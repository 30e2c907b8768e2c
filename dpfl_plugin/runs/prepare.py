"""Prepare a run: build it, and check all that can be checked before anything is written.

What names it, what ledgers say of it, and what it may cost follow from that.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from dpfl_plugin.algorithms.base import Regrouping, in_sums
from dpfl_plugin.config.load import run_id
from dpfl_plugin.config.schema import Config
from dpfl_plugin.core.rounding import digits
from dpfl_plugin.core.stopwatch import STOPPED, Stopwatch
from dpfl_plugin.core.text import counted
from dpfl_plugin.core.validation_scores import ValidationScore
from dpfl_plugin.errors import ConfigError, UnsupportedError
from dpfl_plugin.federation.evaluation_schedule import EvaluationSchedule, affordable, evaluation_work, round_work
from dpfl_plugin.federation.participant_sampling import fresh_coins
from dpfl_plugin.federation.planning import Planner
from dpfl_plugin.federation.stopping import Stopping
from dpfl_plugin.privacy.account import PrivacyAccount
from dpfl_plugin.privacy.composition import Planned, Terms
from dpfl_plugin.privacy.costs import MOST_ROUNDS, RoundCost
from dpfl_plugin.privacy.events import Charge
from dpfl_plugin.privacy.filters import RegisteredPlan
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.ledger_file import is_begun
from dpfl_plugin.privacy.rules import PrivacyRules
from dpfl_plugin.privacy.shared_ledger import Registration, Reuse, Run, adaptive_total, runs_in
from dpfl_plugin.privacy.slots import count_kinds
from dpfl_plugin.runs import checkpoint as checkpoints
from dpfl_plugin.runs.accounting import make_account
from dpfl_plugin.runs.agreed_plan import registered_plan
from dpfl_plugin.runs.build import Hold, Parts, build
from dpfl_plugin.runs.environment import file_digests
from dpfl_plugin.runs.existing_run import begun_noise, begun_silo_noise
from dpfl_plugin.runs.folder import RunFolder
from dpfl_plugin.runs.forecast import Forecast
from dpfl_plugin.runs.ledgers import LedgerEntry, ledger_of, read_shared
from dpfl_plugin.runs.privacy_rules import cycle_facts, privacy_rules
from dpfl_plugin.runs.records import hold_all
from dpfl_plugin.runs.silo_settings import in_facts

PLANS_LOOKED_AT = 10  # rounds by whose plans the work of a round is estimated


@dataclass(frozen=True, slots=True)
class TuningStage:
    """How far a candidate is trained now.

    Attributes:
        until: after how many rounds it is paused; None: it goes on to its end.
        measured: whether its model is evaluated meanwhile, without noise. Not before the choice is made.
        planned: compositions of everything that the tuning releases, at the silos that it costs most: they fit the
            budget, and so do all their parts.
        tuning: the guarantee of all candidates together, which is that of each of them; kept in the run's ledger.
        seen: what decided meanwhile, beside scores, in words: caveats of the run's statement.
        project: of the tuning, in the ledger of its project, if that has one.
        statistics: what another candidate released, for all of them; None: this one releases what is planned.
    """

    until: int | None
    measured: bool
    planned: tuple[Terms, ...]
    tuning: Mapping[str, Any]
    seen: tuple[str, ...] = ()
    project: Registration | None = None
    statistics: Tensor | None = None


@dataclass(frozen=True, slots=True)
class PreparedRun:
    """A run that passed all checks before anything is written.

    Attributes:
        shared: the ledger that it shares with other runs, locked.
        run_name: by which ledgers know the run; a fresh one's is random, and kept in its checkpoints.
        code: digests of the files of users' code that the configuration names.
        expected: how many rounds the budget will allow; the same before a run and when it is resumed.
        coins: by which participants are drawn; empty where they follow from the seed. A resumed run goes on with them.
        label: what the user's file calls the run.
        clock: takes the time of each part.
        stage: how far it goes now, as a candidate of a tuning; None for a run by itself.
        slots: what each silo may release, by the shared ledger; of a candidate of a tuning nothing. reuses: which
            unused slots of earlier runs serve some of them.
    """

    config: Config
    base: Path
    folder: RunFolder
    parts: Parts
    shared: Path | None
    run_name: str
    code: Mapping[str, str]
    expected: int
    coins: str
    label: str | None = None
    clock: Stopwatch = STOPPED
    stage: TuningStage | None = None
    slots: Mapping[int, Sequence[Planned]] = field(default_factory=dict)
    reuses: Sequence[Reuse] = ()

    @property
    def entry(self) -> LedgerEntry | None:
        """The run in its shared ledger."""
        if self.shared is None:
            return None
        candidate = {} if self.stage is None else {"candidate": self.label}
        facts = {"name": self.config.name, "id": run_id(self.config), **candidate}
        survey = self.parts.holding.survey
        return LedgerEntry(self.shared, self.run_name, facts, self.config, survey, self.slots, self.reuses)


def prepare(
    config: Config,
    base: Path,
    folder: RunFolder,
    *,
    hold: Hold = hold_all,
    ledger: Path | None = None,
    shared: Ledger | None = None,
) -> PreparedRun:
    """Build a run, new or unfinished, and check it.

    Args:
        hold: loads this process's records.
        ledger: the file of the shared ledger, which the caller has locked; shared: what it holds.

    Raises:
        ConfigError, DataError, UnsupportedError: something in the configuration or in the data files is wrong.
    """
    noise, silo_noise = begun_noise(config, folder), begun_silo_noise(config, folder)
    parts = build(config, base, noise, hold=hold, silo_noise=silo_noise)
    began = checkpoints.load_facts(folder.checkpoint)
    name = str(began["run_name"]) if began else secrets.token_hex(16) if config.fresh else run_id(config)
    if shared is not None:
        assert ledger is not None
        ahead = None if began else registered_run(shared, config)
        name = ahead.name if ahead and ahead.records == parts.data_sha256 else name
        entry = LedgerEntry(ledger, name, {}, config, parts.holding.survey)
        entry.check_noise(shared, parts.rules.release(1.0))
    if shared is not None and parts.rules.varies and config.privacy.epsilon is None:
        raise ConfigError(
            f"ledger {ledger}: with privacy.schedule give privacy.epsilon: noise that falls could leave all that "
            "the ledger holds without an epsilon."
        )
    _check_lasting(config, parts)
    _check_states(config, parts)
    coins = _coins(began, parts.rules)
    expected = _expected_rounds(config, parts, coins)
    return PreparedRun(config, base, folder, parts, ledger, name, file_digests(config), expected, coins)


def rebuilt(run: PreparedRun, hold: Hold, chunk_bytes: int) -> PreparedRun:
    """The run with its records loaded again, and so much memory for gradients."""
    noise, silo_noise = run.parts.noise_multiplier, in_facts({"silos": run.parts.own.facts(run.parts.rules)})[1]
    parts = build(run.config, run.base, noise, hold=hold, chunk_bytes=chunk_bytes, silo_noise=silo_noise)
    return replace(run, parts=parts)


def with_slots(run: PreparedRun, shared: Ledger) -> PreparedRun:
    """The run with the slots that it registers in a shared ledger, which affords them.

    Raises:
        ConfigError, BudgetError: as `LedgerEntry.afforded`.
    """
    known = next((entry for entry in runs_in(shared) if entry.name == run.run_name), None)
    if known is not None and known.begun:
        return run
    config, parts = run.config, run.parts
    ahead = Forecast(config, parts.algorithm, parts.accountant, parts.setting, parts.num_records, privacy_rules)
    slots = _slots(ahead, parts.rules, run.expected)
    if known is not None:
        if known.slots == {silo: count_kinds(planned) for silo, planned in slots.items()}:
            return run
        run = replace(run, run_name=secrets.token_hex(16))  # the code makes another plan of it by now
    assert run.entry is not None
    return replace(run, slots=slots, reuses=run.entry.afforded(shared, slots).reuses)


def registered_run(shared: Ledger, config: Config) -> Run | None:
    """The run as it was registered ahead, e.g. by its sweep, if it has not begun."""
    return next(
        (entry for entry in runs_in(shared) if not entry.begun and entry.facts["ahead"] == run_id(config)), None
    )


def _slots(ahead: Forecast, rules: PrivacyRules, expected: int) -> dict[int, tuple[Planned, ...]]:
    """What each silo releases at most: what a run in a shared ledger registers before its first release."""
    if ahead.config.privacy.epsilon is not None and ahead.config.privacy.budget_view == "third_party":
        ahead = ahead.changed(rounds=expected)
    of_size = {size: registered_plan(ahead, rules, size) for size in set(ahead.num_records)}
    return {silo: of_size[size] for silo, size in enumerate(ahead.num_records)}


def slots_ahead(ahead: Forecast, noise: float, expected: int) -> dict[int, tuple[Planned, ...]]:
    """What each silo releases at most in a run that has not begun.

    Args:
        noise: noise multiplier of the run; expected: how many rounds it has.
    """
    return _slots(ahead, privacy_rules(ahead.config, noise), expected)


def total_with(
    config: Config, base: Path, slots: Callable[[], Mapping[int, Sequence[Planned]]]
) -> dict[str, Any] | None:
    """What the ledger that a configuration names comes to with these slots; None if it holds no run.

    They are taken to be on the records of the last run there.

    Args:
        base: where relative paths start.

    Raises:
        LedgerError: the ledger is damaged. ConfigError, UnsupportedError: as `Accountant.epsilon`.
    """
    path = ledger_of(config, base)
    if path is None or not is_begun(path):
        return None
    shared = read_shared(path)
    runs = runs_in(shared)
    if not runs:
        return None
    total = adaptive_total(shared, config.privacy.delta, [RegisteredPlan(runs[-1].records, slots())])
    return {**total, "ledger": str(path), "num_runs": len(runs)}


def _coins(found: Mapping[str, Any] | None, rules: PrivacyRules) -> str:
    """By which participants are drawn: known to nobody before the run where claims rest on the draw."""
    if found is not None:
        return str(found["coins"])
    return fresh_coins() if rules.fresh else ""


def look_ahead(run: PreparedRun, account: PrivacyAccount) -> None:
    """Have the budget know of all rounds that noise was solved for."""
    parts = run.parts
    if run.stage is not None:
        for terms in run.stage.planned:
            if account.budget is not None:
                account.budget.holds(terms)
        return
    if parts.planned is not None and not parts.rules.varies:
        account.look_ahead(parts.planned)


def ledger_facts(run: PreparedRun) -> dict[str, Any]:
    """What a run's own ledger says of it."""
    parts = run.parts
    numbers: dict[str, Any] = {"noise_multiplier": parts.noise_multiplier, "num_records": list(parts.num_records)}
    if parts.own.of:
        numbers["silos"] = parts.own.facts(parts.rules)
    if run.config.silo_weights not in ("equal", "records"):
        numbers["weights"] = list(parts.setting.weights)
    if run.stage is not None:
        numbers["tuning"] = dict(run.stage.tuning)
    cuts = parts.holding.survey.cut_facts if parts.rules.fresh else {}  # a seeded run writes the same bytes again
    return {"run": run_id(run.config), "name": run.config.name, **numbers, **cycle_facts(parts.rules), **cuts}


def new_account(
    config: Config,
    parts: Parts,
    ledger: Ledger,
    *,
    shared: Ledger | None = None,
    costs: Mapping[int, RoundCost] | None = None,
    pending: Callable[[Charge], bool] = lambda charge: False,
    lost: bool = False,
    coins: str = "",
) -> PrivacyAccount:
    return make_account(
        config,
        rules=parts.rules,
        accountant=parts.accountant,
        setting=parts.setting,
        num_records=parts.num_records,
        ledger=ledger,
        shared=shared,
        costs=costs,
        pending=pending,
        in_sums=in_sums(parts.algorithm),
        lost=lost,
        coins=coins,
        epsilons=parts.own.epsilons(),
    )


def evaluations_of(run: PreparedRun) -> EvaluationSchedule:
    config, parts = run.config, run.parts
    if run.stage is not None and not run.stage.measured:
        return EvaluationSchedule(every=MOST_ROUNDS, last=MOST_ROUNDS, made=False)
    if config.evaluation.every is not None:
        return EvaluationSchedule(config.evaluation.every, run.expected)
    planner, server = planner_of(config, parts), parts.algorithm.init_server(parts.model, parts.setting)
    plans = [planner.asks(server, round) for round in range(min(PLANS_LOOKED_AT, run.expected))]
    d = parts.model.numel()
    training = round_work(plans, parts.rules, parts.num_records, parts.setting.num_participants, d)
    once = evaluation_work(parts.num_records, parts.num_test_records, d, config.evaluation.dissimilarity)
    return affordable(run.expected, training, once)


def stopping_of(config: Config, score: ValidationScore | None) -> Stopping | None:
    """When a run makes scores, and stops by them; ``score``: what they are the mean of, None where there are none."""
    early, scoring = config.early_stopping, config.scoring
    if scoring is None or score is None:
        return None
    assert scoring.every is not None
    stopping = Stopping(every=scoring.every, at=scoring.at, score=score)
    if early is None:
        return stopping
    return replace(stopping, patience=early.patience, min_gain=early.min_gain, keep_best=early.keep == "best")


def planner_of(config: Config, parts: Parts, coins: str = "") -> Planner:
    return Planner(
        parts.algorithm, parts.setting, parts.setting.weights, config.public_seed, parts.extra_plan.training, coins
    )


def _expected_rounds(config: Config, parts: Parts, coins: str) -> int:
    """How many rounds the budget will allow.

    Raises:
        ConfigError: not one.
    """
    account = new_account(config, parts, Ledger(), coins=coins)
    server = parts.algorithm.init_server(parts.model, parts.setting)
    first = planner_of(config, parts).asks(server, 0)
    expected = account.expected_rounds(first, config.rounds or MOST_ROUNDS)
    if expected == 0:
        account.begin_round(0, first)
        costs = digits(account.epsilon_ahead(config.privacy.budget_view), 4)
        raise ConfigError(
            f"privacy.epsilon={config.privacy.epsilon} does not cover one round, which costs {costs}. {_mend(config)}"
        )
    return expected


def _mend(config: Config) -> str:
    """What helps where one round is more than the budget."""
    lower = "raise privacy.epsilon, or lower record_rate or local_steps."
    if config.privacy.noise_multiplier is None:
        return lower.capitalize()
    rounds = counted(config.rounds, "round") if config.rounds else "the rounds that you set"
    return f"Leave out privacy.noise_multiplier to have it solved for {rounds}; or {lower}"


def _check_lasting(config: Config, parts: Parts) -> None:
    """Raise ConfigError if a run cannot go on without lost silos as its configuration says."""
    runtime, num_silos = config.runtime, parts.setting.num_silos
    if runtime.on_silo_failure != "continue":
        return
    if runtime.min_silos > num_silos:
        raise ConfigError(f"runtime.min_silos={runtime.min_silos} is more than the {num_silos} silos that there are.")
    if parts.algorithm.init_silos(parts.model[:1], 1) and not isinstance(parts.algorithm, Regrouping):
        raise UnsupportedError(
            f"runtime.on_silo_failure='continue': algorithm={config.algorithm.name or config.algorithm.module!r} keeps "
            "state at silos and does not say what becomes of it when silos are lost. Use abort, or give the algorithm "
            "the method regroup; see docs/plugins.md."
        )


def _check_states(config: Config, parts: Parts) -> None:
    """Raise UnsupportedError where rank 0 would get silos' states, in checkpoints, that may be no releases.

    At record level an algorithm has nothing but private gradients; at silo level only what it sends is checked.
    """
    stateful = bool(parts.algorithm.init_silos(parts.model[:1], 1))
    if parts.train or parts.rules.unit != "silo" or not stateful:
        return
    if not getattr(parts.algorithm, "states_are_released", False):
        raise UnsupportedError(
            f"privacy.unit='silo' on MPI ranks: algorithm={config.algorithm.name or config.algorithm.module!r} keeps "
            "states at silos, which come to rank 0 in checkpoints, and does not say that they are functions of what "
            "was released. Run it in one process, or give the algorithm states_are_released = True (docs/plugins.md)."
        )
