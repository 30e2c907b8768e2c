"""Too little memory: said before a run begins; met in its midst, smaller chunks, and no noise on two values."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from dpfl_plugin.data.federation import FederationSpec
from dpfl_plugin.federation import memory
from dpfl_plugin.gradients.bookkeeping import BookKeeping
from dpfl_plugin.gradients.closed_form import ClosedForm
from dpfl_plugin.runs import records
from tests.cli.command import charges, dpfl, metrics, one_message, run, write


class Small:
    """Engines fail as torch does where there is no memory, unless their chunks are small; from a call on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, first: int, most: int, error: Exception) -> None:
        self.calls, self.failed = 0, 0
        before = ClosedForm.clipped_sum

        def clipped_sum(engine: Any, y: Any, batch: Any, *args: Any) -> Any:
            if len(batch) != 12:  # not that of a round, but a trial of the engine
                return before(engine, y, batch, *args)
            self.calls += 1
            if self.calls >= first and engine._chunk_bytes > most:
                self.failed += 1
                raise error
            return before(engine, y, batch, *args)

        monkeypatch.setattr(ClosedForm, "clipped_sum", clipped_sum)


CPU = RuntimeError("[enforce fail at alloc_cpu.cpp:1] err == 0. DefaultCPUAllocator: can't allocate memory: you tried")


# A round has 4 silos of 2 steps: the 21st call is the first of silo 2 in the third round.
@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory."), CPU], ids=["cuda", "cpu"])
def test_a_run_that_runs_out_of_memory_goes_on_with_smaller_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    small = Small(monkeypatch, 21, 16 * memory.MIB, error)
    result = run(write(tmp_path))
    assert result["status"] == "done" and result["rounds"] == 6
    assert small.failed == 2  # chunks of 256 MiB and of 64 MiB: those of 16 MiB work
    log = (Path(result["folder"]) / "log.txt").read_text()
    assert "out of memory at silos 2 in round 3" in log and "chunks of 64 MiB" in log and "chunks of 16 MiB" in log
    assert json.loads((Path(result["folder"]) / "environment.json").read_text())["chunk_bytes"] == 2**24
    assert [line["round"] for line in metrics(result)] == [1, 2, 3, 4, 5, 6]
    # Silos 0 and 1 had their charges of round 3 in the ledger when silo 2 failed: seeded noise counts once.
    per_round = Counter(charge.round for charge in charges(result["folder"]))
    assert per_round == dict.fromkeys(range(6), 4)


def test_records_that_are_others_when_they_are_read_again_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A data set of somebody's own may draw them: what is charged would be charged to the records of before."""
    small = Small(monkeypatch, 21, 16 * memory.MIB, CPU)
    before = records.build_federation

    def drawn(spec: FederationSpec) -> Any:
        found = before(spec)
        found.silos[3].train_x[5] += small.failed
        return found

    monkeypatch.setattr(records, "build_federation", drawn)
    done = dpfl("run", write(tmp_path), "--out", tmp_path / "runs")
    assert done.code == 2 and "the records are not those that this run began with" in done.err
    assert small.failed == 1


def test_memory_that_smaller_chunks_do_not_mend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Small(monkeypatch, 20, 0, torch.OutOfMemoryError("CUDA out of memory."))
    config = write(tmp_path)
    done = dpfl("run", config, "--out", tmp_path / "runs")
    assert done.code == 1 and "out of memory" in done.err and "with resume" in done.err.splitlines()[-1]
    monkeypatch.undo()
    assert run(config, "--resume")["status"] == "done"


def test_a_gpu_that_fails_ends_the_run_with_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that is on it can be saved: the run goes on from its last checkpoint."""
    Small(monkeypatch, 20, 0, RuntimeError("CUDA error: unspecified launch failure\nSearch for it"))
    config = write(tmp_path, {"checkpoint": {"every": 1}})
    one_message(
        dpfl("run", config, "--out", tmp_path / "runs"),
        "round 3: runtime.device='cpu' failed: CUDA error: unspecified launch failure. ",
        "continue with resume",
        code=1,
    )
    monkeypatch.undo()
    assert run(config, "--resume")["status"] == "done"


def test_another_error_is_not_taken_for_a_lack_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Small(monkeypatch, 20, 0, RuntimeError("shapes do not match"))
    with pytest.raises(RuntimeError, match="shapes"):
        run(write(tmp_path))


def test_a_budget_that_is_too_small_is_refused_and_names_what_needs_how_much(tmp_path: Path) -> None:
    changes = {"runtime": {"memory_budget": "100kB"}}
    done = dpfl("run", write(tmp_path, changes), "--out", tmp_path / "runs")
    one_message(done, "memory: this run needs", "records", "states of silos", "runtime.memory_budget='100kB'")
    assert not (tmp_path / "runs").exists()


def test_a_record_that_does_not_fit(tmp_path: Path) -> None:
    """The gradient of one record by vmap takes 4 times the model; the closed form takes next to nothing."""
    model = {"name": "softmax"}
    data = {"dataset": {"name": "synthetic", "num_features": 20000, "num_classes": 10, "records_per_silo": 3}}
    changes: dict[str, Any] = {
        "model": model,
        "data": {**data, "num_silos": 2},
        "algorithm": {"name": "fedavg", "local_steps": 1, "local_lr": 0.1},
        "runtime": {"memory_budget": "23MB"},
        "rounds": 1,
    }
    done = dpfl("run", write(tmp_path, {**changes, "engine": "vmap"}), "--out", tmp_path / "runs")
    one_message(done, "engine='vmap'", "one record takes", "runtime.memory_budget")
    assert run(write(tmp_path, changes))["engine"] == "closed_form"


def test_a_small_budget_makes_small_chunks_and_the_same_sums(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"model": {"name": "cnn", "channels": [4, 4], "hidden": 8}}
    changes["data"] = {
        "dataset": {
            "name": "digits",
            "flatten": False,
            "records_per_silo": None,
            "num_features": None,
            "num_classes": None,
        },
        "num_silos": 4,
        "max_records_per_silo": 40,
    }
    changes["privacy"] = {"noise_multiplier": 0.0, "sampler": "full", "record_rate": None}
    small = run(write(tmp_path, {**changes, "runtime": {"memory_budget": "5MB"}}))
    large = run(write(tmp_path, changes))
    read = [json.loads((Path(r["folder"]) / "environment.json").read_text()) for r in (small, large)]
    assert [r["chunk_bytes"] for r in read] == [2**20, 2**28]
    assert "at a time for gradients" in read[0]["memory"] and "runtime.memory_budget" in read[0]["memory"]
    losses = [r["train_loss"]["last"] for r in (small, large)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert BookKeeping.name == small["engine"] == large["engine"]
