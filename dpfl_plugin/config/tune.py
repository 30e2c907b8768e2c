"""`tune:` in a configuration: which candidates there are, and after how many rounds they are compared."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pydantic

from dpfl_plugin.config.incompatible import check_compatible
from dpfl_plugin.config.load import configure, joined, merged, nested, parse_setting, read_yaml, unknown_beside_grid
from dpfl_plugin.config.schema import Config
from dpfl_plugin.config.tune_keys import MOST_CANDIDATES, TuneConfig
from dpfl_plugin.errors import ConfigError
from dpfl_plugin.registry import describe

TUNED: Final = ("algorithm", "model", "loss", "l2", "privacy.clip_norm")  # what candidates may differ in


@dataclass(frozen=True, slots=True)
class Candidate:
    """A configuration that is tried; ``changes`` of the file, and the values in which it differs, for people."""

    index: int
    label: str
    changes: Mapping[str, Any]
    config: Config


@dataclass(frozen=True, slots=True)
class TuneFile:
    """A file with `tune:`, worked out.

    Attributes:
        values: of the file without `tune`.
        config: of a run with these values alone, whose budget is that of all candidates together.
    """

    source: str
    values: Mapping[str, Any]
    spec: TuneConfig
    config: Config
    candidates: tuple[Candidate, ...]

    @property
    def rungs(self) -> tuple[int, ...]:
        return tuple(self.spec.rungs)

    def configured(self, candidate: Candidate, *changes: Mapping[str, Any]) -> Config:
        """A candidate's configuration, changed."""
        return configure(self.values, candidate.changes, *changes, source=f"{self.source} ({candidate.label})")


def has_tune(path: Path, settings: Iterable[str] = ()) -> bool:
    """Whether a file asks for a tuning; ``settings`` ("key.path=value") change it before."""
    return _values_of(path, settings).get("tune") is not None


def read_tune(path: Path, settings: Iterable[str] = ()) -> TuneFile:
    """A file with `tune:`, changed as for `has_tune`. See `tune_of`."""
    return tune_of(_values_of(path, settings), str(path))


def _values_of(path: Path, settings: Iterable[str]) -> dict[str, Any]:
    return merged(read_yaml(path), joined(parse_setting(setting) for setting in settings))


def tune_of(values: Mapping[str, Any], source: str) -> TuneFile:
    """What a file holds, worked out.

    Raises:
        ConfigError: anything in it is wrong; names the file and the key.
    """
    base = dict(values)
    for key in ("sweep", "variants"):
        if base.get(key) is not None:
            raise ConfigError(
                f"{source}: {key} with tune: it is one tuning that is charged to one budget. Leave {key} out."
            )
        base.pop(key, None)
    if base.get("tune") is None:
        raise ConfigError(
            f"{source}: has no tune. Add one, e.g. tune: {{grid: {{algorithm.local_lr: [0.1, 0.3, 1.0]}}, rungs: [5]}}."
        )
    try:
        spec = TuneConfig.model_validate(base.pop("tune"))
    except pydantic.ValidationError as error:
        raise ConfigError(f"{source}: " + "; ".join(_problem(one) for one in error.errors()) + ".") from error
    config = configure(base, source=source)
    _check_supported(config, source)
    _check_spec(spec, config, source)
    candidates = tuple(
        Candidate(index, _label(values), change, configure(base, change, source=f"{source} ({_label(values)})"))
        for index, (values, change) in enumerate((values, nested(values)) for values in _values(spec, source))
    )
    found = TuneFile(source, base, spec, config, candidates)
    _check_rungs(found)
    return found


def _problem(problem: Any) -> str:
    if problem["type"] != "extra_forbidden":
        return describe(problem, "tune")
    return unknown_beside_grid(problem, "tune", list(TuneConfig.model_fields))


def _check_supported(config: Config, source: str) -> None:
    """Raise where a tuning of such runs could not be charged, or has nothing to charge."""
    for value, key, why in (
        (config.rounds, "rounds", "a plan of all that is released needs it"),
        (config.privacy.epsilon, "privacy.epsilon", "it is what tuning and final training cost together"),
    ):
        if value is None:
            raise ConfigError(f"{source}: {key} is missing: {why}. Give {key}.")
    check_compatible(config, "tune", source)


def _check_spec(spec: TuneConfig, config: Config, source: str) -> None:
    """Raise ConfigError where `tune` contradicts itself, or its candidates would differ in more than they may."""
    for key in (*spec.grid, *spec.random):
        if not any(key == known or key.startswith(f"{known}.") for known in TUNED):
            raise ConfigError(
                f"{source}: tune: {key} is nothing that candidates may differ in: they share records, seed and "
                f"releases. Use {', '.join(TUNED)}, or keys below these."
            )
        if key in spec.grid and key in spec.random:
            raise ConfigError(f"{source}: tune: {key} is in grid and in random. Leave it out of one.")
    for key, options in spec.grid.items():
        if not options:
            raise ConfigError(f"{source}: tune.grid.{key} has no values. Give at least one, or leave it out.")
    for key, (low, high) in spec.random.items():
        if not 0 < low < high < math.inf:
            raise ConfigError(f"{source}: tune.random.{key}=[{low:g}, {high:g}] must be 0 < low < high.")
    if spec.random and spec.candidates is None:
        raise ConfigError(f"{source}: tune.candidates is missing: say how many draws tune.random makes.")
    assert config.rounds is not None
    if spec.rungs != sorted(set(spec.rungs)) or not 0 < spec.rungs[0] <= spec.rungs[-1] < config.rounds:
        raise ConfigError(
            f"{source}: tune.rungs={spec.rungs} must be ascending, from 1 on, and below rounds={config.rounds}."
        )


def _check_rungs(found: TuneFile) -> None:
    number = len(found.candidates)
    if number < 2:
        raise ConfigError(f"{found.source}: tune has {number} candidate: give more values.")
    if number > MOST_CANDIDATES:
        raise ConfigError(f"{found.source}: tune.grid has {number} candidates, more than {MOST_CANDIDATES}.")
    left = found.spec.left(number)
    alone = [rung for rung, count in zip(found.rungs, left, strict=True) if count < 2]
    if alone:
        raise ConfigError(
            f"{found.source}: tune.rungs: one candidate is left before round {alone[0]}: nothing is to be "
            f"compared. Leave out rungs from {alone[0]} on, or use a smaller eta or more candidates."
        )


def _values(spec: TuneConfig, source: str) -> list[dict[str, Any]]:
    """What each candidate changes, each once."""
    if spec.candidates is None:
        if math.prod(map(len, spec.grid.values())) > MOST_CANDIDATES:
            raise ConfigError(f"{source}: tune.grid has more than {MOST_CANDIDATES} combinations. Give fewer values.")
        found = [dict(zip(spec.grid, values, strict=True)) for values in itertools.product(*spec.grid.values())]
    else:
        rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence(spec.seed)))
        found = [_drawn(spec, rng) for _ in range(spec.candidates)]
    return list({json.dumps(values, sort_keys=True): values for values in found}.values())


def _drawn(spec: TuneConfig, rng: np.random.Generator) -> dict[str, Any]:
    values: dict[str, Any] = {key: options[int(rng.integers(len(options)))] for key, options in spec.grid.items()}
    for key, (low, high) in spec.random.items():
        values[key] = float(f"{math.exp(rng.uniform(math.log(low), math.log(high))):.4g}")
    return values


def _label(values: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in values.items())
