"""With fresh noise a stop costs no budget, and a kill at most the round that it comes in."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from dpfl_plugin.federation.round_loop import RoundLoop
from dpfl_plugin.federation.silo_group import SiloGroup
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.runs import run as running
from dpfl_plugin.runs.checkpoint import save
from dpfl_plugin.runtimes.in_process import InProcess
from tests.cli.command import dpfl, run, write

ROUNDS, EPSILON = 10, 4.0
FRESH: dict[str, Any] = {
    "rounds": ROUNDS,
    "algorithm": {"name": "scaffold", "local_steps": 2, "local_lr": 0.5},
    "privacy": {"randomness": "fresh", "epsilon": EPSILON, "noise_multiplier": None, "record_rate": 0.5},
}


class Kill(BaseException):
    """Ends a run as nothing in the package expects."""


@contextmanager
def at_call(number: int, where: tuple[object, str], do: Callable[[], None], *, after: bool) -> Iterator[None]:
    """``do`` something in the ``number``-th call of a function, before or after what it does."""
    real, calls = getattr(*where), iter(range(1, 10**6))

    def call(*args: Any, **named: Any) -> Any:
        now = next(calls) == number
        if now and not after:
            do()
        result = real(*args, **named)
        if now and after:
            do()
        return result

    with mock.patch.object(*where, call):
        yield


def kill() -> None:
    raise Kill


def releases(result: dict[str, Any]) -> Counter[int]:
    """How many rounds' charges the ledger holds, by round: two of a round that was released twice."""
    ledger = Ledger.open(Path(result["folder"]) / "ledger.jsonl", append=False)
    return Counter(round for round, _ in {(charge.round, charge.noise_id) for charge in ledger})


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
@pytest.mark.parametrize("stack", [1, 9, 4 * ROUNDS])
def test_a_stop_in_the_middle_of_a_round_costs_nothing(tmp_path: Path, number: int, stack: int) -> None:
    """``stack``: at which silo's work of all rounds the signal comes, of four silos in each."""
    config = write(tmp_path, FRESH)
    with at_call(stack, (SiloGroup, "run"), lambda: signal.raise_signal(number), after=False):
        last = stack > 4 * (ROUNDS - 1)
        stopped = run(config, code=0 if last else 4)
    assert stopped["rounds"] == -(-stack // 4)
    result = stopped if last else run(config, "--resume")
    assert (result["status"], result["rounds"]) == ("done", ROUNDS)
    assert releases(result) == dict.fromkeys(range(ROUNDS), 1)
    assert EPSILON * 0.95 < result["epsilon"]["server"]["epsilon"] <= EPSILON


PLACES: dict[str, tuple[tuple[object, str], bool]] = {
    "before a round": ((InProcess, "run_round"), False),
    "charged": ((InProcess, "run_round"), True),
    "committed": ((InProcess, "commit"), True),
    "evaluated": ((RoundLoop, "evaluation"), True),
    "saving": ((running.checkpoints, "save"), False),
    "saved": ((running.checkpoints, "save"), True),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_kill_costs_at_most_the_round_that_it_comes_in(tmp_path: Path, place: str) -> None:
    where, after = PLACES[place]
    config = write(tmp_path, FRESH)
    with at_call(6, where, kill, after=after), pytest.raises(Kill):
        run(config)
    again = place not in ("before a round", "saved")
    result = run(config, "--resume", code=3 if again else 0)
    assert sum(count - 1 for count in releases(result).values()) == again
    assert result["rounds"] == ROUNDS - again
    assert EPSILON * 0.9 < result["epsilon"]["server"]["epsilon"] <= EPSILON


def test_fewer_checkpoints_than_rounds_are_made_if_asked_for_and_what_that_may_cost_is_said(tmp_path: Path) -> None:
    for name, changes, saves in (("fresh", {}, ROUNDS), ("every", {"every": 5}, 2), ("seconds", {"seconds": 99.0}, 0)):
        (tmp_path / name).mkdir()
        config = write(tmp_path / name, {**FRESH, "checkpoint": changes})
        with mock.patch.object(running.checkpoints, "save", side_effect=save) as saved:
            result = run(config)
        assert saved.call_count == saves + 2, "besides those at the beginning and the end"
        said = "is charged again if the run is killed" in (Path(result["folder"]) / "log.txt").read_text()
        assert said == (name != "fresh")


@pytest.mark.slow
def test_a_killed_process(tmp_path: Path) -> None:
    rounds = 60
    config = write(tmp_path, {**FRESH, "rounds": rounds})
    argv = [sys.executable, "-m", "dpfl_plugin", "run", str(config), "--out", str(tmp_path / "runs"), "--resume"]
    with subprocess.Popen(argv, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
        while not (ledgers := [*tmp_path.glob("runs/*/*/ledger.jsonl")]) or len(ledgers[0].read_bytes()) < 20_000:
            assert process.poll() is None, "it ended before"
            time.sleep(0.001)
        os.kill(process.pid, signal.SIGKILL)
    result = dpfl("run", config, "--out", tmp_path / "runs", "--json", "--resume").json
    assert result["rounds"] >= rounds - 1 and result["epsilon"]["server"]["epsilon"] <= EPSILON
