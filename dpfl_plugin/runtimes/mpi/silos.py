"""What a silo rank does: it holds the records of its silos and does what rank 0 asks, one message after another.

A round is no loop of its own: its stacks are work that is done whenever no message waits, so that a silo rank hears
"send" and "cancel" between two stacks. Nothing of an upload leaves before "send", which rank 0 says once the charges
are in the ledger and on disk.
"""

from __future__ import annotations

import os
import platform
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from dpfl_plugin import own_folders
from dpfl_plugin.config.schema import Config
from dpfl_plugin.core.average import WeightedSum
from dpfl_plugin.core.outcomes import CLASSES
from dpfl_plugin.core.stopwatch import Stopwatch
from dpfl_plugin.core.vectors import Vectors, rows
from dpfl_plugin.data.base import NOT_PUBLIC, Holding, Inputs, Ownership, Silo, digest
from dpfl_plugin.errors import MessageError
from dpfl_plugin.federation.silo_group import SiloGroup
from dpfl_plugin.models.fixed import fixed_digest, model_digest
from dpfl_plugin.oracle import Draw
from dpfl_plugin.owners.custody import Custody
from dpfl_plugin.runs import environment
from dpfl_plugin.runs.build import build
from dpfl_plugin.runs.environment import file_digests
from dpfl_plugin.runs.measurements import Notes
from dpfl_plugin.runs.public_facts import is_named, is_of_package
from dpfl_plugin.runs.record_marks import MarkKey
from dpfl_plugin.runs.records import federate, keys_of
from dpfl_plugin.runs.silo_settings import in_facts
from dpfl_plugin.runtimes.mpi import probe, wire
from dpfl_plugin.runtimes.mpi.link import Link, pull_all, push_all
from dpfl_plugin.runtimes.mpi.listener import Listener
from dpfl_plugin.runtimes.mpi.rank_log import RankLog
from dpfl_plugin.runtimes.mpi.wire import Header


def owner(silo: int, ranks: Sequence[int]) -> int:
    """The rank of a silo: dealt out like cards, so that uploads in silo order come from all in turn."""
    return ranks[silo % len(ranks)]


class SiloRank(Listener):
    """Does what rank 0 asks, with the silos of this rank.

    Args:
        device: the one of this rank, for what a configuration says.
        clock, renew: see `Listener`.
    """

    def __init__(
        self,
        link: Link,
        device: Callable[[str], str] = lambda name: name,
        clock: Callable[[], float] = time.monotonic,
        renew: Callable[[float | None], None] = lambda seconds: None,
        log: RankLog | None = None,
    ) -> None:
        super().__init__(link, clock, renew, log)
        self._device = device
        self._base = Path()
        self._mine: Mapping[int, Silo] = {}
        self._digests: Mapping[int, str] = {}
        self._key: MarkKey | None = None  # of the first rank that has silos
        self._notes: Notes | None = None  # where measurements go; None: to rank 0, which may have them
        self._host: SiloGroup | None = None
        self._stack_size = 1
        self._work: deque[tuple[int, ...]] = deque()
        self._round: Header = {}
        self._draw = Draw(0, 0)  # of the round
        self._down: Vectors = {}
        self._uploads: dict[int, Vectors] = {}
        self._custody = Custody()  # of the owner of this rank's records
        self._surveyed = False  # and not begun since
        self._outcome = CLASSES  # what its labels are: rank 0 has no say in it
        self._inputs: Inputs | None = None  # nor in what its records are
        self._num_silos: int | None = None  # of the session
        self._unanswered = False  # a round that was asked for, and is not computed and charged as a whole

    @property
    def _limited(self) -> bool:
        return self._custody.limits is not None

    def _has_work(self) -> bool:
        return bool(self._work)

    def _abandon(self) -> None:
        self._work.clear()

    # A session

    def _do_survey(self, header: Header) -> None:
        """Load the records of the silos that are dealt to this rank."""
        self._forget()
        self.lasts, self.server = False, tuple(header["server"])
        self._config = Config.model_validate(header["config"]).with_public_seed(header["seed"])
        self._base = Path(header["base"])
        self._custody = Custody.here()
        if self._config.fresh or self._custody.limits is not None:  # else rank 0 can compute all noise
            self._log.keep()
        self._custody.check(self._config)
        self._custody.check_gradients(self._config.evaluation.dissimilarity)
        self._custody.allow("record_counts", "numbers of records")
        # On the owner's disk before records or folders are looked at: what is wrong with them, and where, tells of them
        self._custody.keep_description(self._config, self._base)
        self._custody.check_folder(self._config, self._base)
        own_folders.look_in(self._base)
        self._dealt = wire.read_dealt(header)
        ownership = Ownership(lambda silo: owner(silo, self._dealt) == self._link.rank, self._agree)
        silos_key = self._agree_on_key(Path(header["key"]))
        key = self._custody.mark_key(silos_key)
        keys = keys_of(self._config, silos_key.value, self._custody.order_secret())
        federation = federate(self._config, self._base, ownership, keys)
        self._mine = federation.by_id()
        self._digests = {i: digest(silo) for i, silo in self._mine.items()}
        self._surveyed, self._outcome, self._inputs = True, federation.outcome, federation.inputs
        ours = is_of_package(self._config)
        own = [text for text in federation.caveats if NOT_PUBLIC in text or not ours]
        for text in own if self._link.rank == self._dealt[0] or self._custody.limits is not None else ():
            self._log.tell(text)
        self._say(
            "surveyed",
            num_silos=federation.num_silos,
            num_classes=federation.num_classes,
            feature_shape=federation.feature_shape,
            outcome=federation.outcome.plain(),
            caveats=[text for text in federation.caveats if text not in own],
            inputs=wire.inputs_header(
                federation.inputs,
                named=is_named(self._config),
                ours=ours,
            ),
            silos=[
                [i, len(s.train_y), len(s.test_y), key.mark(self._digests[i]), s.cut and key.marked_cut(s.cut)]
                for i, s in self._mine.items()
            ],
            key=key.id,
            host=platform.node(),
            pid=os.getpid(),
            limits=self._custody.limits is not None,
            package=environment.package_sha256(),
            device=probe.device_of(self._device(self._config.runtime.device)),
        )

    def _agree_on_key(self, path: Path) -> MarkKey:
        """The key by which silos mark their records; the first silo rank has its file."""
        first = self._link.rank == min(self._dealt)
        self._key = self._custody.key_at(path) if first else None
        (value,) = (said for said in self._agree(self._key.value.hex() if self._key else None) if said is not None)
        return MarkKey(path, bytes.fromhex(value), kept=True)

    def _do_begin(self, header: Header) -> None:
        """Get ready for rounds; ``header`` has what only rank 0 knows of all silos together."""
        if not self._surveyed or self._config is None:
            self._forget()
            raise MessageError("begin without a survey before it: a survey loads records, for one session.")
        self._surveyed, self._host = False, None  # whatever fails from here on, nobody is served
        if self._key is not None:
            self._key.keep()
        self.lasts = self._config.runtime.on_silo_failure == "continue"
        torch.set_num_threads(self._config.runtime.threads)
        device = self._device(self._config.runtime.device)
        survey = replace(wire.read_survey(header["survey"]), outcome=self._outcome, inputs=self._inputs)
        self._num_silos = len(survey.num_records)
        holding = Holding(survey, self._mine, device=device, digests=self._digests)
        config = self._config.model_copy(update={"engine": header["engine"]})
        noise, chunk = header["noise_multiplier"], header["chunk_bytes"]
        noises = in_facts(header)[1]
        parts = build(
            config, self._base, noise, hold=lambda config, base: holding, chunk_bytes=chunk, silo_noise=noises
        )
        self._plugins = parts.plugins
        begins = self._custody.begin(self._config, parts, self._mine)
        if begins is not None:
            self._log.tell(begins)
        reveals = self._config.evaluation.reveal == "server"
        folder, own = Path(header["folder"]), self._custody.limits is not None
        notes = Notes(folder / f"rank-{self._link.rank}.jsonl", own=own)
        limits = self._custody.limits
        self._log.move(folder if limits is None else limits.folder, own=own)  # rank 0 names no folder of an owner's
        self.take(parts.host, parts.model.device, parts.stack, None if reveals else notes)
        if header["profile"]:
            parts.host.clock = Stopwatch()
            parts.host.clock.start(parts.model.device)
        self._mine = {}  # what the engine made of the records takes their place
        self._say(
            "ready", fixed=fixed_digest(parts.module), code=file_digests(self._config), model=model_digest(parts.module)
        )

    def take(self, host: SiloGroup, device: torch.device, stack_size: int, notes: Notes | None) -> None:
        """Silos to run rounds with, on ``device``.

        Args:
            notes: where their measurements go; None: to rank 0, where the configuration says that it may have them.
        """
        self._host, self._where, self._stack_size, self._notes = host, device, stack_size, notes

    def _do_report(self, header: Header) -> None:
        self._say("report", facts=probe.facts(self._link.rank, self._device("cuda")))

    def _do_ping(self, header: Header) -> None:
        self._say("pong")

    def _do_take(self, header: Header) -> None:
        self._finish([self._link.pull(0, torch.empty(header["floats"]))])
        self._say("took")

    def _do_rest(self, header: Header) -> None:
        """This rank failed: the others go on without it, and it waits for the end."""
        self._forget()

    def _forget(self) -> None:
        self._work.clear()
        self._uploads.clear()
        self._mine, self._host, self._surveyed = {}, None, False
        self._custody.close()

    @property
    def _silos(self) -> SiloGroup:
        assert self._host is not None, "rank 0 begins a session first"
        return self._host

    # A round

    def _do_round(self, header: Header) -> None:
        self._down = wire.empty(wire.read_layout(header["down"]), self._where)
        self._take(self._down, header)
        self._silos.discard()  # what an earlier, abandoned round left
        self._work.clear()
        self._uploads.clear()
        self._unanswered = True
        plan, self._draw = wire.read_plan(header)
        wire.check_participants(plan, self._num_silos)
        self._round = header
        mine, size = [silo for silo in plan.participants if silo in self._silos.train], self._stack_size
        self._work.extend(tuple(mine[first : first + size]) for first in range(0, len(mine), size))
        self._unanswered = bool(self._work)

    def _advance(self) -> None:
        """One stack."""
        part = self._work.popleft()
        plan, _ = wire.read_plan(self._round)
        self._silos.clock.lap("communication")
        try:
            up, charges = self._silos.run(part, self._down, plan, self._draw)
            self._custody.charge(charges)  # in the owner's ledger before rank 0 hears of it
        except BaseException:
            self._silos.discard(part)  # new states are releases, too, and no ledger has these
            raise
        self._unanswered = bool(self._work)
        for row, silo in enumerate(part):
            self._uploads[silo] = rows(up, row)
        self._say("computed", silos=part, charges=wire.charges_header(charges), up=wire.layout(up, row=True))

    def _do_send(self, header: Header) -> None:
        for silo in header["silos"]:
            upload = self._uploads.pop(silo)
            self._leaving += push_all(self._link, 0, {name: value.contiguous() for name, value in upload.items()})

    def _do_reduce(self, header: Header) -> None:
        """The weighted sum of this rank's uploads is what leaves."""
        plan, _ = wire.read_plan(self._round)
        total = WeightedSum()
        for silo, weight in zip(plan.participants, plan.weights, strict=True):
            if silo in self._uploads:
                total.add(self._uploads.pop(silo), [weight])
        part = total.total or wire.zeros(wire.read_layout(header["up"]), self._where)
        self._finish([self._link.reduce(part[name], None) for name in header["up"]])

    def _do_cancel(self, header: Header) -> None:
        """The round does not count; what rank 0 has asked for before is still on its way."""
        self._work.clear()
        self._uploads.clear()
        self._silos.discard()
        self._unanswered = True
        self._say("cancelled")

    def _do_commit(self, header: Header) -> None:
        self._silos.clock.lap("communication")
        if self._unanswered:
            self._silos.discard()
            raise MessageError("commit of a round that was not answered: nothing of it counts, and no state changed.")
        self._silos.commit()

    # Between rounds

    def _do_evaluate(self, header: Header) -> None:
        if self._notes is None:
            self._custody.allow("metrics", "losses and accuracies")
            self._custody.check_gradients(header["dissimilarity"])
        taken = wire.empty(wire.read_layout(header["model"]), self._where)
        self._take(taken, header)
        model = taken["model"]
        self._silos.clock.lap("communication")
        found = self._silos.evaluate(model, header["dissimilarity"] and self._notes is None)
        metrics = {s: (m.train_loss, m.test_score, m.personalised_score) for s, m in found.items()}
        if self._notes is not None:  # nothing of raw records is for rank 0
            self._notes.add(header["after"], header["at"], metrics)
            self._say("evaluated", metrics=[])
            return
        self._say("evaluated", metrics=[[silo, *values] for silo, values in metrics.items()])
        self._leaving += [self._link.push(0, m.gradient) for m in found.values() if m.gradient is not None]

    def _do_measure(self, header: Header) -> None:
        if self._notes is None:
            self._custody.allow("metrics", "measures on test records")
        taken = wire.empty(wire.read_layout(header["model"]), self._where)
        self._take(taken, header)
        self._silos.clock.lap("communication")
        found = self._silos.measures_of_each(taken["model"])
        if self._notes is not None:  # these stay here, too
            self._notes.add_measures(header["at"], found)
            found = {}
        self._say("measured", tables=list(found.items()))

    def _do_profile(self, header: Header) -> None:
        self._silos.clock.lap("communication")
        self._say("profiled", seconds=self._silos.clock.seconds)

    def _do_states(self, header: Header) -> None:
        states = self._silos.states
        self._say("states", states=wire.layout(states, row=True))
        for row in range(len(self._silos.ids)):
            self._leaving += push_all(self._link, 0, {name: value[row].contiguous() for name, value in states.items()})

    def _do_load(self, header: Header) -> None:
        described = wire.read_layout(header["states"])
        states = wire.empty(described, self._where, len(self._silos.ids))
        for row in range(len(self._silos.ids)):
            self._finish(pull_all(self._link, 0, {name: value[row] for name, value in states.items()}))
        self._silos.states = states
        self._say("loaded")
