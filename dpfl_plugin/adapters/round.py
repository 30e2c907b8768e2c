"""The round that a server has under way: what its silos sent, and who sent nothing."""

from __future__ import annotations

import logging
import math
from typing import Final

import torch

from dpfl_plugin.adapters.agreement import Agreement
from dpfl_plugin.adapters.message import PROTOCOL, Layout, Message, check_vectors, value_of
from dpfl_plugin.algorithms.base import RoundPlan
from dpfl_plugin.core.vectors import Vectors
from dpfl_plugin.errors import MessageError, printable

LOG: Final = logging.getLogger("dpfl_plugin.server")


class LateError(MessageError):
    """It answers an earlier request: what answers this one may still come."""


class Round:
    """Takes what silos answer.

    Args:
        number: of the round, from 0; tag: of this request for it.
        up: the layout of a good upload.
        expected: how many silos are asked, where the platform does not say which.

    Attributes:
        uploads: the good ones, by silo. refused, spent: why of others there is none.
        disallowed: by the owners of their data.
        late: of those who may still answer, what came that answers an earlier request.
    """

    def __init__(self, agreement: Agreement, number: int, plan: RoundPlan, tag: str, up: Layout, expected: int) -> None:
        self._agreement, self._number, self._expected = agreement, number, expected
        self.plan, self.tag, self.up = plan, tag, up
        self.uploads: dict[int, Vectors] = {}
        self.refused: dict[int, str] = {}
        self.spent: dict[int, str] = {}
        self.late: dict[int, str] = {}
        self.disallowed: dict[int, str] = {}

    @property
    def missing(self) -> list[int]:
        """The silos that have not answered."""
        known = {*self.uploads, *self.refused, *self.spent, *self.disallowed}
        return [silo for silo in self.plan.participants if silo not in known]

    def why_missing(self) -> dict[int, str]:
        """Why there is no good upload, by silo."""
        known = self.late | self.refused | self.spent
        return {silo: known.get(silo, "no answer") for silo in self.plan.participants if silo not in self.uploads}

    def needed(self, min_share: float) -> int:
        """How many silos have to send a good upload, for the round to count."""
        if self.plan.participation == "all":
            return len(self.plan.participants)
        return max(1, math.ceil(min_share * self._expected - 1e-9))

    def take(self, silo: int, upload: Message, device: torch.device) -> bool:
        """Take what a silo sent; False where it takes no part.

        Raises:
            MessageError: it is not an answer to this round, or the silo failed.
        """
        status, header = self._checked(silo, upload), upload.header
        if status == "failed":
            raise MessageError("the silo failed with an error; its own log says which.")
        if status in ("spent", "refused"):
            reason = printable(str(header.get("reason"))[:500])
            (self.spent if status == "spent" else self.disallowed)[silo] = reason
            LOG.warning("round %d: silo %d takes no part: %s", self._number + 1, silo, reason)
            return False
        check_vectors(upload.vectors, self.up)
        self.uploads[silo] = {name: upload.vectors[name].to(device) for name in self.up}
        return True

    def _checked(self, silo: int, upload: Message) -> str:
        """Its status, where it answers this round of this run."""
        header = upload.header
        if header.get("dpfl") != PROTOCOL:
            raise MessageError("it is of another version's protocol.")
        if value_of(header, "run", str) != self._agreement.run:
            built = header.get("model", self._agreement.structure) == self._agreement.structure
            what = "settings there differ" if built else "the model there is built differently"
            raise MessageError(f"it is of another run: {what} from the server's.")
        if value_of(header, "silo", int) != silo:
            raise MessageError(f"it says that it is of silo {header['silo']}.")
        if value_of(header, "tag", str) != self.tag or value_of(header, "round", int) != self._number:
            self.late[silo] = "it answers another request than the last: it is late, or was sent before (a replay)."
            raise LateError(self.late[silo])
        status: str = value_of(header, "status", str)
        if status not in ("upload", "spent", "refused", "failed"):
            raise MessageError(f"its status is {status[:20]!r}.")
        return status
