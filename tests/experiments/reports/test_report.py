"""A report of runs that do not fit together says what is wrong, and in which of them."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dpfl_plugin.config.sweep import expand
from dpfl_plugin.errors import ConfigError
from dpfl_plugin.experiments import manifest
from dpfl_plugin.experiments.reports import report as reports
from dpfl_plugin.experiments.reports.report import Report, report
from tests.cli.sweeping import write
from tests.experiments.reports.folders import change, made

VARIANTS = {"A": {}, "B": {"algorithm": {"local_lr": 0.2}}}


def swept(folder: Path) -> list[Path]:
    """A sweep of two variants with two seeds that has run; its run folders."""
    path = write(folder, {"seeds": 2}, {"variants": VARIANTS, "compare": [["A", "B"]]})
    planned = manifest.plan(expand(path), path, folder)
    manifest.write(planned)
    folders = []
    for row in planned.rows:
        lr = 1.0 if row.label.startswith("A") else 2.0
        run = made(
            planned.folder_of(row).path,
            seed=row.changes["seed"],
            changes={"algorithm.local_lr": lr},
            accuracies=[0.1 * lr + 0.2 * row.changes["seed"]],
        )
        (run / "task.json").write_text("{}")
        folders.append(run)
    return folders


def other_metric(folders: list[Path]) -> None:
    for folder in folders[2:]:
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        for line in lines:
            line["test_rmse"] = line.pop("test_accuracy")
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        result = json.loads((folder / "result.json").read_text())
        result["test_rmse"] = result.pop("test_accuracy")
        (folder / "result.json").write_text(json.dumps(result))


def other_seed(folders: list[Path]) -> None:
    text = (folders[3] / "config.yaml").read_text()
    (folders[3] / "config.yaml").write_text(text.replace("seed: 1", "seed: 7"))


def nothing(folders: list[Path]) -> None:
    pass


def deleted(folders: list[Path]) -> None:
    shutil.rmtree(folders[3])


def without_result(folders: list[Path]) -> None:
    (folders[3] / "result.json").unlink()


def stopped(folders: list[Path]) -> None:
    """The first of B by a callback, the second by its budget, and the first of A by early stopping."""
    reason = "stopped by callback Limit: more than 1 minute; all planned rounds are charged"
    for folder, cause in zip(folders[:3], ("early_stopping", "rounds", "callback"), strict=True):
        change(folder / "result.json", cause=cause, reason=reason)
    change(folders[3] / "result.json", cause="budget", status="budget_exhausted")


STOPPED = [
    "Best: B (test accuracy 0.3 ± 1.3, epsilon 2.001, 1 of 2 runs stopped by a callback after 1 of 10 rounds). Its",
    "Stopped by callback Limit (more than 1 minute; all planned rounds are charged): B, 1 of 2 runs after 1 of 10",
    "| B | 2 | 1 of 10 |",
    "| A | 2 | 1 |",
]


@pytest.mark.parametrize(
    ("fault", "options", "said"),
    [
        (stopped, {}, STOPPED),
        (stopped, {"baseline": "A"}, STOPPED),
        (nothing, {}, ["Best: B (test accuracy 0.3", "significant at 95 %"]),
        (
            other_metric,
            {},
            ["no metric in common: A: test_accuracy; B: test_rmse. Choose rows by --where, or a --m"],
        ),
        (other_metric, {"metrics": ["train_loss"]}, ["train loss"]),
        (nothing, {"pivot": ("variant", "epsilon")}, ["pivot epsilon: no run has this key"]),
        (nothing, {"pivot": ("variant", "rounds")}, ["pivot rounds: it is the same in all", "that vary: variant, "]),
        (nothing, {"pivot": ("name", "rounds")}, ["pivot name: it is the same in all"]),
        (nothing, {"pivot": ("seed", "variant")}, ["pivot seed: rows are means over seeds. Keys that vary: variant, "]),
        (
            nothing,
            {"pivot": ("variant", "seed"), "group_by": ["seed"]},
            ["pivot variant: rows are means over all values of variant. Keys that vary: seed."],
        ),
        (deleted, {}, ["1 of 4 runs have not begun, or were deleted: B seed=1", "seeds", "A and B (seed 1)"]),
        (deleted, {}, ["| B | 1 of 2 (1 missing) |", "\nA,2,2,", "\nB,2,1,"]),
        (without_result, {}, ["1 of 2 (1 unfinished)", "or its result.json was deleted"]),
        (other_seed, {}, ["left out: A and B (seeds 1, 7)"]),
        (other_seed, {"baseline": "B"}, ["left out: A (seeds 1, 7)"]),
    ],
)
def test_runs_that_do_not_fit_together(
    tmp_path: Path, fault: Callable[[list[Path]], None], options: dict[str, Any], said: list[str]
) -> None:
    fault(swept(tmp_path))
    try:
        result = report(tmp_path, tmp_path / "out", **options)
    except ConfigError as error:
        text = str(error)
    else:
        text = everything(result)
    for part in said:
        assert part in text


def everything(result: Report) -> str:
    """What is printed, and what the page and the tables say."""
    texts = [path.read_text() for path in result.out.rglob("*") if path.suffix in (".html", ".md", ".csv")]
    return "\n".join([str(result), *texts])


def test_the_result_is_that_at_each_epsilon_where_they_are_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, epsilon, seed in itertools.product("ab", (1.0, 4.0), range(2)):
        changes = {"algorithm.name": name, "privacy.epsilon": epsilon, "privacy.noise_multiplier": None}
        accuracies: list[float | None] = [0.5 + 0.1 * epsilon * (name == "a") - 0.2 * (name == "a")]
        made(tmp_path / f"{name}{epsilon}{seed}", seed=seed, changes=changes, accuracies=accuracies)
    text = str(report(tmp_path, tmp_path / "out", html=False))
    assert "Best at epsilon=4: a (test accuracy 0.7 ± 0, epsilon 2.001, 2 runs). Its difference to the next, b" in text
    assert "Best at epsilon=1: b (test accuracy 0.5 ± 0" in text
    changes = {"algorithm.name": "a", "privacy.epsilon": 1.0, "privacy.noise_multiplier": None}
    made(tmp_path / "more", seed=2, changes=changes, accuracies=[0.4])
    text = str(report(tmp_path, tmp_path / "out", html=False))
    assert "the next, a, is +0.1 ± 0 over the 2 seeds that both have: significant" in text
    made(tmp_path / "open", changes={"privacy.noise_multiplier": 0}, accuracies=[0.9], epsilon=None)
    text = str(report(tmp_path, tmp_path / "out", html=False))
    assert "Best: scaffold (test accuracy 0.9, 1 run). Best with a guarantee: a, " in text
    made(tmp_path / "other", changes={"algorithm.local_lr": 2.0})
    monkeypatch.setattr(reports, "plot", lambda path, *_: [path])
    text = str(report(tmp_path, tmp_path / "out", html=False))
    assert "no bands in test_accuracy-rounds: 6 configurations would overlap. --where chooses 5 or fewer." in text


def test_a_baseline_is_a_row_or_a_line_against_epsilon(tmp_path: Path) -> None:
    """Of a line each row is compared with the point that has its noise. A label may hold a comma."""
    for name, epsilon, seed in itertools.product(("a, b", "c"), (1.0, 4.0), range(2)):
        changes = {"algorithm.name": name, "privacy.epsilon": epsilon}
        accuracies: list[float | None] = [0.1 * epsilon + 0.05 * (name == "c") + 0.01 * seed]
        made(tmp_path / f"{name}{epsilon}{seed}", seed=seed, changes=changes, accuracies=accuracies)
    for baseline, differences in (
        ("a, b", ["+0.05 ± 0", "-", "+0.05 ± 0", "-"]),
        ("a, b, epsilon=1", ["+0.35 ± 0", "+0.3 ± 0", "+0.05 ± 0", "-"]),
    ):
        table = report(tmp_path, tmp_path / "out", baseline=baseline, html=False).table
        assert table.columns[4] == f"test accuracy, less that of {baseline}"
        assert [row[4] for row in table.rows] == differences
    named = report(tmp_path, tmp_path / "out", labels={"a, b": "ours"}, baseline="ours", html=False)
    assert {row[0] for row in named.table.rows} >= {"ours, epsilon=1", "ours, epsilon=4"}
    with pytest.raises(ConfigError, match=r"baseline d: no row is called so.*Rows: c, epsilon=4; .*; c; a, b\."):
        report(tmp_path, tmp_path / "out", baseline="d")


def test_keys_by_their_ends(tmp_path: Path) -> None:
    for name in "ab":
        made(tmp_path / name, changes={"algorithm.name": name})
    assert report(tmp_path, tmp_path / "out", where={"algorithm": "a"}).table.rows[0][0] == "a"
    assert report(tmp_path, tmp_path / "out", group_by=["local_lr"]).table.rows[0][0] == "local_lr=1"
    made(tmp_path / "c", changes={"algorithm.x": 1, "privacy.x": 1})
    with pytest.raises(ConfigError, match=r"where x: may be algorithm\.x or privacy\.x\. Write the whole key\."):
        report(tmp_path, tmp_path / "out", where={"x": 1})


def test_sections_have_files_of_their_own_and_those_of_an_earlier_report_go(tmp_path: Path) -> None:
    """Names of data sets that differ in marks only, or have no letter, do not write over each other."""
    swept(tmp_path)
    report([tmp_path], out=tmp_path / "out", pivot=("algorithm.local_lr", "variant"))
    assert (tmp_path / "out" / "tables" / "pivot.csv").exists()
    for name in ("a-b.csv", "a_b.csv", "é"):
        data = {"data.dataset": {"name": "csv", "files": name}}
        made(tmp_path / "others" / name, changes=data)
    report([tmp_path / "others"], out=tmp_path / "out")
    names = sorted(path.name for path in (tmp_path / "out" / "tables").glob("*"))
    assert len([name for name in names if name.endswith("summary.csv")]) == 3 and "pivot.csv" not in names, names
    with pytest.raises(ConfigError, match="pivot='variant,epsilon' must be two keys"):
        report([tmp_path], out=tmp_path / "out", pivot="variant,epsilon")  # type: ignore[arg-type]
