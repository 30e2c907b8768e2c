"""Tables say what groups say, in three formats, and no text in them means more than itself."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from dpfl_plugin.errors import ConfigError
from dpfl_plugin.experiments.reports.groups import Group, grouped
from dpfl_plugin.experiments.reports.runs import VARIANT, read
from dpfl_plugin.experiments.reports.tables import (
    Table,
    comparisons,
    measures,
    no_better,
    pivot,
    runs_csv,
    summary,
    summary_csv,
    tex,
    title,
    to_latex,
    to_markdown,
)
from dpfl_plugin.runs.csv_cells import csv_text
from tests.experiments.reports.folders import change, made

NASTY = r"a&b%c$d#e_f{g}h~i^j\k<l>m|n"
METRICS = ["test_accuracy"]


def groups(tmp_path: Path) -> list[Group]:
    made(tmp_path / "a", seed=0, accuracies=[0.5])
    made(tmp_path / "b", seed=1, accuracies=[0.7], epsilon=2.5)
    made(tmp_path / "c", seed=2, accuracies=[0.1], status="failed", reason="the loss is nan")
    made(tmp_path / "d", changes={"algorithm.name": NASTY, "privacy.noise_multiplier": 0}, epsilon=None)
    return grouped([read(tmp_path / name) for name in "abcd"])


def test_a_row_for_each_group(tmp_path: Path) -> None:
    table = summary(groups(tmp_path), METRICS, "seeds")
    assert table.columns == (
        "configuration",
        "runs",
        "rounds",
        "test accuracy",
        "epsilon, server",
        "epsilon, third party",
    )
    by_label = {row[0]: row[1:] for row in table.rows}
    assert by_label["scaffold"] == ("2 of 3 (1 failed)", "1", "0.6 ± 1.3", "2.500", "2.500")
    assert by_label[NASTY] == ("1", "10", "1", "no guarantee", "no guarantee")


def test_what_all_epsilons_have_in_common_is_in_the_note(tmp_path: Path) -> None:
    table = summary(groups(tmp_path), METRICS, "seeds")
    for part in ("over seeds", "rounded up", "1e-05", "record", "replace-one", "PLD", "complete runs only"):
        assert part in table.note
    assert table.caption == "Mean ± 95 % CI over 1 to 2 runs; delta = 1e-05."


def test_differences_to_a_row_that_was_named(tmp_path: Path) -> None:
    for seed in range(3):
        for name, more in (("a", 0.1), ("b", 0.0)):
            made(
                tmp_path / f"{name}{seed}", seed=seed, accuracies=[0.2 * seed + more], changes={"algorithm.name": name}
            )
    first, second = grouped([read(folder) for folder in sorted(tmp_path.iterdir())])
    table = summary([first, second], METRICS, "seeds", {first.label: second}, "b")
    assert table.columns[4] == "test accuracy, less that of b" and [row[4] for row in table.rows] == ["+0.1 ± 0", "-"]
    assert "equal seeds" in table.note and "other test records" not in table.note


def test_variants_that_a_file_compares(tmp_path: Path) -> None:
    """A row for each pair and each value of what else varies; a variant that is not here is named."""
    for label, epsilon, seed in itertools.product("ab", (1.0, 4.0), range(3)):
        changes = {"algorithm.name": f"of {label}", "privacy.epsilon": epsilon}
        accuracies: list[float | None] = [0.1 * seed + 0.05 * (label == "a") * epsilon]
        made(tmp_path / f"{label}{epsilon}{seed}", seed=seed, changes=changes, accuracies=accuracies)
    runs = [read(folder) for folder in sorted(tmp_path.iterdir())]
    named = [
        replace(run, config={VARIANT: run.folder.name[0], **run.config}, compared_with=("b", "c"))
        if run.folder.name[0] == "a"
        else replace(run, config={VARIANT: "b", **run.config})
        for run in runs
    ]
    table = comparisons(grouped(named), METRICS[0])
    assert table.columns[2] == "difference in test accuracy"
    assert table.rows == (
        ("a, epsilon=1", "b, epsilon=1", "+0.05 ± 0", "3", "significant"),
        ("a, epsilon=1", "c: no such row here", "-", "-", "-"),
        ("a, epsilon=4", "b, epsilon=4", "+0.2 ± 0", "3", "significant"),
        ("a, epsilon=4", "c: no such row here", "-", "-", "-"),
    )
    first, absent, *_ = csv.DictReader(io.StringIO(csv_text(table.data)))
    assert (first["compared_with"], float(first["difference"])) == ("b, epsilon=1", pytest.approx(0.05, abs=1e-15))
    assert (first["difference_pairs"], first["difference_other_test_records"]) == ("3", "0")
    assert (absent["compared_with"], absent["difference"]) == ("c", "")
    assert comparisons(grouped(runs), METRICS[0]).rows == ()


def test_a_pivot_of_two_keys(tmp_path: Path) -> None:
    for name, noise in itertools.product("ab", (4.0, 8.0, 16.0)):
        if (name, noise) != ("b", 16.0):
            changes = {"algorithm.name": name, "privacy.noise_multiplier": noise}
            made(tmp_path / f"{name}{noise}", accuracies=[noise / 20], changes=changes)
    found = grouped([read(folder) for folder in sorted(tmp_path.iterdir())])
    keys = ("algorithm.name", "privacy.noise_multiplier")
    table = pivot(found, "test_accuracy", keys, {"a": "ours"})
    assert table.columns == ("algorithm", "noise_multiplier=4", "noise_multiplier=8", "noise_multiplier=16")
    assert table.rows == (("ours", "0.2", "0.4", "0.8"), ("b", "0.2", "0.4", "-"))
    assert pivot(found, "test_accuracy", keys[::-1], {}).columns == ("noise_multiplier", "a", "b")
    cells = list(csv.DictReader(io.StringIO(csv_text(table.data))))
    assert [(*(cell[key] for key in keys), cell["mean"], cell["n"]) for cell in cells] == [
        (name, f"{noise}", f"{noise / 20}", "1") for name in "ab" for noise in (16.0, 4.0, 8.0)[name == "b" :]
    ]
    with pytest.raises(ConfigError, match=r"pivot algorithm.local_lr: it is the same in all.*algorithm\.name"):
        pivot(found, "test_accuracy", ("algorithm.name", "algorithm.local_lr"), {})
    made(tmp_path / "c", accuracies=[0.1], changes={"algorithm.name": "a", "algorithm.local_lr": 2.0})
    more = grouped([read(folder) for folder in sorted(tmp_path.iterdir())])
    with pytest.raises(
        ConfigError, match=r"2 configurations have .*They differ in algorithm\.local_lr: choose by --where"
    ):
        pivot(more, "test_accuracy", keys, {})


@pytest.mark.parametrize(
    ("classes", "says"),
    [
        ((None, None), None),
        ((None, "ill"), " The positive class is ill."),
        (("ill", "ill"), " The positive class is ill."),
        (("ill", "dead"), " The positive class is the second of two: dead, ill, by configuration."),
    ],
)
def test_measures_name_the_positive_class(tmp_path: Path, classes: tuple[str | None, ...], says: str | None) -> None:
    for name, positive in zip("ab", classes, strict=True):
        folder = made(tmp_path / name, changes={"algorithm.local_lr": ord(name)})
        result = json.loads((folder / "result.json").read_text())
        more = {} if positive is None else {"positive_class": positive}
        (folder / "result.json").write_text(json.dumps({**result, **more}))
    note = measures(grouped([read(tmp_path / name) for name in "ab"])).note
    assert note.endswith(says or "no epsilon covers them.")


@pytest.mark.parametrize(
    ("name", "where", "better", "worse"),
    [("accuracy", "pooled", 0.7, 0.5), ("rmse", "pooled", 1.5, 3.0), ("accuracy", "mean_of_silos", 0.7, 0.5)],
)
def test_models_that_a_constant_would_match_are_named(
    tmp_path: Path, name: str, where: str, better: float, worse: float
) -> None:
    """Better than the baseline, as good, and worse, in the mean over seeds; a run without measures says nothing."""
    baseline = (better + worse) / 2
    for label, values in {"good": [better] * 2, "same": [worse, better], "bad": [worse] * 2, "old": [None]}.items():
        for seed, value in enumerate(values):
            folder = made(tmp_path / f"{label}{seed}", seed=seed, changes={"algorithm.name": label})
            tables = {} if value is None else {where: {"model": {name: value}, "baseline": {name: baseline}}}
            change(folder / "result.json", measures={"ranked_by": name, **tables})
    found = grouped([read(folder) for folder in sorted(tmp_path.iterdir())])
    said = no_better(found)
    assert said.endswith(": bad; same.") and f", by {title(name)}" in said
    assert summary(found, METRICS, "seeds").note.endswith(said)
    assert no_better([group for group in found if group.label in ("good", "old")]) == ""


def test_what_differs_has_a_column(tmp_path: Path) -> None:
    made(tmp_path / "x", accuracies=[0.5])
    folder = made(tmp_path / "y", accuracies=[0.5], changes={"privacy.clip_norm": 2.0})
    for path in (folder / "result.json", folder / "ledger.json"):
        path.write_text(path.read_text().replace("replace_one", "add_or_remove"))
    table = summary(grouped([read(tmp_path / "x"), read(folder)]), METRICS, "seeds")
    assert table.columns[-1] == "neighbours"
    assert {row[-1] for row in table.rows} == {"replace-one", "add-or-remove"}
    assert "replace-one" not in table.note


def test_markdown(tmp_path: Path) -> None:
    lines = to_markdown(summary(groups(tmp_path), METRICS, "seeds")).splitlines()
    assert lines[1] == "| --- | --- | ---: | ---: | ---: | ---: |"
    cells = [re.split(r"(?<!\\)\|", line) for line in lines[:4]]
    assert {len(row) for row in cells} == {8}
    assert "<" not in lines[2] + lines[3]


def test_latex_escapes_all_that_means_something() -> None:
    assert tex("±") == r"$\pm$"
    assert tex("-0.1, epsilon=2, delta, t-1") == r"$-$0.1, $\varepsilon$=2, $\delta$, t-1"
    rest = tex(NASTY)
    for escape in (r"\textbackslash{}", r"\textasciitilde{}", r"\textasciicircum{}", r"\textless{}", r"\textgreater{}"):
        assert escape in rest
        rest = rest.replace(escape, "")
    assert re.sub(r"\\[&%$#_{}]", "", rest) == "abcdefghijklm|n"


def test_latex_has_as_many_cells_as_columns_in_each_row(tmp_path: Path) -> None:
    text = to_latex(summary(groups(tmp_path), METRICS, "seeds"))
    assert r"\begin{tabular}{llrrrr}" in text
    rows = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert len(rows) == 3
    assert {len(re.split(r"(?<!\\)&", row)) for row in rows} == {6}


def test_latex_compiles(tmp_path: Path) -> None:
    if shutil.which("pdflatex") is None:
        pytest.skip("there is no pdflatex")
    table = Table(("a_b", "c"), (False, True), ((NASTY, "0.60 ± 0.14"),), "10 % of 5 & more")
    body = f"\\documentclass{{article}}\\usepackage{{booktabs}}\\begin{{document}}{to_latex(table)}\\end{{document}}"
    (tmp_path / "t.tex").write_text(body)
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "t.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace")
    assert done.returncode == 0, done.stdout


def test_summary_csv_has_the_numbers_in_full(tmp_path: Path) -> None:
    rows = {row["configuration"]: row for row in csv.DictReader(io.StringIO(summary_csv(groups(tmp_path), METRICS)))}
    row = rows["scaffold"]
    assert (row["runs"], row["complete"]) == ("3", "2")
    assert float(row["test_accuracy_mean"]) == pytest.approx(0.6, abs=1e-15)
    assert float(row["test_accuracy_std"]) == pytest.approx(math.sqrt(0.02), abs=1e-15)
    assert float(row["test_accuracy_ci95"]) == pytest.approx(12.7062 * 0.1, rel=1e-5)
    assert float(row["epsilon_server"]) == 2.5
    assert (row["rounds_min"], row["rounds_max"]) == ("1", "1")
    assert row["algorithm.name"] == "scaffold"
    assert rows[NASTY]["epsilon_server"] == "inf" and rows[NASTY]["test_accuracy_std"] == ""


def test_runs_csv_has_every_run(tmp_path: Path) -> None:
    runs = [run for group in groups(tmp_path) for run in group.runs]
    rows = {row["id"]: row for row in csv.DictReader(io.StringIO(runs_csv(runs, METRICS)))}
    assert {row: rows[row]["status"] for row in rows} == {"a": "done", "b": "done", "c": "failed", "d": "done"}
    assert rows["c"]["reason"] == "the loss is nan" and rows["c"]["seed"] == "2"
    assert {(row["rounds"], row["planned_rounds"]) for row in rows.values()} == {("1", "10"), ("10", "10")}
    assert rows["b"]["epsilon_third_party"] == "2.5" and rows["d"]["delta"] == "1e-05"
