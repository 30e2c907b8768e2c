"""`dpfl account`: epsilon of a configuration, of a run's ledger, or of a mechanism given by its numbers."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from dpfl_plugin.api.account_text import leave_out_papers, show
from dpfl_plugin.api.numbers import epsilon
from dpfl_plugin.api.spent import Row, by_a_papers_bound, is_spent, spent
from dpfl_plugin.core.rounding import digits
from dpfl_plugin.errors import ConfigError, require
from dpfl_plugin.runs.folder import to_json
from dpfl_plugin.terminal import WIDTH

MECHANISMS: Final = {"gaussian-wor": "fixed", "gaussian-poisson": "poisson", "gaussian": "full"}
"""What --mechanism names: the sampler, in the words of a configuration."""


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
    sampled = sampling(mechanism, q)
    found = epsilon(noise_multiplier=sigma, steps=steps, delta=delta, accountant=accountant, **sampled)
    if as_json:
        named = {"accountant": found.accountant, "sound": found.sound, "caveat": found.caveat, "error": found.error}
        print(to_json({"epsilon": found.epsilon, "delta": delta, "neighbouring": found.neighbouring, **named}))
    elif math.isinf(found.epsilon):
        print(f"epsilon: none ({found.odds})")
    else:
        relation = found.neighbouring.replace("_", "-")
        shown = digits(found.epsilon, 6)
        print(f"epsilon {shown} at delta {delta:.15g} ({relation} neighbours, accountant {found.accountant})")


def sampling(mechanism: str, q: float | None) -> dict[str, Any]:
    """How --mechanism and --q draw records, as arguments of `dpfl.epsilon`; what is wrong names the options."""
    require(mechanism in MECHANISMS, "--mechanism", mechanism, f"be one of {', '.join(MECHANISMS)}")
    require(q is None or 0 < q <= 1, "--q", q, "be in (0, 1]: the share of the records in a batch")
    if mechanism == "gaussian":
        require(q in (None, 1), "--q", q, "be 1 (left out) for --mechanism gaussian, which samples nothing")
    return {"sampler": MECHANISMS[mechanism], "record_rate": q}


def account_file(path: Path, settings: list[str], *, of_papers: bool, as_json: bool) -> None:
    """Print the epsilons of a configuration that was not run yet, or of what a run's or a shared ledger holds.

    What papers would say of it is for their own configurations, and for whoever asks by ``of_papers``.
    """
    if not is_spent(path):
        rows, of_a_paper = _ahead(path, settings)
        of_papers |= of_a_paper
    elif settings:
        what = "a run's folder" if path.is_dir() else "a ledger"
        raise ConfigError(f"--set has no meaning for {what}: what was released was released.")
    else:
        rows = spent(path)
        of_papers |= by_a_papers_bound(path)
    if as_json:
        print(to_json(rows if len(rows) > 1 else next(iter(rows.values()))))
        return
    show(Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH), rows, of_papers=of_papers)
    if not of_papers and leave_out_papers(rows) != rows:
        print("--all shows bounds and recipes of papers, too.")


def _ahead(path: Path, settings: list[str]) -> tuple[dict[str, list[Row]], bool]:
    """(Rows of a configuration, whether papers' are shown): needs torch and what reads records, as no ledger does."""
    from dpfl_plugin.api.accounts import is_of_a_paper, rows_of
    from dpfl_plugin.api.experiment import Experiment

    experiment = Experiment(path, tuple(settings))
    return rows_of(experiment), is_of_a_paper(experiment)
