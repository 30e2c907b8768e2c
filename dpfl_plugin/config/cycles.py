"""What batches in a cycle (`privacy.sampler: cyclic`) do not go together with."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dpfl_plugin.config.schema import Config

KNOWING = ("pld", "rdp", "prv", "gaussian")


def check_cycles(config: Config) -> None:
    """Raise ValueError for what nothing is proven of, or what is not planned, beside batches in a cycle."""
    if config.privacy.sampler != "cyclic":
        return
    every = "silos take part in every round of a cycle"
    beside = "what is released beside the rounds is not planned together with cycles"
    known = "it takes the noise of a round's releases for independent"
    lost = "the rounds after a loss get other noise, and what came before them would be in both"
    for wrong, key, why in (
        (config.silo_rate < 1, "silo_rate below 1", every),
        (config.max_participations is not None, "max_participations", every),
        (config.early_stopping is not None, "early_stopping", beside),
        (config.private_evaluation is not None, "private_evaluation", beside),
        (config.personalise is not None, "personalise", beside),
        (config.private_statistics is not None, "private_statistics", beside),
        (config.runtime.on_silo_failure == "continue", "runtime.on_silo_failure: continue", lost),
        (config.algorithm.options.get("server_optimizer") == "fedexp", "algorithm.server_optimizer: fedexp", known),
        (config.privacy.accountant.name not in KNOWING, "privacy.accountant", "it may not know of cycles"),
    ):
        if wrong:
            raise ValueError(f"privacy.sampler: cyclic with {key}: {why}; use sampler: fixed, or leave out {key}")
