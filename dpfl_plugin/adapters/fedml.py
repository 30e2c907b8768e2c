"""FedML: a trainer and an aggregator that carry messages; see docs/fedml.md.

`private_runner` in the place of ``FedMLRunner``; settings are the mapping ``dpfl`` of the project's
`fedml_config.yaml`, in a section of its own (``dpfl_args: {dpfl: {...}}``): FedML makes one list of the keys of all.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from fedml.core import ClientTrainer, ServerAggregator
from fedml.ml.aggregator.aggregator_creator import create_server_aggregator
from fedml.ml.trainer.trainer_creator import create_model_trainer
from torch import nn

from dpfl_plugin.adapters.agreement import Agreement
from dpfl_plugin.adapters.fedml_checks import say_what_begins, too_few_rounds, without_effect
from dpfl_plugin.adapters.fedml_ends import end_together, public, tell_server
from dpfl_plugin.adapters.fedml_given import (
    NUM_RECORDS,
    RECORDS,
    agreement_of,
    check,
    check_records,
    folder_of,
    is_silo,
    surroundings,
)
from dpfl_plugin.adapters.frozen import FIXED
from dpfl_plugin.adapters.held import Held
from dpfl_plugin.adapters.kept import kept_here
from dpfl_plugin.adapters.message import HEADER, PROTOCOL, Message
from dpfl_plugin.adapters.owner import silo_limits
from dpfl_plugin.adapters.platforms import check_version, is_over, over_before, round_counted, show_log
from dpfl_plugin.adapters.replies import failure, refusal
from dpfl_plugin.adapters.server import Server
from dpfl_plugin.adapters.silo import Silo
from dpfl_plugin.callbacks.base import Callback
from dpfl_plugin.errors import ConfigError, DpflError, LimitError, MessageError, UnsupportedError
from dpfl_plugin.gradients.base import Loss
from dpfl_plugin.models.fixed import unpack
from dpfl_plugin.oracle import Draw
from dpfl_plugin.owners.limits import Limits, Surroundings
from dpfl_plugin.runs.hooks import check_callbacks
from dpfl_plugin.runs.public_errors import words_for_server

TESTED: Final = ("0.9.6",)
LOG: Final = logging.getLogger("dpfl_plugin.fedml")
Draws = Callable[[int], Draw]

check_version("fedml", TESTED)


def private_runner(
    args: Any,
    device: Any,
    dataset: Sequence[Any],
    model: nn.Module,
    client_trainer: ClientTrainer | None = None,
    server_aggregator: ServerAggregator | None = None,
    *,
    loss: Loss | None = None,
    draw: Draws | None = None,
    callbacks: Sequence[Callback] = (),
) -> Any:
    """A ``FedMLRunner`` whose silos train by the private oracle, and by nothing else.

    Args:
        args, device, dataset, model: as for ``FedMLRunner``.
        client_trainer, server_aggregator: the project's own; they go on evaluating.
        loss, draw: see `Silo`.
        callbacks: are told how the run goes, at the server; see docs/callbacks.md.

    Raises:
        LimitError: this process is a silo's, no simulation, and the owner of its data has set no limits.
        ConfigError: a setting is missing or wrong.
        DataError: two silos have a record in common, or one has it twice.
        UnsupportedError: the settings ask for what would not be private, or for another optimizer of FedML's; or it
            cannot be told which records a loader gives.
    """
    from fedml import FedMLRunner

    show_log(lambda: logging.root)  # where FedML puts a logger of its own, which those of others know nothing of
    simulated = surroundings(args) == "simulation"
    agreement, folder, counts = _agreed(args, model, dataset)
    equal = list(dataset)
    equal[NUM_RECORDS] = dict.fromkeys(range(agreement.num_silos), 1)  # what would weigh uploads, and be sent
    inner = client_trainer or create_model_trainer(copy.deepcopy(model), args)
    trainer = PrivateTrainer(inner, args, agreement, dataset[RECORDS], folder, loss, draw)
    made = server_aggregator or create_server_aggregator(copy.deepcopy(model), args)
    aggregator = PrivateAggregator(made, args, agreement, folder, callbacks)
    elsewhere = not simulated and is_silo(args)
    say_what_begins(args, agreement, counts if simulated else {}, None if elsewhere else folder)
    idle = without_effect(args, device, agreement, client_trainer, server_aggregator)
    for said in filter(None, [*(f"{what}: no effect: {why}" for what, why in idle), too_few_rounds(args, agreement)]):
        LOG.warning("dpfl: %s", said)
    if simulated and args.backend == "sp":
        runner = FedMLRunner(args, device, equal, model)
        _take_over(runner, trainer, aggregator, model)
        return runner
    if simulated:
        _collect_over_mpi()
    else:
        end_together()
        if not is_silo(args):
            aggregator.open()  # what is wrong with its folder is said before silos come
    return _run(lambda: FedMLRunner(args, device, equal, model, trainer, aggregator), trainer, aggregator, model)


def _run(make: Callable[[], Any], trainer: PrivateTrainer, aggregator: PrivateAggregator, model: nn.Module) -> Any:
    """The runner, by whose making FedML runs all of it."""
    try:
        runner = make()
    except BaseException:
        aggregator.pause()
        raise
    _finish(trainer, aggregator, model)
    return runner


def _agreed(args: Any, model: nn.Module, dataset: Sequence[Any]) -> tuple[Agreement, Path, dict[int, int]]:
    """(the agreement, the folder, numbers of records), all of it checked; a silo tells its server what is wrong."""
    where = surroundings(args)
    with _telling_server(args):
        # A silo of a deployment does not begin without them; a server has no records.
        limits = silo_limits(where) if where == "simulation" or is_silo(args) else None
        agreement = agreement_of(args, model, None if limits is None else limits.check_settings)
        check(args, agreement)
        folder = folder_of(args)
        counts = check_records(dataset)
    return agreement, folder, counts


@contextlib.contextmanager
def _telling_server(args: Any) -> Iterator[None]:
    """A silo of a deployment that cannot begin says so to the server, which waits for all of them."""
    try:
        yield
    except Exception as error:
        if surroundings(args) == "deployment" and is_silo(args):
            LOG.error("dpfl: %s", error)
            tell_server(args, words_for_server(error))
        raise


def _finish(trainer: PrivateTrainer, aggregator: PrivateAggregator, model: nn.Module) -> None:
    """The run is over: the project's own objects have the model, as FedML leaves it, and what ended it is raised."""
    trainer.over = aggregator.over = True
    aggregator.pause()
    model.load_state_dict((aggregator if aggregator.serves else trainer).get_model_params())
    if aggregator.error is not None:
        raise aggregator.error


class PrivateTrainer(ClientTrainer):
    """A silo's side. FedML hands it the message, the records, and asks for the answer.

    Attributes:
        held: silos that stay open, where no other process answers for one of them; else None.
    """

    def __init__(
        self,
        inner: ClientTrainer,
        args: Any,
        agreement: Agreement,
        records: Mapping[int, Any],
        folder: Path,
        loss: Loss | None,
        draw: Draws | None,
    ) -> None:
        super().__init__(inner.model, args)
        self._inner, self._agreement, self._records = inner, agreement, records
        self._folder, self._loss, self._draw = folder, loss, draw
        self._asked: Message | None = None
        self._answer: Message | None = None
        self.over = False
        self.held: Held | None = None

    def set_model_params(self, model_parameters: Any) -> None:
        """Take what the server sends; the project's trainer gets the model, to evaluate it."""
        if HEADER not in model_parameters:
            raise MessageError("the server sent a plain model: training with it would not be private. It is refused.")
        self._asked, self._answer = Message.from_tensors(model_parameters), None
        try:
            self._agreement.write(self._asked.vectors["model"], self._inner.model)
            if FIXED in self._asked.vectors:
                unpack(self._asked.vectors[FIXED], self._inner.model)
        except Exception as error:  # another model than this silo's: `train` answers that, and the server says so
            if surroundings(self.args) == "simulation":
                raise
            LOG.error("what the server sent does not fit this silo's model: %s", error)

    def get_model_params(self) -> Any:
        """The answer to the server, for FedML to send; the project's ``state_dict``, once the run is over."""
        if self.over:
            return OrderedDict(self._inner.model.state_dict())
        assert self._answer is not None, "train first"
        return OrderedDict(self._answer.to_tensors())

    def train(self, train_data: Any, device: Any, args: Any) -> None:
        """Answer for the silo whose records these are: FedML's own ids are not reliable where silos take turns."""
        assert self._asked is not None
        found = [silo for silo, loader in self._records.items() if loader is train_data]
        if len(found) != 1:
            raise ConfigError("the training data are not those of one silo: give every silo a loader of its own.")
        asked, where = self._asked, surroundings(self.args)
        if asked.header.get("over"):
            self._answer = Message({"dpfl": PROTOCOL, "silo": found[0], "status": "over"})
            return
        try:
            # In a simulation every silo is an owner of its own; else the folder is where the owner says.
            limits = silo_limits(where, own=found[0] if where == "simulation" else None)
            with self._opened(found[0], train_data, where, limits) as silo:
                self._answer = silo.answer(asked)
                silo.write_frozen_to(self._inner.model)  # where the server did not send it again
        except Exception as error:
            if where == "simulation":
                raise  # to whom it belongs
            if isinstance(error, LimitError):
                LOG.error("silo %d takes no part: %s", found[0], error)
                self._answer = refusal(self._agreement, found[0], asked, error)
                return
            # A process that ends here would let FedML's server wait for ever; and the text stays here.
            LOG.error("silo %d: %s", found[0], error, exc_info=not isinstance(error, DpflError | OSError))
            self._answer = failure(self._agreement, found[0], asked)

    def _opened(
        self, id: int, records: Any, where: Surroundings, limits: Limits | None
    ) -> contextlib.AbstractContextManager[Silo]:
        made = functools.partial(
            Silo,
            self._agreement,
            id,
            self._inner.model,
            records,
            self._folder / f"silo-{id}" if limits is None else None,
            loss=self._loss,
            draw=self._draw,
            limits=limits,
            surroundings=where,
            kept=kept_here(),
        )
        return made() if self.held is None else self.held.silo(id, self._inner.model, records, made)

    def test(self, test_data: Any, device: Any, args: Any) -> Any:
        return self._inner.test(test_data, device, args)

    def on_before_local_training(self, train_data: Any, device: Any, args: Any) -> None:
        self._inner.on_before_local_training(train_data, device, args)

    def on_after_local_training(self, train_data: Any, device: Any, args: Any) -> None:
        """Nothing: what FedML does to a model here would be done to what was charged."""


class PrivateAggregator(ServerAggregator):
    """The server's side."""

    def __init__(
        self,
        inner: ServerAggregator,
        args: Any,
        agreement: Agreement,
        folder: Path,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        super().__init__(inner.model, args)
        check_callbacks(callbacks, "callbacks")
        self._callbacks = tuple(callbacks)
        self._inner, self._agreement, self._folder = inner, agreement, folder
        self._server: Server | None = None
        self._message: Message | None = None
        self._told = False
        self.over, self.error = False, None

    error: Exception | None
    """What ended a run in a deployment, where all silos have to hear of it first."""

    @property
    def serves(self) -> bool:
        """Whether this process was the server's."""
        return self._server is not None

    @property
    def server(self) -> Server:
        self.open()
        assert self._server is not None
        return self._server

    def open(self) -> None:
        """Have the server's folder; at the rank of the server only."""
        if self._server is None:
            self._server = Server(
                self._agreement, self._inner.model, self._folder / "server", callbacks=self._callbacks
            )
            if self._server.status != "running":
                LOG.warning("%s", over_before(self._folder, self._server.summary()))

    def pause(self) -> None:
        """FedML is over here: callbacks are told, if the run is not."""
        if self._server is not None:
            self._server.pause()

    def get_model_params(self) -> Any:
        """What FedML is to send to every silo; the project's ``state_dict``, once the run is over."""
        if self.over:
            return OrderedDict(self._inner.model.state_dict())
        if self._message is None:
            self._begin()
        assert self._message is not None
        return OrderedDict(self._message.to_tensors())

    def set_model_params(self, model_parameters: Any) -> None:
        """Nothing: the server has its model."""

    def _begin(self) -> None:
        everybody, expected = range(self._agreement.num_silos), int(self.args.client_num_per_round)
        with self._ending_all():
            if self.error is None:
                self._message = self.server.begin(list(everybody), expected=expected)
        if self._message is None:
            reason = self.server.reason if self.error is None else public(self.error)
            self._message = Message({"dpfl": PROTOCOL, "over": True, "reason": reason}, {"model": self.server.model})
            if not self._told:
                self._told = True
                LOG.info("%s", is_over(self._folder, self.server.summary()))
        self.server.write_to(self._inner.model)

    @contextlib.contextmanager
    def _ending_all(self) -> Iterator[None]:
        """In a deployment an error is sent to all silos as the end of the run, and raised after that."""
        try:
            yield
        except Exception as error:
            if surroundings(self.args) == "simulation":
                raise
            LOG.error("dpfl: the run ends: %s", error, exc_info=not isinstance(error, DpflError))
            self.error = error

    @property
    def tag(self) -> str | None:
        """That of the request under way."""
        return None if self._message is None else self._message.header.get("tag")

    def collect(self, uploads: Iterable[Any], *, by_place: bool = False) -> Any:
        """Take the uploads of a round, one by one, and the algorithm's step; what to send next.

        Args:
            by_place: whether the place of an upload says which silo sent it, and not the upload alone.
        """
        if self.server.asked:
            for place, upload in enumerate(uploads):
                self._receive(upload, place if by_place else None)
            with self._ending_all():
                if self.server.end():
                    LOG.info("%s", round_counted(self.server.summary(), self._agreement.config.rounds))
        self._message = None
        return self.get_model_params()

    def _receive(self, upload: Any, sender: int | None) -> None:
        """
        Args:
            sender: the silo, where it is known; else it is the one that the upload names.
        """
        answer: Message | MessageError
        try:
            if not isinstance(upload, Mapping):
                raise MessageError(f"it is a {type(upload).__name__}, and no tensors by name.")
            answer = Message.from_tensors(upload)
        except MessageError as error:
            answer = error
        named = answer.header.get("silo") if isinstance(answer, Message) else None
        silo = named if sender is None else sender
        if type(silo) is int and 0 <= silo < self._agreement.num_silos:
            self.server.receive(silo, answer)
        elif isinstance(answer, MessageError):
            LOG.warning("an upload is refused: %s", answer)
        else:
            LOG.warning("an upload is refused: it says that it is of silo %r", silo)

    def on_before_aggregation(self, raw_client_model_or_grad_list: list[tuple[float, Any]]) -> Any:
        return raw_client_model_or_grad_list, list(range(len(raw_client_model_or_grad_list)))

    def aggregate(self, raw_client_model_or_grad_list: list[tuple[float, Any]]) -> Any:
        """Of a deployment, where all are asked: FedML has them in the order of its silos."""
        return self.collect((upload for _, upload in raw_client_model_or_grad_list), by_place=True)

    def on_after_aggregation(self, aggregated_model_or_grad: Any) -> Any:
        return aggregated_model_or_grad

    def test(self, test_data: Any, device: Any, args: Any) -> Any:
        return self._inner.test(test_data, device, args)

    def test_all(self, *data: Any) -> Any:
        return self._inner.test_all(*data)


def _take_over(runner: Any, silos: PrivateTrainer, server: PrivateAggregator, model: nn.Module) -> None:
    """FedML's single-process trainer ignores trainers that it is given, and keeps one for server and silos."""
    trainer, run = runner.runner.fl_trainer, runner.run

    def checked() -> None:
        place = "runner.runner.fl_trainer"
        found = [(place, server, trainer.model_trainer)]
        found += [(f"{place}.client_list[{i}]", silos, c.model_trainer) for i, c in enumerate(trainer.client_list)]
        for place, ours, what in found:
            if what is not ours:
                raise UnsupportedError(
                    f"{place}.model_trainer is a {type(what).__name__}, set after private_runner: it would train "
                    "without privacy. Give it to private_runner as client_trainer, or server_aggregator, to evaluate."
                )
        silos.held = Held()
        try:
            with contextlib.closing(silos.held):
                run()
        except BaseException:
            server.pause()
            raise
        finally:
            silos.held = None
        _finish(silos, server, model)

    runner.run = checked
    trainer.model_trainer = server
    for client in trainer.client_list:
        client.model_trainer = silos

    def aggregate(uploads: list[tuple[float, Any]]) -> Any:
        following = server.collect(upload for _, upload in uploads)
        silos.set_model_params(following)  # what it evaluates next
        return following

    trainer._aggregate = aggregate


def _collect_over_mpi() -> None:
    """FedML's MPI server averages without asking the project's aggregator."""
    from fedml.simulation.mpi.fedavg.FedAVGAggregator import FedAVGAggregator

    def aggregate(self: Any) -> Any:
        return self.aggregator.collect(self.model_dict[index] for index in range(self.worker_num))

    FedAVGAggregator.aggregate = aggregate
