"""What a server knows of its silos: how often they counted, what they say of their epsilon, and what was refused."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Final

MOST_REFUSALS: Final = 1000  # that are kept, the newest


class SiloReports:
    """Kept from round to round, and in the server's checkpoint."""

    def __init__(self) -> None:
        self._silos: dict[int, dict[str, Any]] = {}
        self._refusals: list[dict[str, Any]] = []

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> SiloReports:
        """Those that `facts` were of.

        Raises:
            KeyError, ValueError, TypeError, AttributeError: they are not of any.
        """
        self = cls()
        self._silos = {int(silo): about for silo, about in json.loads(facts["said"]).items()}
        self._refusals = list(facts["refusals"])
        return self

    def sent(self, silo: int, epsilon: object) -> None:
        """Note a good upload, and the epsilon that came with it; what can be none counts as none that holds."""
        holds = isinstance(epsilon, float) and math.isfinite(epsilon) and epsilon >= 0
        self._silos.setdefault(silo, {"rounds": 0})["epsilon"] = epsilon if holds else None

    def counted(self, silo: int) -> None:
        """Note that the round of its last good upload counted."""
        self._silos[silo]["rounds"] += 1

    def refused(self, round: int, silo: int, why: str) -> None:
        """Note an upload that was not taken in the ``round``-th round."""
        self._refusals.append({"round": round, "silo": silo, "why": why})

    def facts(self) -> dict[str, Any]:
        """For a checkpoint."""
        said = json.dumps({str(silo): about for silo, about in self._silos.items()})
        return {"said": said, "refusals": self._refusals[-MOST_REFUSALS:]}

    def as_plain(self) -> dict[str, Any]:
        """For the summary."""
        silos = {str(silo): self._silos[silo] for silo in sorted(self._silos)}
        return {"silos": silos, "refused": self._refusals[-MOST_REFUSALS:]}
