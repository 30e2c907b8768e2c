"""`dpfl report` from the command line."""

from __future__ import annotations

from pathlib import Path

from tests.cli.command import dpfl, one_message, run, write
from tests.reports.folders import made


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
        f"test_accuracy-{axis}.{kind}"
        for axis in ("rounds", "epsilon", "bytes", "seconds", "tradeoff")
        for kind in ("png", "pdf")
    }
    assert (tmp_path / "out" / "index.html").read_text().startswith("<!doctype html>")
    assert "all runs" in done.out and " ± " in done.out and "rounded up" in done.out
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
    assert "0.100 ± 0.100" in done.out


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
