"""What a process of FedML waits for, said while it waits: FedML's server waits for all silos, endlessly, in silence."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from dpfl_plugin.adapters.platforms import ranges

SAID_SECONDS: Final = 30.0  # between two lines
LOG: Final = logging.getLogger("dpfl_plugin.fedml")


class Watch:
    """Says every ``seconds`` what is waited for, and for how long by now; in a thread of its own, as FedML's is busy.

    Args:
        what: in words; empty where nothing is.
    """

    def __init__(self, what: Callable[[], str], seconds: float = SAID_SECONDS) -> None:
        self._what, self._seconds, self._ended = what, seconds, threading.Event()
        self._since: float | None = time.monotonic()
        threading.Thread(target=self._run, name="dpfl waits", daemon=True).start()

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """Something came, and is worked on; then it is waited anew."""
        self._since = None
        try:
            yield
        finally:
            self._since = time.monotonic()

    def end(self) -> None:
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.wait(self._seconds):
            since = self._since
            waited = 0.0 if since is None else time.monotonic() - since
            if waited >= self._seconds / 2 and (what := self._what()):
                LOG.info("dpfl: waiting for %s, for %.0f s so far", what, waited)


def server_waits_for(manager: Any) -> str:
    """Of FedML's server: the silos that have to come, or to answer."""
    wanted = manager.client_id_list_in_this_round or manager.client_real_ids
    if not manager.is_initialized:
        missing = [rank for rank in wanted if not manager.client_online_mapping.get(str(rank), False)]
        return _told(missing, wanted, "to come. FedML waits for all of them: the log of one that is missing says why")
    sent = manager.aggregator.flag_client_model_uploaded_dict
    missing = [rank for i, rank in enumerate(wanted) if not sent.get(i, False)]
    gone = [rank for rank in missing if manager.client_finished_mapping.get(str(rank), False)]
    why = "to answer. One that ended is started again by the same command"
    return _told(missing, wanted, f"{why}; {_ranks(gone)} said that it ended" if gone else why)


def silo_waits_for(manager: Any) -> str:
    """Of one of FedML's silos: the server, which waits for all others."""
    what = "its next message" if manager.is_inited else "its first message, which it sends when all silos are there"
    return f"the server: {what}. Its log says for whom it waits"


def _told(missing: list[Any], wanted: list[Any], what: str) -> str:
    return f"{_ranks(missing)} ({len(wanted) - len(missing)} of {len(wanted)} have) {what}" if missing else ""


def _ranks(ranks: list[Any]) -> str:
    return f"{'silo' if len(ranks) == 1 else 'silos'} of rank {ranges(map(int, ranks))}"
