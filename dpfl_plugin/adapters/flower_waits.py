"""Of which node a reply is, and how long the project's own evaluation is waited for: Flower would wait without end."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import Any, Final

from flwr.app import Message
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Strategy

LOG: Final = logging.getLogger("flwr")
SAID_SECONDS: Final = 30.0  # between two lines about what is waited for


def node_of(reply: Message, asked: Iterable[Message]) -> int:
    """The node that a reply is of: for one that is away the SuperLink answers, by its own number."""
    source = int(reply.metadata.src_node_id)
    nodes = {message.metadata.message_id: int(message.metadata.dst_node_id) for message in asked}
    if not reply.has_error() or source in nodes.values():
        return source
    return nodes.get(reply.metadata.reply_to_message_id, source)


class Evaluation:
    """Waits until enough nodes are connected for a project's strategy to evaluate, once.

    Args:
        inner: the project's strategy. patience: seconds.
    """

    def __init__(self, inner: Strategy, patience: float) -> None:
        self._needed, self._patience, self._in_vain = needed_to_evaluate(inner), patience, False

    def may_begin(self, grid: Grid) -> bool:
        """Whether enough nodes are connected; says whom it waits for, and that it stops waiting."""
        began, said = time.monotonic(), -SAID_SECONDS
        while (here := len(list(grid.get_node_ids()))) < self._needed:
            waited = time.monotonic() - began
            if self._in_vain or waited >= self._patience:
                if not self._in_vain:
                    LOG.warning(
                        "dpfl: evaluation is left out until %d nodes are connected, as the project's strategy asks "
                        "(min_available_nodes, min_evaluate_nodes): %d came in %g s. Training goes on; to evaluate "
                        "with fewer, lower these",
                        self._needed,
                        here,
                        self._patience,
                    )
                self._in_vain = True
                return False
            if waited >= said + SAID_SECONDS:
                said = waited
                LOG.info(
                    "dpfl: waiting for nodes to evaluate (%d here, %d needed), for %.0f s at most",
                    here,
                    self._needed,
                    self._patience - waited,
                )
            time.sleep(min(1.0, self._patience - waited))
        self._in_vain = False
        return True


def needed_to_evaluate(inner: Any) -> int:
    """How many connected nodes Flower's own evaluation waits for; 0 where there is none, or another in its place."""
    if getattr(type(inner), "configure_evaluate", None) is not FedAvg.configure_evaluate:
        return 0
    return 0 if inner.fraction_evaluate == 0 else max(inner.min_available_nodes, inner.min_evaluate_nodes)
