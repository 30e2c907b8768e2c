"""What of a Flower project would be in the way of what is charged, and what of it has no effect any more."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable
from typing import Any, Final

from flwr.serverapp.strategy import FedAvg, Strategy

from dpfl_plugin.errors import UnsupportedError

MODS: Final = ("fixedclipping_mod", "adaptiveclipping_mod", "LocalDpMod")
HOOKS: Final = ("configure_train", "aggregate_train")
UNUSED: Final = {
    "fraction_train": "dpfl.silo_rate says how many silos are asked",
    "min_train_nodes": "half of the silos that are asked have to answer",
    "train_metrics_aggr_fn": "silos send no metrics of training",
}


def check_mods(mods: Iterable[Any]) -> None:
    """Raise UnsupportedError if one of a client's mods is of Flower's own differential privacy."""
    for one in mods:
        names = {getattr(one, "__name__", "")} | {kind.__name__ for kind in type(one).__mro__}
        for name in sorted(names & set(MODS)):
            raise UnsupportedError(
                f"mods has Flower's {name}: it would change uploads after they were charged, and its clipping and "
                "noise are in no ledger. Leave it out: private_client_app clips each record's gradient and adds noise."
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
