"""Kills -9 of a tuning, wherever they come: it goes on, misses nothing in its ledger, and pays for nothing twice."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import dp_accounting
import pytest
from dp_accounting.pld import PLDAccountant

from dpfl_plugin.privacy.events import Charge
from tests.cli.test_kill import ROOT, charged, ids, unmarked
from tests.cli.test_tune import DELTA, ENDS, EPSILON, LEFT, TUNE, config_of

pytestmark = pytest.mark.slow

KILLS = 5  # of each chain: a tuning that is killed and begun again, and at last left alone
SEEDS = (0, 1)
NOISE = {"round": "noise_multiplier", "score": "score_noise", "statistics": "statistics_noise"}
ROUNDS = sum(left * (end - first) for left, first, end in zip(LEFT, (0, *ENDS), ENDS, strict=False))


def jobs(config: Path, out: Path, seed: int) -> list[dict[str, Any]]:
    """Half of the kills at a file operation, half at some time after an upload."""
    rng = random.Random(seed)
    job = {"argv": ["tune", str(config), "--out", str(out), "--json"], "signals": [], "watch": True}
    killed = [
        {**job, "signals": [[rng.randint(1, 150), "SIGKILL"]]}
        if rng.random() < 0.5
        else {**job, "after": [rng.randint(0, 10), rng.uniform(0, 0.01)]}
        for _ in range(KILLS if seed >= 0 else 0)
    ]
    return [*killed, job]


@pytest.fixture(scope="module")
def chains(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[bool, int], list[dict[str, Any]]]:
    """What each attempt left behind, by whether its noise is secure and by its seed; nothing disturbed seed -1."""
    asked = {}
    for secure in (False, True):
        folder = tmp_path_factory.mktemp(f"secure-{secure}")
        privacy = {**TUNE["privacy"], "randomness": "fresh" if secure else "seeded"}
        config = config_of(folder, privacy=privacy, private_statistics={"outcome": True})
        for seed in (*SEEDS, -1):
            out = folder / str(seed)
            out.mkdir()
            asked[secure, seed] = jobs(config, out, seed)
    done = subprocess.run(
        [sys.executable, "-m", "tests.cli.killer"],
        input=json.dumps([job for chain in asked.values() for job in chain]),
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=1800,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    results = iter(json.loads(done.stdout))
    found = {name: [next(results) for _ in chain] for name, chain in asked.items()}
    for name, (*killed, last) in found.items():
        statuses = Counter(one["status"] for one in killed)
        assert set(statuses) <= {0, -signal.SIGKILL} and last["status"] == 0, (name, statuses, last["err"])
        assert not killed or statuses[-signal.SIGKILL] >= KILLS / 2, (name, statuses)
    return found


def of_tuning(done: dict[str, Any], scratch: Path) -> set[Charge]:
    """What the ledger of all candidates held after an attempt."""
    texts = [text for path, text in done["ledgers"].items() if "runs" not in Path(path).parts]
    return charged(texts[0], scratch) if texts else set()


def test_whatever_left_a_silo_is_in_the_ledger_of_all(chains: Any, tmp_path: Path) -> None:
    """Looked at after each kill, before anything could be mended."""
    for name, chain in chains.items():
        left, bits = set(), defaultdict(set)
        for done in chain:
            for round, silo, noise, digest in done["left"]:
                left.add((round, silo, noise))
                bits[round, silo, noise].add(digest)
            assert left <= ids(of_tuning(done, tmp_path / "ledger")), name
        # The same noise again is the same release again.
        assert len(left) > 3 and {len(digests) for digests in bits.values()} == {1}, name


def test_it_ends_as_if_nothing_had_happened(chains: Any, tmp_path: Path) -> None:
    whole = chains[False, -1][-1]
    expected, result = of_tuning(whole, tmp_path / "ledger"), json.loads(whole["out"])
    assert len(expected) == 4 * (1 + ROUNDS + sum(LEFT))
    for seed in SEEDS:
        last = chains[False, seed][-1]
        assert unmarked(of_tuning(last, tmp_path / "ledger")) == unmarked(expected), seed
        found = json.loads(last["out"])
        same = [[{**one, "folder": ""} for one in each["ranking"]] for each in (found, result)]
        assert same[0] == same[1] and found["guarantee"] == result["guarantee"], seed


def test_the_ledger_fits_the_budget_by_another_library(chains: Any, tmp_path: Path) -> None:
    """Also where noise is secure, and what a kill lost is another release; and what is said is what it holds."""
    for name, chain in chains.items():
        result = json.loads(chain[-1]["out"])
        made: defaultdict[int, Counter[str]] = defaultdict(Counter)
        for charge in of_tuning(chain[-1], tmp_path / "ledger"):
            assert charge.kind is not None and charge.release.noise_multiplier == result[NOISE[charge.kind]]
            made[charge.silo][str(charge.kind)] += charge.count
        found = []
        for counts in made.values():
            rounds = PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
            step = dp_accounting.GaussianDpEvent(result["noise_multiplier"])
            rounds.compose(dp_accounting.PoissonSampledDpEvent(0.5, step), counts["round"])
            rounds.compose(dp_accounting.GaussianDpEvent(result["statistics_noise"]), counts["statistics"])
            scores = PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
            scores.compose(dp_accounting.GaussianDpEvent(result["score_noise"]), counts["score"])
            found.append(max(rounds.get_epsilon(DELTA), scores.get_epsilon(DELTA)))  # of disjoint records
        assert result["guarantee"]["in_ledger"] == pytest.approx(max(found), rel=2e-3), name
        assert result["guarantee"]["in_ledger"] <= EPSILON == result["guarantee"]["epsilon"], name
