"""Silos that stay open from message to message, where one process answers for all of them and nobody else does.

Opened anew, a silo reads its ledger, its state and its statement, and composes its account: for a small model that
takes half as long as its gradients. Records and model are compared before each answer all the same.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, Final

from torch import nn

from dpfl_plugin.adapters.kept import MOST_BYTES
from dpfl_plugin.adapters.silo import Silo

MOST: Final = 64  # at a time: each has its files open


class Held:
    """Of more than `MOST` silos, or more than ``most_bytes`` of records, those are closed that answered longest ago."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes, self._silos = most_bytes, OrderedDict[int, Silo]()

    @contextlib.contextmanager
    def silo(self, id: int, model: nn.Module, records: Any, made: Callable[[], Silo]) -> Iterator[Silo]:
        """The silo, opened by ``made`` where it is not open or was opened with others; an error closes it.

        One whose owner has set limits is closed when it has answered: they count anew for each message.
        """
        silo = self._silos.pop(id, None)
        with contextlib.ExitStack() as stack:
            if silo is not None:
                stack.push(silo)
                if not silo.serves(model, records):
                    stack.pop_all()
                    _let_go(silo)
                    silo = None
            if silo is None:
                silo = stack.enter_context(made())
                silo.standing.least_ahead = 1
            yield silo
            stack.pop_all()
        if silo.limits is not None:
            _let_go(silo)
            return
        self._silos[id] = silo
        while len(self._silos) > 1 and (
            len(self._silos) > MOST or sum(one.num_bytes for one in self._silos.values()) > self._most_bytes
        ):
            _let_go(self._silos.popitem(last=False)[1])

    def close(self) -> None:
        """Let go of all of them."""
        while self._silos:
            _let_go(self._silos.popitem()[1])

    def __len__(self) -> int:
        return len(self._silos)


def _let_go(silo: Silo) -> None:
    """Close it; its statement says what its ledger proves, and no round more."""
    with silo, contextlib.suppress(OSError):  # on a full disk stays what states more
        silo.standing.settle()
