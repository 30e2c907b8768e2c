"""`dpfl account`: epsilon of a configuration, or of a run's ledger."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console

from dpfl_plugin.api.account_text import leave_out_papers, show
from dpfl_plugin.api.fitting import WIDTH
from dpfl_plugin.api.spent import Row, by_a_papers_bound, is_spent, spent
from dpfl_plugin.errors import ConfigError
from dpfl_plugin.runs.folder import to_json


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
