"""`dpfl account`: epsilon of a configuration, of a run's ledger, or of a mechanism given by its numbers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from dpfl_plugin import registry
from dpfl_plugin.config.load import load
from dpfl_plugin.config.schema import Config
from dpfl_plugin.errors import ConfigError, DataError, require
from dpfl_plugin.privacy.accountants import Accountant
from dpfl_plugin.privacy.events import SampledGaussian, Term
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.views import server_view
from dpfl_plugin.training.accounting import PrivacyAccount
from dpfl_plugin.training.build import build_plugin, federate, make_setting, privacy_rules
from dpfl_plugin.training.folder import to_json
from dpfl_plugin.training.planning import Planner
from dpfl_plugin.training.session import MOST_ROUNDS

MECHANISMS = {
    "gaussian-wor": ("fixed", "replace_one"),
    "gaussian-poisson": ("poisson", "add_or_remove"),
    "gaussian": ("full", "replace_one"),
}


def account_mechanism(
    mechanism: str,
    q: float,
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
        plan = load(path, settings)
        rows = {v.label or v.config.name: _of_config(v.config, path.parent) for v in plan.variants}
    if as_json:
        print(to_json(rows if len(rows) > 1 else next(iter(rows.values()))))
        return
    table = Table(box=None, pad_edge=False)
    for column in ("run", "view", "epsilon", "delta", "neighbours", "accountant", "what was composed"):
        table.add_column(column, overflow="fold", justify="right" if column in ("epsilon", "delta") else "left")
    for label, views in rows.items():
        for view in views:
            epsilon = "none" if view["epsilon"] is None else f"{view['epsilon']:.4f}"
            relation = str(view["neighbouring"] or "-").replace("_", "-")
            basis = str(view["basis"])
            table.add_row(
                label,
                view["view"],
                epsilon,
                f"{view['delta']:g}",
                relation,
                view["accountant"],
                basis,
                end_section=True,
            )
    Console(highlight=False).print(table)


def _of_ledger(folder: Path) -> list[dict[str, Any]]:
    """The server's view of a run's ledger, by every accountant."""
    if not (folder / "ledger.jsonl").exists():
        raise DataError(f"{folder}: holds no ledger.jsonl, so it is no run's folder.")
    config = load(folder / "config.yaml").variants[0].config
    ledger = Ledger.open(folder / "ledger.jsonl", append=False)
    views = []
    for name in registry.names("accountants"):
        accountant: Accountant = registry.build(registry.load("accountants", name), {}, where="accountant")
        view = server_view(ledger, accountant, config.privacy.delta)
        views.append(_row("server", view.epsilon, config, view.neighbouring, accountant.name, view.basis))
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
    planner, server = Planner(algorithm, setting, weights, config.seed), algorithm.init_server(torch.zeros(1), setting)
    views = []
    for name in registry.names("accountants"):
        accountant: Accountant = registry.build(registry.load("accountants", name), {}, where="accountant")
        account = PrivacyAccount(
            config, rules=rules, accountant=accountant, setting=setting, num_records=num_records, ledger=Ledger()
        )
        plan = planner.plan(server, 0)
        rounds = account.expected_rounds(plan, config.rounds or MOST_ROUNDS)
        for round in range(rounds):
            account.begin_round(round, plan)
        neighbouring = rules.release(1.0).neighbouring
        basis = f"{rounds} rounds of {plan.num_gradients} releases"
        everywhere, mixture = account.ahead()
        whole = "; a silo that takes part in all of them"
        views.append(_row("server", everywhere, config, neighbouring, accountant.name, basis + whole))
        drawn = f"; each with probability {setting.num_participants}/{setting.num_silos}"
        views.append(_row("third party", mixture, config, neighbouring, accountant.name, basis + drawn))
    return views


def _row(
    view: str, epsilon: float, config: Config, neighbouring: str | None, accountant: str, basis: str
) -> dict[str, Any]:
    return {
        "view": view,
        "epsilon": epsilon if math.isfinite(epsilon) else None,
        "delta": config.privacy.delta,
        "neighbouring": neighbouring,
        "accountant": accountant,
        "basis": basis,
    }
