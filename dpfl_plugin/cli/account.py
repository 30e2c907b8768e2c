"""`dpfl account`: epsilon of a configuration, of a run's ledger, or of a mechanism given by its numbers."""

from __future__ import annotations

import functools
import math
import sys
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from dpfl_plugin import registry
from dpfl_plugin.config.load import load
from dpfl_plugin.config.schema import Config
from dpfl_plugin.errors import ConfigError, DataError, UnsupportedError, require
from dpfl_plugin.privacy.accountants import Accountant
from dpfl_plugin.privacy.events import SampledGaussian, Term
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.views import server_view
from dpfl_plugin.training.accounting import MOST_ROUNDS, PrivacyAccount
from dpfl_plugin.training.build import build_plugin, federate, make_setting, privacy_rules
from dpfl_plugin.training.folder import to_json
from dpfl_plugin.training.planning import Planner, rehearse

MECHANISMS = {
    "gaussian-wor": ("fixed", "replace_one"),
    "gaussian-poisson": ("poisson", "add_or_remove"),
    "gaussian": ("full", "replace_one"),
}


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
    known = ", ".join(MECHANISMS)
    require(mechanism in MECHANISMS, "--mechanism", mechanism, f"be one of {known}")
    for name, value in (("--sigma", sigma), ("--steps", steps), ("--delta", delta)):
        if value is None:
            raise ConfigError(f"{name} is missing: --mechanism needs --sigma, --steps and --delta (and --q).")
    assert sigma is not None
    assert steps is not None
    assert delta is not None
    q = 1.0 if q is None else q
    require(0 < q <= 1, "--q", q, "be in (0, 1]: the share of the records in a batch")
    require(0 <= sigma < math.inf, "--sigma", sigma, "be finite and at least 0: noise std / L2 sensitivity")
    require(steps >= 0, "--steps", steps, "be at least 0")
    if mechanism == "gaussian":
        require(q == 1, "--q", q, "be 1 (left out) for --mechanism gaussian, which samples nothing")
    sampler, neighbouring = MECHANISMS[mechanism]
    release = SampledGaussian(
        noise_multiplier=sigma,
        sampler="full" if q == 1 else sampler,  # type: ignore[arg-type]
        rate=q,
        neighbouring=neighbouring,  # type: ignore[arg-type]
    )
    chosen: Accountant = registry.build(registry.load("accountants", accountant), {}, where="--accountant")
    epsilon = chosen.epsilon([Term(release=release, count=steps, rounds=1)], delta)
    if as_json:
        print(to_json({"epsilon": epsilon, "delta": delta, "neighbouring": neighbouring, "accountant": chosen.name}))
    elif math.isinf(epsilon):
        print("epsilon: none (without noise nothing is guaranteed)")
    else:
        relation = neighbouring.replace("_", "-")
        print(f"epsilon {epsilon:.6g} at delta {delta:g} ({relation} neighbours, accountant {chosen.name})")


def account_file(path: Path, settings: list[str], *, as_json: bool) -> None:
    """Print the epsilons of a configuration that was not run yet, or of what a run's ledger holds."""
    if path.is_dir():
        if settings:
            raise ConfigError("--set has no meaning for a run's folder: what was released was released.")
        rows = {path.name: _of_ledger(path)}
    else:
        sys.path.append(str(path.parent.resolve()))  # users' own modules may lie beside their configuration
        plan = load(path, settings)
        rows = {v.label or v.config.name: _of_config(v.config, path.parent) for v in plan.variants}
    if as_json:
        print(to_json(rows if len(rows) > 1 else next(iter(rows.values()))))
        return
    _show(rows)


def _show(rows: dict[str, list[dict[str, Any]]]) -> None:
    """A line for each run and view, a column for each accountant; then what the numbers are of."""
    accountants = list(dict.fromkeys(view["accountant"] for views in rows.values() for view in views))
    table = Table(box=None, pad_edge=False)
    for column in ("run", "view", *(f"epsilon, {name}" for name in accountants), "delta"):
        table.add_column(column, justify="left" if column in ("run", "view") else "right")
    explained = []
    for label, views in rows.items():
        for name in dict.fromkeys(view["view"] for view in views):
            of = {view["accountant"]: view for view in views if view["view"] == name}
            some = next(iter(of.values()))
            values = [_number(of[accountant]) if accountant in of else "-" for accountant in accountants]
            table.add_row(label, name, *values, f"{some['delta']:g}")
            relation = str(some["neighbouring"] or "no").replace("_", "-")
            explained.append(f"{name} view: {some['basis']}; {relation} neighbours.")
    explained += [f"{view['accountant']} {view['caveat']}." for vs in rows.values() for view in vs if view["caveat"]]
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 200)
    console.print(table)
    for line in dict.fromkeys(explained):
        console.print(line, soft_wrap=True, markup=False)


def _accountants() -> list[str]:
    """All registered accountants, the default one first."""
    return sorted(registry.names("accountants"), key=lambda name: (name != "pld", name))


def _number(view: dict[str, Any]) -> str:
    return "none" if view["epsilon"] is None else f"{view['epsilon']:.4f}"


def _of_ledger(folder: Path) -> list[dict[str, Any]]:
    """The server's view of a run's ledger, by every accountant."""
    if not (folder / "ledger.jsonl").exists():
        raise DataError(f"{folder}: holds no ledger.jsonl, so it is no run's folder.")
    config = load(folder / "config.yaml").variants[0].config
    ledger = Ledger.open(folder / "ledger.jsonl", append=False)
    views = []
    for name in _accountants():
        accountant: Accountant = registry.build(registry.load("accountants", name), {}, where="accountant")
        try:
            view = server_view(ledger, accountant, config.privacy.delta)
        except UnsupportedError:  # this accountant does not know the mechanism; others do
            continue
        views.append(_row("server", view.epsilon, config, view.neighbouring, accountant, view.basis))
    return views


def _of_config(config: Config, base: Path) -> list[dict[str, Any]]:
    """The views of all rounds of a configuration, by every accountant; nothing is trained."""
    rules = privacy_rules(config)
    algorithm = build_plugin("algorithms", config.algorithm, where="algorithm")
    num_records = [len(silo.train_y) for silo in federate(config, base).silos]
    for count in num_records:
        rules.sampler.divisor(count)
    setting = make_setting(config, len(num_records))
    weights = (1 / len(num_records),) * len(num_records)  # they change no epsilon
    own: Accountant = build_plugin("accountants", config.privacy.accountant, where="privacy.accountant")
    account_with = functools.partial(PrivacyAccount, config, rules=rules, setting=setting, num_records=num_records)
    account = account_with(accountant=own, ledger=Ledger())
    _rehearse_all(account, Planner(algorithm, setting, weights, config.seed), config.rounds or MOST_ROUNDS)
    releases = sum(account.num_releases(0, round) for round in account.costs)
    ran, asked = len(account.costs), config.rounds
    fit = f" of the {asked} asked for fit epsilon {config.privacy.epsilon:g}" if asked and ran < asked else ""
    basis = f"{ran} rounds{fit}, {releases} releases"
    neighbouring = rules.release(1.0).neighbouring
    views = []
    for name in _accountants():
        accountant: Accountant = registry.build(registry.load("accountants", name), {}, where="accountant")
        same = account_with(accountant=accountant, ledger=Ledger(), costs=account.costs)
        try:
            everywhere, mixture = same.ahead()
        except UnsupportedError:  # this accountant does not know the mechanism; others do
            continue
        whole = "; a silo that takes part in all of them"
        views.append(_row("server", everywhere, config, neighbouring, accountant, basis + whole))
        drawn = f"; each with probability {setting.num_participants}/{setting.num_silos}"
        views.append(_row("third party", mixture, config, neighbouring, accountant, basis + drawn))
    return views


def _rehearse_all(account: PrivacyAccount, planner: Planner, limit: int) -> None:
    """Plan, charge and begin all rounds that a run would make."""
    algorithm = planner.algorithm
    server = algorithm.init_server(torch.zeros(1), planner.setting)
    for round in range(limit):
        plan = planner.plan(server, round)
        if not account.affords(round, plan):
            return
        account.begin_round(round, plan)
        account.append(account.charges(round, plan))
        up, _ = rehearse(algorithm, server, plan)
        server = algorithm.aggregate(server, {name: value[0] for name, value in up.items()}, plan)


def _row(
    view: str, epsilon: float, config: Config, neighbouring: str | None, accountant: Accountant, basis: str
) -> dict[str, Any]:
    return {
        "view": view,
        "epsilon": epsilon if math.isfinite(epsilon) else None,
        "delta": config.privacy.delta,
        "neighbouring": neighbouring,
        "accountant": accountant.name,
        "caveat": accountant.caveat,
        "basis": basis,
    }
