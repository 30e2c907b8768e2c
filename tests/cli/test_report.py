"""`dpfl report` from the command line."""

from __future__ import annotations

import itertools
from pathlib import Path

from tests.cli import sweeping
from tests.cli.command import dpfl, one_message, run, write
from tests.experiments.reports.folders import made


def test_from_real_runs_to_all_files(tmp_path: Path, pictures: None, measured: None) -> None:
    config = write(tmp_path)
    for seed in (0, 1):
        run(config, f"--set=seed={seed}")
    done = dpfl("report", tmp_path / "runs", "--out", tmp_path / "out", "--metric", "test_accuracy")
    assert done.code == 0, done.err
    assert {path.name for path in (tmp_path / "out" / "tables").iterdir()} == {
        "summary.csv",
        "summary.md",
        "summary.tex",
        "runs.csv",
        "measures.md",
    }
    assert {path.name for path in (tmp_path / "out" / "plots").iterdir()} == {
        f"test_accuracy-{axis}.{kind}" for axis in ("rounds", "epsilon") for kind in ("png", "pdf")
    }
    assert (tmp_path / "out" / "index.html").read_text().startswith("<!doctype html>")
    assert " ± " in done.out and "rounded up" in done.out
    assert str(tmp_path / "out" / "index.html") in done.out


def test_partial_failed_and_damaged_runs_are_shown_as_such(tmp_path: Path) -> None:
    made(tmp_path / "a", seed=0)
    made(tmp_path / "b", seed=1, status="failed")
    (made(tmp_path / "c", seed=2) / "result.json").write_text("{")
    done = dpfl("report", tmp_path, "--out", tmp_path / "out", "--no-html")
    assert done.code == 0
    assert "1 of 2 (1 failed)" in done.out
    assert f"left out: {tmp_path / 'c'}: result.json is not JSON" in done.out
    assert not (tmp_path / "out" / "index.html").exists()


def test_where_and_group_by(tmp_path: Path) -> None:
    for i, lr in enumerate((1.0, 2.0, 1e-5)):
        made(tmp_path / str(i), changes={"algorithm.local_lr": lr}, accuracies=[lr / 10])
    done = dpfl("report", tmp_path, "--out", tmp_path / "out", "--no-html", "--where", "algorithm.local_lr=1e-5")
    assert "1e-06" in done.out and "0.2 " not in done.out
    done = dpfl("report", tmp_path, "--out", tmp_path / "out", "--no-html", "--group-by", "algorithm.name")
    assert "over all runs with the same algorithm.name" in done.out
    assert "0.10 ± 0.25" in done.out


def test_what_a_paper_needs_without_a_line_by_hand(tmp_path: Path) -> None:
    """Rows of the user's names, differences, a pivot; a section for each data set."""
    for name, epsilon, seed in itertools.product(("scaffold", "fedavg"), (1.0, 4.0), range(2)):
        changes = {"algorithm.name": name, "privacy.noise_multiplier": None, "privacy.epsilon": epsilon}
        made(tmp_path / "runs" / f"{name}{epsilon}{seed}", seed=seed, changes=changes, epsilon=epsilon)
    out = tmp_path / "out"
    options = ["--pivot", "algorithm.name,privacy.epsilon", "--label", "scaffold=SCAFFOLD", "--no-html"]
    done = dpfl("report", tmp_path / "runs", "--out", out, *options, "--baseline", "fedavg, epsilon=1")
    assert done.code == 0, done.err
    assert "SCAFFOLD, epsilon=4" in done.out and "Best at epsilon=4: " in done.out and "epsilon=1" in done.out
    latex = (out / "tables" / "pivot.tex").read_text()
    assert r"algorithm & $\varepsilon$=1 & $\varepsilon$=4 \\" in latex and "SCAFFOLD & " in latex
    one_message(
        dpfl("report", tmp_path / "runs", "--out", out, "--baseline", "fedavg, epsilon=2"),
        "baseline fedavg",
        "did you mean",
    )
    one_message(dpfl("report", tmp_path / "runs", "--out", out, "--pivot", "algorithm.name"), "must be two keys")
    made(tmp_path / "runs" / "other", changes={"data.dataset.name": "synthetic"})
    one_message(dpfl("report", tmp_path / "runs", "--out", out, "--label", "fedavgs=x"), "label fedavgs", "'fedavg'")
    one_message(dpfl("report", tmp_path / "runs", "--out", out, "--label", "fedavg"), "--label must be OLD=NEW")
    done = dpfl("report", tmp_path / "runs", "--out", out, "--no-html", "--label", "fedavg=x")  # of one data set alone
    assert done.code == 0, done.err
    assert {"digits-summary.csv", "synthetic-summary.csv"} <= {path.name for path in (out / "tables").iterdir()}


def test_a_sweep_of_compared_variants(tmp_path: Path) -> None:
    """From the file to the table; without compare the runs are the same."""
    changes = {
        "rounds": 2,
        "variants": {"A": {}, "B": {"algorithm": {"name": "fedavg"}}},
        "compare": [["A", "B"]],
    }
    path, out = (
        sweeping.write(tmp_path, {"grid": {"privacy.clip_norm": [0.5, 1.0]}, "seeds": 2}, changes),
        tmp_path / "out",
    )
    planned = dpfl("sweep", path, "--out", out, "--dry-run").out
    assert "A privacy.clip_norm=0.5 seed=0" in planned and planned.count("# ") == 8
    assert dpfl("sweep", path, "--out", out).code == 0
    assert "B privacy.clip_norm=1.0" in dpfl("status", out).out
    said = dpfl("report", out, "--out", tmp_path / "report", "--no-html", "--pivot", "variant,clip_norm").out
    assert "Differences" not in said and "difference in" in said
    rows = (tmp_path / "report" / "tables" / "comparisons.csv").read_text().splitlines()
    assert rows[1].startswith('"A, clip_norm=') and len(rows) == 3
    again = dpfl("sweep", path, "--out", out, "--set", "compare=null")
    assert "8 done" in again.err and "nothing is left to run" in again.err
    dpfl("report", out, "--out", tmp_path / "other", "--no-html")
    assert not (tmp_path / "other" / "tables" / "comparisons.csv").exists()


def test_wrong_options_are_one_message(tmp_path: Path) -> None:
    made(tmp_path / "a")
    one_message(dpfl("report", tmp_path / "none"), "none is not a folder")
    (tmp_path / "empty").mkdir()
    one_message(dpfl("report", tmp_path / "empty"), "no run")
    one_message(dpfl("report", tmp_path, "--against", "round"), "against round", "did you mean 'rounds'")
    one_message(dpfl("report", tmp_path, "--metric", "accuracy"), "metric accuracy", "did you mean 'test_accuracy'")
    one_message(dpfl("report", tmp_path, "--where", "algorithm.nam=x"), "did you mean 'algorithm.name'")
    one_message(dpfl("report", tmp_path, "--where", "x"), "'x' is not of the form key=value")
    one_message(dpfl("report", tmp_path, "--where", "seed=5"), "no run is as")
    one_message(dpfl("report", tmp_path, "--group-by", "algorithm.nam"), "group_by", "did you mean")


def test_only_damaged_runs_are_one_message_that_names_them(tmp_path: Path) -> None:
    (made(tmp_path / "a") / "config.yaml").unlink()
    one_message(dpfl("report", tmp_path), "config.yaml is missing", str(tmp_path / "a"))
