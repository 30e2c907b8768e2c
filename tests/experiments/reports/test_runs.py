"""Run folders are read as they are; what is damaged, doubled or not finished is never taken for a result."""

from __future__ import annotations

import json
import math
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpfl_plugin.config.load import flat
from dpfl_plugin.experiments.reports.groups import grouped
from dpfl_plugin.experiments.reports.runs import POINTS, UnreadableError, read, scan
from tests.cli import command
from tests.experiments.reports.folders import change, made


def test_a_real_run_is_read_as_its_result_says(tmp_path: Path) -> None:
    config = command.write(tmp_path, {"rounds": 25, "privacy": {"epsilon": 3.0}})
    result = command.run(config, code=3)
    run = read(Path(result["folder"]))
    assert (run.status, run.id, run.seed, run.rounds) == ("budget_exhausted", result["id"], 3, result["rounds"])
    assert run.reason == result["reason"] and run.complete
    for metric in ("test_accuracy", "train_loss"):
        assert run.numbers[metric] == pytest.approx(result[metric]["mean_last_10_percent"], rel=1e-12)
    assert run.guarantee is not None
    assert run.guarantee.server == result["epsilon"]["server"]["epsilon"]
    assert run.guarantee.third_party == result["epsilon"]["third_party"]["epsilon"]
    assert run.guarantee.unit == "record" and run.guarantee.neighbouring == "replace_one"
    assert run.curve["bytes"][-1] == result["bytes_up"] + result["bytes_down"]
    assert run.curve["rounds"][-1] == result["rounds"]
    assert run.config["algorithm.name"] == "scaffold"


def test_a_real_run_without_noise_has_no_guarantee(tmp_path: Path) -> None:
    config = command.write(tmp_path, {"privacy": {"noise_multiplier": 0.0}})
    guarantee = read(Path(command.run(config)["folder"])).guarantee
    assert guarantee is not None
    assert (guarantee.server, guarantee.third_party) == (math.inf, math.inf)


def test_a_real_failed_run(tmp_path: Path) -> None:
    config = command.write(
        tmp_path,
        {
            "rounds": 50,  # each of which adds numbers near the largest one: whatever batches are drawn
            "algorithm": {"local_lr": 3e38, "local_steps": 20},
            "privacy": {"noise_multiplier": 0.0, "clip_norm": math.inf},
        },
    )
    result = command.run(config, code=1)
    run = read(Path(result["folder"]))
    assert run.status == "failed" and not run.complete and run.reason == result["reason"]


def test_measured_without_guarantee_is_none_whatever_the_views_say(tmp_path: Path) -> None:
    folder = made(tmp_path / "a")
    change(folder / "ledger.json", guarantee="none: the clipping reads records")
    guarantee = read(folder).guarantee
    assert guarantee is not None and guarantee.server == math.inf


def test_the_last_ten_percent_of_rounds(tmp_path: Path) -> None:
    folder = made(tmp_path / "a", accuracies=[i / 100 for i in range(1, 26)])
    assert read(folder).numbers["test_accuracy"] == pytest.approx((0.23 + 0.24 + 0.25) / 3)


def test_a_value_that_is_not_finite_in_the_tail_leaves_no_number(tmp_path: Path) -> None:
    run = read(made(tmp_path / "a", accuracies=[0.1, 0.2, None], status="failed", reason="the loss is nan"))
    assert run.numbers["test_accuracy"] is None
    assert math.isnan(run.curve["test_accuracy"][-1])


def test_curves_are_thinned_with_both_ends(tmp_path: Path) -> None:
    run = read(made(tmp_path / "a", accuracies=[i / 1000 for i in range(950)]))
    assert len(run.curve["rounds"]) == len(run.curve["test_accuracy"]) == POINTS
    assert run.curve["rounds"][0] == 1 and run.curve["rounds"][-1] == 950
    assert np.all(np.diff(run.curve["rounds"]) > 0)


def test_a_run_that_ended_is_not_running_while_its_process_does_other_runs(tmp_path: Path) -> None:
    folder = made(tmp_path / "a", status="failed")
    (folder / ".lock").write_text(f"pid {os.getpid()} on {os.uname().nodename}")
    assert read(folder).status == "failed"


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("result.json", "{", "result.json is not JSON"),
        ("result.json", "[]", "result.json holds no mapping"),
        ("result.json", '{"schema": 2}', "schema 2"),
        ("result.json", '{"schema": 1}', "neither how the run ended"),
        ("result.json", '{"schema": 1, "status": "done", "rounds": 10}', "does not say what was spent"),
        ("ledger.json", None, "ledger.json is missing"),
        ("ledger.json", "{}", "does not say what was spent"),
        ("config.yaml", None, "config.yaml is missing"),
        ("config.yaml", "a: [", "config.yaml is not YAML"),
        ("config.yaml", "7", "holds no configuration"),
        ("config.yaml", b"\xff\xfe", "config.yaml cannot be read"),
        ("config.yaml", "!!python/object/apply:os.system ['true']", "config.yaml is not YAML"),
        ("metrics.jsonl", None, "metrics.jsonl is missing"),
        ("metrics.jsonl", '{"round": 1', "line 1"),
        ("metrics.jsonl", "7\n", "line 1"),
        ("metrics.jsonl", '{"round": 2, "epsilon": {}}\n{"round": 2, "epsilon": {}}\n', "line 2"),
        ("metrics.jsonl", "", "lines are missing"),
    ],
)
def test_damage_is_named_and_left_out(tmp_path: Path, name: str, content: str | bytes | None, reason: str) -> None:
    folder = made(tmp_path / "a")
    made(tmp_path / "b", seed=1)
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    runs, (problem,) = scan([tmp_path])
    assert [run.seed for run in runs] == [1]
    assert problem.folder == folder and reason in problem.reason


FILES = ("config.yaml", "metrics.jsonl", "result.json", "ledger.json", "ledger.jsonl", ".lock")


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_no_damage_raises_anything_else(tmp_path: Path, data: st.DataObject) -> None:
    """Bytes that were changed or cut off anywhere: the run is read, or left out with a reason."""
    folder = tmp_path / "a"
    shutil.rmtree(folder, ignore_errors=True)
    made(folder, accuracies=[0.5, 0.6], status=data.draw(st.sampled_from(["done", "failed", None])))
    (folder / ".lock").write_text("pid 1 on nowhere")
    path = folder / data.draw(st.sampled_from([name for name in FILES if (folder / name).exists()]))
    content = path.read_bytes()
    begin = data.draw(st.integers(0, len(content)))
    end = data.draw(st.integers(begin, min(len(content), begin + 20)) | st.just(len(content)))
    wrong = data.draw(st.binary(max_size=3) | st.sampled_from([b"[]", b"{}", b"null", b'"x"', b"1e999", b"-1", b"NaN"]))
    path.write_bytes(content[:begin] + wrong + content[end:])
    runs, problems = scan([tmp_path])
    assert len(runs) + len(problems) == 1
    grouped(runs)


def test_lines_that_are_missing_at_the_end_are_noticed(tmp_path: Path) -> None:
    folder = made(tmp_path / "a")
    kept = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)[:-1]
    (folder / "metrics.jsonl").write_text("".join(kept))
    with pytest.raises(UnreadableError, match="lines are missing"):
        read(folder)


def test_a_line_that_is_being_written_is_no_damage(tmp_path: Path) -> None:
    folder = made(tmp_path / "a", status=None)
    with open(folder / "metrics.jsonl", "a") as file:
        file.write('{"round": 11, "epsi')
    run = read(folder)
    assert run.status == "unfinished" and run.rounds == 10 and not run.complete


def test_of_an_unfinished_run_no_epsilon_is_told(tmp_path: Path) -> None:
    """Its last evaluation's would be too small: the ledger may hold later rounds."""
    assert read(made(tmp_path / "a", status=None)).guarantee is None


def test_a_living_process_makes_a_run_running(tmp_path: Path) -> None:
    folder = made(tmp_path / "a", status=None)
    lock, host = folder / ".lock", os.uname().nodename
    lock.write_text(f"pid {os.getpid()} on {host}")
    assert read(folder).status == "running" and read(folder).guarantee is None
    for nobody in (f"pid {os.getpid()} on another-host", f"pid {2**22 + 1} on {host}", "", "pid x on y"):
        lock.write_text(nobody)
        assert read(folder).status == "unfinished"


def test_a_finished_run_is_not_running_whoever_has_its_number_now(tmp_path: Path) -> None:
    folder = made(tmp_path / "a")
    (folder / ".lock").write_text(f"pid {os.getpid()} on {os.uname().nodename}")
    assert read(folder).status == "done"


def test_a_result_from_before_a_resume_that_was_lost_counts_for_nothing(tmp_path: Path) -> None:
    folder = made(tmp_path / "a", status="interrupted", reason="asked to")
    before = read(folder)
    assert before.status == "interrupted" and before.guarantee is not None
    with open(folder / "ledger.jsonl", "a") as file:
        file.write('{"count":1,"check":"bb"}\n')
    after = read(folder)
    assert after.status == "unfinished" and after.guarantee is None


@pytest.mark.parametrize(
    ("status", "chosen", "shown"),
    [
        ("interrupted", True, "left behind by its tuning"),
        ("interrupted", False, "interrupted"),
        ("failed", True, "failed"),
        ("done", True, "done"),
    ],
)
def test_a_candidate_of_a_tuning_that_has_chosen(tmp_path: Path, status: str, chosen: bool, shown: str) -> None:
    (tmp_path / "tuning.json").write_text("{}")
    if chosen:
        (tmp_path / "result.json").write_text("{}")
    run = read(made(tmp_path / "runs" / "tuned" / "a", status=status))
    assert run.status == shown and grouped([run])[0].state == ("1" if run.complete else f"0 of 1 (1 {shown})")


def test_the_same_run_in_two_places_counts_once(tmp_path: Path) -> None:
    made(tmp_path / "here" / "abc", status="interrupted", accuracies=[0.1, 0.2])
    made(tmp_path / "there" / "abc")
    runs, (problem,) = scan([tmp_path, tmp_path / "there"])
    assert [run.status for run in runs] == ["done"]
    assert problem.folder == tmp_path / "here" / "abc" and "the same run as" in problem.reason
    change(tmp_path / "here" / "abc" / "result.json", model_sha256="aa")
    change(tmp_path / "there" / "abc" / "result.json", model_sha256="bb")
    assert "with other noise: what it released is in no number here" in scan([tmp_path])[1][0].reason


def test_a_shared_ledger_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "ledger.jsonl").write_text("")
    made(tmp_path / "a")
    runs, problems = scan([tmp_path])
    assert len(runs) == 1 and not problems


def test_a_folder_of_none(tmp_path: Path) -> None:
    assert scan([tmp_path]) == ([], [])


def test_what_changes_no_result_is_no_part_of_the_configuration(tmp_path: Path) -> None:
    a = read(made(tmp_path / "a"))
    b = read(made(tmp_path / "b", changes={"out": "x", "name": "y", "data.folder": "/z", "checkpoint.every": 3}))
    assert a.config == b.config and b.name == "y"


def test_flat() -> None:
    assert flat({"a": {"b": 1, "c": {"d": 2}}, "e": [3]}) == {"a.b": 1, "a.c.d": 2, "e": [3]}
    assert flat({"a": {"b": 1, "c": 2}, "e": 3}, {"a": {"b"}, "e": True}) == {"a.c": 2}


def test_folders_are_left_as_they_are(tmp_path: Path) -> None:
    made(tmp_path / "runs" / "a", status=None)
    before = shutil.copytree(tmp_path / "runs", tmp_path / "copy")
    scan([tmp_path / "runs"])
    for path in before.rglob("*"):
        if path.is_file():
            assert (tmp_path / "runs" / path.relative_to(before)).read_bytes() == path.read_bytes()
    assert len(list((tmp_path / "runs").rglob("*"))) == len(list(before.rglob("*")))


def test_metrics_are_all_that_is_measured(tmp_path: Path) -> None:
    folder = made(tmp_path / "a", accuracies=[0.5])
    line = json.loads((folder / "metrics.jsonl").read_text())
    more = {**line, "gradient_dissimilarity": 2.5, "by_silo": [0.1], "word": "x", "flag": True}
    (folder / "metrics.jsonl").write_text(json.dumps(more) + "\n")
    assert list(read(folder).numbers) == ["test_accuracy", "train_loss", "gradient_dissimilarity"]
