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
from dpfl_plugin.adapters.platforms import ranges
from dpfl_plugin.errors import DpflError, TrainingError, printable

# Among a message's parameters: the server's process; its comm_round; why everybody ends.
SERVER: Final = "dpfl.server"
ROUNDS: Final = "dpfl.rounds"
REASON: Final = "dpfl.reason"
FAREWELL_SECONDS: Final = 2.0
TOLD_SECONDS: Final = 60.0  # that a silo which cannot begin waits for a server to tell it, and a server for other silos
LOG: Final = logging.getLogger("dpfl_plugin.fedml")


@functools.cache
def end_together() -> None:
    """Change FedML's managers of a cross-silo job, once for a process."""
    from fedml.cross_silo.client.fedml_client_master_manager import ClientMasterManager
    from fedml.cross_silo.server.fedml_server_manager import FedMLServerManager

    _change(ClientMasterManager, "handle_message_receive_model_from_server", _ends_when_over)
    _change(ClientMasterManager, "handle_message_init", _begins_again)
    _change(ClientMasterManager, "handle_message_connection_ready", _finds_server)
    _change(ClientMasterManager, "handle_message_finish", _hears_why)
    _change(FedMLServerManager, "send_message", _names_itself)
    for name in ("handle_message_init", "handle_message_receive_model_from_server"):
        _change(ClientMasterManager, name, _tells_server)
    for manager, what in ((ClientMasterManager, silo_waits_for), (FedMLServerManager, server_waits_for)):
        _change(manager, "receive_message", functools.partial(_says_what_it_waits_for, what))
        _change(manager, "finish", _waits_no_more)
    _change(FedMLServerManager, "handle_message_client_status_update", _hears_who_cannot_begin)
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
            LOG.error("the server ended the run: %s", printable(str(header["reason"])[:1000]))
        LOG.info("dpfl: the run is over; what this silo released is stated in privacy.md of its folder")
    before(self, message)


def _begins_again(before: Callable[..., None], self: Any, message: Any) -> None:
    """A server that was started again begins as if all silos had just come; FedML's silos would not answer twice."""
    server, known = message.get(SERVER), getattr(self, "dpfl_server", None)
    if self.is_inited and server != known:
        LOG.info("the server was started again: this silo continues with it")
        self.is_inited = False
    self.dpfl_server = server
    rounds = message.get(ROUNDS)
    if type(rounds) is int and rounds != self.num_rounds:  # the others would wait for a silo that ends before them
        LOG.warning("dpfl: comm_round=%s here, and %d at the server: the server's counts", self.num_rounds, rounds)
        self.num_rounds = rounds
    before(self, message)


def _finds_server(before: Callable[..., None], self: Any, message: Any) -> None:
    """A silo that comes before its server ends with an error of grpc, which does not say what to do."""
    try:
        before(self, message)
    except Exception as error:
        LOG.error(
            "dpfl: the server cannot be told that this silo is here (%s): start it first, and see to its address in "
            "%s. If it ended, its own log says why",
            type(error).__name__,
            getattr(self.args, "grpc_ipconfig_path", "the settings"),
        )
        raise


def _hears_why(before: Callable[..., None], self: Any, message: Any) -> None:
    if reason := message.get(REASON):
        LOG.error("the server ended the run: %s", printable(str(reason)[:1000]))
    before(self, message)


def _hears_who_cannot_begin(before: Callable[..., None], self: Any, message: Any) -> None:
    """FedML begins when all silos are there: one that cannot begin is the end, before any is asked."""
    if reason := message.get(REASON):
        error = TrainingError(
            f"silo of rank {message.get_sender_id()} cannot take part: {printable(str(reason)[:1000])}"
        )
        error.told = (message.get_sender_id(),)  # type: ignore[attr-defined]
        raise error
    before(self, message)


def public(error: Exception) -> str:
    """What silos are told of an error of the server."""
    return str(error)[:1000] if isinstance(error, DpflError) else f"the server failed with a {type(error).__name__}"


def tell_server(args: Any, why: str, seconds: float = TOLD_SECONDS) -> None:
    """A silo's process that cannot begin says so, and ends: the server would wait for it, and the others with it.

    Args:
        why: what the server, and by it all silos, may know.
        seconds: how long a server is waited for that is not there yet.
    """
    if getattr(args, "backend", None) != "GRPC":  # on MPI one rank that ends takes the others along
        return
    from fedml.core.distributed.communication.message import Message as Carried
    from fedml.core.distributed.fedml_comm_manager import FedMLCommManager
    from fedml.cross_silo.client.fedml_client_master_manager import ClientMasterManager
    from fedml.cross_silo.client.message_define import MyMessage

    class Farewell(FedMLCommManager):  # type: ignore[misc]
        def register_message_receive_handlers(self) -> None: ...

    try:
        manager = Farewell(args, None, args.rank, args.worker_num, args.backend)
    except Exception as error:  # addresses that are wrong, too: there is nobody to tell
        LOG.error("dpfl: the server cannot be told that this silo cannot begin: %s", error)
        return
    message = Carried(MyMessage.MSG_TYPE_C2S_CLIENT_STATUS, int(args.rank), 0)
    # With which a server of FedML's own ends, once all silos said it.
    message.add_params(MyMessage.MSG_ARG_KEY_CLIENT_STATUS, ClientMasterManager.RUN_FINISHED_STATUS_FLAG)
    message.add_params(REASON, why)
    LOG.error("dpfl: this silo cannot begin, and tells the server, for which it waits %g s at most: %s", seconds, why)
    last = time.monotonic() + seconds
    while not (told := _sent(manager, message)) and time.monotonic() < last:
        time.sleep(1.0)
    if not told:
        LOG.error("dpfl: the server did not come; started later, it waits for this silo")
    with contextlib.suppress(Exception):
        manager.finish()


def _sent(manager: Any, message: Any) -> bool:
    try:
        manager.send_message(message)
    except Exception:  # grpc's, where nobody listens
        return False
    return True


@functools.cache
def _process() -> str:
    return secrets.token_hex(8)


def _names_itself(before: Callable[..., None], self: Any, message: Any) -> None:
    message.add_params(SERVER, _process())
    message.add_params(ROUNDS, int(self.round_num))
    if reason := getattr(self, "dpfl_reason", ""):
        message.add_params(REASON, reason)
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
    """What a silo sends of itself to a server that was started again comes once more when that asks for it.

    FedML would take one of an earlier request (late, or sent twice) as the silo's of this round.
    """
    if not self.is_initialized:
        LOG.info("an upload came before this server asked for one: silos will send it again")
    elif _is_late(self, message):
        LOG.warning("an upload of rank %s answers an earlier request: it is left out", message.get_sender_id())
    else:
        before(self, message)


def _is_late(manager: Any, message: Any) -> bool:
    from fedml.cross_silo.client.message_define import MyMessage

    with contextlib.suppress(Exception):  # what it is else is for the aggregator to say
        tag = Message.from_tensors(message.get(MyMessage.MSG_ARG_KEY_MODEL_PARAMS)).header.get("tag")
        return isinstance(tag, str) and tag != manager.aggregator.aggregator.tag
    return False


def _tells_all(before: Callable[..., None], self: Any, message: Any) -> None:
    """An error of the server ends the silos, too, which would wait for ever."""
    try:
        before(self, message)
    except Exception as error:
        if self.backend == "MPI":  # where one rank that ends takes the others along
            raise
        LOG.error("the server failed with %s: it ends, and tells all silos: %s", type(error).__name__, error)
        self.dpfl_reason = public(error)
        _tell_silos(self, set(self.client_real_ids) - set(getattr(error, "told", ())))
        time.sleep(FAREWELL_SECONDS)  # they answer that; a port that is open and serves nobody would hold them
        with contextlib.suppress(Exception):
            self.finish()
        raise


def _tell_silos(manager: Any, ranks: set[int]) -> None:
    """That it is over, and why. Before FedML begins silos may still be on their way: they are waited for."""
    last, said = time.monotonic() + (0.0 if manager.is_initialized else TOLD_SECONDS), False
    while True:
        for rank in sorted(ranks):
            with contextlib.suppress(Exception):  # whoever is gone need not be told
                manager.send_message_finish(rank, 0)
                ranks.discard(rank)
        if not ranks or time.monotonic() >= last:
            return
        if not said:
            LOG.info("dpfl: waiting %g s at most to tell silos of rank %s, too", TOLD_SECONDS, ranges(ranks))
        said = True
        time.sleep(1.0)
