"""Tuning of a YAML file's variants, all by the same search; what a run gave is kept in a file.

What is tuned of a variant are those of `DIALS` that it has: its lines in the YAML file are all there is to write.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from pydantic import BaseModel

from dpfl_plugin.config.blocks import Block
from dpfl_plugin.config.load import load
from dpfl_plugin.config.schema import Config, DataConfig
from dpfl_plugin.data.fetch import DataSource
from dpfl_plugin.data.idx import mnist
from dpfl_plugin.errors import ConfigError
from dpfl_plugin.runs.build import build
from dpfl_plugin.runs.folder import folder_of
from dpfl_plugin.runs.hooks import Silent
from dpfl_plugin.runs.records import federate
from dpfl_plugin.runs.run import run_config
from dpfl_plugin.runtimes.in_process import InProcessBackend
from papers.optimum import optimum

Point = tuple[int, ...]
"""By how many factors of 2 each dial was turned from where the YAML file has it."""

DIALS: Final = (
    ("algorithm.local_lr",),
    ("algorithm.lr",),
    ("algorithm.eta",),
    ("algorithm.smoothness",),  # the step sizes of AC-SA are proportional to 1 / v, which is twice this if left out
    ("algorithm.v",),
    ("algorithm.smoothing_radius",),
    ("algorithm.envelope",),
    ("algorithm.server_lr",),
    ("rounds", "algorithm.stage_rounds", "privacy.schedule.threshold"),
    ("algorithm.local_steps",),
    ("algorithm.p",),
    ("algorithm.phases",),
    ("algorithm.mu",),
)
"""Keys that are turned together, each by the same factor."""
COUNTS: Final = ("rounds", "stage_rounds", "threshold", "local_steps", "phases")
LIMITS: Final = {
    "rounds": (2, 320),
    "algorithm.local_steps": (1, 80),
    "algorithm.p": (1 / 80, 1),
    "algorithm.phases": (2, 8),
}
MOST_STEPS: Final = 1000
"""Local steps of a silo in a run, so that the benchmark ends."""
EVALUATIONS: Final = 40


@dataclass(frozen=True, slots=True)
class Contender:
    """A variant of a YAML file.

    Attributes:
        fixed: keys that are not turned.
    """

    path: Path
    label: str
    start: Config
    fixed: tuple[str, ...] = ()

    @property
    def origin(self) -> Point:
        """The file's own values."""
        return (0,) * len(self.dials())

    def dials(self) -> list[tuple[str, ...]]:
        """The keys of `DIALS` that the variant has."""
        present = (tuple(key for key in keys if _value(self.start, key) is not None) for keys in DIALS)
        return [keys for keys in present if keys and keys[0] not in self.fixed]

    def values(self, point: Point) -> dict[str, Any]:
        """{key: value} at ``point``."""
        turned = zip(self.dials(), point, strict=True)
        return {key: _turned(key, _value(self.start, key), 2.0**k) for keys, k in turned for key in keys}

    def allowed(self, point: Point) -> bool:
        """Whether the values at ``point`` are within the limits."""
        values = self.values(point)
        within = all(low <= values.get(key, low) <= high for key, (low, high) in LIMITS.items())
        steps = values.get("algorithm.local_steps", 1 / values.get("algorithm.p", 1))
        algorithm = self.start.algorithm
        if algorithm.name == "fedsgd" and algorithm.options.get("form") != "single":
            steps = 1 / (self.start.privacy.record_rate or 1.0)
        return within and values.get("rounds", self.start.rounds) * steps <= MOST_STEPS

    def config(self, point: Point, epsilon: float, seed: int) -> Config:
        """The run at ``point``."""
        values = self.values(point)
        every = max(1, values.get("rounds", self.start.rounds) // EVALUATIONS)
        changed = self.start.model_dump()
        for key, value in {**values, "privacy.epsilon": epsilon, "seed": seed, "evaluation.every": every}.items():
            *path, last = key.split(".")
            functools.reduce(dict.__getitem__, path, changed)[last] = value
        return Config.model_validate(changed)


def contenders(path: Path, fixed: tuple[str, ...] = ()) -> list[Contender]:
    """The variants of a file."""
    return [Contender(path, str(variant.label), variant.config, fixed) for variant in load(path).variants]


def _value(config: Config, key: str) -> Any:
    found: Any = config
    for part in key.split("."):
        found = found.options.get(part) if isinstance(found, Block) else getattr(found, part, None)
    return found


def _turned(key: str, value: Any, factor: float) -> Any:
    if isinstance(value, list | tuple):
        return [_turned(key, one, factor) for one in value]
    return round(value * factor) if key.rpartition(".")[2] in COUNTS else value * factor


@dataclass(frozen=True, slots=True)
class Run:
    """What a run gave.

    Attributes:
        accuracy: mean test accuracy over the last 10 % of rounds; 0 if the run failed.
        sent: bytes up and down, of a silo.
        seconds: processor time for all silos, evaluation included.
        curve: (round, test accuracy).
    """

    accuracy: float
    rounds: int
    sent: float
    seconds: float
    curve: tuple[tuple[int, float], ...]


class Laboratory:
    """Runs configurations, each once: what it gave is a line of ``folder``/runs.jsonl, found by what it computes."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._file = folder.resolve(), folder / "runs.jsonl"
        lines = self._file.read_text().splitlines() if self._file.exists() else []
        self._known = {line["key"]: _run(line) for line in map(json.loads, lines)}

    def run(self, config: Config, base: Path) -> Run:
        """``base``: the folder of the configuration's file."""
        key = _key(config)
        if key not in self._known:
            with tempfile.TemporaryDirectory() as out:
                began = time.process_time()
                moved = config.model_copy(update={"out": out, "data": self.data(config, base)})
                result = run_config(
                    moved, base, resume=False, backend=InProcessBackend(), reporter=Silent(), stop=lambda: False
                )
                lines = folder_of(moved).read_metrics()
            self._known[key] = found = _of(result, lines, time.process_time() - began)
            with self._file.open("a") as file:
                print(json.dumps({"key": key, **asdict(found)}), file=file)
        return self._known[key]

    def accuracy_at_optimum(self, config: Config, base: Path) -> float:
        """Test accuracy, the mean over silos, where the mean loss of a smooth convex run is least."""
        free = config.privacy.model_copy(update={"noise_multiplier": 0.0, "clip_norm": math.inf, "epsilon": None})
        runtime = config.runtime.model_copy(update={"dtype": "float64"})
        changes = {"privacy": free, "runtime": runtime, "data": self.data(config, base)}
        parts = build(config.model_copy(update=changes), base)
        point = torch.from_numpy(optimum(parts, config.l2).point)
        return statistics.mean(silo.test_score for silo in parts.host.evaluate(point, False).values())

    def data(self, config: Config, base: Path) -> DataConfig:
        """The same silos from NumPy files: dealt out and reduced once, not for every run."""
        name = _digest({"data": _dump(config.data), "seed": config.public_seed})
        files = {part: self._folder / f"{name}-{part}.npz" for part in ("train", "test")}
        if not all(file.exists() for file in files.values()):
            self._prepare(config, base, files)
        with np.load(files["train"]) as train:
            classes = list(range(int(train["y"].max()) + 1))
        options = {"files": str(files["train"]), "test_files": str(files["test"]), "classes": classes}
        return DataConfig(dataset=Block(name="npz", **options), partition=Block(name="natural"), test="own")

    def _prepare(self, config: Config, base: Path, files: dict[str, Path]) -> None:
        """Deal out and reduce; principal components are those of MNIST's own test part, which is in no silo."""
        steps = [
            Block(name="pca", **{**step.options, "fit": str(self._public(config))}) if step.name == "pca" else step
            for step in config.data.preprocess
        ]
        data = config.data.model_copy(update={"preprocess": steps})
        silos = federate(config.model_copy(update={"data": data}), base).silos
        for part, file in files.items():
            x, y = ([getattr(silo, f"{part}_{letter}") for silo in silos] for letter in "xy")
            number = [np.full(len(labels), i) for i, labels in enumerate(y)]
            np.savez(file, x=np.concatenate(x), y=np.concatenate(y), silo=np.concatenate(number))

    def _public(self, config: Config) -> Path:
        """MNIST's own test part."""
        public = self._folder / "public.npz"
        if not public.exists():
            test = mnist(DataSource(folder=Path(config.data.folder) if config.data.folder else None)).test
            assert test is not None
            np.savez(public, x=test.features)
        return public


def _key(config: Config) -> str:
    """Names what a run computes; defaults have no part in it, so that it stays when the schema gets new ones."""
    return _digest(_dump(config, exclude={"name", "description", "out", "evaluation"}))


def _dump(values: BaseModel, **options: Any) -> dict[str, Any]:
    return values.model_dump(mode="json", exclude_defaults=True, **options)


def _digest(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def _of(result: dict[str, Any], lines: list[dict[str, Any]], seconds: float) -> Run:
    found = result["test_accuracy"]["mean_last_10_percent"]
    return Run(
        accuracy=found if result["status"] == "done" and found is not None else 0.0,
        rounds=result["rounds"],
        sent=(result["bytes_up"] + result["bytes_down"]) / result["num_silos"],
        seconds=round(seconds, 3),
        curve=tuple((line["round"], line["test_accuracy"]) for line in lines),
    )


def _run(line: dict[str, Any]) -> Run:
    curve = tuple((round, found) for round, found in line["curve"])
    return Run(line["accuracy"], line["rounds"], line["sent"], line["seconds"], curve)


def best_step(
    score: Callable[[float], float], first: Sequence[float], factor: float, within: tuple[float, float]
) -> float:
    """The step size with the highest score: of a grid by ``factor``, which goes on while the best is at its edge.

    Of several with one score it is the largest: steps that are too short all end at the larger class.

    Args:
        first: its beginning, in increasing order.
        within: what the grid stays strictly between.
    """
    scores = {rate: score(rate) for rate in first}
    low, high = within
    while True:
        rate = max(scores, key=lambda one: (scores[one], one))
        further = [rate / factor] * (rate == min(scores)) + [rate * factor] * (rate == max(scores))
        if not further or not low < further[0] < high:
            return rate
        scores[further[0]] = score(further[0])


@dataclass(frozen=True, slots=True)
class Found:
    """What a search ended with.

    Attributes:
        settled: no turn of one dial makes it better; else there were no trials left to know.
        bounded: some turn of one dial is outside the limits.
    """

    point: Point
    trials: int
    settled: bool
    bounded: bool


def search(score: Callable[[Point], float], dials: int, allowed: Callable[[Point], bool], trials: int) -> Found:
    """From the origin to a point that is better than its neighbours, with at most ``trials`` scores.

    Neighbours are a turn of one dial away, and where none of these is better, of two dials.
    """
    best, last = (0,) * dials, (0,) * dials
    tried = {best: score(best)}
    while len(tried) < trials:
        new = [p for p in _neighbours(best, last) if allowed(p) and p not in tried]
        if not new:
            break
        tried[new[0]] = score(new[0])
        if tried[new[0]] > tried[best]:
            last = tuple(b - a for a, b in zip(best, new[0], strict=True))
            best = new[0]
    near = [_moved(best, move) for move in _turns(dials)]
    return Found(best, len(tried), all(p in tried or not allowed(p) for p in near), not all(map(allowed, near)))


def _turns(dials: int) -> list[Point]:
    """Of one dial."""
    return [tuple(sign * (j == i) for j in range(dials)) for i in range(dials) for sign in (1, -1)]


def _neighbours(point: Point, last: Point) -> Iterator[Point]:
    """First further into the direction that made it better."""
    single = _turns(len(point))
    both = [_moved(a, b) for a, b in itertools.combinations(single, 2)]
    moves = [move for move in (*single, *both) if any(move)]
    for move in sorted(moves, key=lambda move: move != last):
        yield _moved(point, move)


def _moved(point: Point, move: Point) -> Point:
    return tuple(p + m for p, m in zip(point, move, strict=True))


def tuned(contender: Contender, laboratory: Laboratory, *, epsilon: float, seed: int, trials: int) -> Found:
    """The best setting that the search finds, by the accuracy of one run each."""

    def score(point: Point) -> float:
        try:
            return laboratory.run(contender.config(point, epsilon, seed), contender.path.parent).accuracy
        except ConfigError as error:  # e.g. more phases than rounds
            print(f"{contender.label}: {error}", flush=True)
            return -math.inf

    return search(score, len(contender.dials()), contender.allowed, trials)
