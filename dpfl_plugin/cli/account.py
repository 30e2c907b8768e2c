"""`dpfl account`: epsilon of a configuration, of a run's ledger, or of a mechanism given by its numbers."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from rich.console import Console
from rich.table import Table

from dpfl_plugin import own_folders, registry
from dpfl_plugin.algorithms.base import Setting
from dpfl_plugin.api.numbers import epsilon
from dpfl_plugin.cli import fitting
from dpfl_plugin.cli.ledger_report import is_ledger, ledger_rows, tell_notes
from dpfl_plugin.config.load import base_of, load
from dpfl_plugin.config.schema import Config
from dpfl_plugin.core.rounding import digits, places
from dpfl_plugin.errors import ConfigError, DataError, UnsupportedError, require
from dpfl_plugin.privacy.accountants import Accountant
from dpfl_plugin.privacy.events import Neighbouring, SampledGaussian, Sampler
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.paper import NOBLE_THIRD_PARTY_UNSOUND, noble_third_party_epsilon
from dpfl_plugin.privacy.rules import PrivacyRules
from dpfl_plugin.privacy.views import server_view
from dpfl_plugin.training.accounting import FROM_THE_SEED, MOST_ROUNDS, PrivacyAccount, RoundCost
from dpfl_plugin.training.folder import RunFolder, to_json
from dpfl_plugin.training.ledgers import read_whole
from dpfl_plugin.training.plugins import build_plugin
from dpfl_plugin.training.prospect import prospect, solving
from dpfl_plugin.training.resume import read_costs
from dpfl_plugin.training.rules import privacy_rules, weak_claims
from dpfl_plugin.training.setting import make_setting

MECHANISMS: Final[dict[str, tuple[Sampler, Neighbouring]]] = {
    "gaussian-wor": ("fixed", "replace_one"),
    "gaussian-poisson": ("poisson", "add_or_remove"),
    "gaussian": ("full", "replace_one"),
}
WIDTH: Final = 100  # where there is no terminal to fit into
RECIPE: Final = "published recipe, NOT A GUARANTEE"
RECIPE_IN_SHORT: Final = (
    "Noble et al. 2022, third party. Not sound: it credits the other silos' noise, which is not proven for K > 1, "
    "amplifies by the sampling of silos as if of records, and takes control variates for free. It may still be "
    "the larger number, because Lemma B.7 is loose. See --json."
)
SIDE_BY_SIDE: Final = (
    "Every number is an upper bound, unless marked as not proven: the smallest holds. How far each may be off: --json; "
    "what each accountant knows: docs/privacy.md."
)

SEES: Final = {
    "server": "Sees every message, and who took part: ",
    "server, worst case": "As the server, whoever is drawn: ",
    "third party": "Sees the global models only: ",
    "outsider": "As a third party, but knowing less: ",
}

Row = dict[str, Any]


def account_mechanism(
    mechanism: str,
    q: float | None,
    sigma: float | None,
    steps: int | None,
    delta: float | None,
    accountant: str,
    *,
    as_json: bool,
) -> None:
    """Print epsilon of ``steps`` releases of a mechanism."""
    for name, value in (("--sigma", sigma), ("--steps", steps), ("--delta", delta)):
        if value is None:
            raise ConfigError(f"{name} is missing: --mechanism needs --sigma, --steps and --delta (and --q).")
    assert sigma is not None
    assert steps is not None
    assert delta is not None
    require(0 <= sigma < math.inf, "--sigma", sigma, "be finite and at least 0: noise std / L2 sensitivity")
    require(steps >= 0, "--steps", steps, "be at least 0")
    release = mechanism_release(mechanism, q, sigma)  # whose messages name the options
    found = epsilon(
        noise_multiplier=sigma,
        record_rate=release.rate,
        steps=steps,
        delta=delta,
        sampler=MECHANISMS[mechanism][0],
        accountant=accountant,
    )
    if as_json:
        named = {"accountant": found.accountant, "sound": found.sound, "caveat": found.caveat, "error": found.error}
        print(to_json({"epsilon": found.epsilon, "delta": delta, "neighbouring": found.neighbouring, **named}))
    elif math.isinf(found.epsilon):
        print("epsilon: none (without noise nothing is guaranteed)")
    else:
        relation = found.neighbouring.replace("_", "-")
        shown = digits(found.epsilon, 6)
        print(f"epsilon {shown} at delta {delta:g} ({relation} neighbours, accountant {found.accountant})")


def mechanism_release(mechanism: str, q: float | None, sigma: float) -> SampledGaussian:
    """One release of a mechanism of the command line."""
    known = ", ".join(MECHANISMS)
    require(mechanism in MECHANISMS, "--mechanism", mechanism, f"be one of {known}")
    q = 1.0 if q is None else q
    require(0 < q <= 1, "--q", q, "be in (0, 1]: the share of the records in a batch")
    if mechanism == "gaussian":
        require(q == 1, "--q", q, "be 1 (left out) for --mechanism gaussian, which samples nothing")
    sampler, neighbouring = MECHANISMS[mechanism]
    return SampledGaussian(
        noise_multiplier=sigma, sampler="full" if q == 1 else sampler, rate=q, neighbouring=neighbouring
    )


def named_accountant(name: str) -> Accountant:
    """The accountant that --accountant names."""
    accountant: Accountant = registry.build(registry.load("accountants", name), {}, where="--accountant")
    return accountant


def account_file(path: Path, settings: list[str], *, as_json: bool) -> None:
    """Print the epsilons of a configuration that was not run yet, or of what a run's or a shared ledger holds."""
    if path.is_dir():
        if settings:
            raise ConfigError("--set has no meaning for a run's folder: what was released was released.")
        rows = {path.name: _of_folder(path)}
    elif is_ledger(path):
        rows = ledger_rows(path, settings, _by_all_accountants, _named)
    else:
        own_folders.look_in(base_of(path))
        plan = load(path, settings)
        rows = {v.label or v.config.name: _of_config(v.config, base_of(path)) for v in plan.variants}
    if as_json:
        print(to_json(rows if len(rows) > 1 else next(iter(rows.values()))))
        return
    _show(rows)


# What is printed


def _show(rows: Mapping[str, list[Row]]) -> None:
    """A line for each run and view, a column for each accountant; then what the numbers are of."""
    sound = [row for views in rows.values() for row in views if row["view"] != RECIPE]
    accountants = list(dict.fromkeys(row["accountant"] for row in sound))
    table = Table(box=None, pad_edge=False, title="epsilon, by accountant", title_justify="left")
    table.add_column("run", overflow="fold")
    table.add_column("view", no_wrap=True)
    for column in (*accountants, "delta"):
        table.add_column(column, justify="right", no_wrap=True)
    for label, views in rows.items():
        for name in dict.fromkeys(row["view"] for row in views):
            of = {row["accountant"]: row for row in views if row["view"] == name}
            if name == RECIPE:
                continue
            values = [_number(of[accountant]) if accountant in of else "-" for accountant in accountants]
            table.add_row(label, name, *values, f"{next(iter(of.values()))['delta']:g}")
    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH)
    fitting.show(console, table)
    for title, lines in (
        ("views", _bases(rows)),
        ("not proven", {row["accountant"]: row["caveat"] for row in sound if not row["sound"]}),
        (RECIPE, _recipes(rows)),
    ):
        if lines:
            console.print(_explained(title, lines))
    if len(accountants) > 1:
        console.print(f"\n{SIDE_BY_SIDE}")
    for row in sound:
        if "note" in row:
            console.print(row["note"])
            break


def _explained(title: str, lines: Mapping[str, str]) -> Table:
    grid = Table(box=None, pad_edge=False, show_header=False, title=f"\n{title}", title_justify="left")
    grid.add_column(no_wrap=True)
    grid.add_column()
    for term, text in lines.items():
        grid.add_row(f"  {term}", text)
    return grid


def _bases(rows: Mapping[str, list[Row]]) -> dict[str, str]:
    """What each view is of; with the runs' names where it is not the same for all."""
    found: dict[str, dict[str, list[str]]] = {}
    for label, views in rows.items():
        for row in views:
            relation = str(row["neighbouring"] or "no").replace("_", "-")
            runs = found.setdefault(row["view"], {}).setdefault(f"{row['basis']}; {relation} neighbours", [])
            if row["view"] != RECIPE and label not in runs:
                runs.append(label)
    several = len(rows) > 1
    return {
        view: SEES[view]
        + "; or ".join(
            f"{basis} ({', '.join(runs)})" if several and len(bases) > 1 else basis for basis, runs in bases.items()
        )
        for view, bases in found.items()
        if view != RECIPE
    }


def _recipes(rows: Mapping[str, list[Row]]) -> dict[str, str]:
    values = {label: row["epsilon"] for label, views in rows.items() for row in views if row["view"] == RECIPE}
    lines = {label: places(epsilon, 4) for label, epsilon in values.items()}
    return {**lines, "why": RECIPE_IN_SHORT} if lines else {}


def _number(row: Row) -> str:
    return "none" if row["epsilon"] is None else places(row["epsilon"], 4)


# What is computed


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
    tell_notes(ledger)
    num_records = ledger.facts.get("num_records")
    if num_records is None:
        return _by_all_accountants(lambda accountant: [_realised(config, ledger, accountant)])
    setting = make_setting(config, num_records)
    rules = privacy_rules(config, ledger.facts["noise_multiplier"])
    costs = read_costs(facts, setting)
    own: Accountant = build_plugin("accountants", config.privacy.accountant, where="privacy.accountant")
    algorithm = build_plugin("algorithms", config.algorithm, where="algorithm")

    @functools.cache
    def account() -> PrivacyAccount:
        return PrivacyAccount(
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
        )

    def rows_of(accountant: Accountant) -> list[Row]:
        views = account().by(accountant).views()
        server, third_party, named = views["server"], views["third_party"], _named(accountant)
        neighbouring, everywhere = server["neighbouring"], server["worst_case_epsilon"]
        return [
            _row("server", server["epsilon"], config, neighbouring, server["basis"], named),
            _row("server, worst case", everywhere, config, neighbouring, server["worst_case_basis"], named),
            _row("third party", third_party["epsilon"], config, neighbouring, third_party["basis"], named),
            *(
                _row("outsider", view["epsilon"], config, neighbouring, view["basis"], named)
                for view in [views.get("outsider")]
                if view is not None
            ),
        ]

    return [*_by_all_accountants(rows_of), *_recipe(config, rules, setting, num_records, costs.values())]


def _realised(config: Config, ledger: Ledger, accountant: Accountant) -> Row:
    """What a ledger without the silos' numbers of records says."""
    view = server_view(ledger.tally, accountant, config.privacy.delta)
    note = "The run is of an older version, whose ledger lacks the silos' numbers of records: no other view is known."
    row = _row("server", view.epsilon, config, view.neighbouring, view.basis, _named(accountant))
    return {**row, "note": note}


def _of_config(config: Config, base: Path) -> list[Row]:
    """The views of all rounds of a configuration; nothing is trained."""
    ahead = prospect(config, base)
    noise = config.privacy.noise_multiplier
    solved = noise is None
    if solved and (said := solving(config)):
        print(f"dpfl: {said}", file=sys.stderr)
    noise = ahead.noise() if noise is None else noise
    account = ahead.all_rounds(noise)
    rules, costs, setting = privacy_rules(config, noise), account.costs, ahead.setting
    for caveat in weak_claims(config, rules, ahead.num_records):
        print(f"dpfl: note: {caveat}", file=sys.stderr)
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
    releases = sum(account.num_releases(0, round) for round in account.costs)
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
    if not fixed or not rules.noise_multiplier or len(kinds) != 1:
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
