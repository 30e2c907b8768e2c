"""What a platform's settings may not say, and what a silo would be the first to find wrong in them.

All of it is checked where the agreement is made: at the server before it asks anybody, and at every silo.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType
from typing import Any, Final

from dpfl_plugin import registry
from dpfl_plugin.algorithms.base import Algorithm, RoundPlan
from dpfl_plugin.config.schema import Config
from dpfl_plugin.core.vectors import Layout, Vectors
from dpfl_plugin.errors import UnsupportedError
from dpfl_plugin.federation.planning import rehearse
from dpfl_plugin.gradients import losses
from dpfl_plugin.gradients.base import layers
from dpfl_plugin.privacy.post_processing import check_released
from dpfl_plugin.runs.plugins import make_accountant, make_algorithm
from dpfl_plugin.runs.privacy_rules import privacy_rules

PLATFORM: Final = "the platform does that: see the settings of your project"
ELSEWHERE: Final = {
    "data": "silos bring their own records",
    "model": "the model is the project's own",
    "evaluation": PLATFORM,
    "checkpoint": "a server with a folder saves every round",
    "out": "give the folder to Server and to Silo",
}
EQUAL_HERE: Final = (
    "a silo is not asked for its number of records, and what it says must not weigh its upload. Remove the line "
    "(equal weights), or agree on a number for every silo, by its place: silo_weights: {0: 3, 1: 1}"
)
RUNTIME: Final = ("device", "precision", "memory_budget")
"""What of ``runtime`` says how one silo computes; the rest is of runs with several silos, or of MPI."""


def check_settings(values: Mapping[str, Any], source: str) -> None:
    """Raise UnsupportedError for keys that have no meaning on a platform, or none that is sound."""
    for key, why in ELSEWHERE.items():
        if values.get(key) is not None:
            raise UnsupportedError(f"{source}: {key} has no meaning here: {why}.")
    if not isinstance(values.get("silo_weights"), Mapping | NoneType):
        raise UnsupportedError(
            f"{source}: silo_weights={values['silo_weights']!r} has no meaning in a deployment: {EQUAL_HERE}."
        )
    if isinstance(privacy := values.get("privacy"), Mapping):
        _check_privacy(privacy, source)
    if isinstance(runtime := values.get("runtime"), Mapping):
        for key in runtime:
            if key not in (*RUNTIME, "noise"):  # of earlier versions
                raise UnsupportedError(
                    f"{source}: runtime.{key} has no meaning here: processes are the platform's, and a silo computes "
                    f"alone, in the number format of the project's model. Leave it out; {', '.join(RUNTIME)} count."
                )


def _check_privacy(privacy: Mapping[str, Any], source: str) -> None:
    if privacy.get("randomness") == "seeded" or privacy.get("secure") is False:
        raise UnsupportedError(
            f"{source}: privacy.randomness: seeded has no meaning in a deployment: noise always comes from each silo's "
            "operating system. Leave it out."
        )


def check_parts(config: Config, layout: Layout, source: str) -> Algorithm:
    """The algorithm; all else that does not depend on records is made once, and thrown away.

    Raises:
        ConfigError: an option of a plugin is wrong. UnsupportedError: it is nothing for a platform.
    """
    algorithm = make_algorithm(config, f"{source}: algorithm")
    if getattr(algorithm, "own_model", None) is not None:
        raise UnsupportedError(
            f"{source}: algorithm {config.algorithm.name or config.algorithm.module!r}: each silo keeps a model of its "
            "own, and a platform carries, evaluates and gives back the server's alone, which here is a mean that no "
            "silo was trained for. Use dpfl run, also on MPI ranks; or fedavg, fedprox or scaffold here."
        )
    _check_loss(config.loss, source)
    privacy_rules(config).bounds(layers(layout))
    make_accountant(config)
    if config.engine != "auto":
        registry.load("engines", config.engine)
    return algorithm


def check_first_round(config: Config, algorithm: Algorithm, server: Vectors, first: RoundPlan) -> None:
    """Raise UnsupportedError where silos would find in their first round that nothing they send is private."""
    if config.privacy.unit == "silo":
        up, rehearsal = rehearse(algorithm, server, first)
        check_released(up, rehearsal.released)


def _check_loss(name: str, source: str) -> None:
    if ":" in name or name == "auto":
        return
    kinds = [kind for kind, names in losses.OF_OUTCOMES.items() if name in names]
    if kinds:
        raise UnsupportedError(
            f"{source}: loss={name!r} is for an outcome of {kinds[0]}: labels on a platform are classes, as integers "
            "from 0. Use dpfl run, also on MPI ranks, for other outcomes (docs/outcomes.md)."
        )
    losses.find(name, 2 if name == "cross_entropy" else 1)
