"""`dpfl run` where the owner of the records has set limits; in one process. On ranks: tests/mpi/test_limits.py."""

import re
from collections import Counter
from unittest import mock

import pytest

from dpfl_plugin.owners import limits as limits_module
from dpfl_plugin.owners.lifetime import read_reservations
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.runtimes.in_process import InProcess
from tests.cli.command import charges, dpfl, run, write

PRIVACY = {"noise_multiplier": None, "epsilon": 3.0, "delta": 1e-5, "randomness": "fresh"}


@pytest.fixture
def owner(tmp_path, monkeypatch):
    path, folder = tmp_path / "limits.yaml", tmp_path / "owner"
    monkeypatch.setattr(limits_module, "PLACES", ())
    monkeypatch.setenv("DPFL_LIMITS", str(path))

    def set_limits(**values):
        limits = {"folder": folder, "epsilon": 8, "delta": "1e-4", **values}
        path.write_text("".join(f"{key}: {value}\n" for key, value in limits.items()))
        path.chmod(0o600)
        return folder

    return set_limits


def test_runs_add_up_and_more_than_the_limits_is_refused(tmp_path, owner):
    folder = owner(epsilon=4.6, delta="1e-5")
    for name in ("one", "two"):
        config = write(tmp_path, {"name": name, "privacy": PRIVACY})
        done = dpfl("run", config, "--out", tmp_path / "runs", "--json")
        assert done.code == 0, done.err
        assert f"dpfl: silos 0, 1, 2, 3: agreed epsilon 3 at delta 1e-05; folder {folder}" in done.err
        assert re.search("left for further agreements: about epsilon [0-3]", done.err)
        held = set(Ledger.open(folder / "data.lifetime.jsonl", append=False))
        assert charges(done.json["folder"]) <= held
    config = write(tmp_path, {"name": "three", "privacy": PRIVACY})
    done = dpfl("run", config, "--out", tmp_path / "runs")
    assert done.code == 3 and re.search("plan comes to epsilon 3 at .* the owner allows 4.6", done.err)
    assert [one.epsilon for one in read_reservations(folder / "data.lifetime.jsonl")] == [3.0, 3.0]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"privacy": {**PRIVACY, "epsilon": 9.0}}, "epsilon 9 is above the owner's limit of 8"),
        (
            {"privacy": {**PRIVACY, "randomness": "seeded"}, "seed": 7},
            "privacy.randomness: seeded: the noise would come",
        ),
        ({"privacy": {"randomness": "fresh", "noise_multiplier": 0.0, "clip_norm": 1.0}}, "adds no noise"),
        ({"privacy": {"randomness": "fresh", "noise_multiplier": 0.4}}, r"plan comes to epsilon \d"),
    ],
)
def test_what_is_beyond_the_limits_does_not_begin(tmp_path, owner, changes, why):
    owner()
    done = dpfl("run", write(tmp_path, changes), "--out", tmp_path / "runs")
    assert done.code == 3
    assert re.search(why, done.err), done.err
    assert not any(len(list(Ledger.open(path, append=False))) for path in tmp_path.glob("runs/**/ledger.jsonl"))


def test_the_same_agreement_begun_elsewhere_has_no_slots_of_its_own(tmp_path, owner):
    """With fresh noise it would be another release of everything."""
    owner(epsilon=3)
    config = write(tmp_path, {"privacy": PRIVACY})
    run(config)
    done = dpfl("run", config, "--out", tmp_path / "elsewhere")
    assert done.code == 3 and "0 are left of those in the agreed plan" in done.err and "another name" in done.err


def test_what_is_released_beside_the_rounds_has_slots(tmp_path, owner):
    folder = owner(epsilon=30)
    beside = {
        "early_stopping": {"share": 0.25, "every": 2, "patience": 2, "noise_multiplier": 6.0},
        "personalise": {"local_steps": 2, "local_lr": 0.1},
        "privacy": {"randomness": "fresh"},
    }
    released = charges(run(write(tmp_path, beside))["folder"])
    assert len({charge.release.noise_multiplier for charge in released}) > 1, "scores have noise of their own"
    assert released <= set(Ledger.open(folder / "data.lifetime.jsonl", append=False))


@pytest.mark.parametrize("epsilon", [None, 25.0])
def test_what_a_crash_lost_is_released_once_more(tmp_path, owner, epsilon):
    """Rounds, scores and own models, with noise that no seed can bring back; within the plan's epsilon."""
    folder = owner(epsilon=60)
    changes = {
        "rounds": 4,
        "private_evaluation": {"share": 0.25, "every": 2, "noise_multiplier": 6.0},
        "personalise": {"local_steps": 2, "local_lr": 0.1},
        "privacy": {"randomness": "fresh", "epsilon": epsilon},
        "checkpoint": {"every": 1},
    }
    config, crashed = write(tmp_path, changes), set()
    real = InProcess.run_round

    def run_round(self, down, plan, draw):
        found = real(self, down, plan, draw)
        if (plan.task, draw.round) in {("train", 1), ("score", 2), ("personalise", 4)} - crashed:
            crashed.add((plan.task, draw.round))
            raise KeyboardInterrupt
        return found

    with mock.patch.object(InProcess, "run_round", run_round):
        for _ in range(3):
            dpfl("run", config, "--out", tmp_path / "runs", "--resume")
    assert len(crashed) == 3
    result = run(config, "--resume")
    assert result["status"] == "done" and result["rounds"] == 4
    assert [at for at, _ in result["private_evaluation"]["scores"]] == [2, 4]
    assert result["silos"]["personalised_accuracy"] is not None
    held = charges(result["folder"])
    assert held <= set(Ledger.open(folder / "data.lifetime.jsonl", append=False))
    made = Counter((charge.kind, charge.round) for charge in held if charge.silo == 0)
    assert [made["round", 1], made["score", 2], made["personalise", 4]] == [2, 2, 2]
    (plan,) = read_reservations(folder / "data.lifetime.jsonl")[:1]
    assert result["epsilon"]["server"]["epsilon"] <= plan.epsilon <= (epsilon or 60)


def test_without_limits_nothing_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(limits_module, "PLACES", ())
    done = dpfl("run", write(tmp_path), "--out", tmp_path / "runs")
    assert done.code == 0 and "limits" not in done.err


@pytest.mark.parametrize(
    ("before", "after", "said", "goes_on"),
    [
        ({"epsilon": 8}, {"epsilon": 0.5}, "has changed the limits since the run began", False),
        ({"epsilon": 8}, {"epsilon": 7}, "has changed the limits since the run began", True),
        ({"epsilon": 8}, {"epsilon": "soon"}, "must be a number", False),
        (None, {"epsilon": 8}, "has changed the limits since the run began", False),
    ],
)
def test_limits_that_are_changed_in_mid_run_count_from_the_next_release_on(
    tmp_path, owner, monkeypatch, before, after, said, goes_on
):
    """None: an owner who has set none before has other limits in another place, where they are looked for. Then records
    are ordered by that owner's secret."""
    config = write(tmp_path, {"privacy": PRIVACY, "rounds": 5, "checkpoint": {"every": 1}})
    if before is None:
        monkeypatch.delenv("DPFL_LIMITS")
        monkeypatch.setattr(limits_module, "PLACES", (str(tmp_path / "limits.yaml"),))
    else:
        owner(**before)
    run_round, begun = InProcess.run_round, []

    def changed(self, *args, **keys):
        begun.append(len(begun))
        if len(begun) == 3:
            owner(**after)
        return run_round(self, *args, **keys)

    monkeypatch.setattr(InProcess, "run_round", changed)
    done = dpfl("run", config, "--out", tmp_path / "runs")
    (folder,) = (tmp_path / "runs").glob("*/*")
    assert done.code == 3 and said in done.err and "Nothing of this round was released" in done.err
    assert {charge.round for charge in charges(folder)} == {0, 1}
    again = dpfl("run", config, "--out", tmp_path / "runs", "--resume")
    assert (again.code == 0) == goes_on, again.err
