"""What of a Flower project would be in the way of what is charged, and what of it has no effect any more."""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Iterable, Mapping
from typing import Any, Final, NoReturn

from flwr.app import Error, Message
from flwr.serverapp.strategy import FedAvg, Strategy

from dpfl_plugin.adapters.flower_settings import ProjectSettings, differing
from dpfl_plugin.errors import UnsupportedError

LOG: Final = logging.getLogger("flwr")
MODS: Final = ("fixedclipping_mod", "adaptiveclipping_mod", "LocalDpMod")
SECURE_AGGREGATION: Final = ("secagg_mod", "secaggplus_mod")
HOOKS: Final = ("configure_train", "aggregate_train")
UNUSED: Final = {
    "fraction_train": "dpfl.silo_rate says how many silos are asked",
    "min_train_nodes": "half of the silos that are asked have to answer",
    "train_metrics_aggr_fn": "silos send no metrics of training",
}
REFUSED: Final = 6  # Flower's code for what a mod does not let through
NO_METRICS: Final = (
    "It takes send: [metrics] in the owner's limits (docs/limits.md); with fraction_evaluate=0.0 in the project's "
    "strategy nobody is asked to evaluate."
)
NO_MASKS: Final = (
    "SecAgg masks the results of its own kind of training messages: private uploads would pass it unmasked, while it "
    "seems to be on. Nor could it mask these: it clips and rounds what it masks, and the server checks, counts and "
    "acknowledges each silo's upload. Leave it out: the epsilon of a silo already holds towards a server that sees "
    "every upload as it is."
)


def check_mods(mods: Iterable[Any]) -> None:
    """Raise UnsupportedError if one of a client's mods is of Flower's own differential privacy, or of its SecAgg."""
    for one in mods:
        names = {getattr(one, "__name__", "")} | {kind.__name__ for kind in type(one).__mro__}
        for name in sorted(names & set(MODS)):
            raise UnsupportedError(
                f"mods has Flower's {name}: it would change uploads after they were charged, and its clipping and "
                "noise are in no ledger. Leave it out: private_client_app clips each record's gradient and adds noise."
            )
        for name in sorted(names & set(SECURE_AGGREGATION)):
            raise UnsupportedError(f"mods has Flower's {name}: {NO_MASKS}")


def refused(message: Message, here: str, there: str = "") -> Message:
    """The answer of a node that refuses; it says why ``here``, and to the server. An exception looks like a bug."""
    LOG.error("dpfl: %s", here)
    return Message(Error(REFUSED, there or here), reply_to=message)


def refuse_workflows() -> NoReturn:
    """Raise UnsupportedError: a workflow of the interface before the Message API asked the strategy for parameters."""
    raise UnsupportedError(
        "PrivateStrategy runs by strategy.start(grid, ...) of the Message API, and not in a workflow (DefaultWorkflow, "
        f"SecAggWorkflow, SecAggPlusWorkflow), whose fit messages hold no private upload. {NO_MASKS}"
    )


def check_strategy(inner: Strategy) -> None:
    """Raise UnsupportedError if a strategy, or one that it wraps, is a wrapper of Flower's for differential privacy."""
    seen: list[Any] = []
    while inner is not None and not any(inner is one for one in seen):
        _refuse_wrapper(inner, "inside PrivateStrategy")
        seen.append(inner)
        inner = getattr(inner, "strategy", None)


def check_callers() -> None:
    """Raise UnsupportedError if one of these wrappers is calling: then it is around PrivateStrategy."""
    frame = sys._getframe(1)
    while frame is not None:
        _refuse_wrapper(frame.f_locals.get("self"), "around PrivateStrategy")
        frame = frame.f_back  # type: ignore[assignment]


def _refuse_wrapper(one: Any, where: str) -> None:
    for kind in type(one).__mro__:
        if kind.__module__.startswith("flwr.") and kind.__name__.startswith("DifferentialPrivacy"):
            raise UnsupportedError(
                f"Flower's {type(one).__name__} is {where}: its clipping and noise are in no ledger, and would change "
                "models that silos made private. Leave it out: silos clip and add noise themselves."
            )


def without_effect(inner: Strategy) -> dict[str, str]:
    """What of a project's strategy is not used, and why: options of training, and hooks of its own."""
    usual = {name: one.default for name, one in inspect.signature(FedAvg.__init__).parameters.items()}
    found = {
        f"{name}={value!r}": why
        for name, why in UNUSED.items()
        if (value := getattr(inner, name, usual[name])) != usual[name] and not _is_made_up(name, value)
    }
    for name in HOOKS:
        owner = next(kind for kind in type(inner).__mro__ if name in vars(kind))
        if owner not in (FedAvg, Strategy):
            found[f"{owner.__name__}.{name}"] = "the private algorithm takes its place, and it is never called"
    return found


def _is_made_up(name: str, value: Any) -> bool:
    """Whether Flower put it there itself, for what was left out."""
    return name == "train_metrics_aggr_fn" and getattr(value, "__module__", "").startswith("flwr.")


def tell_unused(
    log: logging.Logger,
    inner: Strategy,
    train_config: Mapping[str, Any],
    agreed: Mapping[str, Any],
    settings: ProjectSettings,
    source: str,
) -> None:
    """Say what of a project's own training has no effect, and which of its settings count in the place of ours."""
    found = without_effect(inner)
    if others := differing(train_config, agreed):
        found[f"train_config ({'; '.join(others)})"] = f"silos train by {source} alone"
    for what, why in found.items():
        log.warning("dpfl: %s has no effect: %s", what, why)
    for key, place in settings.used.items():
        log.info("dpfl: run-config %s counts as %s", key, place)
    if settings.unread:
        log.warning(
            "dpfl: run-config %s: dpfl reads none of these. They have an effect only where code of the project reads "
            "them (rounds, evaluation, data); only %s says how silos train",
            ", ".join(settings.unread),
            source,
        )
