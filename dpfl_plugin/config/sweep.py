"""`sweep:` in a configuration: a base, and what is changed from run to run."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pydantic
from pydantic import BaseModel

from dpfl_plugin import registry
from dpfl_plugin.config.blocks import Block
from dpfl_plugin.config.load import (
    GROUPS,
    compared_pairs,
    configure,
    joined,
    merged,
    nested,
    parse_setting,
    read_yaml,
    run_id,
    unknown_beside_grid,
)
from dpfl_plugin.config.schema import Config, SweepConfig, When
from dpfl_plugin.errors import ConfigError
from dpfl_plugin.registry import MISSING, describe

Values = dict[str, Any]
Grid = dict[str, list[Any]]

MOST_RUNS: Final = 100_000  # of one sweep: planning them takes half a minute, and their manifest 50 MB


@dataclass(frozen=True, slots=True)
class Row:
    """One run of a sweep.

    Attributes:
        index: place in the manifest, from 0.
        id: the run's, a hash of its resolved configuration.
        label: the values in which it differs from other runs, for people.
        changes: what is merged into the sweep's base to get its configuration.
        slurm: options of sbatch for this run alone, beside those of all.
    """

    index: int
    id: str
    name: str
    label: str
    rounds: int | None
    changes: Values
    slurm: Values = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Expansion:
    """A sweep file, worked out.

    Attributes:
        duplicates: how many combinations are a run that was there already.
        variants: label of the variant that a run is of, by its id. compare: pairs of these labels.
    """

    base: Values
    spec: SweepConfig
    rows: tuple[Row, ...]
    duplicates: int
    variants: dict[str, str] = field(default_factory=dict)
    compare: tuple[tuple[str, str], ...] = ()


def expand(
    path: Path, settings: Iterable[str] = (), check: Callable[[Config], None] = lambda config: None
) -> Expansion:
    """All runs of a sweep file, each once; ``settings`` ("key.path=value") change the file before.

    Variants of the file are a list of their own: each of them is combined with everything else. ``compare`` names
    pairs of them, as in a file without a sweep.

    Args:
        check: raises ConfigError for the configuration of a run that is wrong in some other way.

    Raises:
        ConfigError: anything in it is wrong, in any of its runs; names the run.
    """
    changes = joined(parse_setting(setting) for setting in settings)
    base = merged(read_yaml(path), changes)
    variants, compare = base.pop("variants", None) or {}, base.pop("compare", None) or []
    if not isinstance(variants, dict) or not all(isinstance(change, dict) for change in variants.values()):
        raise ConfigError(f"{path}: variants must map labels to changes of this file.")
    variants = {label: nested(change) for label, change in variants.items()}
    if not variants and compare and "variants" not in changes:
        raise ConfigError(f"{path}: compare names variants, but the file has none.")
    pairs = compared_pairs(compare, [str(label) for label in variants], path) if variants else ()
    if base.get("sweep") is None and not variants:
        raise ConfigError(f"{path}: has no sweep. Add one, e.g. sweep: {{seeds: 5}}, or use dpfl run.")
    spec = _spec(base.pop("sweep", None), path)
    rows: dict[str, Row] = {}
    variant_of: dict[str, str] = {}
    known, count = set[str](), 0
    for variant, label, change, own in _changes(base, spec, variants, path):
        count += 1
        _check_number(count, path)
        source = f"{path} (run {label})"
        own = _options(own, source)
        config = configure(base, change, source=source)
        _check_plugins(config, known, source, spec.grid)
        try:
            check(config)
        except ConfigError as error:
            raise ConfigError(f"{source}: {error}") from error
        name = run_id(config)
        row = rows.setdefault(name, Row(len(rows), name, config.name, label, config.rounds, change, own))
        variant_of.setdefault(name, variant)
        if row.slurm != own:
            raise ConfigError(
                f"{source}: is the same run as {row.label}, but asks Slurm for {own or 'nothing of its own'} instead "
                f"of {row.slurm or 'nothing of its own'}. Slurm's options change no run: give it one set of them."
            )
    if not rows:
        raise ConfigError(f"{path}: sweep.exclude leaves nothing to run.")
    return Expansion(base, spec, tuple(rows.values()), count - len(rows), variant_of if variants else {}, pairs)


def config_of(base: Mapping[str, Any], row: Row, out: Path) -> Config:
    """The configuration of a row, with its run folder below ``out``.

    Raises:
        ConfigError: this version of the program resolves it to another one than the row was made for.
    """
    config = configure(base, row.changes, source=f"run {row.index} ({row.label})")
    if run_id(config) != row.id:
        raise ConfigError(
            f"run {row.index} ({row.label}): this version of dpfl gives it the id {run_id(config)}, the manifest has "
            f"{row.id}. Plan the sweep again with dpfl sweep, in the version that will run it."
        )
    return config.model_copy(update={"out": str(out)})


def _spec(values: Any, path: Path) -> SweepConfig:
    try:
        return SweepConfig.model_validate({} if values is None else values)
    except pydantic.ValidationError as error:
        raise ConfigError(f"{path}: " + "; ".join(_problem(problem) for problem in error.errors()) + ".") from error


def _options(own: Values, source: str) -> Values:
    """Options of sbatch for one run, checked as `sweep.slurm` is."""
    if not own:
        return {}
    try:
        checked = SweepConfig.model_validate({"slurm": own}).slurm
    except pydantic.ValidationError as error:
        raise ConfigError(f"{source}: " + "; ".join(_problem(problem) for problem in error.errors()) + ".") from error
    return {key.lstrip("-"): value for key, value in checked.items()}


def _apart(values: Values) -> tuple[Values, Any]:
    """Changes of the configuration, and options of sbatch ("slurm.mem: 8G", or "slurm: {mem: 8G}")."""
    own = {key: value for key, value in values.items() if str(key).partition(".")[0] == "slurm"}
    return {key: value for key, value in values.items() if key not in own}, nested(own).get("slurm", {})


def _problem(problem: Any) -> str:
    if problem["type"] == "value_error":
        return f"{'.'.join(map(str, ('sweep', *problem['loc'])))}: {problem['ctx']['error']}"
    if problem["type"] != "extra_forbidden":
        return describe(problem, "sweep")
    *parents, _ = problem["loc"]
    model: type[BaseModel] = When if parents and parents[0] == "when" else SweepConfig
    return unknown_beside_grid(problem, "sweep", [field.alias or name for name, field in model.model_fields.items()])


def _changes(
    base: Values, spec: SweepConfig, variants: Values, path: Path
) -> Iterator[tuple[str, str, Values, Values]]:
    """Every combination as (variant or "", label, change of the base, options of sbatch)."""
    seeds = range(spec.seeds) if isinstance(spec.seeds, int) else spec.seeds
    lengths = [len(variants), len(spec.entries or ()), *map(len, spec.grid.values()), len(seeds or ())]
    _check_number(math.prod(max(1, length) for length in lengths), path)  # at once, not when so many were made
    matched = set[str]()
    for variant, change in variants.items() or [("", {})]:
        for entry, values in itertools.product(spec.entries or [{}], _products(spec.grid)):
            for more in _conditional(base, spec, [change, entry, values], matched):
                parts, options = zip(*map(_apart, (entry, values, more)), strict=True)
                for option in options:
                    if not isinstance(option, dict):
                        raise ConfigError(f"{path}: slurm: {option!r} must be options of sbatch, e.g. {{mem: 8G}}.")
                own = {key: value for option in options for key, value in option.items()}
                whole = joined([change, *map(nested, parts)])
                if _excluded(merged(base, whole), spec, matched):
                    continue
                for seed in [None] if seeds is None else seeds:
                    last = {} if seed is None else {"seed": seed}
                    words = [str(variant)] if variants else []
                    label = " ".join([*words, *_words([*parts, last])]) or "base"
                    yield str(variant), label, joined([whole, last]), own
    asked = {key for condition in [*(w.condition for w in spec.when), *spec.exclude] for key in condition}
    for key in sorted(asked - matched):
        raise ConfigError(f"{path}: a condition of the sweep asks for {key}, which no run has. Correct its name.")


def _check_number(runs: int, path: Path) -> None:
    if runs > MOST_RUNS:
        raise ConfigError(
            f"{path}: sweep: grid, list, variants and seeds make {runs:,} runs or more; a sweep has {MOST_RUNS:,} at "
            "most. Correct the values, or split the sweep: those that share out share their common runs."
        )


def _products(grid: Grid) -> Iterator[Values]:
    for values in itertools.product(*grid.values()):
        yield dict(zip(grid, values, strict=True))


def _conditional(base: Values, spec: SweepConfig, parts: list[Values], matched: set[str]) -> Iterator[Values]:
    """The combinations of all conditional grids whose condition holds; one empty one if there are none."""
    if not spec.when:
        yield {}
        return
    values = merged(base, joined(map(nested, parts)))
    grid: Grid = {}
    for when in spec.when:
        if _holds(when.condition, values, matched):
            grid.update(when.grid)
    yield from _products(grid)


def _excluded(values: Values, spec: SweepConfig, matched: set[str]) -> bool:
    holding = [_holds(condition, values, matched) for condition in spec.exclude]  # all of them, for ``matched``
    return any(holding)


def _holds(condition: Values, values: Values, matched: set[str]) -> bool:
    """Whether every key has (one of) the given value(s); notes in ``matched`` which keys are there at all."""
    holds = True
    for key, wanted in condition.items():
        there, value = _look_up(values, key)
        if there:
            matched.add(key)
        holds = holds and there and value in (wanted if isinstance(wanted, list) else [wanted])
    return holds


def _look_up(values: Any, key: str) -> tuple[bool, Any]:
    for part in key.split("."):
        if isinstance(values, str) and part == "name":  # `algorithm: fedavg`
            continue
        if not isinstance(values, dict) or part not in values:
            return False, None
        values = values[part]
    return True, values["name"] if isinstance(values, dict) and "name" in values else values


def _words(parts: Iterable[Values]) -> list[str]:
    return [f"{key}={_short(value)}" for part in parts for key, value in part.items()]


def _short(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _check_plugins(config: Config, known: set[str], source: str, grid: Grid) -> None:
    """Names and types of plugins' options: once for each structure, as 10,000 runs differ in numbers mostly."""
    for path, group in GROUPS.items():
        block: Any = config
        for part in path:
            block = getattr(block, part)
        assert isinstance(block, Block)
        kinds = sorted((key, type(value).__name__) for key, value in block.options.items())
        structure = f"{group} {block.name} {block.module} {kinds}"
        if structure not in known and block.name is not None:
            known.add(structure)
            where = ".".join(path)
            try:
                registry.check_options(registry.load(group, block.name), block.options, where=where)
            except ConfigError as error:
                missing = re.search(rf"(\S+) {MISSING}", str(error))
                key = next((key for key in (where, f"{where}.name") if key in grid), None)
                hint = ""
                if missing and key:
                    example = f"[{{if: {{{key}: {block.name}}}, grid: {{{missing[1]}: [...]}}}}]"
                    hint = f" Give it to {block.name} alone: sweep.when: {example}."
                raise type(error)(f"{source}: {error}{hint}") from error
