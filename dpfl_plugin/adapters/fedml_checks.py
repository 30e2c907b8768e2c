"""What of a FedML project has no effect any more."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from fedml.core import ClientTrainer, ServerAggregator

from dpfl_plugin.adapters.agreement import Agreement
from dpfl_plugin.adapters.platforms import begins

LOG: Final = logging.getLogger("dpfl_plugin.fedml")
OF_TRAINING: Final = ("learning_rate", "epochs", "batch_size", "client_optimizer", "weight_decay", "momentum")
HOOKS: Final = {
    ClientTrainer: ("train", "on_after_local_training"),
    ServerAggregator: ("aggregate", "on_before_aggregation", "on_after_aggregation"),
}


def without_effect(
    args: Any, device: Any, agreement: Agreement, trainer: ClientTrainer | None, aggregator: ServerAggregator | None
) -> Iterator[tuple[str, str]]:
    """(what, why) of settings and hooks of a project that stop working."""
    keys = [f"{key}={value!r}" for key in OF_TRAINING if (value := getattr(args, key, None)) is not None]
    if keys:
        yield ", ".join(keys), "silos train by dpfl_args: dpfl, in batches of record_rate of their records"
    if device is not None and not str(device).startswith(str(agreement.config.runtime.device)):
        where = agreement.config.runtime.device
        yield f"device={device}", f"silos train on {where!r}; dpfl_args: dpfl: runtime: {{device: ...}} says where"
    for own, kind in ((trainer, ClientTrainer), (aggregator, ServerAggregator)):
        for hook in HOOKS[kind] if own is not None else ():
            owner = next(base for base in type(own).__mro__ if hook in vars(base))
            if not owner.__module__.startswith("fedml."):
                yield f"{owner.__name__}.{hook}", "it is never called: training and its mean are the algorithm's"


def too_few_rounds(args: Any, agreement: Agreement) -> str:
    """What to say where FedML ends before the agreed rounds; empty if it does not."""
    rounds, least = agreement.config.rounds, getattr(args, "comm_round", None)
    if rounds is None or least is None or int(least) >= rounds:
        return ""
    return (
        f"comm_round={least} is less than dpfl_args: dpfl: rounds={rounds}: the run pauses before its end. Run it "
        f"again to continue; or begin another with rounds: {least}, which has less noise"
    )


def say_what_begins(args: Any, agreement: Agreement, counts: Mapping[int, int], folder: Path | None) -> None:
    """At the start of a run.

    Args:
        counts: numbers of records of silos, where this process has them all.
        folder: where it keeps what lasts; None at a silo of a deployment, where the owner says.
    """
    records = f", {min(counts.values())} to {max(counts.values())} records" if counts else ""
    asked = f" ({args.client_num_per_round} asked in a round{records})"
    LOG.info("%s%s", begins(agreement, asked), "" if folder is None else f", folder {folder}")
