"""What is said of epsilons that stand side by side: simulations, what all runs released costs, unspent budgets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dpfl_plugin.experiments.reports.groups import grouped
from dpfl_plugin.experiments.reports.privacy_notes import CHOICE, privacy_notes
from dpfl_plugin.experiments.reports.runs import read
from tests.experiments.reports.folders import change, made

TOTALS = {
    "planned_total": {"epsilon": 2.5, "delta": 1e-5, "num_runs": 2},
    "adaptive_total": {"epsilon": 3.1, "delta": 1e-5},
    "earlier_runs": 1,
}
LATER = {**TOTALS, "earlier_runs": 2}
LARGER = {**LATER, "adaptive_total": {"epsilon": 3.3, "delta": 1e-5}}
NO_TOTAL = {"planned_total": None, "adaptive_total": {"epsilon": None, "delta": 1e-5}}
SUM = "What all 2 private runs released costs at most epsilon 3.500 at delta 2e-05, the sums of"
OTHER = {"unit": "silo", "neighbouring": "zeroed", "delta": 1e-5, "accountant": "PLD", "epsilon": 1.5}


@pytest.mark.parametrize(
    ("ledgers", "results", "said"),
    [
        (("", ""), ({}, {}), SUM),
        (("a", "b"), (TOTALS, LATER), "costs at most epsilon 5.600 at delta 2e-05, the sums of"),
        (("a", ""), (LATER, {}), "costs at most epsilon 4.600 at delta 2e-05, the sums of"),
        (("a", "a"), (NO_TOTAL, NO_TOTAL), SUM),
        (("a", "a"), (TOTALS, TOTALS), "costs epsilon 2.500 at delta 1e-05, the total of the plan"),
        (("a", "a"), (LATER, LATER), "costs epsilon 3.100 at delta 1e-05, by their ledger."),
        (("a", "a"), (LARGER, LATER), "costs epsilon 3.300 at delta 1e-05, by their ledger."),
        (("a", "a"), (TOTALS, LARGER), "costs epsilon 3.300 at delta 1e-05, by their ledger."),
        (("", ""), ({}, {"epsilon": {"server": OTHER, "third_party": OTHER}}), "they protect different things"),
    ],
)
def test_what_all_runs_released_costs(
    tmp_path: Path, ledgers: tuple[str, str], results: tuple[dict[str, Any], ...], said: str
) -> None:
    runs = []
    for seed, (ledger, result) in enumerate(zip(ledgers, results, strict=True)):
        folder = made(tmp_path / str(seed), seed=seed, epsilon=2.0 - 0.5 * seed)
        change(folder / "result.json", **result)
        runs.append(replace(read(folder), ledger=ledger))
    (note,) = privacy_notes(grouped(runs))
    assert said in note and "not counted" not in note and note.endswith(f". {CHOICE}")
    unfinished = read(made(tmp_path / "c", seed=2, status=None))
    open_run = read(made(tmp_path / "d", epsilon=None, changes={"privacy.noise_multiplier": 0}))
    (note,) = privacy_notes(grouped([*runs, unfinished, open_run]))
    assert note.endswith(f" 1 unfinished run not counted. {CHOICE}") and "the plan" not in note
    assert privacy_notes(grouped([runs[0], open_run])) == ()


def test_runs_of_a_shared_ledger_are_recognized(tmp_path: Path) -> None:
    for name, key in (("a", "1"), ("b", "1"), ("c", "2")):
        facts = f'{{"facts":{{"shared":{{"file":"all.jsonl"}},"cuts":{{"key":"{key}"}}}},"check":"00"}}\n'
        (made(tmp_path / name) / "ledger.jsonl").write_text(facts + '{"check":"aa"}\n')
    ledgers = [read(tmp_path / name).ledger for name in "abc"]
    assert ledgers[0] == ledgers[1] != ledgers[2]


@pytest.mark.parametrize("simulated", [0, 1, 2])
def test_simulations_are_named(tmp_path: Path, simulated: int) -> None:
    for seed in range(2):
        folder = made(tmp_path / str(seed), seed=seed)
        change(folder / "result.json", randomness="seeded" if seed < simulated else "fresh")
    notes = " ".join(privacy_notes(grouped([read(tmp_path / name) for name in "01"])))
    assert ("protect nobody" in notes) == (simulated > 0)
    assert ("1 of 2 private runs" in notes) == (simulated == 1)
    assert ("would cost at most" in notes) == (simulated == 2)


@pytest.mark.parametrize(("asked", "said"), [(2.0, True), (1.0, False), (None, False)])
def test_a_budget_that_was_not_spent(tmp_path: Path, asked: float | None, said: bool) -> None:
    """A sentence for each noise that was solved for, with the most that was spent by it."""
    for seed, (name, noise, less) in enumerate((("a", 6.0, 4.0), ("b", 6.1, 4.1))):
        changes = {"algorithm.name": name, "privacy.noise_multiplier": None, "privacy.epsilon": asked}
        folder = made(tmp_path / name, epsilon=1.0 + 0.1 * seed, changes=changes)
        capped = {"max_participations": 18, "noise_multiplier": less}
        change(folder / "result.json", noise_multiplier=noise, capped=capped)
    notes = privacy_notes(grouped([read(tmp_path / name) for name in "ab"]))
    for spent, noise, less in (("1.000", "6", "4"), ("1.100", "6.1", "4.1")):
        sentence = (
            f"Of epsilon 2 asked, {spent} was spent: noise is solved for a silo in every round. max_participations=18 "
            f"would take noise_multiplier {less} instead of {noise}."
        )
        assert (sentence in notes) == said
