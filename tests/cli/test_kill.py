"""A hundred kills -9: no ledger ever misses what left a silo, and nothing is paid for twice."""

from __future__ import annotations

import json
import random
import re
import signal
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from dpfl_plugin.privacy.events import Charge
from dpfl_plugin.privacy.ledger import Ledger
from tests.cli.command import write
from tests.runs.test_persons import tables

ROOT = Path(__file__).parents[2]
CHAINS, KILLS = 24, 5  # a chain is a run that is killed and resumed, and at last left alone
KINDS: dict[str, dict[str, Any]] = {
    "record": {
        "rounds": None,
        "silo_rate": 0.5,
        "algorithm": {"name": "scaffold_warm", "option": "I", "server_optimizer": "adam", "server_lr": 0.1},
        "privacy": {"epsilon": 3.0},
        "checkpoint": {"every": 2},
    },
    "poisson": {"rounds": 12, "privacy": {"sampler": "poisson"}, "checkpoint": {"every": 5}},
    "silo": {
        "rounds": 12,
        "algorithm": {"name": "fedavg"},
        "privacy": {"unit": "silo", "sampler": "full", "record_rate": None, "noise_multiplier": 20.0},
        "checkpoint": {"every": 3},
    },
    "tables": {
        "rounds": 12,
        "data": {
            "dataset": {"name": "table", "files": "h*.csv"}
            | dict.fromkeys(("num_features", "num_classes", "records_per_silo")),
            "schema": {
                "label": {"outcome": "classes", "column": "label", "classes": ["no", "yes"]},
                "person": "patient",
                "columns": {name: {"type": "number", "range": [-3, 3]} for name in ("a", "b")},
            },
            "num_silos": None,
            "partition": "natural",
            "preprocess": [{"name": "backbone", "factory": "features_of_tests:make", "cache": "features"}],
        },
        "privacy": {"unit": "person", "max_records_per_person": 2},
        "private_evaluation": {"share": 0.2, "every": 3, "noise_multiplier": 3.0},
        "checkpoint": {"every": 2},
    },
    "own": {
        "rounds": 12,
        "algorithm": {"name": "mr_mtl", "mean_weight": 0.5},
        "silos": {0: {"noise_multiplier": 9.0}, 1: {"clip_norm": 0.5}},
        "silo_weights": "noise",
        "checkpoint": {"every": 4},
    },
}
ALONE = ("tables", "own")  # without a shared ledger, which takes no settings of single silos
BACKBONE = "from torch import nn\ndef make(shape):\n    return nn.Flatten()\n"
Left = tuple[int, int, str]  # round, silo, noise_id


@dataclass
class Chain:
    """A run that is killed again and again, with what every process of it left behind.

    Attributes:
        fresh: its noise is; otherwise it is seeded, and a seeded run has no shared ledger.
    """

    kind: str
    number: int
    config: Path
    out: Path
    shared: bool
    fresh: bool
    done: list[dict[str, Any]] = field(default_factory=list)

    @property
    def argv(self) -> list[str]:
        ledger = ["--ledger", str(self.out / "shared.jsonl")] if self.shared else []
        fresh = ["--set", "privacy.randomness=fresh"] if self.fresh else []
        return ["run", str(self.config), "--json", "--out", str(self.out), "--resume", *ledger, *fresh]

    def jobs(self, rng: random.Random) -> list[dict[str, Any]]:
        """Half of the kills at a file operation, half at some time after an upload; few come after the end."""
        jobs = []
        for _ in range(KILLS):
            job: dict[str, Any] = {"argv": self.argv, "signals": [], "watch": True}
            if rng.random() < 0.5:
                job["signals"] = [[rng.randint(1, 80), "SIGKILL"]]
            else:
                job["after"] = [rng.randint(0, 12), rng.uniform(0, 0.01)]
            jobs.append(job)
        return [*jobs, {"argv": self.argv, "signals": [], "watch": True}]

    @property
    def result(self) -> dict[str, Any]:
        result: dict[str, Any] = json.loads(self.done[-1]["out"])
        return result


@pytest.fixture(scope="module")
def seed() -> int:
    seed = random.SystemRandom().randrange(2**32)
    print(f"kills are drawn from seed {seed}")
    return seed


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory, seed: int) -> list[Chain]:
    """All chains; the first of each kind is left alone."""
    folder, rng = tmp_path_factory.mktemp("killed"), random.Random(seed)
    tables(folder)
    (folder / "features_of_tests.py").write_text(BACKBONE)
    configs = {kind: write(folder, changes, f"{kind}.yaml") for kind, changes in KINDS.items()}
    chains, jobs = [], []
    for kind in KINDS:
        chains.append(Chain(kind, -1, configs[kind], folder / kind, False, False))
        jobs.append([{"argv": chains[-1].argv, "signals": [], "watch": True}])
    for number in range(CHAINS):
        kind, fresh = list(KINDS)[number % len(KINDS)], number % 2 == 1  # each kind is both
        shared = number % 4 == 1 and kind not in ALONE
        chains.append(Chain(kind, number, configs[kind], folder / str(number), shared, fresh))
        jobs.append(chains[-1].jobs(rng))
    for chain in chains:
        chain.out.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "tests.cli.killer"],
        input=json.dumps([job for batch in jobs for job in batch]),
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=1800,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    results = iter(json.loads(done.stdout))
    for chain, batch in zip(chains, jobs, strict=True):
        chain.done = [next(results) for _ in batch]
    return chains


def charged(text: str, scratch: Path) -> set[Charge]:
    if "\n" not in text:
        return set()
    scratch.write_text(text)
    return set(Ledger.open(scratch, append=False))


def unmarked(charges: set[Charge]) -> set[Charge]:
    """Without the marks of records in names: each chain has a shared ledger of its own, with a key of its own."""
    return {replace(charge, noise_id=re.sub(r"-[0-9a-f]{12}", "", charge.noise_id)) for charge in charges}


def ids(charges: set[Charge]) -> set[Left]:
    return {(charge.round, charge.silo, charge.noise_id) for charge in charges}


pytestmark = pytest.mark.slow


def test_there_were_a_hundred_kills(killed: list[Chain], seed: int) -> None:
    statuses = [done["status"] for chain in killed if chain.number >= 0 for done in chain.done[:-1]]
    assert len(statuses) == CHAINS * KILLS and set(statuses) <= {0, -signal.SIGKILL}, (seed, statuses)
    assert statuses.count(-signal.SIGKILL) >= 100, (seed, "too many came after the end")
    errors = [done["err"] for chain in killed for done in chain.done[-1:] if done["status"] != 0]
    assert not errors, (seed, errors)
    cut_short = [chain for chain in killed if chain.number >= 0 and any(done["left"] for done in chain.done[:-1])]
    assert len(cut_short) > CHAINS / 2, "in most chains something had left before a kill"


def test_whatever_left_a_silo_is_in_every_ledger(killed: list[Chain], seed: int, tmp_path: Path) -> None:
    """Looked at after each kill, before anything could be mended: with --ledger, in both files."""
    for chain in killed:
        left: set[Left] = set()
        for step, done in enumerate(chain.done):
            left |= {(round, silo, noise) for round, silo, noise, _ in done["left"]}
            ledgers = {path: ids(charged(text, tmp_path / "ledger")) for path, text in done["ledgers"].items()}
            assert len(ledgers) == 1 + chain.shared or not left, (seed, chain.number, step)
            for path, held in ledgers.items():
                assert left <= held, (seed, chain.number, step, path, left - held)


def test_the_same_bits_are_charged_once_and_end_in_the_same_model(
    killed: list[Chain], seed: int, tmp_path: Path
) -> None:
    whole = {chain.kind: chain for chain in killed if chain.number < 0}
    for chain in killed:
        if chain.fresh:
            continue
        undisturbed, where = whole[chain.kind], (seed, chain.number)
        assert chain.result["model_sha256"] == undisturbed.result["model_sha256"], where
        expected = unmarked(final(undisturbed, tmp_path)[0])
        for held in final(chain, tmp_path):
            assert unmarked(held) == expected, where
        assert len({(charge.round, charge.silo, charge.kind) for charge in expected}) == len(expected), where
        for digests in uploads(chain).values():
            assert len(digests) == 1, where  # a repetition of the same noise is one of the same bits


def test_fresh_noise_is_charged_again(killed: list[Chain], seed: int, tmp_path: Path) -> None:
    again = 0
    for chain in killed:
        if not chain.fresh:
            continue
        by_place: defaultdict[tuple[int, int], dict[str, str]] = defaultdict(dict)
        for (round, silo, noise), digests in uploads(chain).items():
            (by_place[round, silo][noise],) = digests
        for held in final(chain, tmp_path):
            for (round, silo), by_noise in by_place.items():
                assert set(by_noise) <= {n for t, s, n in ids(held) if (t, s) == (round, silo)}, (seed, chain.number)
                assert len(set(by_noise.values())) == len(by_noise), (seed, chain.number)  # other noise, other bits
        again += sum(len(by_noise) > 1 for by_noise in by_place.values())
        if chain.kind == "record":
            assert chain.result["epsilon"]["server"]["epsilon"] <= 3.0
    assert again > 0, (seed, "no round was released twice: this test saw nothing")


def final(chain: Chain, scratch: Path) -> list[set[Charge]]:
    """What each of a chain's ledgers holds in the end."""
    return [charged(text, scratch / "ledger") for text in chain.done[-1]["ledgers"].values()]


def uploads(chain: Chain) -> dict[Left, set[str]]:
    """The digests of what left, under each noise_id."""
    found: defaultdict[Left, set[str]] = defaultdict(set)
    for done in chain.done:
        for round, silo, noise, digest in done["left"]:
            found[round, silo, noise].add(digest)
    return found
