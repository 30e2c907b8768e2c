"""`python -m benchmarks.drafts [TABLE ...] [--search | --around | --weak]`: what `dpfl init` drafts, as it stands.

Each table goes through `dpfl init`, and what that writes is trained at each epsilon, unchanged, beside the best found:
`--search` draws settings from `SPACE`, trains each on one seed, and the best of them on five others. `--around` halves
and doubles what the rule of drafts decides (`api.training_defaults`). `--weak` goes down to epsilons at which a model
is no better than a baseline, which `runs.signal` foresees. `--write` puts the table into docs/planning.md.
What has run is kept in runs/drafts, so that a search that is cut goes on where it was. Files are in $DPFL_DATA.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pandas as pd
from scipy.linalg import qr

import dpfl_plugin as dpfl
from benchmarks.hospitals import finished
from benchmarks.pages import ROOT, put
from benchmarks.table import table
from dpfl_plugin.errors import ConfigError, DpflError
from dpfl_plugin.measures import formulas
from dpfl_plugin.runs.records import federate

RUNS: Final = ROOT / "runs" / "drafts"
WEAK: Final = (0.03, 0.1, 0.3, 1.0)
LOSSES: Final = ("log_loss", "brier", "deviance", "rmse", "mae")  # the first that an outcome has
RULE: Final = ("algorithm.local_lr", "privacy.clip_norm", "rounds")
EPSILONS: Final = (1.0, 3.0, 8.0, None)  # None: without noise and clipping, as someone would fit who keeps the records
SEEDS: Final = tuple(range(1, 6))
SCREENING: Final = 100  # the seed on which drawn settings are compared
DRAWN, KEPT = 200, 10
SPACE: Final[Mapping[str, Sequence[Any]]] = {
    "algorithm.name": ("fedavg", "scaffold"),
    "rounds": (5, 10, 20, 40, 80),
    "algorithm.local_steps": (1, 2, 3, 5, 10),
    "algorithm.local_lr": (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0),
    "privacy.clip_norm": (0.1, 0.3, 1.0, 2.0, 4.0, 8.0),
    "privacy.record_rate": (0.1, 0.3, None),  # None: all records
    "silo_weights": ("equal", "records"),
    "data.preprocess": ([], ["unit_norm"]),
}
"""Wider than any draft; drawn uniformly, by a seed."""

HEART: Final = [
    "age",
    "sex",
    "cp",
    "trestbps",
    "chol",
    "fbs",
    "restecg",
    "thalach",
    "exang",
    "oldpeak",
    "slope",
    "ca",
    "thal",
    "num",
]
ADULT: Final = [
    "age",
    "workclass",
    "fnlwgt",
    "education",
    "education_num",
    "marital",
    "occupation",
    "relationship",
    "race",
    "sex",
    "gain",
    "loss",
    "hours",
    "country",
    "income",
]


@dataclass(frozen=True, slots=True)
class Study:
    """A table as somebody has it.

    Attributes:
        frame: its records. silo: the column that says whose they are; None: one file.
        roles: what `dpfl init` is told. edit: what its user corrects in the draft, {text: its replacement}.
        measure: what the model is judged by, of `pooled` measures: more is better. called: in words.
        in_lockstep: many small silos are answered together, which takes a third of the time.
    """

    frame: Callable[[Path], pd.DataFrame]
    roles: Mapping[str, str]
    measure: Callable[[Mapping[str, Any]], float]
    called: str
    silo: str | None = None
    edit: Mapping[str, str] | None = None
    in_lockstep: bool = False


def heart(data: Path) -> pd.DataFrame:
    hospitals = ("cleveland", "hungarian", "switzerland", "va")
    parts = [
        pd.read_csv(data / f"heart_disease/processed.{name}.data", names=HEART, na_values="?") for name in hospitals
    ]
    frame = pd.concat([part.assign(site=name) for name, part in zip(hospitals, parts, strict=True)])
    whole = {name: "Int64" for name in HEART if name != "oldpeak"}
    return frame.astype(whole).assign(ill=np.where(frame["num"] > 0, "yes", "no"))


def mushrooms(data: Path) -> pd.DataFrame:
    lines = [line.split() for line in (data / "mushrooms/agaricus.txt.train").read_text().splitlines()]
    marks = np.zeros((len(lines), 126), dtype=int)
    for row, (_, *places) in enumerate(lines):
        marks[row, [int(place.partition(":")[0]) - 1 for place in places]] = 1
    frame = pd.DataFrame(marks, columns=[f"f{column}" for column in range(126)])
    return frame.loc[:, frame.nunique() > 1].assign(kind=["poison" if line[0] == "1" else "edible" for line in lines])


def weighted_kappa(measures: Mapping[str, Any]) -> float:
    """Cohen's kappa with linear weights, of levels; 0 of who says the same level of every record."""
    if "confusion_matrix" not in measures:  # the baseline
        return 0.0
    confusion = np.array(measures["confusion_matrix"], dtype=float)
    levels = np.arange(len(confusion))
    weights = np.abs(np.subtract.outer(levels, levels))
    chance = np.outer(confusion.sum(axis=1), confusion.sum(axis=0)) / confusion.sum()
    return float(1 - (weights * confusion).sum() / (weights * chance).sum())


def of(name: str) -> Callable[[Mapping[str, Any]], float]:
    return lambda measures: math.nan if measures.get(name) is None else float(measures[name])


STUDIES: Final[Mapping[str, Study]] = {
    "heart": Study(lambda data: heart(data).drop(columns="num"), {"label": "ill"}, of("auc"), "AUC", "site"),
    "stages": Study(
        lambda data: heart(data).drop(columns="ill"),
        {"label": "num"},
        weighted_kappa,
        "kappa with linear weights",
        "site",
        {
            "outcome: classes": "outcome: ordinal",
            "model: softmax": "model: linear",
            "\nprivacy:": "\nprivate_statistics: {outcome: true}\nprivacy:",
            "local_lr: 0.37": "local_lr: 0.73",
            "clip_norm: 3.4": "clip_norm: 2.4",
        },
    ),
    "azpro": Study(
        lambda data: pd.read_csv(data / "multicentre/azpro.csv"),
        {"label": "los"},
        of("d2"),
        "1 - deviance / null deviance",
        "hospital",
        {
            "outcome: regression": "outcome: counts",
            "local_lr: 1.1": "local_lr: 0.26",
            "clip_norm: 0.52": "clip_norm: 3.5",
        },
    ),
    "dialysis": Study(
        lambda data: pd.read_csv(data / "multicentre/dialysis.csv").drop(columns="patient_id"),
        {"time": "time", "event": "event"},
        of("c_index"),
        "concordance index",
        "center",
    ),
    "school": Study(
        lambda data: pd.read_csv(data / "multicentre/school.csv.gz"),
        {"label": "score"},
        of("r2"),
        "R2",
        "school",
        in_lockstep=True,
    ),
    "adult": Study(
        lambda data: pd.read_csv(
            data / "adult/adult.data.gz", names=ADULT, skipinitialspace=True, na_values="?", header=None
        ),
        {"label": "income"},
        of("auc"),
        "AUC",
    ),
    "mushrooms": Study(mushrooms, {"label": "kind"}, of("auc"), "AUC"),
}


def project(name: str, data: Path) -> Path:
    """The configuration that `dpfl init` writes for a table, with what its user corrects."""
    study, folder = STUDIES[name], RUNS / name
    path = folder / "project" / "run.yaml"
    if not path.exists():
        frame, records = study.frame(data), folder / "records"
        records.mkdir(parents=True, exist_ok=True)
        parts = {"all": frame} if study.silo is None else dict(iter(frame.groupby(study.silo)))
        for silo, part in parts.items():
            part.drop(columns=[study.silo] if study.silo else []).to_csv(records / f"{silo}.csv", index=False)
        dpfl.init(path.parent, data=records, schema=True, **study.roles)
        text = path.read_text()
        for old, new in (study.edit or {}).items():
            text = text.replace(old, new)
        path.write_text(text)
    return path


class Judged(NamedTuple):
    """The model's measure and the baseline's of a run, signal to noise, and whether the model's loss is the lower one;
    NaN of a run that fails, as with a loss that is no number, and of signal to noise where there is no noise."""

    model: float = math.nan
    baseline: float = math.nan
    ratio: float = math.nan
    lower_loss: bool = False


def judged(name: str, path: Path, epsilon: float | None, seed: int, settings: Mapping[str, Any]) -> Judged:
    """What a run comes to.

    Raises:
        ConfigError: the settings do not go with the table, as where a share of a small silo is no record.
    """
    changes: dict[str, Any] = dict(settings) | {"seed": seed, "out": str(RUNS / name / "runs")}
    changes |= {"privacy.epsilon": epsilon} if epsilon else {"privacy.epsilon": None, "privacy.noise_multiplier": 0}
    changes |= {"runtime.lockstep": True} if STUDIES[name].in_lockstep else {}
    if settings.get("data.preprocess"):
        changes |= {"private_statistics": None}  # which are of columns as the schema makes them
    elif epsilon is None and dpfl.load(path).config.private_statistics is not None:
        changes |= {"private_statistics.noise_multiplier": 0}
    nested: dict[str, Any] = {}
    for key, value in changes.items():
        *groups, last = key.split(".")
        block = nested
        for group in groups:
            block = block.setdefault(group, {})
        block[last] = value
    changed = dpfl.load(path).with_(**nested)
    try:
        result = finished(changed)
    except ConfigError:
        raise
    except DpflError as error:
        print(f"{name}: {error}", flush=True)
        return Judged()
    pooled = (result.get("measures") or {}).get("pooled")
    if not pooled:
        return Judged()
    model, baseline = (STUDIES[name].measure(pooled[who]) for who in ("model", "baseline"))
    loss = next(key for key in LOSSES if key in pooled["baseline"])
    lower = pooled["model"][loss] is not None and pooled["model"][loss] < pooled["baseline"][loss]
    return Judged(model, baseline, result.get("signal_to_noise") or math.nan, lower)


def pooled(name: str, path: Path, seed: int) -> float:
    """What a model of the same columns is worth on the test records that is fitted to all training records together,
    without privacy, by somebody else's package."""
    from lifelines import CoxPHFitter
    from sklearn.linear_model import LinearRegression, LogisticRegression, PoissonRegressor
    from statsmodels.miscmodels.ordinal_model import OrderedModel

    experiment = dpfl.load(path).with_(seed=seed)
    records = federate(experiment.config, experiment.base)
    silos, outcome = records.silos, records.outcome
    x, y = (np.concatenate([getattr(silo, f"train_{part}") for silo in silos]) for part in "xy")
    test_x, test_y = (np.concatenate([getattr(silo, f"test_{part}") for silo in silos]) for part in "xy")
    _, triangle, order = qr(x.astype(float) - x.mean(axis=0), mode="economic", pivoting=True)
    size = np.abs(np.diag(triangle))
    kept = np.sort(order[: len(size)][size > 1e-6 * size[0]])  # without columns that follow from others
    x, test_x = x[:, kept].astype(float), test_x[:, kept].astype(float)
    if outcome.kind == "classes":
        fitted = LogisticRegression(C=10, max_iter=2000).fit(x, y)
        return float(formulas.auc(test_y == 1, fitted.decision_function(test_x)))
    if outcome.kind == "regression":
        return float(LinearRegression().fit(x, y).score(test_x, test_y))
    if outcome.kind == "counts":
        fitted = PoissonRegressor(alpha=0, max_iter=1000).fit(x, y[:, 0] / y[:, 1], sample_weight=y[:, 1])
        return float(fitted.score(test_x, test_y[:, 0] / test_y[:, 1], sample_weight=test_y[:, 1]))
    if outcome.kind == "ordinal":
        fitted = OrderedModel(y, x, distr="logit").fit(method="bfgs", maxiter=200, disp=False)
        level = (fitted.predict(test_x).cumsum(axis=1) < 0.5).sum(axis=1)
        return weighted_kappa({"confusion_matrix": formulas.confusion(test_y, level, y.max() + 1)})
    people = pd.DataFrame(x).assign(time=y[:, 0], event=y[:, 1])
    risk = CoxPHFitter(penalizer=1e-3).fit(people, "time", "event").predict_partial_hazard(pd.DataFrame(test_x))
    return float(formulas.concordance(test_y[:, 0], test_y[:, 1] > 0, -risk.to_numpy()) or math.nan)


def drawn(rng: random.Random) -> dict[str, Any]:
    """Settings from `SPACE`."""
    settings = {key: rng.choice(values) for key, values in SPACE.items()}
    rate = settings.pop("privacy.record_rate")
    return settings | (
        {"privacy.sampler": "full"} if rate is None else {"privacy.sampler": "fixed", "privacy.record_rate": rate}
    )


def best_of(name: str, path: Path, epsilon: float | None, *, search: bool) -> dict[str, Any] | None:
    """{"measures": on `SEEDS`, "settings"} of the best of `DRAWN`, screened on one seed, the first `KEPT` on all; None
    where there was no search. Settings that are known are measured with the draft as it is now."""
    file = RUNS / name / f"best-{epsilon or 'no-noise'}.json"
    if file.exists():
        known = json.loads(file.read_text())["settings"]
        return {"measures": [judged(name, path, epsilon, seed, known).model for seed in SEEDS], "settings": known}
    if not search:
        return None
    rng, tried, scores = random.Random(0), list[dict[str, Any]](), list[float]()
    while len(tried) < DRAWN:
        settings = drawn(rng)
        with contextlib.suppress(ConfigError):  # what the table refuses is no setting
            scores.append(judged(name, path, epsilon, SCREENING, settings).model)
            tried.append(settings)
    ranked = sorted(range(DRAWN), key=lambda number: -math.inf if math.isnan(scores[number]) else scores[number])
    kept = {n: [judged(name, path, epsilon, seed, tried[n]).model for seed in SEEDS] for n in ranked[-KEPT:]}
    winner = max(kept, key=lambda number: statistics.fmean(kept[number]))
    best = {"measures": kept[winner], "settings": tried[winner]}
    file.write_text(json.dumps(best))
    return best


def rows_of(name: str, epsilons: Sequence[float | None], *, search: bool) -> list[list[str]]:
    """A row for each epsilon: the draft, who knows no features, and the best found."""
    path, rows = project(name, Path(os.environ["DPFL_DATA"])), []
    without = statistics.fmean(pooled(name, path, seed) for seed in SEEDS)
    for epsilon in epsilons:
        pairs = [judged(name, path, epsilon, seed, {}) for seed in SEEDS]
        own, baseline = (statistics.fmean(pair[place] for pair in pairs) for place in (0, 1))
        best, shown = best_of(name, path, epsilon, search=search), f"{epsilon:g}" if epsilon else "no noise"
        row = [name, STUDIES[name].called, shown, f"{own:.3f}", f"{baseline:.3f}", f"{without:.3f}"]
        row.append("" if best is None else f"{statistics.fmean(best['measures']):.3f}")
        settings = [] if best is None else best["settings"].items()
        row.append(", ".join(f"{key.rpartition('.')[2]}={value}" for key, value in settings if value != []))
        rows.append(row)
        print(row, flush=True)
    return rows


def around(name: str, epsilon: float) -> list[str]:
    """A row: the draft, and with a half of and with twice what the rule decides."""
    path = project(name, Path(os.environ["DPFL_DATA"]))
    draft = dpfl.load(path).config
    drafted = dict(zip(RULE, (draft.algorithm.options["local_lr"], draft.privacy.clip_norm, draft.rounds), strict=True))
    row = [name, f"{epsilon:g}"]
    for key, factor in ((RULE[0], 1.0), *((key, factor) for key in RULE for factor in (0.5, 2.0))):
        value = drafted[key] * factor
        settings = {key: round(value) if key == "rounds" else value} if factor != 1 else {}
        row.append(f"{statistics.fmean(judged(name, path, epsilon, seed, settings).model for seed in SEEDS):.3f}")
    print(row, flush=True)
    return row


def weak(name: str, epsilon: float) -> list[str]:
    """A row: how far a run can move the model, in units of the noise, and how often it beats the baseline."""
    path = project(name, Path(os.environ["DPFL_DATA"]))
    runs = [judged(name, path, epsilon, seed, {}) for seed in SEEDS]
    model, baseline, ratio = (float(np.nanmedian([run[place] for run in runs])) for place in range(3))
    better = sum(run.model > run.baseline for run in runs), sum(run.lower_loss for run in runs)
    row = [name, STUDIES[name].called, f"{epsilon:g}", f"{ratio:.2g}", f"{model:.3f}", f"{baseline:.3f}"]
    row += [f"{count} of {len(runs)}" for count in better]
    print(row, flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.drafts", description=__doc__)
    parser.add_argument("tables", nargs="*", default=list(STUDIES), help=f"of {', '.join(STUDIES)}; all by default")
    parser.add_argument("--epsilon", type=float, action="append", help="of 1, 3 and 8; all, and no noise, by default")
    parser.add_argument("--search", action="store_true", help="also the best of drawn settings: hours")
    parser.add_argument("--around", action="store_true", help="a half and twice of what the rule decides, at epsilon 3")
    parser.add_argument("--weak", action="store_true", help="at small epsilons")
    parser.add_argument("--write", action="store_true", help="put the table into docs/planning.md")
    given = parser.parse_args()
    if "DPFL_DATA" not in os.environ:
        sys.exit("The tables are read from $DPFL_DATA, which is not set: the folder of heart_disease and the others.")
    if given.around:
        rows = [around(name, 3.0) for name in given.tables]
        header = ["table", "epsilon", "drafted", *(f"{key} {of}" for key in RULE for of in ("/ 2", "x 2"))]
    elif given.weak:
        rows = [weak(name, epsilon) for name in given.tables for epsilon in WEAK]
        header = ["table", "measure", "epsilon", "signal / noise", "drafted", "no features", "better", "lower loss"]
    else:
        rows = [row for name in given.tables for row in rows_of(name, given.epsilon or EPSILONS, search=given.search)]
        header = ["table", "measure", "epsilon", "drafted", "no features", "pooled, no privacy", "best of 200"]
        header.append("its settings")
    text = table(header, rows, ["measure", "its settings"])
    print(text)
    if given.write:
        put("docs/planning.md", "around" if given.around else "weak" if given.weak else "drafts", text)


if __name__ == "__main__":
    main()
