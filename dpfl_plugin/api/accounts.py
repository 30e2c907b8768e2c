"""What was spent, or would be: every view of a configuration, of a run's ledger, of a ledger that runs share."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch

from dpfl_plugin import registry
from dpfl_plugin.algorithms.base import Setting
from dpfl_plugin.api.experiment import Experiment
from dpfl_plugin.api.numbers import named_accountant
from dpfl_plugin.api.progress import say
from dpfl_plugin.api.runs import Run
from dpfl_plugin.api.shared_ledgers import is_ledger, say_notes, shared_rows
from dpfl_plugin.config.load import load
from dpfl_plugin.config.schema import Config
from dpfl_plugin.errors import ConfigError, DataError, UnsupportedError
from dpfl_plugin.privacy.account import PrivacyAccount
from dpfl_plugin.privacy.accountants import Accountant
from dpfl_plugin.privacy.claims.third_party import FROM_THE_SEED
from dpfl_plugin.privacy.costs import MOST_ROUNDS, RoundCost
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.paper import NOBLE_THIRD_PARTY_UNSOUND, noble_third_party_epsilon
from dpfl_plugin.privacy.rules import PrivacyRules
from dpfl_plugin.privacy.views import server_view
from dpfl_plugin.runs.accounting import make_account
from dpfl_plugin.runs.folder import RunFolder
from dpfl_plugin.runs.forecast import forecast, solving
from dpfl_plugin.runs.ledgers import read_whole
from dpfl_plugin.runs.plugins import build_plugin
from dpfl_plugin.runs.resume import read_costs
from dpfl_plugin.runs.rules import privacy_rules, weak_claims
from dpfl_plugin.runs.setting import make_setting
from dpfl_plugin.runs.silo_settings import in_facts, with_own

RECIPE: Final = "published recipe, NOT A GUARANTEE"
TUNED: Final = "guarantee, of the tuning"  # towards the server, which bounds all others

Row = dict[str, Any]


def account(what: Experiment | Run | str | Path) -> list[Row] | dict[str, list[Row]]:
    """Epsilon of a configuration that was not run yet, or of all that a run's ledger or a shared one holds.

    Args:
        what: an experiment, or its file; a run, or its folder; the file of a ledger that runs share.

    Returns:
        a row for each view and accountant, as `dpfl account --json` prints them: view, epsilon (None where nothing is
        guaranteed), delta, neighbouring, accountant, sound, caveat, error, basis. By label where there are several
        variants, or runs in a shared ledger.

    Raises:
        ConfigError, DataError: the configuration or its records are wrong, or ``what`` is something else.
        LedgerError: the ledger is damaged; names the line, and what is still proven.
    """
    rows = rows_of(what)
    return rows if len(rows) > 1 else next(iter(rows.values()))


def rows_of(what: Experiment | Run | str | Path) -> dict[str, list[Row]]:
    """As `account`, always by label."""
    if isinstance(what, Run):
        return {what.folder.name: _of_folder(what.folder)}
    if isinstance(what, str | Path):
        path = Path(what)
        if path.is_dir():
            return {path.name: _of_folder(path)}
        if is_ledger(path):
            return shared_rows(path, _by_all_accountants, _named)
        what = Experiment(path)
    if not isinstance(what, Experiment):
        raise ConfigError(
            f"account needs an experiment, a run, or a path to a configuration, a run's folder or a ledger, not a "
            f"{type(what).__name__}."
        )
    runs = what.loaded().variants
    return {one.label or one.config.name: _of_config(one.config, what.base) for one in runs}


def _named(accountant: Accountant) -> Row:
    return {
        "accountant": accountant.name,
        "sound": accountant.sound,
        "caveat": accountant.caveat,
        "error": accountant.error,
    }


def _row(
    view: str, epsilon: float | None, config: Config, neighbouring: str | None, basis: str, accountant: Row
) -> Row:
    finite = epsilon if epsilon is not None and math.isfinite(epsilon) else None
    delta = config.privacy.delta
    return {"view": view, "epsilon": finite, "delta": delta, "neighbouring": neighbouring, **accountant, "basis": basis}


def _by_all_accountants(rows_of: Callable[[Accountant], list[Row]]) -> list[Row]:
    """Rows by every registered accountant that knows the mechanism, the default one first."""
    rows = []
    for name in sorted(registry.names("accountants"), key=lambda name: (name != "pld", name)):
        try:
            rows += rows_of(named_accountant(name))
        except UnsupportedError:  # this accountant does not know the mechanism; others do
            continue
    return rows


def _of_folder(folder: Path) -> list[Row]:
    """All views of what a run's ledger holds, from its folder alone: no data are read.

    Raises:
        LedgerError: the ledger is damaged, or lacks what the checkpoint or `ledger.json` knows of.
    """
    files = RunFolder(folder)
    if not files.ledger.exists():
        raise DataError(f"{folder}: holds no ledger.jsonl, so it is not the folder of a run.")
    config = load(files.config).variants[0].config
    ledger, facts = read_whole(files)
    say_notes(ledger)
    num_records = ledger.facts.get("num_records")
    if num_records is None:
        return _by_all_accountants(lambda accountant: [_realised(config, ledger, accountant)])
    setting = _setting(config, ledger)
    silos, silo_noise = in_facts(ledger.facts)
    rules = with_own(privacy_rules(config, ledger.facts["noise_multiplier"]), config, silos, silo_noise)
    costs, tuning = read_costs(facts, setting), ledger.facts.get("tuning")
    own: Accountant = build_plugin("accountants", config.privacy.accountant, where="privacy.accountant")
    algorithm = build_plugin("algorithms", config.algorithm, where="algorithm")

    @functools.cache
    def account() -> PrivacyAccount:
        return make_account(
            config,
            rules=rules,
            accountant=own,
            setting=setting,
            num_records=num_records,
            ledger=ledger,
            costs=costs,
            stateless=not algorithm.init_silos(torch.zeros(1), 1),
            lost=bool((facts or {}).get("losses")),
            stating=True,
            epsilons=silos.epsilons(),
        )

    def rows_of(accountant: Accountant) -> list[Row]:
        views = account().by(accountant).views()
        server, third_party, named = views["server"], views["third_party"], _named(accountant)
        neighbouring, everywhere = server["neighbouring"], server["worst_case_epsilon"]
        alone = [
            _row("server", server["epsilon"], config, neighbouring, server["basis"], named),
            _row("server, worst case", everywhere, config, neighbouring, server["worst_case_basis"], named),
            _row("third party", third_party["epsilon"], config, neighbouring, third_party["basis"], named),
            *(
                _row("outsider", view["epsilon"], config, neighbouring, view["basis"], named)
                for view in [views.get("outsider")]
                if view is not None
            ),
        ]
        return [row | {"note": _alone(tuning)} for row in alone] if tuning else alone

    rows = [*_by_all_accountants(rows_of), *_recipe(config, rules, setting, num_records, costs.values())]
    return [_of_tuning(config, tuning, rows[0]["neighbouring"], _named(own)), *rows] if tuning else rows


def _of_tuning(config: Config, tuning: Mapping[str, Any], neighbouring: str | None, accountant: Row) -> Row:
    """The guarantee of a candidate of a tuning, which was chosen by what all candidates released."""
    basis = f"all {tuning['num_candidates']} candidates of tuning {tuning['id']} together, their scores included"
    return _row(TUNED, tuning["epsilon"], config, neighbouring, basis, accountant) | {"note": _alone(tuning)}


def _alone(tuning: Mapping[str, Any]) -> str:
    return (
        f"This run is one of {tuning['num_candidates']} candidates of a tuning, and what all of them released decided "
        f"which is kept: its guarantee is epsilon {tuning['epsilon']:g} of all together. The other numbers are of what "
        "it released alone, and guarantee nothing."
    )


def _setting(config: Config, ledger: Ledger) -> Setting:
    """Of the run that a ledger is of; its silos' names are not known here."""
    num_records, weights = ledger.facts["num_records"], ledger.facts.get("weights")
    if weights is None:
        return make_setting(config, num_records)
    equal = make_setting(config.model_copy(update={"silo_weights": "equal"}), num_records)
    return replace(equal, weights=tuple(weights))


def _realised(config: Config, ledger: Ledger, accountant: Accountant) -> Row:
    """What a ledger without the silos' numbers of records says."""
    view = server_view(ledger.tally, accountant, config.privacy.delta)
    note = "The run is of an older version, whose ledger lacks the silos' numbers of records: no other view is known."
    row = _row("server", view.epsilon, config, view.neighbouring, view.basis, _named(accountant))
    return {**row, "note": note}


def _of_config(config: Config, base: Path) -> list[Row]:
    """The views of all rounds of a configuration; nothing is trained."""
    ahead = forecast(config, base)
    noise = config.privacy.noise_multiplier
    solved = noise is None
    if solved and (said := solving(config)):
        say(said)
    noise = ahead.noise() if noise is None else noise
    account = ahead.all_rounds(noise)
    rules, costs, setting = privacy_rules(config, noise), account.costs, ahead.setting
    for caveat in weak_claims(config, rules, ahead.num_records):
        say(f"note: {caveat}")
    rounds = _rounds_ahead(config, account) + (f", noise_multiplier {noise:g} as solved for" if solved else "")
    cap = config.max_participations
    where = "all of them" if cap is None or cap >= len(costs) else f"{cap} of them, the cap"
    drawn = f"each with probability {setting.num_participants}/{setting.num_silos}"
    likeliest = max(cost.probability for cost in costs.values())
    if any(cost.participation.law == "with_replacement" for cost in costs.values()):
        drawn = f"each with probability {likeliest:.4g} at most, by its weight"
    if likeliest < 1 and not rules.secure:
        drawn += f"; {FROM_THE_SEED}"
    if cap is not None and cap < (config.rounds or MOST_ROUNDS):
        drawn = "with a cap draws depend on earlier ones: the server's worst case, no mixture"

    def rows_of(accountant: Accountant) -> list[Row]:
        account = ahead.account(noise, costs, accountant)
        everywhere, mixture = account.ahead()
        relation, named = rules.release(1.0).neighbouring, _named(accountant)
        whole = f"{rounds}; a silo that takes part in {where}"
        return [
            _row("server, worst case", everywhere, config, relation, whole, named),
            _row("third party", mixture, config, relation, f"{rounds}; {drawn}", named),
            *(
                _row("outsider", view.epsilon, config, relation, f"{rounds}; {view.basis}", named)
                for view in [account.outsider()]
                if view is not None
            ),
        ]

    return [*_by_all_accountants(rows_of), *_recipe(config, rules, setting, ahead.num_records, costs.values())]


def _rounds_ahead(config: Config, account: PrivacyAccount) -> str:
    releases = sum(cost.num_releases for cost in account.costs.values())
    ran, asked = len(account.costs), config.rounds
    fit = ""
    if asked and ran < asked:
        limits = [] if config.privacy.epsilon is None else [f"epsilon {config.privacy.epsilon:g}"]
        limits += [] if config.max_participations is None else [f"max_participations {config.max_participations}"]
        fit = f" of the {asked} asked for fit {' and '.join(limits)}"
    return f"{ran} rounds{fit}, {releases} releases"


def _recipe(
    config: Config, rules: PrivacyRules, setting: Setting, num_records: Iterable[int], costs: Iterable[RoundCost]
) -> list[Row]:
    """What Noble et al. would publish, where their recipe applies; the worst silo's."""
    costs = list(costs)
    kinds, fixed = set(costs), rules.sampler.name == "fixed" and rules.unit == "record"
    share = setting.num_participants / setting.num_silos
    if not fixed or not rules.noise_multiplier or len(kinds) != 1 or rules.silos:
        return []
    (kind,) = kinds
    if (
        kind.share != (0.0, 1.0)
        or kind.probability != share
        or kind.participation.law == "with_replacement"
        or rules.varies
    ):
        return []
    epsilon = max(
        noble_third_party_epsilon(
            noise_multiplier=rules.noise_multiplier,
            local_steps=kind.num_releases,
            rounds=len(costs),
            silo_rate=share,
            record_rate=rules.sampler.rate(count),
            num_silos=setting.num_silos,
            delta=config.privacy.delta,
        )
        for count in set(num_records)
    )
    named = {"accountant": "Noble et al. 2022", "sound": False, "caveat": NOBLE_THIRD_PARTY_UNSOUND, "error": ""}
    basis = f"the recipe of their appendix B.4 for {len(costs)} rounds; not sound"
    return [_row(RECIPE, epsilon, config, "replace_one", basis, named)]
