"""A rank that raises, dies or hangs ends the whole job: no process is left, and a resumed run has the same bits."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cli.command import charges, dpfl, metrics, one_message, run, write
from tests.mpi import faulty
from tests.mpi.launch import ANY, BOTH, Job, mpirun, needs_mpi

pytestmark = needs_mpi
HANGS = 15.0  # seconds


def configured(folder: Path, what: str, **options: Any) -> Path:
    """Four silos that train for 6 rounds with a checkpoint after each; ``what`` happens at rank 2 in the third."""
    (folder / "faulty.py").write_text(Path(faulty.__file__).read_text())
    algorithm = {"module": "faulty:Faulty", "name": None, "what": what, "marker": str(folder / "failed"), **options}
    runtime = {"silo_timeout": HANGS if what == "stop" else None}  # else a busy machine would be taken for a hung one
    return write(folder, {"algorithm": algorithm, "checkpoint": {"every": 1}, "runtime": runtime})


def csv_files(files: str) -> dict[str, Any]:
    return {"name": "csv", "files": files, "num_features": None, "num_classes": None, "records_per_silo": None}


def same_in_the_end(config: Path, resumed: dict[str, Any]) -> None:
    """As if nothing had happened: what failed once does not fail again, so that an undisturbed run can be had."""
    (config.parent / "undisturbed").mkdir()
    again = config.parent / "undisturbed" / config.name
    again.write_text(config.read_text())
    (again.parent / "faulty.py").write_text(Path(faulty.__file__).read_text())
    whole = run_here(again)
    assert whole["rounds"] == resumed["rounds"] == 6
    assert whole["model_sha256"] == resumed["model_sha256"] and whole["epsilon"] == resumed["epsilon"]
    assert metrics(whole) == metrics(resumed)
    assert charges(whole["folder"]) == charges(resumed["folder"])


def resumed_here(config: Path) -> dict[str, Any]:
    return run_here(config, "--resume")


def run_here(config: Path, *args: str) -> dict[str, Any]:
    """With the module of this folder, and not of one that this process imported before."""
    sys.modules.pop("faulty", None)
    return run(config, *args)


def arguments(config: Path) -> list[str]:
    return ["run", str(config), "--out", str(config.parent / "runs"), "--json"]


SAID = {
    "raise": "dpfl: failed: round 3: rank 2 on {host}: ValueError in plugin faulty:Faulty (",
    "stop": "dpfl: silo rank 2 (round 3, silo 1) did not answer for 15 s",
    "kill": "",  # mpirun says it
    "sysexit": "",
}
CASES = [("raise", True), ("stop", True), ("kill", True), ("sysexit", False)]


@pytest.mark.parametrize(("what", "by_mpi4py"), CASES, ids=[f"{what}-{by}" for what, by in CASES])
def test_a_silo_rank_that_fails_ends_the_job_with_a_checkpoint_behind_it(
    tmp_path: Path, what: str, by_mpi4py: bool
) -> None:
    config = configured(tmp_path, what)
    with Job(4, arguments(config), ANY, by_mpi4py) as job:
        code, _, err = job.end()
        assert code != 0 and job.nobody_is_left()
    assert SAID[what].format(host=os.uname().nodename) in err
    assert what in ("kill", "sysexit") or err.count("dpfl: ") == {"raise": 2, "stop": 1}[what], err
    if what == "raise":
        (log,) = (tmp_path / "runs").glob("run/*/log.txt")
        own, of_rank_0 = err.split("dpfl: failed")
        for text in ("dpfl: rank 2: Traceback", "in local_update", "ValueError: the disk of this silo is on fire"):
            assert text in own and text not in of_rank_0 + log.read_text(), "in the log of the silo's rank alone"
    else:
        assert "Traceback" not in err
    assert (tmp_path / "failed").exists() and list((tmp_path / "runs").glob("run/*/checkpoint/state.safetensors"))
    same_in_the_end(config, resumed_here(config))


def test_a_rank_that_hangs_while_it_starts_ends_the_job(tmp_path: Path) -> None:
    config = configured(tmp_path, "raise")
    with Job(2, [*arguments(config), "--set=runtime.silo_timeout=5"]) as job:
        while "libtorch" not in loaded(job.pids().get(1)):  # and MPI later
            time.sleep(0.02)
        os.kill(job.pids()[1], signal.SIGSTOP)
        code, _, err = job.end()
        assert code != 0 and job.nobody_is_left()
    assert "dpfl: not all of the 2 ranks have started after 5 s" in err, err
    assert not (tmp_path / "runs").exists()


def loaded(pid: int | None) -> str:
    try:
        return Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return ""


def test_what_a_silo_rank_says_stays_at_the_silo_where_nobody_else_knows_the_noise(tmp_path: Path) -> None:
    """Errors and warnings may quote records, and the launcher's screen is that of rank 0's user."""
    config = configured(tmp_path, "raise")
    code, _, err = mpirun(3, *arguments(config), "--set", "privacy.randomness=fresh")
    assert code != 0
    (log,) = (tmp_path / "runs").glob("run/*/silos/rank-2.log")
    assert log.stat().st_mode & 0o777 == 0o600
    for text in ("a library says", "dpfl: rank 2: Traceback", "in local_update", "the disk of this silo is on fire"):
        assert text in log.read_text() and text not in err, err
    place = rf"dpfl: rank 2 on {os.uname().nodename}: ValueError in plugin faulty:Faulty \(faulty.py, line \d+\);.*"
    assert re.search(place + re.escape(str(log)), err), err
    # What is said before any run begins, so that no folder is there for it
    config = write(tmp_path, {"data": {"dataset": csv_files("none/*.csv"), "num_silos": None, "partition": "natural"}})
    code, _, err = mpirun(3, *arguments(config), "--set", "privacy.randomness=fresh")
    assert code == 2 and "looked for" not in err
    logs = [Path(name) for name in re.findall(r"rank [12] on .* is in (\S+\.log)", err)]
    assert logs and all("looked for" in path.read_text() for path in logs), err
    for path in logs:
        path.unlink()


@pytest.mark.parametrize("randomness", ["seeded", "fresh"])
def test_a_silo_rank_that_runs_out_of_memory_makes_all_go_on_with_smaller_chunks(
    tmp_path: Path, randomness: str
) -> None:
    """What was charged of the round is charged once more under fresh noise; nothing else is."""
    config = configured(tmp_path, "memory")
    code, out, err = mpirun(4, *arguments(config), "--set", f"privacy.randomness={randomness}")
    assert code == 0 and "chunks of 64" in err, err
    if randomness == "seeded":  # else the text stays in the log of the rank
        assert "rank 2 on" in err and "out of memory at silos 1 in round 3" in err, err
    result = json.loads(out)
    assert (result["status"], result["rounds"]) == ("done", 6)
    found = json.loads((Path(result["folder"]) / "environment.json").read_text())
    assert found["chunk_bytes"] == 64 * 2**20
    computed = {(charge.round, charge.noise_id) for charge in charges(result["folder"])}
    released = Counter((charge.round, charge.silo) for charge in charges(result["folder"]))
    assert set(released) == {(round, silo) for round in range(6) for silo in range(4)}
    twice = {key for key, count in released.items() if count > 1}
    if randomness == "seeded":
        assert len({name for _, name in computed}) == 1 and not twice
    else:  # silo 0 is before silo 1, and may have been charged by then, or not
        assert len(computed) in (6, 7) and len({name for _, name in computed}) == len(computed)
        assert twice <= {(2, 0), (2, 3)} and max(released.values()) <= 2


@pytest.mark.parametrize("randomness", ["seeded", "fresh"])
def test_a_gpu_that_fails_in_a_round_ends_the_run_and_it_is_resumed(tmp_path: Path, randomness: str) -> None:
    """What was charged of the round stays charged, and under fresh noise is charged again when it runs again."""
    config, options = configured(tmp_path, "device"), ["--set", f"privacy.randomness={randomness}"]
    code, _, err = mpirun(4, *arguments(config), *options)
    assert code == 1, err
    (message,) = re.findall("^dpfl: round .*", err, re.MULTILINE)
    assert f"dpfl: round 3: rank 2 on {os.uname().nodename}: its device, cpu, failed in its work (" in message
    assert message.endswith("continue with resume.") and "launch failure" not in message
    resumed = run_here(config, *options, "--resume")
    assert (resumed["status"], resumed["rounds"]) == ("done", 6)
    if randomness == "seeded":
        same_in_the_end(config, resumed)
        return
    released = Counter((charge.round, charge.silo) for charge in charges(resumed["folder"]))
    assert set(released) == {(round, silo) for round in range(6) for silo in range(4)}
    assert {key for key, count in released.items() if count > 1} <= {(2, 0)} and max(released.values()) <= 2


def test_ranks_without_the_device_are_named_in_one_message(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is CUDA")
    code, out, err = mpirun(3, *arguments(write(tmp_path, {"runtime": {"device": "cuda"}})))
    assert code == 2 and not out and err.count("dpfl: ") == 1, err
    assert "config.yaml: ranks 1 and 2: runtime.device='cuda' cannot be used here: " in err and "device: cpu" in err


@pytest.mark.parametrize("mpi", BOTH)
@pytest.mark.parametrize("who", ["server", "launcher"])
def test_a_kill_from_outside_leaves_no_process_and_it_is_resumed_to_the_same_bits(
    tmp_path: Path, mpi: str, who: str
) -> None:
    config = configured(tmp_path, "pause", rank=1, call=5)
    with Job(3, arguments(config), mpi) as job:
        job.wait_for(tmp_path / "failed")  # rank 1 has begun its third round, and waits
        pids = job.pids()
        assert sorted(pids) == [0, 1, 2]
        os.kill({"server": pids[0], "silo": pids[2], "launcher": job.process.pid}[who], signal.SIGKILL)
        code, _, _ = job.end()
        assert code != 0 and job.nobody_is_left()
    if who == "launcher" or mpi != ANY:  # what is left behind is the same: ranks have to go on from it only once
        same_in_the_end(config, resumed_here(config))
        return
    code, out, err = mpirun(4, *arguments(config), "--resume", mpi=mpi)
    assert code == 0 and "resumed after round 2" in err, err
    same_in_the_end(config, json.loads(out))


def test_a_polite_signal_to_mpirun_leaves_a_checkpoint_and_exit_code_4(tmp_path: Path) -> None:
    config = configured(tmp_path, "pause", rank=1, call=5)
    with Job(3, arguments(config)) as job:
        job.wait_for(tmp_path / "failed")
        job.process.send_signal(signal.SIGUSR1)
        (tmp_path / "go on").touch()
        code, out, err = job.end()
        assert code == 4 and job.nobody_is_left()
    assert json.loads(out)["status"] == "interrupted"
    assert "Go on with: mpirun -n 3 python -m mpi4py -m dpfl_plugin run" in err
    same_in_the_end(config, resumed_here(config))


def test_bad_input_is_one_message(tmp_path: Path) -> None:
    """Found by rank 0 (a key), by the silo ranks (a file), and by nobody but the launcher (too few ranks).

    Where a silo rank looked for a file it says in its own log, which mpirun shows beside the message.
    """
    wrong = write(tmp_path, {"algorithm": {"momentum": 1}}, "wrong.yaml")
    data = {"dataset": csv_files("none/*.csv"), "num_silos": None, "partition": "natural"}
    missing = write(tmp_path, {"data": data}, "missing.yaml")
    for config, said in ((wrong, "algorithm.momentum is not a known option"), (missing, "none/*.csv")):
        code, out, err = mpirun(3, *arguments(config))
        assert code == 2 and out == "", (out, err)
        logs, messages = [], []
        for line in re.findall("^dpfl: .*", err, re.MULTILINE):
            (logs if re.match("dpfl: rank [12]: error: ", line) else messages).append(line)
        assert len(messages) == 1 and said in messages[0] and "Traceback" not in err, err
        assert all("looked for" in line for line in logs) and bool(logs) == (config == missing), err
        assert str(tmp_path / "none") not in messages[0]
    alone = write(tmp_path, {"runtime": {"kind": "mpi"}}, "alone.yaml")
    one_message(dpfl("run", alone), "runtime.kind='mpi': this process is alone")
