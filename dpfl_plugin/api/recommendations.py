"""Which method to begin with: what was measured nearest to a configuration. No record is looked at."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Any, Final

from dpfl_plugin.api.plans import Answer
from dpfl_plugin.config.schema import Config
from dpfl_plugin.errors import ArgumentError, nearest, require_argument
from dpfl_plugin.runs.plan_request import Question
from papers.drift_control import (
    PAGE,
    PLAIN,
    SKEWS,
    Advice,
    Numbers,
    Place,
    advice,
    between,
    gap,
    numbers,
    place,
)

__all__ = ["PAGE", "PLAIN", "SKEWS", "recommendations"]

WORDS: Final = "; ".join(f"{name}, {what}" for name, what in SKEWS.items())
MEASURED_LABELS, MEASURED_ALPHA, ALIKE_ALPHA = 2, 0.5, 10.0
MEASURED_ROUNDS: Final = {0.2: 40, 1.0: 20}
"""By silo_rate."""


def recommendations(question: Question, skew: str | None = None) -> dict[str, Answer]:
    """What the nearest measurements favour for each run of a file, by label.

    Args:
        skew: how silos differ, one of `SKEWS`, as it is known publicly; None for what ``data.partition`` says where a
            simulation deals records out. Label counts of real silos are private: nothing is counted here.

    Raises:
        ConfigError: nothing near was measured, or ``skew`` is not given and the configuration does not tell it.
    """
    known = skew is None or skew in SKEWS
    require_argument(known, "skew", skew, f"be one of {', '.join(SKEWS)}{nearest(str(skew), SKEWS)}", f"{WORDS}.")
    for name in ("delta", "view", "ledger"):
        if getattr(question, name) is not None:
            raise ArgumentError(f"{{{name}}} has no meaning with {{recommend=True}}: leave it out.")
    found = numbers()
    return {v.label or v.config.name: _answer(v.config, question, skew, found) for v in question.variants()}


def _answer(config: Config, question: Question, skew: str | None, found: Numbers) -> Answer:
    at = {"silo_rate": config.silo_rate, "local_steps": _local_steps(config), "epsilon": _epsilon(config, question)}
    differ = skew_of(config, skew)
    places = [differ, *(place(axis, value, found.levels(axis, differ.levels)) for axis, value in at.items())]
    advised = advice(places, found, _not_measured(config, differ, places[1], found))
    options = found.methods[advised.method]
    return {
        "measured_on": [found.data[str(one)] for one in differ.levels],
        "data_sets": _data_sets(differ, found),
        "recommended": advised.method,
        "set": [f"algorithm.{key}={value}" for key, value in options.items()],
        "gain_over_fedavg": asdict(advised.gain) | {"told_apart": advised.gain.told_apart},
        "best": advised.best,
        "best_ahead_of_recommended": asdict(advised.behind) | {"told_apart": advised.behind.told_apart},
        "level_with_the_best": list(advised.level),
        "remarks": list(advised.remarks),
        "outside": list(advised.outside),
        "step_by_fedavgs": _steps(advised),
        "cells": [_cell(cell) for cell in advised.cells],
        "methods": _methods(advised, found),
        "measured": found.setting,
        "origin": found.origin(),
        "sources": found.sources_and_this(),
    }


def _cell(cell: Any) -> dict[str, Any]:
    return {key: getattr(cell, key) for key in ("skew", "silo_rate", "local_steps", "epsilon", "seeds")} | {
        "accuracy": {name: method.mean for name, method in cell.methods.items()},
        "local_lr": {name: method.local_lr for name, method in cell.methods.items()},
    }


def _steps(advised: Advice) -> list[float]:
    """[least, most] of the recommended method's best step size over plain FedAvg's, among the cells."""
    ratios = [cell.methods[advised.method].local_lr / cell.methods[PLAIN].local_lr for cell in advised.cells]
    return [min(ratios), max(ratios)]


def _methods(advised: Advice, found: Numbers) -> dict[str, dict[str, Any]]:
    """Of each method in the mean of the cells: accuracy, and how far it is ahead of plain FedAvg."""
    rows = {}
    for name in found.methods:
        ahead = None if name == PLAIN else gap(advised.cells, name, PLAIN)
        rows[name] = {
            "accuracy": sum(cell.methods[name].mean for cell in advised.cells) / len(advised.cells),
            "ahead_of_fedavg": None if ahead is None else ahead.mean,
            "standard_error": None if ahead is None else ahead.error,
            "told_apart": None if ahead is None else ahead.told_apart,
        }
    return rows


def skew_of(config: Config, skew: str | None) -> Place:
    """How silos differ: as said, or by how a simulation deals records out, which is a fact of the configuration.

    Raises:
        ConfigError: it is not said, and silos are those of the data.
    """
    if skew is not None:
        return Place("skew", (skew,))
    partition = config.data.partition
    match partition.name:
        case "iid":
            return Place("skew", ("alike",))
        case "labels_per_silo":
            count = partition.options.get("labels")
            same = count == MEASURED_LABELS
            remark = "" if same else f"labels_per_silo with labels: {count}; measured with {MEASURED_LABELS} of 10"
            return Place("skew", ("labels",), remark, outside=not same)
        case "dirichlet":
            return _of_dirichlet(float(partition.options["alpha"]))
        case "similarity":
            return _of_similarity(float(partition.options["gamma"]))
    raise ArgumentError(
        "{skew} is missing: silos are those of the data, and how these differ is not looked at, since label counts of "
        f"silos are private. Say what is known publicly: {WORDS}."
    )


def _of_dirichlet(alpha: float) -> Place:
    said = f"Dirichlet({alpha:g})"
    if alpha == MEASURED_ALPHA:
        return Place("skew", ("shares",))
    if alpha >= ALIKE_ALPHA:
        return Place("skew", ("alike",), f"{said} is taken for alike")
    return between("labels", "shares", said) if alpha < MEASURED_ALPHA else between("shares", "alike", said)


def _of_similarity(gamma: float) -> Place:
    said = f"similarity with gamma: {gamma:g}"
    if gamma in (0, 100):
        return Place("skew", ("labels" if gamma == 0 else "alike",), f"{said} is taken for this")
    return between("labels", "shares", said) if gamma < 50 else between("shares", "alike", said)


def _local_steps(config: Config) -> float:
    options = config.algorithm.options
    if options.get("local_steps") is not None:
        return float(options["local_steps"])
    if options.get("p") is not None:  # drawn: 1 / p in the mean
        return 1 / float(options["p"])
    raise ArgumentError(
        f"algorithm: {config.algorithm.name or config.algorithm.module} has no local_steps, and without several local "
        "steps nothing drifts. To ask about some: --set algorithm.name=fedavg --set algorithm.local_steps=5 "
        "--set algorithm.local_lr=1."
    )


def _epsilon(config: Config, question: Question) -> float:
    if config.privacy.unit == "silo":
        raise ArgumentError(
            "privacy.unit: silo: what was measured is private for records. For whole silos scaffold is refused: "
            "see docs/algorithms.md, Whole silos."
        )
    epsilon = question.epsilon if question.epsilon is not None else config.privacy.epsilon
    if epsilon is None:
        raise ArgumentError("{epsilon} is missing, and the configuration has no privacy.epsilon.")
    return epsilon


def _data_sets(differ: Place, found: Numbers) -> list[str]:
    return list(dict.fromkeys(found.data[str(one)].split(",")[0] for one in differ.levels))


def _not_measured(config: Config, differ: Place, rate: Place, found: Numbers) -> list[str]:
    """What of a configuration is unlike what was measured, beside the axes of the sweep."""
    names = _data_sets(differ, found)
    block, silos, rounds = config.data.dataset, config.data.num_silos, config.rounds
    measured_silos = {count for one in differ.levels for count in re.findall(r"(\d+) silos", found.data[str(one)])}
    measured_rounds = {MEASURED_ROUNDS[float(one)] for one in rate.levels}
    said = []
    if block.name not in {name.lower() for name in names}:
        said.append(
            f"data set {block.name or block.module}, with its columns, classes and records: "
            f"measured on {' and '.join(names)}"
        )
    if str(silos) not in measured_silos:
        yours = "the number of silos, which is that of the data" if silos is None else f"{silos} silos"
        said.append(f"{yours}: measured with {' and '.join(sorted(measured_silos))}")
    if rounds not in measured_rounds:
        yours = "the number of rounds" if rounds is None else f"{rounds} rounds"
        said.append(f"{yours}: measured with {' and '.join(map(str, sorted(measured_rounds)))}")
    if config.model.name != "softmax":
        said.append(f"model {config.model.name or config.model.module}: measured with softmax on fixed features")
    if config.privacy.unit == "person":
        said.append("privacy.unit person: measured with unit: record")
    if config.augmentation is not None:
        said.append("augmentation: measured without")
    return said
