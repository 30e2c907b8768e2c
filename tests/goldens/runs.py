"""Seeded runs, small and of every kind: in one process, and on ranks that are in this process, too."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import yaml
from safetensors.numpy import load_file

from tests.cli.command import dpfl, merged
from tests.goldens.observe import observed
from tests.goldens.ranks import at_ranks
from tests.goldens.rows import Row
from tests.on_device import noise_drawn_on

# 4 silos of 15 records, of which 12 are for training.
BASE: Final[dict[str, Any]] = {
    "name": "golden",
    "seed": 3,
    "rounds": 3,
    "data": {
        "dataset": {"name": "synthetic", "num_features": 4, "num_classes": 3, "records_per_silo": 15},
        "num_silos": 4,
    },
    "algorithm": {"name": "scaffold", "local_steps": 2, "local_lr": 0.5},
    "privacy": {"clip_norm": 1.0, "noise_multiplier": 4.0, "record_rate": 0.5},
    "runtime": {"dtype": "float64"},
    "evaluation": {"reveal": "server"},
}
FULL = {"sampler": "full", "record_rate": None}
POISSON = {"sampler": "poisson", "record_rate": 0.3}
ON_DEVICE: Final = "noise of the device, lockstep"
SILO = {"unit": "silo", "noise_multiplier": 20.0}
OTHERS = {"num_features": None, "num_classes": None, "records_per_silo": None}
PERSONS: dict[str, Any] = {
    "data": {
        "dataset": {
            **OTHERS,
            "name": "csv",
            "files": "hospital-*.csv",
            "person_column": "patient",
            "classes": ["no", "yes"],
        },
        "num_silos": None,
        "partition": "natural",
    },
    "privacy": {"unit": "person", "max_records_per_person": 2},
}
TABLES: dict[str, Any] = {
    "data": {
        "dataset": OTHERS | {"name": "table", "files": "hospital-*.csv"},
        "num_silos": None,
        "partition": "natural",
        "schema": {
            "label": {"column": "label", "classes": ["no", "yes"]},
            "other_columns": "ignore",
            "columns": {
                "a": {"type": "number", "range": [-3, 3], "scale": "mean"},
                "b": {"type": "number", "range": [-9, 9], "scale": "quantiles"},
            },
        },
    },
    "private_statistics": {"noise_multiplier": 3.0},
}
IMAGES: dict[str, Any] = {
    "data": {"dataset": OTHERS | {"name": "npz", "files": "images.npz"}, "num_silos": None, "partition": "natural"},
    "model": {"name": "mlp", "hidden": [3]},
}
TWO_CLASSES = {"data": {"dataset": {"num_classes": 2}}, "model": "logistic", "loss": "hinge"}
PHASES = {"phase_rounds": [2, 1], "regularisation": 0.5}
MLP = {"model": {"name": "mlp", "hidden": [3]}}


def _of(name: str, **options: Any) -> dict[str, Any]:
    """The change to another algorithm, with these options alone."""
    kept = {"local_steps": None, "local_lr": None}
    return {"algorithm": {**kept, "name": name, **options}}


def _steps(name: str, **options: Any) -> dict[str, Any]:
    return _of(name, **{"local_steps": 2, "local_lr": 0.5, **options})


def _outcome(kind: str, **options: Any) -> dict[str, Any]:
    dataset = OTHERS | {"name": "npz", "files": f"{kind}.npz", "outcome": {"kind": kind, **options}}
    return {"data": {"dataset": dataset, "num_silos": None, "partition": "natural"}, "model": "linear"}


CONFIGURATIONS: Final[dict[str, dict[str, Any]]] = {
    # Algorithms
    "scaffold": {"silo_rate": 0.5, "evaluation": {"dissimilarity": True}},
    "scaffold, option I": {"algorithm": {"option": "I"}, "privacy": POISSON},
    "scaffold_warm, server adam": _steps("scaffold_warm", option="I", server_optimizer="adam", server_lr=0.1),
    "fedavg, tail average, weights": {**_steps("fedavg", average="tail"), "silo_weights": "records", "silo_rate": 0.75},
    "fedprox, poisson": {**_steps("fedprox", mu=0.1), "privacy": POISSON, "l2": 0.01},
    "fedsgd, epoch": _of("fedsgd", local_lr=0.5),
    "fedsgd, single": {**_of("fedsgd", local_lr=0.5, form="single"), "privacy": {"record_rate": None, "batch_size": 5}},
    "fedavg_sync": {**_steps("fedavg_sync", gradient_clip=0.5), "privacy": SILO},
    "scaffnew": {**_steps("scaffnew"), "privacy": FULL},
    "scaffnew, drawn steps": {**_of("scaffnew", p=0.4, local_lr=0.5), "rounds": 4},
    "mr_mtl": _steps("mr_mtl", mean_weight=0.5),
    "local": {**_steps("local"), "privacy": POISSON},
    "mb_sgd": {**_of("mb_sgd", lr=0.1), "privacy": FULL},
    "mb_sgd, one pass": _of("mb_sgd", lr=0.1, passes="one"),
    "accelerated_mb_sgd": _of("accelerated_mb_sgd", smoothness=1.0),
    "multistage_mb_sgd": _of("multistage_mb_sgd", smoothness=1.0, strong_convexity=0.5, stage_rounds=[2, 1]),
    "localized_mb_sgd": {**_of("localized_mb_sgd", lr=0.1, **PHASES), "privacy": FULL},
    "noisy_subgradient": {**TWO_CLASSES, **_of("noisy_subgradient", lr=0.1), "privacy": FULL},
    "localized_subgradient": {**TWO_CLASSES, **_of("localized_subgradient", phase_rounds=[2, 1], eta=0.1)},
    "convolution_mb_sgd": {**TWO_CLASSES, **_of("convolution_mb_sgd", smoothing_radius=0.3)},
    "localized_nesterov": {**TWO_CLASSES, **_of("localized_nesterov", envelope=2.0, **PHASES), "privacy": FULL},
    # Units, samplers, clipping, noise
    "silos": {**_steps("fedavg", server_optimizer="fedexp", average="ema"), "privacy": SILO | FULL, "silo_rate": 0.75},
    "silos, with replacement": {**_steps("fedavg"), "privacy": SILO | {"sampler": "with_replacement"}},
    "persons": PERSONS,
    "persons, poisson, scores": {
        **PERSONS,
        "privacy": PERSONS["privacy"] | POISSON | {"shared_persons": "per_silo"},
        "private_evaluation": {"share": 0.2, "every": 2, "noise_multiplier": 3.0},
    },
    "cyclic": {"algorithm": {"local_steps": 3}, "privacy": {"sampler": "cyclic", "record_rate": 0.25}},
    "cyclic, one band": {"privacy": {"sampler": "cyclic", "record_rate": 0.5, "bands": 1}},
    "clipped by layer": {**MLP, "privacy": {"clip": "per_layer"}, "engine": "vmap"},
    "clipped adaptively": {"privacy": {"clip": "adaptive", "clip_norm": 0.5}},
    "normalised": {"privacy": {"clip": {"name": "auto_s", "gamma": 0.1}}, "engine": "dense"},
    "clipped at the median, no noise": {"privacy": {"clip": "median", "noise_multiplier": 0}},
    "not private": {"privacy": FULL | {"clip_norm": float("inf"), "noise_multiplier": 0}},
    "noise falls by round": {"privacy": {"schedule": {"name": "geometric", "beta": 0.8, "threshold": 1}}},
    "noise falls by step": {"privacy": {"schedule": {"name": "geometric", "beta": 0.9, "by": "step"}}},
    ON_DEVICE: {"runtime": {"lockstep": True}, "engine": "closed_form"},
    "lockstep, float32": {"runtime": {"lockstep": True, "dtype": "float32"}, "privacy": POISSON},
    # Engines
    "dense": {**MLP, "engine": "dense"},
    "bookkeeping": {**MLP, "engine": "bookkeeping", "privacy": POISSON},
    "opacus": {**MLP, "engine": "opacus"},
    "closed_form, float32": {"engine": "closed_form", "runtime": {"dtype": "float32", "stack": 3}},
    "views of images": {**IMAGES, "augmentation": {"views": 2, "flip": True, "crop": 1}},
    # Budgets, releases beside the rounds, single silos
    "solved, capped": {
        "rounds": 6,
        "silo_rate": 0.5,
        "max_participations": 2,
        "privacy": {"noise_multiplier": None, "epsilon": 2.0},
    },
    "as long as the budget lasts": {
        "rounds": None,
        "silo_rate": 0.5,
        "privacy": {"epsilon": 2.5, "budget_view": "third_party", "accountant": "rdp"},
    },
    "stopped, own models": {
        "rounds": 6,
        "silo_rate": 0.75,
        "early_stopping": {"share": 0.25, "every": 1, "patience": 1, "min_gain": 0.9, "noise_multiplier": 2.0},
        "personalise": {"local_steps": 2, "local_lr": 0.1},
    },
    "private auc": {
        "data": {"dataset": {"num_classes": 2}},
        "private_evaluation": {"share": 0.25, "at": [1, 3], "noise_multiplier": 2.0, "measure": "auc", "bins": 2},
    },
    "private statistics": TABLES,
    "settings of single silos": {
        "silos": {0: {"noise_multiplier": 9.0}, 2: {"clip_norm": 0.5}, 3: {"record_rate": 0.25}},
        "silo_weights": "noise",
    },
    # Records
    "dirichlet, standardised": {
        "data": {"partition": {"name": "dirichlet", "alpha": 2.0}, "preprocess": ["standardise", "unit_norm"]}
    },
    "regression": _outcome("regression", range=[0, 100]),
    "survival": _outcome("survival", range=[0, 10], bins=[2.0, 5.0, 10.0]),
}
AT_RANKS: Final = {
    2: ("scaffold", "silos", "cyclic", "private statistics", "stopped, own models"),
    5: ("scaffold", "persons, poisson, scores", "clipped adaptively", "settings of single silos", "silos"),
}
NAMES: Final = (*CONFIGURATIONS, *(f"{name}, {ranks} ranks" for ranks, names in AT_RANKS.items() for name in names))
EVERYDAY: Final = (
    "scaffold",
    "silos",
    "persons, poisson, scores",
    "cyclic",
    "clipped adaptively",
    ON_DEVICE,
    "solved, capped",
    "scaffold, 2 ranks",
)
OF_RESULT: Final = ("status", "cause", "rounds", "engine", "bytes_up", "bytes_down", "num_train_records")
MEASURED: Final = ("test_accuracy", "train_loss", "silos", "early_stopping", "private_evaluation", "private_statistics")


class Stage:
    """Where the runs are: a folder with their records."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        write_records(folder)


def write_records(folder: Path) -> None:
    """Small files with few digits, which are the same on every machine."""
    rng = np.random.default_rng(0)
    for hospital in range(3):
        rows = []
        for patient in range(10):
            for _ in range(patient % 3 + 1):
                a, b = rng.integers(-300, 300, 2) / 100
                rows.append(f"{hospital}-{patient},{a},{b},{'yes' if a + b > 0 else 'no'}")
        text = "\n".join(["patient,a,b,label", *rng.permutation(rows)])
        (folder / f"hospital-{hospital}.csv").write_text(f"{text}\n")
    x = rng.integers(-9, 9, (36, 1, 4, 3)).astype(np.float32) / 8
    silo = np.arange(36) % 3
    np.savez(folder / "images.npz", x=x, y=(x[:, 0, 0, 0] > 0).astype(np.int64), silo=silo)
    flat = x.reshape(36, -1)[:, :2]
    np.savez(folder / "regression.npz", x=flat, y=50 + 20 * flat[:, 0], silo=silo)
    times = np.stack([1 + rng.integers(0, 36, 36) / 4, rng.integers(0, 2, 36)], axis=1)
    np.savez(folder / "survival.npz", x=flat, y=times, silo=silo)


def row(name: str, stage: Stage) -> Row:
    """What the run of this name gives."""
    plain, _, ranks = name.rpartition(", ")
    size = int(ranks.split()[0]) if ranks.endswith(" ranks") else 0
    changes = CONFIGURATIONS[plain if size else name]
    values = merged(merged(BASE, {"runtime": {"kind": "mpi"}} if size else {}), changes)
    path = stage.folder / f"{''.join(letter if letter.isalnum() else '-' for letter in name)}.yaml"
    path.write_text(yaml.safe_dump(values, sort_keys=False))
    drawn = noise_drawn_on("device" if name == ON_DEVICE else "host")
    with drawn, at_ranks(size) if size else contextlib.nullcontext(), observed() as seen:
        done = dpfl("run", path, "--out", path.with_suffix(""), "--json")
    assert done.code in (0, 3), done.err
    result = done.json
    model = load_file(Path(result["folder"]) / "model.safetensors")
    return {
        **seen.plain(),
        "result": {key: result[key] for key in OF_RESULT} | {"epsilon": _epsilons(result)},
        "model": {key: [_digits(value) for value in model[key].ravel().tolist()] for key in sorted(model)},
        "measured": _each(_digits, {key: result[key] for key in MEASURED if result.get(key) is not None}),
    }


def _epsilons(result: dict[str, Any]) -> dict[str, Any]:
    """Of each view, what it is worth and for which it is stated; and the noise, which may have been solved for them."""
    keys = ("epsilon", "worst_case_epsilon", "delta")
    views = {view: {key: said[key] for key in keys if key in said} for view, said in result["epsilon"].items()}
    return {"noise_multiplier": result["noise_multiplier"], **views}


def _digits(value: Any) -> Any:
    """Floats with 9 digits."""
    return float(f"{value:.9g}") if type(value) is float else value


def _each(function: Callable[[Any], Any], value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _each(function, one) for key, one in value.items()}
    return [_each(function, one) for one in value] if isinstance(value, list) else function(value)
