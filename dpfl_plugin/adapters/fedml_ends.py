"""How FedML's processes of a deployment end together: one that fails leaves nobody waiting, and who waits says so.

A message of our server names its process, so that silos tell one that was started again from a first message that
FedML's servers send several times.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import secrets
import time
from collections.abc import Callable
from typing import Any, Final

from dpfl_plugin.adapters.fedml_waits import Watch, server_waits_for, silo_waits_for
from dpfl_plugin.adapters.message import HEADER, Message

SERVER: Final = "dpfl.server"  # among a message's parameters: the server's process
FAREWELL_SECONDS: Final = 2.0
LOG: Final = logging.getLogger("dpfl_plugin.fedml")


@functools.cache
def end_together() -> None:
    """Change FedML's managers of a cross-silo job, once for a process."""
    from fedml.cross_silo.client.fedml_client_master_manager import ClientMasterManager
    from fedml.cross_silo.server.fedml_server_manager import FedMLServerManager

    _change(ClientMasterManager, "handle_message_receive_model_from_server", _ends_when_over)
    _change(ClientMasterManager, "handle_message_init", _begins_again)
    _change(FedMLServerManager, "send_message", _names_itself)
    for name in ("handle_message_init", "handle_message_receive_model_from_server"):
        _change(ClientMasterManager, name, _tells_server)
    for manager, what in ((ClientMasterManager, silo_waits_for), (FedMLServerManager, server_waits_for)):
        _change(manager, "receive_message", functools.partial(_says_what_it_waits_for, what))
        _change(manager, "finish", _waits_no_more)
    _change(FedMLServerManager, "handle_message_client_status_update", _tells_all)
    _change(FedMLServerManager, "handle_message_receive_model_from_client", _tells_all)
    _change(FedMLServerManager, "handle_message_receive_model_from_client", _takes_what_it_asked_for)


def _change(owner: Any, name: str, how: Callable[..., None]) -> None:
    before = getattr(owner, name)

    def handle(self: Any, *message: Any) -> None:
        how(before, self, *message)

    setattr(owner, name, handle)


def _over(message: Any) -> dict[str, Any] | None:
    """The header of a message of the server by which the run is over; None if it is not."""
    from fedml.cross_silo.client.message_define import MyMessage

    sent = message.get(MyMessage.MSG_ARG_KEY_MODEL_PARAMS)
    with contextlib.suppress(Exception):  # what it is else is for the trainer to say
        if HEADER in sent and (header := Message.from_tensors(sent).header).get("over"):
            return header
    return None


def _ends_when_over(before: Callable[..., None], self: Any, message: Any) -> None:
    """A silo counts FedML's rounds from its own start; one that was started again would go on when all others end."""
    if (header := _over(message)) is not None:
        self.round_idx = self.num_rounds
        if header.get("reason"):
            LOG.error("the server ended the run: %s", str(header["reason"])[:1000])
    before(self, message)


def _begins_again(before: Callable[..., None], self: Any, message: Any) -> None:
    """A server that was started again begins as if all silos had just come; FedML's silos would not answer twice."""
    server, known = message.get(SERVER), getattr(self, "dpfl_server", None)
    if self.is_inited and server != known:
        LOG.info("the server was started again: this silo continues with it")
        self.is_inited = False
    self.dpfl_server = server
    before(self, message)


@functools.cache
def _process() -> str:
    return secrets.token_hex(8)


def _names_itself(before: Callable[..., None], self: Any, message: Any) -> None:
    message.add_params(SERVER, _process())
    before(self, message)


def _says_what_it_waits_for(
    what: Callable[[Any], str], before: Callable[..., None], self: Any, kind: Any, message: Any
) -> None:
    """Begins with the first thing that comes, which is that the connection is ready."""
    if getattr(self, "dpfl_watch", None) is None:
        self.dpfl_watch = Watch(functools.partial(what, self))
    with self.dpfl_watch.busy():
        before(self, kind, message)


def _waits_no_more(before: Callable[..., None], self: Any) -> None:
    if getattr(self, "dpfl_watch", None) is not None:
        self.dpfl_watch.end()
    before(self)


def _tells_server(before: Callable[..., None], self: Any, message: Any) -> None:
    """A silo that cannot go on ends, and says so, with which a server of FedML's own ends once all silos said it.

    So it is where that server sends plain models, which none of our silos trains with.
    """
    try:
        before(self, message)
    except Exception as error:
        if self.backend == "MPI":  # where one rank that ends takes the others along
            raise
        LOG.error("this silo ends, and tells the server that it does: %s", error)
        with contextlib.suppress(Exception):
            self.send_client_status(0, self.RUN_FINISHED_STATUS_FLAG)
        with contextlib.suppress(Exception):
            self.finish()
        raise


def _takes_what_it_asked_for(before: Callable[..., None], self: Any, message: Any) -> None:
    """What a silo sends of itself to a server that was started again comes once more when that asks for it."""
    if self.is_initialized:
        before(self, message)
    else:
        LOG.info("an upload came before this server asked for one: silos will send it again")


def _tells_all(before: Callable[..., None], self: Any, message: Any) -> None:
    """An error of the server ends the silos, too, which would wait for ever."""
    try:
        before(self, message)
    except Exception as error:
        if self.backend == "MPI":  # where one rank that ends takes the others along
            raise
        LOG.error("the server failed with %s: it ends, and tells all silos: %s", type(error).__name__, error)
        for rank in self.client_real_ids:
            with contextlib.suppress(Exception):  # whoever is gone need not be told
                self.send_message_finish(rank, 0)
        time.sleep(FAREWELL_SECONDS)  # they answer that; a port that is open and serves nobody would hold them
        with contextlib.suppress(Exception):
            self.finish()
        raise
