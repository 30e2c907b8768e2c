"""Flower (flwr): a strategy and a client app that carry messages; see docs/flower.md.

Server: `PrivateStrategy` around the strategy of a project, whose evaluation it keeps. Clients: `private_client_app` in
the place of ``ClientApp()``. Both read the table ``[tool.flwr.app.config.dpfl]`` of the project's `pyproject.toml`.
"""

from __future__ import annotations

import copy
import logging
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from torch import nn

from dpfl_plugin.adapters.flower_arrays import TABLE, read, written
from dpfl_plugin.adapters.flower_checks import (
    NO_METRICS,
    check_callers,
    check_mods,
    check_strategy,
    refuse_workflows,
    refused,
    tell_unused,
)
from dpfl_plugin.adapters.flower_guard import GuardedApp
from dpfl_plugin.adapters.flower_seam import NEWEST, OLDEST, try_seam
from dpfl_plugin.adapters.flower_settings import SOURCE, agreement_of, folder_of, own_folder, settings_of
from dpfl_plugin.adapters.flower_waits import SAID_SECONDS, Evaluation, node_of
from dpfl_plugin.adapters.kept import kept_here
from dpfl_plugin.adapters.message import Message as Carried
from dpfl_plugin.adapters.owner import silo_limits
from dpfl_plugin.adapters.platforms import check_seam, is_over, over_before, ranges, show_log
from dpfl_plugin.adapters.replies import failure, refusal
from dpfl_plugin.adapters.server import Server
from dpfl_plugin.adapters.silo import Silo
from dpfl_plugin.callbacks.base import Callback
from dpfl_plugin.errors import (
    ConfigError,
    DpflError,
    LimitError,
    MessageError,
    TrainingError,
    printable,
)
from dpfl_plugin.gradients.base import Loss
from dpfl_plugin.oracle import Draw
from dpfl_plugin.owners.limits import Limits, Surroundings
from dpfl_plugin.runs.hooks import check_callbacks

TRAIN, QUERY = f"train.{TABLE}", f"query.{TABLE}"
QUESTION_SECONDS: Final = 120.0  # for nodes that just came to say which silo they are
LOG: Final = logging.getLogger("flwr")

check_seam("flwr", OLDEST, NEWEST, try_seam)


# Clients


def private_client_app(
    model: Callable[[], nn.Module],
    records: Callable[[Context], Any],
    *,
    loss: Loss | None = None,
    mods: list[Any] | None = None,
    draw: Callable[[Context], Callable[[int], Draw]] | None = None,
) -> ClientApp:
    """A client app that trains by the private oracle, and by nothing else; ``@app.evaluate()`` is the project's own.

    The silo of a node is its ``partition-id``. A plain training message, for an ``@app.train()``, is refused: it would
    send what no ledger knows of. So are evaluations and queries where the owner of the data has set limits (see
    `silo_limits`) by which no metrics may be sent; and everything in a deployment without limits.

    Args:
        model: makes the project's model; records: the training records of a node, as `Silo` takes them.
        loss: one value for each record; None for what the configuration says.
        mods: the project's own; none of Flower's differential privacy.
        draw: seeded bits, for simulations without limits: see `Silo`. None for those of the operating system.

    Raises:
        UnsupportedError: a mod would change what was charged.
    """
    check_mods(mods or ())
    app = GuardedApp(mods=[_only_private, *(mods or [])])

    @app.query(TABLE)
    def who(message: Message, context: Context) -> Message:
        try:
            silo = _silo_id(context)
        except ConfigError as error:
            return refused(message, str(error))
        return Message(RecordDict({TABLE: ConfigRecord({"silo": silo})}), reply_to=message)

    @app.train(TABLE)
    def train(message: Message, context: Context) -> Message:
        return Message(written(_answered(message, context, model(), records, loss, draw)), reply_to=message)

    return app


def _only_private(message: Message, context: Context, call: Callable[[Message, Context], Message]) -> Message:
    """A mod that lets no plain training through, and what tells of records only by their owner's leave."""
    kind = message.metadata.message_type
    if kind.split(".")[0] == "train" and kind != TRAIN:
        return refused(
            message,
            f"a message of type {kind!r} asks this node to train without privacy: it is refused. Use "
            "PrivateStrategy at the server, or ClientApp() here.",
        )
    if kind not in (TRAIN, QUERY):
        try:
            _check_metrics(context, kind)
        except LimitError as error:
            return refused(message, str(error), f"{error.public}. {NO_METRICS}")
    return call(message, context)


def _answered(
    message: Message,
    context: Context,
    made: nn.Module,
    records: Callable[[Context], Any],
    loss: Loss | None,
    draw: Callable[[Context], Callable[[int], Draw]] | None,
) -> Carried:
    """What this node's silo answers; what goes wrong here is told here, and the server hears only that it did.

    Before there is an agreement, which an answer has to name, `GuardedApp` answers that; but the owner's limits come
    first.
    """
    show_log(lambda: LOG)
    id, asked, agreement = _silo_id(context), read(message.content), None
    bits = None if draw is None else draw(context)
    try:
        limits, where = _limits(context), surroundings()
        agreement = agreement_of(context, made, None if limits is None else limits.check_settings)
        # What a run's configuration says of folders is the server's word: in a simulation only it counts.
        folder = folder_of(context, f"silo-{id}") if limits is None else own_folder(context)
        with Silo(
            agreement,
            id,
            made,
            records(context),
            folder,
            loss=loss,
            draw=bits,
            limits=limits,
            surroundings=where,
            kept=kept_here(),
        ) as silo:
            return silo.answer(asked)
    except LimitError as error:
        LOG.error("dpfl: silo %d takes no part: %s", id, error)
        return refusal(agreement, id, asked, error)
    except Exception as error:  # Flower would send its text to the server, and it may tell of records
        if agreement is None:
            raise
        LOG.error("dpfl: silo %d: %s", id, error, exc_info=not isinstance(error, DpflError | OSError))
        return failure(agreement, id, asked)


def _silo_id(context: Context) -> int:
    found, silos = context.node_config.get("partition-id"), context.run_config.get(f"{TABLE}.num_silos")
    if type(found) is not int or found < 0 or (type(silos) is int and found >= silos):
        raise ConfigError(
            f"node-config partition-id={found!r} must be this silo's number, from 0 and below {SOURCE} num_silos="
            f"{silos!r}: flower-supernode --node-config 'partition-id=0'."
        )
    return found


def surroundings() -> Surroundings:
    """Where this process runs; its own doing, on which no message has a bearing.

    A simulation only in a worker that Ray started as an actor, as Flower's simulation engine has them. A SuperNode's
    ClientApp is none, and what is not known counts as a deployment.
    """
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return "deployment"
    return "deployment" if ray.get_runtime_context().get_actor_id() is None else "simulation"


def _limits(context: Context) -> Limits | None:
    """Those that the node's owner has set; in a simulation every silo is an owner of its own.

    Raises:
        LimitError: see `silo_limits`.
    """
    where, key = surroundings(), f"{TABLE}-limits"
    own = _silo_id(context) if where == "simulation" else None
    return silo_limits(where, context.node_config.get(key), f"node-config {key}", own=own)


def _check_metrics(context: Context, kind: str) -> None:
    """Raise LimitError unless the owner lets a project's own answers be sent."""
    limits = _limits(context)
    if limits is not None:
        limits.allow("metrics", f"what a message of type {kind!r} asks for")


# The server


class PrivateStrategy(Strategy):
    """Trains as the run's configuration says; evaluates as the project's strategy does.

    Args:
        strategy: the project's, for evaluation: its way of training is not used.
        model: the project's model; the arrays that ``start`` is given are what training begins with.
        context: of the server app.
        patience: seconds that a round waits for the nodes of silos that it asks, when they are not connected and enough
            others are; for a silo that did not come in that time no other round waits, until it is back.
        timeout: seconds that it waits for enough of them; and for answers, when it is asked again as it did not count.
        callbacks: are told how the run goes, at the server; see docs/callbacks.md.

    Raises:
        ConfigError: a setting is missing or wrong.
        UnsupportedError: ``strategy`` is one of Flower's for differential privacy.
    """

    def __init__(
        self,
        strategy: Strategy,
        model: nn.Module,
        context: Context,
        *,
        patience: float = 120,
        timeout: float = 3600,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        show_log(lambda: LOG)
        check_strategy(strategy)
        self._inner, self._model = strategy, copy.deepcopy(model)
        self._agreement, self._folder = agreement_of(context, model), folder_of(context, "server")
        self._patience, self._timeout, self._evaluation = patience, timeout, Evaluation(strategy, patience)
        check_callbacks(callbacks, "callbacks")
        self._callbacks = tuple(callbacks)
        self._settings = settings_of(context.run_config, TABLE)
        self._server: Server | None = None
        self._silo_of: dict[int, int] = {}  # by node
        self._grid: Grid | None = None
        self._sent: list[Message] = []  # what asks for this round
        self._gone: set[int] = set()  # silos that were waited for in vain
        self._said: set[tuple[int, str]] = set()  # of nodes that are no silo, and why
        self._told = self._told_end = False
        self._answers_within = 3600.0  # seconds; as `start` is told

    @property
    def server(self) -> Server:
        """The state of the run; there from the first round on."""
        assert self._server is not None
        return self._server

    def initialize_parameters(self, *_: Any, **__: Any) -> Any:
        """Raise UnsupportedError: a workflow of Flower's older interface, e.g. SecAgg+, would run this strategy."""
        refuse_workflows()

    def summary(self) -> None:
        config, privacy = self._agreement.config, self._agreement.config.privacy
        noise = f"noise {privacy.noise_multiplier:g}" if privacy.epsilon is None else f"epsilon {privacy.epsilon:g}"
        what = (config.algorithm.name, self._agreement.num_silos, noise, privacy.delta, privacy.unit)
        LOG.info("\t├──> dpfl: %s, %d silos, %s, delta %g, unit %s", *what)
        self._inner.summary()

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        *args: Any,
        **options: Any,
    ) -> Any:
        """As every strategy's; says first where it will end before the agreed rounds."""
        rounds, self._answers_within = self._agreement.config.rounds, timeout
        if rounds is not None and num_rounds < rounds:
            LOG.warning(
                "dpfl: num_rounds=%d, and %s rounds=%d: the run pauses before its end. Run it again to continue; or "
                "begin another with rounds=%d, which has less noise",
                num_rounds,
                SOURCE,
                rounds,
                num_rounds,
            )
        try:
            return super().start(grid, initial_arrays, num_rounds, timeout, *args, **options)
        finally:
            if self._server is not None:
                self._tell_end()
                self._server.pause()

    def _tell_end(self) -> None:
        """Once, when the run is over: Flower may have more rounds, or none."""
        if self.server.status != "running" and not self._told_end:
            self._told_end = True
            LOG.info("%s", is_over(self._folder, self.server.summary()))

    def _tell_unused(self, config: ConfigRecord) -> None:
        """Once for a run: what of the project's own training has no effect."""
        if self._told:
            return
        self._told = True
        tell_unused(LOG, self._inner, config, self._agreement.config.model_dump(), self._settings, SOURCE)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask the silos that the algorithm draws; none, once the run is over.

        Raises:
            UnsupportedError: one of Flower's strategies for differential privacy is around this one.
            TrainingError: too few silos came for a round to count; none was asked, and nothing charged.
        """
        check_callers()
        self._tell_unused(config)
        self._grid = grid
        if self._server is None:
            self._model.load_state_dict(arrays.to_torch_state_dict())
            self._server = self._opened()
            if self._server.status != "running":
                self._told_end = True
                LOG.warning("%s", over_before(self._folder.parent, self._server.summary()))
            elif done := self._server.rounds:
                LOG.info("dpfl: the run in %s goes on after round %d; Flower counts from 1", self._folder.parent, done)
        return self._messages(self._answers_within)

    def _opened(self) -> Server:
        try:
            return Server(self._agreement, self._model, self._folder, callbacks=self._callbacks)
        except OSError as error:
            raise ConfigError(
                f"{SOURCE}: folder: the server cannot use {self._folder} ({error}). Make it readable "
                "and writable for the user of the SuperLink, or name another folder; no silo was asked."
            ) from error

    def _messages(self, within: float) -> list[Message]:
        """What asks for the next round; ``within`` so many seconds answers are waited for."""
        self._sent, message = [], self.server.begin()
        if message is None:
            self._tell_end()
            return []
        nodes = self._nodes(self.server.asked)
        content, asked = written(message), [silo for silo in self.server.asked if silo in nodes]
        self._sent = [Message(content=content, message_type=TRAIN, dst_node_id=nodes[silo]) for silo in asked]
        said = "dpfl: round %d: waiting for answers of silos %s, for %g s at most"
        LOG.info(said, self.server.rounds + 1, ranges(asked), within)
        return self._sent

    def _nodes(self, wanted: Iterable[int]) -> dict[int, int]:
        """The node of each silo that is connected; waits for those of ``wanted``."""
        began, said, wanted = time.monotonic(), -SAID_SECONDS, set(wanted)
        while True:
            self._ask_who()
            node_of = {silo: node for node, silo in self._silo_of.items()}
            missing, waited = wanted - set(node_of), time.monotonic() - began
            here, needed = len(wanted) - len(missing), self.server.needed
            self._gone -= set(node_of)
            if not missing - self._gone and here >= needed:
                return node_of
            if here >= needed and waited >= self._patience:
                LOG.warning(
                    "dpfl: silos %s did not come in %g s: rounds continue without them, and do not wait for them until "
                    "they are back",
                    ranges(missing - self._gone),
                    self._patience,
                )
                self._gone |= missing
                return node_of
            if waited >= self._timeout:
                raise TrainingError(
                    f"round {self.server.rounds + 1}: silos {ranges(missing)} did not come in {self._timeout:g} s; "
                    f"{here} of {len(wanted)} are here, and {needed} are needed. None was asked, so nothing was "
                    f"charged. Start their SuperNodes, each with its partition-id, or correct {SOURCE}: num_silos; "
                    "then run again."
                )
            if waited >= said + SAID_SECONDS:
                said, until = waited, self._patience if here >= needed else self._timeout
                LOG.info(
                    "dpfl: waiting for silos %s (%d of %d here, %d needed), for %.0f s at most",
                    ranges(missing),
                    here,
                    len(wanted),
                    needed,
                    until - waited,
                )
            time.sleep(min(1.0, max(0.0, self._timeout - waited)))

    def _ask_who(self) -> None:
        """Which silo each new node is. One that is known stays with its node for as long as that is connected."""
        assert self._grid is not None
        nodes = set(self._grid.get_node_ids())
        self._silo_of = {node: silo for node, silo in self._silo_of.items() if node in nodes}
        new = sorted(nodes - set(self._silo_of))
        questions = [Message(content=RecordDict(), message_type=QUERY, dst_node_id=node) for node in new]
        if questions:  # the first wait till the nodes' processes have started
            said = "dpfl: asking %d new nodes which silo each is, for %g s at most"
            LOG.info(said, len(questions), QUESTION_SECONDS)
        replies = self._grid.send_and_receive(questions, timeout=QUESTION_SECONDS) if questions else []
        of = {node_of(reply, questions): reply for reply in replies}
        for node in sorted(set(new) - set(of)):
            self._warn_of(node, f"did not say in {QUESTION_SECONDS:g} s which silo it is")
        for node, reply in sorted(of.items()):
            if reply.has_error():
                self._warn_of(node, f"does not say which silo it is: {printable(reply.error.reason)}")
                continue
            silo = reply.content.get(TABLE, {}).get("silo")
            if type(silo) is not int or not 0 <= silo < self._agreement.num_silos:
                self._warn_of(node, f"is not a silo of this run: it says that it is silo {silo!r}")
            elif silo in self._silo_of.values():
                self._warn_of(
                    node,
                    f"says that it is silo {silo}, which another node is: left out. Each needs its own partition-id",
                )
            else:
                self._silo_of[node] = silo

    def _warn_of(self, node: int, what: str) -> None:
        """Once, though it is asked again for as long as it is connected."""
        if (node, what) not in self._said:
            self._said.add((node, what))
            LOG.warning("dpfl: node %d %s", node, what)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Take the algorithm's step. A round that does not count is asked for again, under its own number."""
        assert self._grid is not None
        if not self.server.asked:
            return self._arrays(), None  # the run is over; where it ended before, that is its model
        while not self._counts(replies):
            messages = self._messages(self._timeout)
            if not messages and not self.server.asked:
                return self._arrays(), None
            replies = self._grid.send_and_receive(messages, timeout=self._timeout)
        epsilons = [
            about["epsilon"] for about in self.server.summary()["silos"].values() if about["epsilon"] is not None
        ]
        worst = {"epsilon": max(epsilons)} if epsilons else {}
        return self._arrays(), MetricRecord({"rounds": self.server.rounds, **worst})

    def _counts(self, replies: Iterable[Message]) -> bool:
        for reply in replies:
            node = node_of(reply, self._sent)
            silo = self._silo_of.get(node)
            if silo is None:
                LOG.warning("dpfl: a reply of node %d, which is not a silo of this run: left out", node)
            elif reply.has_error():
                LOG.warning("dpfl: silo %d (node %d) gives no answer: %s", silo, node, printable(reply.error.reason))
            else:
                try:
                    answer: Carried | MessageError = read(reply.content, self.server.max_bytes)
                except MessageError as error:
                    answer = error
                self.server.receive(silo, answer)
        return self.server.end()

    def _arrays(self) -> ArrayRecord:
        self.server.write_to(self._model)
        return ArrayRecord(self._model.state_dict())

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As the project's strategy does, where enough nodes for that are connected or come in time."""
        if not self._evaluation.may_begin(grid):
            return []
        messages: Iterable[Message] = self._inner.configure_evaluate(server_round, arrays, config, grid)
        return messages

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """As the project's strategy does."""
        return self._inner.aggregate_evaluate(server_round, replies)
