"""What an algorithm's first round asks for that a configuration cannot give: refused before a run and before a plan."""

from __future__ import annotations

import torch

from dpfl_plugin.algorithms.base import Algorithm, RoundPlan, Setting
from dpfl_plugin.config.schema import Config
from dpfl_plugin.core.streams import stream
from dpfl_plugin.errors import UnsupportedError
from dpfl_plugin.federation.planning import rehearse
from dpfl_plugin.privacy.cycles import check_round
from dpfl_plugin.privacy.participation import WITH_REPLACEMENT
from dpfl_plugin.privacy.post_processing import check_released
from dpfl_plugin.privacy.rules import PrivacyRules
from dpfl_plugin.privacy.samplers import Cyclic


def check_first_round(
    config: Config, algorithm: Algorithm, setting: Setting, rules: PrivacyRules, model: torch.Tensor
) -> RoundPlan:
    """The plan of the first round.

    Args:
        model: (d,), of any length.

    Raises:
        UnsupportedError: it does not go together with the configuration.
    """
    server = algorithm.init_server(model, setting)
    first = algorithm.round_plan(server, 0, setting, stream(config.public_seed, "plan"))
    if first.participation == WITH_REPLACEMENT and config.silos:
        raise UnsupportedError("silos: drawing with replacement is accounted for silos of one noise. Leave silos out.")
    if isinstance(rules.sampler, Cyclic):
        check_round(first.share, first.smoothing)
    if first.smoothing is not None:
        _check_smoothing(config, rules)
    if rules.unit == "silo":
        up, rehearsal = rehearse(algorithm, server, first)
        check_released(up, rehearsal.released)
    return first


def _check_smoothing(config: Config, rules: PrivacyRules) -> None:
    if rules.unit == "person":
        raise UnsupportedError(
            "privacy.unit='person': gradients of smoothed losses are taken of single records. Use unit: record, or "
            "an algorithm without smoothing."
        )
    if rules.augmentation is not None:
        raise UnsupportedError(
            "augmentation: gradients of smoothed losses are taken of records as they are. Leave it out, or use an "
            "algorithm without smoothing."
        )
    if config.runtime.precision != "float32":
        raise UnsupportedError(
            f"runtime.precision={config.runtime.precision!r}: gradients of smoothed losses are taken in full "
            "precision only. Use float32."
        )
    for key in ("lockstep", "graphs"):
        if getattr(config.runtime, key):
            raise UnsupportedError(
                f"runtime.{key}=true: gradients of smoothed losses are taken silo by silo. Leave {key} out."
            )
