"""Files of a sweep that are torn, cut or edited: named in a message, and no other run or sweep is held up by them."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpfl_plugin.config.sweep import expand
from dpfl_plugin.errors import DataError
from dpfl_plugin.experiments import manifest, status, submission
from dpfl_plugin.experiments.manifest import Sweep
from dpfl_plugin.runs.run_status import status_of, write_task
from tests.cli.command import dpfl
from tests.cli.sweeping import write


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    path = write(tmp_path, {"seeds": 3})
    planned = manifest.plan(expand(path), path, tmp_path / "out")
    manifest.write(planned)
    return planned


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("result.json", '{"status": "done"}', "result.json is damaged (it lacks 'reason')"),
        ("result.json", '{"status": "done", "reason": "", "rounds": "x"}', "result.json is damaged"),
        ("result.json", '{"status": "failed"}', "does not say why"),
        ("result.json", '{"status": "do', ""),
        ("task.json", '{"state": "running"}', ""),
        ("task.json", '{"state": "failed", "reason": 3}', "3"),
        ("metrics.jsonl", '{"round": {}}\n[1]\n', ""),
    ],
)
def test_a_damaged_file_is_of_its_run_only(sweep: Sweep, name: str, text: str, said: str) -> None:
    folder = sweep.folder_of(sweep.rows[1])
    folder.make()
    (folder.path / name).write_text(text)
    found = dpfl("status", sweep.folder.parents[1], "--json").json
    assert [run["status"] for run in found["runs"]] == ["pending", "failed" if said else "pending", "pending"]
    assert said in found["runs"][1]["reason"] and status_of(folder).status != "done"


def test_an_interrupted_run_is_pending_and_says_how_far_it_is(sweep: Sweep) -> None:
    folder = sweep.folder_of(sweep.rows[1])
    write_task(folder, "stopped")
    folder.metrics.write_text('{"round": 2, "seconds": 1.0}\n')
    runs = dpfl("status", sweep.folder.parents[1], "--json").json["runs"]
    assert [(run["status"], run["round"]) for run in runs] == [("pending", 0), ("pending", 2), ("pending", 0)]
    assert runs[1]["reason"] == "interrupted, continues from its checkpoint"


@pytest.mark.parametrize("name", ["manifest.jsonl", "base.yaml", "sweep.json"])
def test_a_cut_manifest_is_named_and_other_sweeps_are_shown(sweep: Sweep, name: str) -> None:
    out = sweep.folder.parents[1]
    path = sweep.folder / name
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(DataError, match=rf"{sweep.folder}.* dpfl sweep"):
        manifest.read(sweep.folder)
    status._note.cache_clear()
    assert dpfl("status", out).code == 2
    other = write(out.parent, {"seeds": [7]}, name="other.yaml")
    manifest.write(manifest.plan(expand(other), other, out))
    done = dpfl("status", out, "--json")
    assert done.code == 0 and len(done.json["runs"]) == 1 and str(sweep.folder) in done.err
    manifest.check_ledger(sweep)
    manifest.write(sweep)  # the same command mends it
    assert len(dpfl("status", out, "--json").json["runs"]) == 4


def test_torn_records_of_jobs_are_named_and_the_others_count(sweep: Sweep) -> None:
    submission.remember(sweep, "12", 2)
    with (sweep.folder / "jobs.jsonl").open("a") as file:
        file.write('{"job": 3}\n[]\n{"job": "13", "pa')
    submission.remember(sweep, "14", 1)  # on a line of its own
    said: list[str] = []
    assert [job["job"] for job in submission.jobs_of(sweep.folder, said.append)] == ["12", "14"]
    assert [text.partition(": ")[0].split(", ")[1] for text in said] == ["line 2", "line 3", "line 4"]
