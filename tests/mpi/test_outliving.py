"""Real ranks that die, hang or raise while the others go on, and servers that die: Open MPI with ULFM.

What such a run gives is that of a run in one process which loses the same silos at the same places, to the bit.
"""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import charges, metrics, run, write
from tests.cli.losing import Losses, losing
from tests.mpi.launch import Job, mpirun, needs_ulfm
from tests.mpi.test_faults import arguments, run_here, same_in_the_end
from tests.mpi.test_faults import configured as faulty

pytestmark = needs_ulfm
FAULTS = "faults.json"


def configured(folder: Path, faults: list[list[Any]], **changes: Any) -> Path:
    """Four silos that train for 6 rounds, are evaluated and saved after each, at three silo ranks."""
    (folder / FAULTS).write_text(json.dumps(faults))
    runtime = {"on_silo_failure": "continue", **changes.pop("runtime", {})}
    shown = {"evaluation": {"reveal": "server"}, "checkpoint": {"every": 1}}
    return write(folder, {**shown, "runtime": runtime, **changes})


def lossy(config: Path, *more: str) -> tuple[int, str, str]:
    program = ("tests.mpi.lossy", str(config.with_name(FAULTS)))
    return mpirun(4, *arguments(config), *more, ulfm=True, program=program)


def outlived(config: Path, *more: str, code: int = 0) -> tuple[dict[str, Any], str]:
    found, out, err = lossy(config, *more)
    assert found == code, err
    begun = [before for before, name, _ in (line.partition("Traceback") for line in err.splitlines()) if name]
    assert all(re.fullmatch(r"dpfl: rank [1-9]: ", before) for before in begun), "of silos' own code alone"
    return json.loads(out), err


def reference(config: Path, losses: Losses) -> dict[str, Any]:
    """The same in one process; what failed once does not fail again."""
    folder = config.parent / "reference"
    folder.mkdir()
    (folder / config.name).write_text(config.read_text())
    with losing(losses):
        return run(folder / config.name)


def same(one: dict[str, Any], other: dict[str, Any]) -> None:
    """All but what was charged of attempts that did not count: that depends on how far they had come."""
    assert one["model_sha256"] == other["model_sha256"] and one["rounds"] == other["rounds"]
    assert one["silos"] == other["silos"]
    lines = [[{k: v for k, v in line.items() if k != "epsilon"} for line in metrics(of)] for of in (one, other)]
    assert lines[0] == lines[1]
    key = ("silo", "after_round")
    assert [[loss[k] for k in key] for loss in one["lost"]] == [[loss[k] for k in key] for loss in other["lost"]]
    mine, theirs = charges(one["folder"]), charges(other["folder"])
    assert theirs <= mine, "a charge is missing"
    again = {(charge.round, charge.noise_id) for charge in mine - theirs}
    assert len(again) <= len({loss["after_round"] for loss in one["lost"]})


def test_two_ranks_die_one_after_the_other_and_the_rest_go_on(tmp_path: Path) -> None:
    """One before its silo released anything in round 3, one when its upload of round 5 was charged and about to go."""
    config = configured(tmp_path, [[2, "compute", 3, "kill"], [3, "send", 5, "kill"]])
    result, err = outlived(config)
    assert result["status"] == "done"
    assert [loss["why"] for loss in result["lost"]] == [
        f"rank {rank} was killed, or ended by itself" for rank in (2, 3)
    ]
    assert "lost after round 2: silo 1: rank 2 was killed" in err and "2 of 4 silos are left" in err
    left = {charge.silo for charge in charges(result["folder"]) if charge.round == 4}
    assert left == {0, 2, 3}, "what the second had been about to send was charged"
    # In the reference round 5 is the seventh call: the third was made again, and so is the fifth.
    same(result, reference(config, {("run_round", 3): {1: "x"}, ("run_round", 6): {2: "x"}}))


PLACES = {
    "commit": ("evaluate", 3),
    "evaluate": ("evaluate", 3),
    "states": ("states", 3),  # the first is before the first round
    "begin": ("states", 1),
}
CASES = [
    pytest.param(place, what, id=f"{place}-{what}", marks=[] if what == "raise" else [pytest.mark.slow])
    for place, what in (("commit", "kill"), ("evaluate", "raise"), ("states", "exit"), ("begin", "kill"))
]


@pytest.mark.parametrize(("place", "what"), CASES)
def test_a_rank_fails_at_any_place(tmp_path: Path, place: str, what: str) -> None:
    """Its two silos are lost, and nobody else's. Where it is killed at any other place: tests/mpi/test_protocol.py."""
    config = configured(tmp_path, [[1, place, 1 if place == "begin" else 3, what]], rounds=4)
    result, _ = outlived(config)
    assert result["status"] == "done" and [loss["silo"] for loss in result["lost"]] == [0, 3]
    if what != "kill":
        said = {"raise": "failed: ValueError (", "exit": "failed: SystemExit ("}[what]
        assert all("rank 1 on " in loss["why"] and said in loss["why"] for loss in result["lost"])
    same(result, reference(config, {PLACES[place]: {0: "x", 3: "x"}}))


@pytest.mark.slow
def test_ranks_die_beside_the_rounds(tmp_path: Path) -> None:
    """One in the score after two rounds, one when silos train models of their own in the end."""
    beside = {
        "early_stopping": {"share": 0.25, "every": 2, "patience": 5, "noise_multiplier": 2.0},
        "personalise": {"local_steps": 2, "local_lr": 0.1},
    }
    # The second has computed two rounds, the score twice, and a round.
    config = configured(tmp_path, [[2, "compute", 3, "kill"], [3, "compute", 6, "kill"]], rounds=3, **beside)
    result, _ = outlived(config)
    assert result["status"] == "done" and [loss["silo"] for loss in result["lost"]] == [1, 2]
    same(result, reference(config, {("run_round", 3): {1: "x"}, ("run_round", 6): {2: "x"}}))


@pytest.mark.slow
def test_a_rank_that_hangs_is_given_up_and_its_process_ended(tmp_path: Path) -> None:
    config = configured(tmp_path, [[2, "compute", 3, "stop"]], runtime={"silo_timeout": 30.0})
    result, _ = outlived(config)  # which leaves no process
    assert result["lost"][0]["why"] == "rank 2 did not answer for 30 s (round 3, silo 1)"
    same(result, reference(config, {("run_round", 3): {1: "x"}}))


@pytest.mark.slow
def test_all_silo_ranks_die_and_all_come_back(tmp_path: Path) -> None:
    config = configured(tmp_path, [[rank, "compute", 3, "kill"] for rank in (1, 2, 3)])
    code, out, err = lossy(config)
    assert code == 1 and err.count("dpfl: ") == 1, err
    assert "0 silos are left, fewer than runtime.min_silos=1" in err and json.loads(out)["status"] == "failed"
    result, err = outlived(config, "--resume")
    (back,) = {loss["back"] for loss in result["lost"]}
    assert back in (1, 2), "the states after round 2 may have died with those that had them"
    assert f"back after round {back}: silos 0, 1, 2, 3, which had been lost" in err
    assert result["rounds"] == 6 and len(result["lost"]) == 4
    assert {charge.silo for charge in charges(result["folder"]) if charge.round == 5} == {0, 1, 2, 3}


def test_an_mpi_that_ends_with_its_first_rank_is_refused(tmp_path: Path) -> None:
    code, out, err = mpirun(3, *arguments(write(tmp_path, {"runtime": {"on_silo_failure": "continue"}})))
    assert code == 2 and not out and err.count("dpfl: ") == 1, err
    assert "runtime.on_silo_failure='continue': this MPI job ends with the first rank that dies" in err
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_with_abort_the_server_ends_the_job_where_mpi_goes_on(tmp_path: Path) -> None:
    """Where it does not, mpirun does: tests/mpi/test_faults.py."""
    config = faulty(tmp_path, "kill")
    with Job(4, arguments(config), "openmpi", ulfm=True) as job:
        code, _, err = job.end(200)
        assert code != 0 and job.nobody_is_left(60)
    assert "silo rank 2: was killed, or ended by itself. The last good state" in err, err
    same_in_the_end(config, run_here(config, "--resume"))


@pytest.mark.slow
@pytest.mark.parametrize(("how", "ulfm"), [(signal.SIGSTOP, False), (signal.SIGSTOP, True), (signal.SIGKILL, True)])
def test_a_server_that_dies_or_hangs_ends_the_job_and_is_resumed(
    tmp_path: Path, how: signal.Signals, ulfm: bool
) -> None:
    """One that is killed without ULFM: tests/mpi/test_faults.py."""
    config = faulty(tmp_path, "pause", rank=1, call=5)
    mode = "continue" if ulfm else "abort"
    options = [
        "--set=runtime.server_timeout=30",
        "--set=runtime.silo_timeout=null",
        f"--set=runtime.on_silo_failure={mode}",
    ]
    with Job(3, [*arguments(config), *options], "openmpi", ulfm=ulfm) as job:
        job.wait_for(tmp_path / "failed", 300)  # rank 1 has begun its third round, and waits
        os.kill(job.pids()[0], how)
        (tmp_path / "go on").touch()
        code, _, err = job.end(400)
        assert code != 0 and job.nobody_is_left(60)
    if how == signal.SIGSTOP:
        assert err.count("dpfl: rank 0, the server, did not answer for 30 s") == 1, err
    else:
        assert err.count("dpfl: rank 0, the server, was killed, or ended by itself") == 1, err
    result = run_here(config, *options, "--resume")
    assert result["lost"] == []
    same_in_the_end(config, result)
