"""What was spent, from a ledger alone: every view of a run's, or of one that runs share.

Neither data nor models are read, nor is torch: a ledger of a million lines is what takes memory here.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from dpfl_plugin import registry
from dpfl_plugin.algorithms.base import Setting, in_sums
from dpfl_plugin.api.shared_ledgers import is_ledger, say_notes, shared_rows
from dpfl_plugin.config.load import load
from dpfl_plugin.config.schema import Config
from dpfl_plugin.core.rounding import digits
from dpfl_plugin.errors import DataError, UnsupportedError
from dpfl_plugin.privacy.account import PrivacyAccount, fail
from dpfl_plugin.privacy.accountants import Accountant, named_accountant
from dpfl_plugin.privacy.costs import RoundCost
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.paper import NOBLE_THIRD_PARTY_UNSOUND, Paper, noble_third_party_epsilon
from dpfl_plugin.privacy.rules import PrivacyRules
from dpfl_plugin.privacy.views import server_view
from dpfl_plugin.runs.accounting import make_account
from dpfl_plugin.runs.algorithm_setting import make_setting
from dpfl_plugin.runs.folder import RunFolder
from dpfl_plugin.runs.ledgers import read_whole
from dpfl_plugin.runs.plugins import build_plugin
from dpfl_plugin.runs.round_costs import read_costs
from dpfl_plugin.runs.rules import privacy_rules
from dpfl_plugin.runs.silo_settings import in_facts, with_own

RECIPE: Final = "published recipe, NOT A GUARANTEE"
PAPER: Final = "paper"  # as a configuration names it
TUNED: Final = "guarantee, of the tuning"  # towards the server, which bounds all others

Row = dict[str, Any]


def is_spent(path: Path) -> bool:
    """Whether a path is that of a run's folder or of a ledger, and no configuration's."""
    return path.is_dir() or is_ledger(path)


def spent(path: Path) -> dict[str, list[Row]]:
    """By label what a run's folder, or a ledger that runs share, holds.

    Raises:
        DataError: the folder is not a run's.
        ConfigError: the ledger is one run's own.
        LedgerError: the ledger is damaged; names the line, and what is still proven.
    """
    if path.is_dir():
        return {path.name: _of_folder(path)}
    return shared_rows(path, by_all_accountants, facts_of)


def by_a_papers_bound(path: Path) -> bool:
    """Whether a path that `is_spent` is the folder of a run that is accounted for by a paper's bound."""
    return path.is_dir() and load(RunFolder(path).config).variants[0].config.privacy.accountant.name == PAPER


def without_papers(views: Iterable[Row]) -> list[Row]:
    """The rows that are not by a paper's bound, nor what its recipe would publish."""
    return [row for row in views if row["view"] != RECIPE and row["accountant"] != Paper.name]


def facts_of(accountant: Accountant) -> Row:
    """What every row says of its accountant."""
    return {
        "accountant": accountant.name,
        "sound": accountant.sound,
        "caveat": accountant.caveat,
        "error": accountant.error,
    }


def row(view: str, epsilon: float | None, config: Config, neighbouring: str | None, basis: str, accountant: Row) -> Row:
    """Of one view, by one accountant."""
    finite = epsilon if epsilon is not None and math.isfinite(epsilon) else None
    delta = config.privacy.delta
    return {"view": view, "epsilon": finite, "delta": delta, "neighbouring": neighbouring, **accountant, "basis": basis}


def by_all_accountants(rows_of: Callable[[Accountant], list[Row]]) -> list[Row]:
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
        return by_all_accountants(lambda accountant: [_realised(config, ledger, accountant)])
    setting = _setting(config, ledger)
    silos, silo_noise = in_facts(ledger.facts)
    rules = with_own(privacy_rules(config, ledger.facts["noise_multiplier"]), config, silos, silo_noise)
    costs, tuning = read_costs(facts, setting), ledger.facts.get("tuning")
    own: Accountant = build_plugin("accountants", config.privacy.accountant, where="privacy.accountant")

    @functools.cache
    def account() -> PrivacyAccount:
        made = make_account(
            config,
            rules=rules,
            accountant=own,
            setting=setting,
            num_records=num_records,
            ledger=ledger,
            costs=costs,
            in_sums=rules.unit == "silo" and _in_sums(config),  # no other claim asks
            lost=bool((facts or {}).get("losses")),
            stating=True,
            epsilons=silos.epsilons(),
        )
        if _has_failed(files):
            fail(made)
        return made

    def rows_of(accountant: Accountant) -> list[Row]:
        views = account().by(accountant).views()
        server, third_party, named = views["server"], views["third_party"], facts_of(accountant)
        neighbouring, everywhere = server["neighbouring"], server["worst_case_epsilon"]
        alone = [
            row("server", server["epsilon"], config, neighbouring, server["basis"], named),
            row("server, worst case", everywhere, config, neighbouring, server["worst_case_basis"], named),
            row("third party", third_party["epsilon"], config, neighbouring, third_party["basis"], named),
            *(
                row("outsider", view["epsilon"], config, neighbouring, view["basis"], named)
                for view in [views.get("outsider")]
                if view is not None
            ),
        ]
        return [one | {"note": _alone(tuning)} for one in alone] if tuning else alone

    rows = [*by_all_accountants(rows_of), *recipe(config, rules, setting, num_records, costs.values())]
    return [_of_tuning(config, tuning, rows[0]["neighbouring"], facts_of(own)), *rows] if tuning else rows


def _has_failed(files: RunFolder) -> bool:
    """As far as its result says: that of a session which goes on is gone. One that cannot be read may say so."""
    if not files.result.exists():
        return False
    try:
        return bool(json.loads(files.result.read_text())["status"] == "failed")
    except (OSError, ValueError, KeyError, TypeError):
        return True


def _of_tuning(config: Config, tuning: Mapping[str, Any], neighbouring: str | None, accountant: Row) -> Row:
    """The guarantee of a candidate of a tuning, which was chosen by what all candidates released."""
    basis = f"all {tuning['num_candidates']} candidates of tuning {tuning['id']} together, their scores included"
    return row(TUNED, tuning["epsilon"], config, neighbouring, basis, accountant) | {"note": _alone(tuning)}


def _alone(tuning: Mapping[str, Any]) -> str:
    together = digits(tuning["epsilon"], 6)
    return (
        f"This run is one of {tuning['num_candidates']} candidates of a tuning, and what all of them released decided "
        f"which is kept: its guarantee is epsilon {together} of all together. The other numbers are of what it "
        "released alone, and guarantee nothing."
    )


def _in_sums(config: Config) -> bool:
    """The algorithm says so, whose module imports torch."""
    return in_sums(build_plugin("algorithms", config.algorithm, where="algorithm"))


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
    found = row("server", view.epsilon, config, view.neighbouring, view.basis, facts_of(accountant))
    return {**found, "note": note}


def recipe(
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
    return [row(RECIPE, epsilon, config, "replace_one", basis, named)]
