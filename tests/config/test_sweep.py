"""Sweeps: which runs a file stands for."""

from __future__ import annotations

import itertools
import math
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import yaml

from dpfl_plugin.config.load import load, run_id
from dpfl_plugin.config.sweep import Expansion, config_of, expand
from dpfl_plugin.errors import ConfigError
from tests.cli.command import BASE, merged


def write(folder: Path, sweep: Any, changes: dict[str, Any] | None = None) -> Path:
    path = folder / "sweep.yaml"
    path.write_text(yaml.safe_dump({**merged(BASE, changes or {}), "sweep": sweep}, sort_keys=False))
    return path


def runs(folder: Path, sweep: Any, changes: dict[str, Any] | None = None, *settings: str) -> Expansion:
    return expand(write(folder, sweep, changes), settings)


def values(expansion: Expansion, *keys: str) -> list[tuple[Any, ...]]:
    """What the resolved configurations have at these keys, in the order of the manifest."""
    found = []
    for row in expansion.rows:
        config = config_of(expansion.base, row, Path("out")).model_dump()
        found.append(tuple(_at(config, key) for key in keys))
    return found


def _at(config: Any, key: str) -> Any:
    for part in key.split("."):
        config = config.get(part)
    return config


def test_every_entry_with_every_combination_with_every_seed(tmp_path: Path) -> None:
    sweep = {
        "list": [{"algorithm.name": "fedavg"}, {"algorithm": {"name": "scaffold"}}],
        "grid": {"algorithm.local_lr": [0.1, 0.2], "privacy.noise_multiplier": [3, 4, 5]},
        "seeds": [7, 9],
    }
    found = values(runs(tmp_path, sweep), "algorithm.name", "algorithm.local_lr", "privacy.noise_multiplier", "seed")
    assert found == list(itertools.product(["fedavg", "scaffold"], [0.1, 0.2], [3, 4, 5], [7, 9]))


def test_a_number_of_seeds_counts_from_zero(tmp_path: Path) -> None:
    assert values(runs(tmp_path, {"seeds": 3}), "seed") == [(0,), (1,), (2,)]


def test_each_run_is_the_one_that_dpfl_run_would_do(tmp_path: Path) -> None:
    expansion = runs(tmp_path, {"grid": {"algorithm.local_lr": [0.1, 0.2]}, "list": [{"algorithm.name": "fedavg"}]})
    alone = tmp_path / "alone.yaml"
    alone.write_text(yaml.safe_dump(BASE))
    for row, lr in zip(expansion.rows, (0.1, 0.2), strict=True):
        (variant,) = load(alone, ["algorithm.name=fedavg", f"algorithm.local_lr={lr}"]).variants
        assert row.id == run_id(variant.config)


def test_the_same_run_twice_is_one_run(tmp_path: Path) -> None:
    expansion = runs(tmp_path, {"grid": {"seed": [1, 2, 1], "runtime.stack": [1, 2]}})  # a stack changes no bit
    assert len(expansion.rows) == 2 and expansion.duplicates == 4
    assert [row.index for row in expansion.rows] == [0, 1]


def test_a_conditional_grid_is_for_the_runs_that_meet_it(tmp_path: Path) -> None:
    sweep = {
        "list": [{"algorithm.name": "fedavg"}, {"algorithm.name": "scaffold"}],
        "when": [{"if": {"algorithm.name": "scaffold"}, "grid": {"algorithm.option": ["I", "II"]}}],
    }
    found = values(runs(tmp_path, sweep), "algorithm.name", "algorithm.option")
    assert found == [("fedavg", None), ("scaffold", "I"), ("scaffold", "II")]


def test_combinations_are_left_out(tmp_path: Path) -> None:
    grid = {"algorithm.local_lr": [0.1, 0.2, 0.3], "seed": [0, 1]}
    sweep = {"grid": grid, "exclude": [{"algorithm.local_lr": [0.2, 0.3], "seed": 1}]}
    found = values(runs(tmp_path, sweep), "algorithm.local_lr", "seed")
    assert found == [(0.1, 0), (0.1, 1), (0.2, 0), (0.3, 0)]


def test_variants_are_one_more_list(tmp_path: Path) -> None:
    variants = {"A": {"algorithm": {"name": "fedavg"}}, "B": {"rounds": 2}}
    expansion = runs(tmp_path, {"seeds": 2}, {"variants": variants})
    found = values(expansion, "algorithm.name", "rounds", "seed")
    assert found == [("fedavg", 6, 0), ("fedavg", 6, 1), ("scaffold", 2, 0), ("scaffold", 2, 1)]
    assert [row.label for row in expansion.rows] == ["A seed=0", "A seed=1", "B seed=0", "B seed=1"]


def test_variants_take_paths_as_settings_do(tmp_path: Path) -> None:
    """To the same ids, in a file with and without a sweep."""
    blocks = {"A": {"algorithm": {"name": "fedprox", "mu": 0.1}}, "B": {"rounds": 2, "privacy": {"clip_norm": 0.5}}}
    paths = {"A": {"algorithm.name": "fedprox", "algorithm.mu": 0.1}, "B": {"rounds": 2, "privacy.clip_norm": 0.5}}
    assert runs(tmp_path, {"seeds": 2}, {"variants": paths}) == runs(tmp_path, {"seeds": 2}, {"variants": blocks})
    plain = load(write(tmp_path, None, {"variants": blocks}))
    assert load(write(tmp_path, None, {"variants": paths})) == plain
    changed = load(tmp_path / "sweep.yaml", ["variants.A.algorithm.mu=0.2"]).variants[0].config
    assert changed.algorithm.options["mu"] == 0.2


def test_compared_variants_change_no_run(tmp_path: Path) -> None:
    variants: dict[Any, Any] = {"A": {}, 2: {"rounds": 2}}
    plain = runs(tmp_path, {"seeds": 2}, {"variants": variants})
    compared = runs(tmp_path, {"seeds": 2}, {"variants": variants, "compare": [["A", 2]]})
    assert compared.compare == (("A", "2"),) and plain.compare == ()
    assert (compared.rows, compared.base) == (plain.rows, plain.base)
    assert [compared.variants[row.id] for row in compared.rows] == ["A", "A", "2", "2"]
    assert runs(tmp_path, {"seeds": 2}).variants == {}


@pytest.mark.parametrize(
    ("variants", "compare", "settings", "message"),
    [
        ({"A": {}, "B": {"rounds": 2}}, [["A", "C"]], [], r"compare=\['A', 'C'\] must be a pair of .*: A, B"),
        ({"A": {}, "B": {"rounds": 2}}, ["A", "B"], [], "compare='A' must be a pair"),
        ({"A": {}, "B": {"rounds": 2}}, [["A", "C"]], ["compare=null"], None),
        ({"A": {}, "B": {"rounds": 2}}, [["A", "B"]], ["variants=null"], None),
        ({}, [["A", "B"]], [], "compare names variants, but the file has none"),
    ],
)
def test_compare_names_pairs_of_variants(
    tmp_path: Path, variants: dict[str, Any], compare: Any, settings: list[str], message: str | None
) -> None:
    with nullcontext() if message is None else pytest.raises(ConfigError, match=message):
        assert runs(tmp_path, {"seeds": 2}, {"variants": variants, "compare": compare}, *settings).compare == ()


def test_settings_change_the_file(tmp_path: Path) -> None:
    expansion = runs(tmp_path, {"seeds": 2}, None, "rounds=3", "sweep.seeds=[5]")
    assert values(expansion, "rounds", "seed") == [(3, 5)]


def test_infinity_survives_the_manifest(tmp_path: Path) -> None:
    sweep = {"list": [{"privacy.clip_norm": math.inf, "privacy.noise_multiplier": 0}]}
    expansion = runs(tmp_path, sweep)
    assert values(expansion, "privacy.clip_norm") == [(math.inf,)]


WRONG = [
    ({"grids": {}}, "sweep.grids is not a known key (did you mean 'grid'?)"),
    ({"algorithm.local_lr": [0.1]}, "sweep.algorithm.local_lr is not a known key: put it under sweep.grid. Known: "),
    ({"seed": [1, 2]}, "sweep.seed is not a known key: put it under sweep.grid. Known: "),
    ({"grid": {"seed": []}}, "seed has no values"),
    ({"grid": {"seed": 3}}, "sweep.grid.seed=3"),
    ({"seeds": 0}, "seeds"),
    ({"seeds": 10**9}, "make 1,000,000,000 runs or more"),
    ({"grid": {"seed": [*range(1000)], "rounds": [*range(1, 1000)]}}, "make 999,000 runs or more"),
    ({"when": [{"iff": {}, "grid": {}}]}, "did you mean 'if'?"),
    ({"grid": {"algorithm.local_lrr": [1]}}, "algorithm.local_lrr is not a known option"),
    ({"grid": {"algorithm.local_lr": [0.1, "much"]}}, "(run algorithm.local_lr=much): algorithm.local_lr='much'"),
    (
        {"grid": {"algorithm.name": ["fedavg", "fedprox"]}},
        "algorithm.mu is missing; it is required. Give it to fedprox alone: sweep.when: "
        "[{if: {algorithm.name: fedprox}, grid: {algorithm.mu: [...]}}].",
    ),
    ({"grid": {"rounds": [3, -1]}}, "(run rounds=-1): rounds=-1"),
    ({"grid": {"seed": [1]}, "exclude": [{"algorithm.local_lrr": 1}]}, "asks for algorithm.local_lrr"),
    ({"grid": {"seed": [1]}, "exclude": [{"seed": 1}]}, "leaves nothing"),
    ({"ranks": 1}, "sweep.ranks=1"),
    ({"slurm": {"array": "0-3"}}, "array is set by dpfl sweep itself"),
    ({"slurm": {"comment\nrm -rf x": "1"}}, "is no option of sbatch"),
    ({"slurm": {"mem": ["1G"]}}, "sweep.slurm.mem: ['1G'] must be text, a whole number, true or false"),
    ({"slurm": {"mem": None}}, "sweep.slurm.mem: None must be text"),
    ({"seeds": "three"}, "sweep.seeds: 'three' must be a whole number or a list of them"),
]


@pytest.mark.parametrize(("sweep", "message"), WRONG)
def test_what_is_wrong_is_said(tmp_path: Path, sweep: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        runs(tmp_path, sweep)
    assert message in str(error.value) and "sweep.yaml" in str(error.value)


def test_a_sweep_is_not_run_as_one_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Use dpfl sweep"):
        load(write(tmp_path, {"seeds": 2}))
    plain = tmp_path / "plain.yaml"
    plain.write_text(yaml.safe_dump(BASE))
    with pytest.raises(ConfigError, match="has no sweep"):
        expand(plain)


def test_a_manifest_of_another_version_is_refused(tmp_path: Path) -> None:
    expansion = runs(tmp_path, {"seeds": 2})
    with pytest.raises(ConfigError, match="Plan the sweep again"):
        config_of({**expansion.base, "rounds": 5}, expansion.rows[0], tmp_path)


def test_a_thousand_runs_have_the_ids_that_each_has_alone(tmp_path: Path) -> None:
    sweep = {
        "grid": {"algorithm.local_lr": [i / 100 for i in range(1, 51)], "privacy.noise_multiplier": [*range(2, 12)]},
        "seeds": 2,
    }
    expansion = runs(tmp_path, sweep)
    assert len(expansion.rows) == 1000 == len({row.id for row in expansion.rows})
    for row in expansion.rows[::97]:
        assert run_id(config_of(expansion.base, row, tmp_path)) == row.id


def test_options_of_sbatch_belong_to_their_runs_and_change_none(tmp_path: Path) -> None:
    plain = runs(tmp_path, {"list": [{"seed": 1}, {"seed": 2}], "grid": {"rounds": [3, 4]}})
    entries = [{"seed": 1, "slurm.mem": "8G"}, {"seed": 2, "slurm": {"mem": "4G", "--time": 5}}]
    own = runs(tmp_path, {"list": entries, "grid": {"rounds": [3, 4]}})
    assert [row.slurm for row in own.rows] == [{"mem": "8G"}] * 2 + [{"mem": "4G", "time": 5}] * 2
    assert [(row.id, row.label, row.changes) for row in own.rows] == [(r.id, r.label, r.changes) for r in plain.rows]


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ([{"seed": 1, "slurm.mem": "8G"}, {"seed": 1, "slurm.mem": "9G"}], "is the same run as seed=1, but asks Slurm"),
        ([{"seed": 1, "slurm.array": "0-3"}], "seed=1.*array is set by dpfl sweep itself"),
        ([{"seed": 1, "slurm.mem": [1, 2]}], "sweep.slurm.mem"),
        ([{"seed": 1, "slurm": 3}], "must be options of sbatch"),
    ],
)
def test_options_of_sbatch_that_make_no_sense_are_refused(tmp_path: Path, entries: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        runs(tmp_path, {"list": entries})
