"""The request of a round, on disk before it is sent: a server that is started again sends the same bits again.

Silos that answered it send the answer that they kept, which costs them nothing; the others answer as if nothing had
happened. A request is made from the server's vectors, which its checkpoint has, and from a tag that is drawn at random:
so the tag is kept, and a digest by which it is seen that the request is the same.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from torch import Tensor

from dpfl_plugin.adapters.agreement import Agreement
from dpfl_plugin.adapters.frozen import FIXED
from dpfl_plugin.adapters.message import PROTOCOL, Message
from dpfl_plugin.algorithms.base import RoundPlan
from dpfl_plugin.core.vectors import Vectors
from dpfl_plugin.errors import DataError
from dpfl_plugin.models.fixed import digest_of
from dpfl_plugin.runs.folder import to_json, write_atomic

FILE: Final = "request.json"
LOG: Final = logging.getLogger("dpfl_plugin.server")


class Requests:
    """What a server's folder knows of its last request.

    Args:
        folder: of the server.

    Raises:
        DataError: the file cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._round, self._tag, self._digest = _read(self._path)

    def message(self, round: int, made: Callable[[str], Message]) -> Message:
        """The request that was sent for ``round`` before this process began, if there is one; else a new one, kept.

        Args:
            made: the request with a tag.
        """
        message, changed = self.again(round, made)
        if message is not None:
            LOG.info("round %d was interrupted: its request is sent again; kept answers cost nothing", round + 1)
            return message
        if changed:
            LOG.warning(
                "round %d was interrupted; its request cannot be repeated bit for bit: did the package change? It is "
                "asked for again, and silos that answered it are charged again",
                round + 1,
            )
        message = made(secrets.token_hex(8))
        self.keep(message)
        return message

    def again(self, round: int, made: Callable[[str], Message]) -> tuple[Message | None, bool]:
        """The request for ``round`` that an earlier process sent and did not finish.

        Args:
            made: the request with a tag.

        Returns:
            The request, or None; and whether there was one which cannot be made again to the bit.
        """
        pending, self._round = self._round == round, -1  # once: what is void is asked again under another tag
        if not pending:
            return None, False
        message = made(self._tag)
        return (message, False) if message.digest() == self._digest else (None, True)

    def keep(self, message: Message) -> None:
        """Have it on disk; to be called before it is sent."""
        facts = {"round": message.header["round"], "tag": message.header["tag"], "sha256": message.digest()}
        write_atomic(self._path, to_json(facts))


def _read(path: Path) -> tuple[int, str, str]:
    if not path.exists():
        return -1, "", ""
    try:
        facts = json.loads(path.read_text())
        round, tag, digest = facts["round"], facts["tag"], facts["sha256"]
        if type(round) is not int or not isinstance(tag, str) or not isinstance(digest, str):
            raise ValueError("its values make no sense")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{path} cannot be read: {error}. Restore it from a copy; or delete it: the round is then asked for again, "
            "and silos that answered it are charged again."
        ) from error
    return round, tag, digest


def request_message(
    agreement: Agreement,
    round: int,
    plan: RoundPlan,
    server: Vectors,
    fixed: Tensor,
    counted: Mapping[int, str],
    tag: str,
) -> Message:
    """What a server sends to every silo of a round.

    Args:
        server: its vectors before ``round``; fixed: frozen layers and buffers, packed.
        counted: the tag of each silo's last upload that counted.
        tag: of this request.
    """
    header = {
        "dpfl": PROTOCOL,
        "run": agreement.run,
        "model": agreement.structure,
        "fixed": digest_of(fixed),
        "round": round,
        "tag": tag,
        "counted": {str(silo): counted[silo] for silo in plan.participants if silo in counted},
        "plan": {
            "local_steps": plan.local_steps,
            "local_lr": plan.local_lr,
            "num_gradients": plan.num_gradients,
            "share": list(plan.share),
            "phase": plan.phase,
            "smoothing": None if plan.smoothing is None else list(plan.smoothing),
            "silo_share": plan.silo_share,
        },
    }
    down = {name: value.clone() for name, value in agreement.algorithm.download(server).items()}
    if fixed.numel() and not set(plan.participants) <= set(counted):
        down[FIXED] = fixed  # a silo whose upload counted has it
    return Message(header, down)
