"""What was spent, or would be: every view of a configuration, of a run's ledger, of a ledger that runs share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dpfl_plugin.api.account_text import Accounts, Rows
from dpfl_plugin.api.experiment import Experiment
from dpfl_plugin.api.progress import say
from dpfl_plugin.api.running import in_file
from dpfl_plugin.api.runs import Run
from dpfl_plugin.api.spent import (
    PAPER,
    Row,
    by_a_papers_bound,
    by_all_accountants,
    facts_of,
    is_spent,
    recipe,
    row,
    spent,
)
from dpfl_plugin.config.schema import Config
from dpfl_plugin.core.text import counted
from dpfl_plugin.errors import ConfigError, DataError
from dpfl_plugin.privacy.account import PrivacyAccount
from dpfl_plugin.privacy.accountants import Accountant
from dpfl_plugin.privacy.claims.third_party import FROM_THE_SEED
from dpfl_plugin.privacy.costs import MOST_ROUNDS
from dpfl_plugin.runs.forecast import forecast, solving
from dpfl_plugin.runs.rules import privacy_rules, weak_claims


def account(what: Experiment | Run | str | Path) -> Rows | Any:  # of several variants, or runs, Accounts
    """Epsilon of a configuration that was not run yet, or of all that a run's ledger or a shared one holds.

    Args:
        what: an experiment, or its file; a run, or its folder; the file of a ledger that runs share.

    Returns:
        a row for each view and accountant, as `dpfl account --json` prints them: view, epsilon (None where nothing is
        guaranteed), delta, neighbouring, accountant, sound, caveat, error, basis. By label where there are several
        variants, or runs in a shared ledger. ``print`` shows them as the command does.

    Raises:
        ConfigError, DataError: the configuration or its records are wrong, or ``what`` is something else.
        LedgerError: the ledger is damaged; names the line, and what is still proven.
    """
    rows, of_papers = rows_of(what), _of_papers(what)
    if len(rows) > 1:
        return Accounts(
            {label: Rows(found, label, of_papers=of_papers) for label, found in rows.items()}, of_papers=of_papers
        )
    ((label, found),) = rows.items()
    return Rows(found, label, of_papers=of_papers)


def rows_of(what: Experiment | Run | str | Path) -> dict[str, list[Row]]:
    """As `account`, always by label."""
    if isinstance(what, Run):
        return spent(what.folder)
    if isinstance(what, str | Path):
        path = Path(what)
        if is_spent(path):
            return spent(path)
        what = Experiment(path)
    if not isinstance(what, Experiment):
        raise ConfigError(
            f"account needs an experiment, a run, or a path to a configuration, a run's folder or a ledger, not a "
            f"{type(what).__name__}."
        )
    rows = {}
    for one in what.loaded().variants:
        try:
            rows[one.label or one.config.name] = _of_config(one.config, what.base)
        except (ConfigError, DataError) as error:
            raise in_file(error, what.path, one) from error
    return rows


def is_of_a_paper(experiment: Experiment) -> bool:
    """Whether a configuration is accounted for by a paper's bound."""
    return any(one.config.privacy.accountant.name == PAPER for one in experiment.loaded().variants)


def _of_papers(what: Experiment | Run | str | Path) -> bool:
    if isinstance(what, Experiment):
        return is_of_a_paper(what)
    path = what.folder if isinstance(what, Run) else Path(what)
    return by_a_papers_bound(path) if is_spent(path) else is_of_a_paper(Experiment(path))


def _of_config(config: Config, base: Path) -> list[Row]:
    """The views of all rounds of a configuration; nothing is trained."""
    ahead = forecast(config, base)
    ahead.check()
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
    if likeliest < 1 and not rules.fresh:
        drawn += f"; {FROM_THE_SEED}"
    if cap is not None and cap < (config.rounds or MOST_ROUNDS):
        drawn = "with a cap draws depend on earlier ones: the server's worst case, no mixture"

    def rows_of(accountant: Accountant) -> list[Row]:
        account = ahead.account(noise, costs, accountant)
        everywhere, mixture = account.ahead()
        relation, named = rules.release(1.0).neighbouring, facts_of(accountant)
        whole = f"{rounds}; a silo that takes part in {where}"
        return [
            row("server, worst case", everywhere, config, relation, whole, named),
            row("third party", mixture, config, relation, f"{rounds}; {drawn}", named),
            *(
                row("outsider", view.epsilon, config, relation, f"{rounds}; {view.basis}", named)
                for view in [account.outsider()]
                if view is not None
            ),
        ]

    return [*by_all_accountants(rows_of), *recipe(config, rules, setting, ahead.num_records, costs.values())]


def _rounds_ahead(config: Config, account: PrivacyAccount) -> str:
    releases = sum(cost.num_releases for cost in account.costs.values())
    ran, asked = len(account.costs), config.rounds
    fit = ""
    if asked and ran < asked:
        limits = [] if config.privacy.epsilon is None else [f"epsilon {config.privacy.epsilon:g}"]
        limits += [] if config.max_participations is None else [f"max_participations {config.max_participations}"]
        fit = f" of the {asked} asked for fit {' and '.join(limits)}"
    return f"{counted(ran, 'round')}{fit}, {counted(releases, 'release')}"
