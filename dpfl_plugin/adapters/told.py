"""What callbacks are told of a run on a platform, at its server."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from dpfl_plugin.adapters.agreement import Agreement
from dpfl_plugin.adapters.settings import ELSEWHERE
from dpfl_plugin.callbacks.base import Callback, RoundInfo, RunInfo
from dpfl_plugin.runs.hooks import Calls, check_callbacks, public_values

LOG: Final = logging.getLogger("dpfl_plugin.server")
GIVEN_OF_SUMMARY: Final = ("name", "run", "status", "rounds", "num_silos", "delta", "epsilon_is")
"""The reason is not among them: a silo's own words are in it."""


class Told:
    """Calls a server's callbacks from its first request on.

    Noise is each silo's own here, and follows from no seed; metrics are for the platform to measure, so there are none.
    """

    def __init__(self, callbacks: Sequence[Callback], agreement: Agreement, folder: Path | None) -> None:
        check_callbacks(callbacks, "callbacks")
        self._callbacks, self._agreement, self._folder = tuple(callbacks), agreement, folder
        self._calls: Calls | None = None
        self._began, self._begun = time.monotonic(), 0

    def asked(self, rounds: int, summary: Mapping[str, Any]) -> None:
        """A round is asked for, after so many."""
        if not self._callbacks:
            return
        if self._calls is None:
            config = self._agreement.config
            self._calls, self._begun = (
                Calls(self._callbacks, LOG.warning, LOG.error, may_end=False),
                max(self._begun, rounds),
            )
            values = public_values(config)
            run = RunInfo(
                name=config.name,
                id=self._agreement.run,
                label=None,
                folder=self._folder,
                out=self._folder,
                config={key: value for key, value in values.items() if key not in ELSEWHERE},
                rounds=config.rounds,
                done=rounds,
                delta=config.privacy.delta,
                epsilon_of=str(summary["epsilon_is"]),
            )
            self._calls.begin(run)
        self._begun += 1

    def counted(self, rounds: int, summary: Mapping[str, Any]) -> None:
        """A round counted; so many have by now."""
        if self._calls is not None:
            seconds = time.monotonic() - self._began
            epsilon = {"server": _worst(summary), "third_party": None}
            self._calls.round(RoundInfo(rounds, seconds, self._begun, {}, epsilon))

    def over(self, summary: Mapping[str, Any]) -> None:
        """The run ended; or the platform did, before it."""
        if self._calls is not None:
            status = "interrupted" if summary["status"] == "running" else summary["status"]
            epsilon = {"server": {"epsilon": _worst(summary)}}
            shown = {key: summary[key] for key in GIVEN_OF_SUMMARY} | {"status": status, "epsilon": epsilon}
            self._calls.end(lambda per_silo: {**shown, **({"silos": summary["silos"]} if per_silo else {})})
            self._calls.close()
            self._calls = None


def _worst(summary: Mapping[str, Any]) -> float | None:
    """Of the silos that said one; None if one of them has none."""
    epsilons = [about["epsilon"] for about in summary["silos"].values()]
    return None if not epsilons or None in epsilons else float(max(epsilons))
