"""What rank 0 does: it draws up the survey of a session, and runs rounds at the silo ranks.

A round: every silo rank is told the plan and gets the download; each stack that is computed is reported with its
charges; the charges are written in the order of silos and synced; then, and not before, the silos are told to send.
Uploads are taken in the order of silos, two at a time, and added: rank 0 holds O(d), and adds in the same order as a
run in one process.
"""

from __future__ import annotations

import os
import platform
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dpfl_plugin import errors
from dpfl_plugin.algorithms.base import RoundPlan
from dpfl_plugin.config.schema import Config
from dpfl_plugin.core.average import WeightedSum
from dpfl_plugin.core.stopwatch import STOPPED, Seconds, Stopwatch
from dpfl_plugin.core.vectors import Vectors, stack
from dpfl_plugin.data.base import Holding, Survey
from dpfl_plugin.errors import ConfigError, DataError, DpflError, SiloError, TrainingError
from dpfl_plugin.models.fixed import BUILT_ANEW, fixed_digest
from dpfl_plugin.oracle import Draw
from dpfl_plugin.privacy.events import Charge
from dpfl_plugin.runtimes.mpi import wire
from dpfl_plugin.runtimes.mpi.link import Link, Patience, Transfer, all_done, pull_all, push_all
from dpfl_plugin.runtimes.mpi.silos import owner
from dpfl_plugin.runtimes.mpi.wire import Header
from dpfl_plugin.training import environment
from dpfl_plugin.training.build import Parts
from dpfl_plugin.training.code import code_of
from dpfl_plugin.training.host import SiloMetrics
from dpfl_plugin.training.locations import silo_folder
from dpfl_plugin.training.naming import changed_files, model_facts
from dpfl_plugin.training.runtime import ChargeSink, Interrupted, Observer, SilosLost

GO_ON = "The last good state is in the run's checkpoint; go on with --resume."
NOT_TOLERANT = (
    "this MPI job ends with the first rank that dies. It takes Open MPI 5, started by mpirun --with-ft ulfm "
    "(launchers/mpirun -n N --ulfm ...). dpfl doctor shows whether the MPI has it. Or use on_silo_failure: abort."
)
NO_LIMITS = (
    "silo ranks on several machines, and not all of them have limits of the owners of their records (DPFL_LIMITS, see "
    "docs/limits.md): whoever starts this job decides what is released."
)
AT_ONCE = 2  # uploads on their way to rank 0: one is added while the next comes in


class SiloLostError(DpflError):
    """Silo ranks do not answer any more; the message says which, and what they were asked for.

    Attributes:
        late: {rank: what it owes}.
    """

    def __init__(self, text: str, late: Mapping[int, str]) -> None:
        super().__init__(text)
        self.late = dict(late)


class RoundLostError(Exception):
    """Silos that take part in a round were lost before it had their uploads."""


class Ranks:
    """Rank 0's connections to the silo ranks.

    Args:
        timeout: seconds that a rank may take over one answer; None: for ever.
        clock: seconds, for the time-outs.
        end: ends the process of a rank that hangs, if it can be reached; whether it is no more.

    Attributes:
        enduring: whether to go on without ranks that fail.
        lost: ranks that failed, and why: nothing they say counts any more, and nothing is asked of them.
        dealt: the ranks that silos are dealt to.
        processes: (host, process id) of each rank that has said so.
    """

    def __init__(
        self,
        link: Link,
        timeout: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        end: Callable[[int], bool] = lambda rank: False,
    ) -> None:
        self.link, self.timeout, self._clock, self._end = link, timeout, clock, end
        self.enduring = False
        self.lost: dict[int, str] = {}
        self.dealt: Sequence[int] = range(1, link.size)
        self.processes: dict[int, tuple[str, int]] = {}
        self.clean = True  # no rank is in the middle of anything
        self._ended: set[int] = set()  # of the lost, those whose process is no more, whatever MPI knows of it
        self._resting: set[int] = set()  # of the lost, those that live and wait for the end
        self._news: list[int] = []
        self._kept: list[object] = []  # buffers that MPI may still use, of messages that lost ranks owe
        self._number = 0

    @property
    def silo_ranks(self) -> list[int]:
        """Those that were not lost."""
        return [rank for rank in range(1, self.link.size) if rank not in self.lost]

    def owner(self, silo: int) -> int:
        return owner(silo, self.dealt)

    def lose(self, rank: int, why: str) -> None:
        """Go on without a rank.

        Raises:
            SiloLostError: the configuration does not say so.
        """
        if not self.enduring:
            raise SiloLostError(f"silo rank {rank}: {why}. {GO_ON}", {rank: why})
        if rank not in self.lost:
            self.lost[rank] = f"rank {rank} {why}"
            self._news.append(rank)

    def news(self) -> list[int]:
        """The ranks that were lost since this was asked last."""
        self.look()
        found, self._news = self._news, []
        return found

    def look(self) -> None:
        """Whether somebody died."""
        for rank in sorted(self.link.gone() - set(self.lost)):
            self.lose(rank, "was killed, or ended by itself")

    def keep(self, buffers: object) -> None:
        """Keep memory that a lost rank's messages may still be written to."""
        self._kept.append(buffers)

    def tell(self, do: str, **more: Any) -> None:
        """Begin something new at all silo ranks: answers to what was asked before are not listened to any more."""
        self._number += 1
        self.tell_some(self.silo_ranks, do, **more)

    def tell_some(self, ranks: Iterable[int], do: str, **more: Any) -> None:
        """Go on with what was begun."""
        for rank in ranks:
            self.link.send(rank, {"do": do, "number": self._number, **more})

    def hear(self) -> tuple[int, Header] | None:
        """The next header of a rank that was not lost, an answer or not; whoever asks for a sign gets one."""
        while (found := self.link.poll()) is not None:
            rank, header = found
            if header["say"] == "there?":
                self.tell_some([rank], "here")
            elif rank not in self.lost or rank in self._resting:
                return rank, header
        self.look()
        return None

    def poll(self) -> tuple[int, Header] | None:
        """The next answer to what was begun last. Without errors of strangers, if the run goes on without their silos.

        Raises:
            DpflError: a rank met with an error: the same one if it is one of ours, else a SiloError.
        """
        while (found := self.hear()) is not None:
            rank, header = found
            if rank in self.lost:
                continue
            strangers = header["say"] == "error" and not header["kind"]
            if self.enduring and strangers:  # in whatever it was: a silo may fail where no answer is waited for
                self._lose_to_error(rank, header)
            elif header["number"] == self._number:
                if header["say"] == "error":
                    raise _error(rank, header)
                return rank, header
        return None

    def _lose_to_error(self, rank: int, header: Header) -> None:
        self.lose(rank, f"on {header['host']} failed: {header['text']}")
        self._resting.add(rank)
        self.tell_some([rank], "rest")

    def answers(self, say: str, what: str, ranks: Iterable[int] | None = None) -> dict[int, Header]:
        """What each of ``ranks`` (None: all silo ranks) says, by ascending rank; ``what``: its work meanwhile.

        Those that are lost meanwhile are left out.
        """
        asked = set(self.silo_ranks if ranks is None else ranks)
        got: dict[int, Header] = {}

        def missing() -> set[int]:
            return asked - set(got) - set(self.lost)

        self.until(lambda: self._collect(say, got) or not missing(), missing, what)
        return dict(sorted(got.items()))

    def _collect(self, say: str, got: dict[int, Header]) -> bool:
        while (found := self.poll()) is not None:
            rank, header = found
            if header["say"] == say:
                got[rank] = header
        return False

    def finish(self, transfers: Sequence[Transfer], ranks: Iterable[int], what: str) -> None:
        self.until(lambda: all_done(transfers), lambda: ranks, what)

    def finish_each(self, transfers: Mapping[int, Sequence[Transfer]], what: str) -> set[int]:
        """Wait for what is on its way to or from each rank; the ranks where it arrived, the others were lost."""
        waiting = dict(transfers)

        def ready() -> bool:
            for rank in [rank for rank, own in waiting.items() if all_done(own)]:
                del waiting[rank]
            self.look()
            return not set(waiting) - set(self.lost)

        self.until(ready, lambda: set(waiting) - set(self.lost), what)
        for own in waiting.values():
            self.keep(own)
        return set(transfers) - set(waiting)

    def spread(self, vectors: Vectors, what: str) -> None:
        """The same vectors to all silo ranks; one by one if some may die, which a collective call does not outlive."""
        held = {name: value.contiguous() for name, value in vectors.items()}
        if not self.enduring:
            self.finish([self.link.broadcast(value) for value in held.values()], self.silo_ranks, what)
            return
        self.finish_each({rank: push_all(self.link, rank, held) for rank in self.silo_ranks}, what)

    def until(self, ready: Callable[[], bool], owing: Callable[[], Iterable[int]], what: str) -> None:
        """Wait; the clock is for the whole wait."""
        patience, watch = Patience(), self.watch()
        while not ready():
            self.check(watch, dict.fromkeys(owing(), what))
            patience.wait()

    def check(self, watch: Watch, owing: Mapping[int, str]) -> None:
        """Give up ranks that have owed something for too long.

        Raises:
            SiloLostError: some have, or died, and the run does not go on without them.
        """
        self.look()
        try:
            watch.check({rank: what for rank, what in owing.items() if rank not in self.lost})
        except SiloLostError as error:
            self._ended |= {rank for rank in error.late if self.link.outlives and self._end(rank)}
            if not self.enduring:
                raise
            for rank, what in error.late.items():
                self.lose(rank, f"did not answer for {self.timeout:g} s ({what})")

    def watch(self) -> Watch:
        return Watch(self.timeout, self._clock)

    def part(self, seconds: float) -> bool:
        """Tell all ranks to end; whether they heard it in so many seconds, with nothing left on its way."""
        if not self.clean:
            return False
        self._number += 1
        self.enduring = True  # whoever dies from here on is missed by nobody
        living = {*self.silo_ranks, *self._resting} - self.link.gone()
        self.tell_some(sorted(living), "quit")
        said: set[int] = set()
        patience, end = Patience(), self._clock() + seconds
        while living - said - self.link.gone():
            found = self.hear()
            if found is not None and found[1]["say"] == "bye":
                said.add(found[0])
            if self._clock() > end:
                return False
            patience.wait()
        return set(range(1, self.link.size)) <= said | self.link.gone() | self._ended


class Watch:
    """How long ranks have owed something."""

    def __init__(self, timeout: float | None, clock: Callable[[], float]) -> None:
        self._timeout, self._clock = timeout, clock
        self._since: dict[int, float] = {}

    def heard(self, rank: int) -> None:
        self._since.pop(rank, None)

    def check(self, owing: Mapping[int, str]) -> None:
        """Raise SiloLostError if one of ``owing``, {rank: what}, was so without a word for longer than the time-out."""
        if self._timeout is None:
            return
        now = self._clock()
        self._since = {rank: self._since.get(rank, now) for rank in owing}
        late = {rank: owing[rank] for rank, since in self._since.items() if now - since > self._timeout}
        said = [f"{rank} ({what})" for rank, what in late.items()]
        if late:
            raise SiloLostError(
                f"silo rank{'s' * (len(late) > 1)} {', '.join(said)} did not answer for {self._timeout:g} s: the "
                f"process hangs, or runtime.silo_timeout is shorter than its work takes. {GO_ON}",
                late,
            )


def _error(rank: int, header: Header) -> DpflError:
    where = f"rank {rank} on {header['host']}"
    kind: type[DpflError] | None = getattr(errors, header["kind"], None) if header["kind"] else None
    if kind is not None and issubclass(kind, ConfigError):
        return kind(header["text"])  # the same on every rank
    error: DpflError = (kind or SiloError)(f"{where}: {header['text']}")
    if header["trace"]:
        error.add_note(f"On {where}:\n{header['trace']}")
    return error


class MpiSession:
    """What a session asks of the silo ranks before its rounds; one after another may use the same ranks."""

    def __init__(self, ranks: Ranks, device: Callable[[str], str] = lambda name: name) -> None:
        self._ranks, self._device = ranks, device
        self._survey: Survey | None = None

    def hold(self, config: Config, base: Path, key: Path) -> Holding:
        """Have the silo ranks load their records; rank 0 holds none, and reads no ``key``.

        Raises:
            ConfigError: the ranks do not run the same version of this package.
            DataError: as in one process, or silo ranks do not see the same data.
        """
        ranks, lasts = self._ranks, config.runtime.on_silo_failure == "continue"
        if config.evaluation.dissimilarity and config.evaluation.reveal != "server":
            raise ConfigError(
                "evaluation.dissimilarity=true: rank 0 would get every silo's gradient without noise. Leave it out, "
                "run in one process, or give evaluation.reveal: server, which no epsilon covers."
            )
        if lasts and not ranks.link.outlives:
            raise ConfigError(f"runtime.on_silo_failure='continue': {NOT_TOLERANT}")
        ranks.timeout, ranks.enduring = config.runtime.silo_timeout, False
        ranks.dealt = tuple(ranks.silo_ranks)
        if not ranks.dealt:
            raise SiloLostError(f"all silo ranks were lost in the run before this one. {GO_ON}", {})
        here = {"base": str(base.resolve()), "key": str(key.resolve()), "dealt": ranks.dealt}
        here["server"] = [platform.node(), os.getpid()]
        ranks.tell("survey", config=config.model_dump(mode="python"), **here)
        found = ranks.answers("surveyed", "loading records")
        ranks.processes = {rank: (header["host"], header["pid"]) for rank, header in found.items()}
        ranks.enduring = lasts
        others = [rank for rank, header in found.items() if header["package"] != environment.package_sha256()]
        if others:
            raise ConfigError(
                f"ranks {', '.join(map(str, others))} run other code of dpfl_plugin than rank 0 does: install the same "
                "version everywhere."
            )
        self._survey = _joined(found)
        machines = tuple(header["machine"] for header in found.values())
        notes = (NO_LIMITS,) if _distributed(found) and not all(header["limits"] for header in found.values()) else ()
        return Holding(self._survey, {}, machines, self._device(config.runtime.device), notes=notes)

    def runtime(self, parts: Parts, charges: ChargeSink, config: Config, stop: Callable[[], bool]) -> MpiRuntime:
        """Get the silo ranks ready for the rounds of a run.

        Raises:
            ConfigError: a rank's model has other frozen layers or buffers than rank 0's: it would train another one.
        """
        assert self._survey is not None
        self._ranks.tell(
            "begin",
            survey=wire.survey_header(self._survey),
            noise_multiplier=parts.noise_multiplier,
            engine=parts.engine.name,
            chunk_bytes=parts.memory.chunk,
            profile=parts.host.clock.on,
            folder=str(silo_folder(config).resolve()),
        )
        ready = self._ranks.answers("ready", "getting ready")  # of those that were lost, the first round hears
        others = [rank for rank, header in ready.items() if header["fixed"] != fixed_digest(parts.module)]
        if others:
            raise ConfigError(
                f"model: on ranks {', '.join(map(str, others))} it has other frozen layers or buffers than on rank 0. "
                f"{BUILT_ANEW}"
            )
        _check_code(ready, code_of(config, parts.plugins).facts, model_facts(parts.module, parts.attributes))
        return MpiRuntime(
            self._ranks,
            charges,
            num_silos=parts.setting.num_silos,
            stack_size=parts.stack,
            aggregation=config.runtime.aggregation,
            stop=stop,
            stopwatch=parts.host.clock,
        )


def _distributed(found: dict[int, Header]) -> bool:
    """Whether silo ranks are on several machines, so that their records may be of several owners."""
    return len({header["host"] for header in found.values()}) > 1


def _check_code(found: Mapping[int, Header], code: Mapping[str, Any], model: Mapping[str, str]) -> None:
    """Raise ConfigError unless silo ranks have loaded the plugins, and made the model, that rank 0 has."""
    for rank, header in found.items():
        changes = changed_files({"files": header["code"]}, code)
        if changes or header["model"] != model:
            what = "; ".join(changes) or "the model that it makes is another"
            raise ConfigError(
                f"rank {rank} runs other code than rank 0 does: {what}. Give all ranks the same files and variables."
            )


def _joined(found: dict[int, Header]) -> Survey:
    """The survey of all silos, from what each rank says of its own."""
    one, keys = min(found), ("num_silos", "num_classes", "feature_shape", "inputs", "caveats")
    first = found[one]  # who always has a silo
    for rank, header in found.items():
        if header["silos"] and any(header[key] != first[key] for key in keys):
            raise DataError(
                f"rank {rank} sees other data than rank {one} does: data files have to be the same everywhere."
            )
    silos = sorted(tuple(silo) for header in found.values() for silo in header["silos"])
    _, num_records, num_test_records, digests = zip(*silos, strict=True)
    return Survey(
        num_classes=first["num_classes"],
        feature_shape=tuple(first["feature_shape"]),
        caveats=tuple(first["caveats"]),
        num_records=num_records,
        num_test_records=num_test_records,
        digests=digests,
        inputs=wire.read_inputs(first["inputs"]),
    )


class MpiRuntime:
    """Runs rounds at the silo ranks.

    Args:
        stack_size: silos advanced together, and charges written together; the result does not depend on it.
        aggregation: "gather": every upload comes to rank 0 and is added in the order of silos; "reduce": ranks add up
            their own, and MPI the ranks: faster for large models, but the bits depend on the number of ranks.
        stop: asked all the time; true ends the round with `Interrupted`, before any state changed.
        observers: get every round's single uploads, which then are kept for the round (O(S d) memory).
        stopwatch: takes the time of each part of rank 0's work.
    """

    def __init__(
        self,
        ranks: Ranks,
        charges: ChargeSink,
        *,
        num_silos: int,
        stack_size: int = 1,
        aggregation: str = "gather",
        stop: Callable[[], bool] = lambda: False,
        observers: Sequence[Observer] = (),
        stopwatch: Stopwatch = STOPPED,
    ) -> None:
        if observers and aggregation != "gather":
            raise errors.UnsupportedError(
                f"runtime.aggregation={aggregation!r}: single uploads do not come to rank 0. Use gather."
            )
        self._ranks, self._charges, self._num_silos = ranks, charges, num_silos
        self._stack_size, self._aggregation = stack_size, aggregation
        self._stop, self._observers, self._clock = stop, observers, stopwatch
        self._layout: wire.Layout = {}  # of a silo's state

    def run_round(self, down: Vectors, plan: RoundPlan, draw: Draw) -> Vectors:
        self._tell_of_lost()
        self._ranks.clean = False
        current = _Round(
            self._ranks,
            self._charges,
            plan,
            self._stack_size,
            self._aggregation,
            bool(self._observers),
            self._clock,
        )
        try:
            current.begin(down, draw)
            total = current.run(self._stop)
        except SiloLostError:
            raise
        except (Interrupted, DpflError, OSError, RoundLostError) as error:
            current.cancel()
            if isinstance(error, RoundLostError):
                self._tell_of_lost()
            raise
        self._ranks.clean = True
        for observer in self._observers:
            observer(draw.round, plan.participants, stack(current.seen))
        self._clock.lap("communication")
        return total

    def commit(self) -> None:
        self._ranks.tell("commit")

    def evaluate(self, model: Tensor, dissimilarity: bool, after: int | None = None) -> dict[int, SiloMetrics]:
        ranks = self._ranks
        self._tell_of_lost()
        ranks.clean = False
        how = {"dissimilarity": dissimilarity, "after": after, "at": time.time_ns(), "apart": ranks.enduring}
        ranks.tell("evaluate", model=wire.layout({"model": model}), **how)
        ranks.spread({"model": model}, "taking the model to evaluate")
        found = {
            silo: SiloMetrics(loss, accuracy, personalised_accuracy=own)
            for header in ranks.answers("evaluated", "evaluating").values()
            for silo, loss, accuracy, own in header["metrics"]
        }
        if dissimilarity:
            gradients = {silo: torch.empty_like(model) for silo in sorted(found)}
            self._pull({silo: {"gradient": value} for silo, value in gradients.items()})
            found = {silo: replace(m, gradient=gradients[silo]) for silo, m in found.items()}
        ranks.clean = True
        self._clock.lap("evaluation")
        self._tell_of_lost()
        return dict(sorted(found.items()))

    def states(self) -> Vectors:
        ranks = self._ranks
        self._tell_of_lost()
        ranks.clean = False
        ranks.tell("states")
        answers = ranks.answers("states", "sending its states")
        if answers:  # else all are lost, and what they held is not known here
            self._layout = wire.read_layout(answers[min(answers)]["states"])
        states = wire.zeros(self._layout, torch.device("cpu"), self._num_silos)
        theirs = [silo for silo in range(self._num_silos) if ranks.owner(silo) in answers]
        self._pull({silo: {name: value[silo] for name, value in states.items()} for silo in theirs})
        ranks.clean = True
        self._tell_of_lost()
        return states

    def load_states(self, states: Vectors) -> None:
        ranks = self._ranks
        self._tell_of_lost()
        ranks.clean = False
        self._layout = wire.layout(states, row=True)
        ranks.tell("load", states=self._layout)
        on_their_way: dict[int, list[Transfer]] = {rank: [] for rank in ranks.silo_ranks}
        for silo in range(self._num_silos):
            rank = ranks.owner(silo)
            if rank in on_their_way:
                row = {name: value[silo].contiguous() for name, value in states.items()}
                on_their_way[rank] += push_all(ranks.link, rank, row)
        ranks.finish_each(on_their_way, "taking its states")
        ranks.answers("loaded", "taking its states")
        ranks.clean = True
        self._tell_of_lost()

    def profiles(self) -> dict[int, Seconds]:
        self._ranks.tell("profile")
        found = self._ranks.answers("profiled", "telling its times")
        return {rank: header["seconds"] for rank, header in found.items()}

    def _pull(self, into: dict[int, Vectors]) -> None:
        """What every silo sends, in the order of silos; nothing from those that are lost."""
        for silo, vectors in into.items():
            rank = self._ranks.owner(silo)
            if rank not in self._ranks.lost:
                self._ranks.finish_each(
                    {rank: pull_all(self._ranks.link, rank, vectors)}, f"sending what silo {silo} has"
                )

    def _tell_of_lost(self) -> None:
        """Raise SilosLost if ranks with silos were lost since it was asked last.

        At the end of whatever was asked of all ranks: those that live have then sent and taken all that belongs to it.
        """
        news = set(self._ranks.news())
        silos = [silo for silo in range(self._num_silos) if self._ranks.owner(silo) in news]
        if silos:
            raise SilosLost({silo: self._ranks.lost[self._ranks.owner(silo)] for silo in silos})


class _Round:
    """One round as rank 0 sees it."""

    def __init__(
        self,
        ranks: Ranks,
        charges: ChargeSink,
        plan: RoundPlan,
        stack_size: int,
        aggregation: str,
        keeps: bool,
        clock: Stopwatch,
    ) -> None:
        self._ranks, self._sink, self._plan, self._clock = ranks, charges, plan, clock
        self._stack_size, self._gathers, self._keeps = stack_size, aggregation == "gather", keeps
        self._computed: dict[int, list[Charge]] = {}
        self._charged = 0  # of the participants, in order
        self._layout: wire.Layout = {}
        self._round, self._device = 0, torch.device("cpu")
        self._incoming: deque[tuple[int, Vectors, list[Transfer]]] = deque()
        self._asked = self._received = 0
        self._free: list[Vectors] = []
        self._total = WeightedSum()
        self._watch = ranks.watch()
        self.seen: list[Vectors] = []

    def begin(self, down: Vectors, draw: Draw) -> None:
        self._round, self._device = draw.round, next(iter(down.values())).device
        wire.check_participants(self._plan)  # before silo ranks refuse them
        how = {"down": wire.layout(down), "apart": self._ranks.enduring}
        self._ranks.tell("round", **wire.plan_header(self._plan, draw), **how)
        self._ranks.spread(down, "taking the download")

    def run(self, stop: Callable[[], bool]) -> Vectors:
        """The weighted sum of the uploads."""
        patience, everybody = Patience(), len(self._plan.participants)
        while self._received < everybody:
            if self._charged < everybody and stop():
                raise Interrupted
            if self._listen() | self._charge() | self._receive():
                patience.reset()
                continue
            self._check_complete()
            self._ranks.check(self._watch, self._owing())
            patience.wait()
        return self._total.total

    def _check_complete(self) -> None:
        """Raise RoundLostError if an upload that is not here yet will not come."""
        lost = self._ranks.lost
        if lost and any(self._ranks.owner(silo) in lost for silo in self._plan.participants[self._received :]):
            raise RoundLostError

    def cancel(self) -> None:
        """End the round at all ranks; what was asked for still comes, and is let go."""
        ranks = self._ranks
        ranks.tell_some(ranks.silo_ranks, "cancel")
        for silo, into, transfers in self._incoming:
            self._let_go(silo, into, transfers)
        if self._gathers:
            for silo in self._plan.participants[self._asked : self._charged]:
                into = wire.empty(self._layout, self._device, 1)
                self._let_go(silo, into, pull_all(ranks.link, ranks.owner(silo), into))
        missing, patience = set(ranks.silo_ranks), Patience()
        while missing - set(ranks.lost):
            found = ranks.hear()
            if found is None:
                ranks.check(self._watch, dict.fromkeys(missing, "leaving a round"))
                patience.wait()
                continue
            patience.reset()
            if found[1]["say"] == "cancelled":
                missing.discard(found[0])
        ranks.clean = True

    def _let_go(self, silo: int, into: Vectors, transfers: list[Transfer]) -> None:
        """Take an upload of a round that does not count."""
        rank = self._ranks.owner(silo)
        if rank in self._ranks.lost:
            self._ranks.keep((into, transfers))
            return
        self._ranks.finish_each({rank: transfers}, f"leaving round {self._round + 1}, silo {silo}")

    def _owing(self) -> dict[int, str]:
        """Ranks that have still to compute, or whose upload is awaited, and of which silo."""
        computing = [silo for silo in self._plan.participants if silo not in self._computed]
        awaited = [silo for silo, _, transfers in self._incoming if not all_done(transfers)]
        return {
            self._ranks.owner(silo): f"round {self._round + 1}, silo {silo}" for silo in [*computing[::-1], *awaited]
        }

    def _listen(self) -> bool:
        found = self._ranks.poll()
        if found is None:
            return False
        rank, header = found
        self._watch.heard(rank)
        by_silo: dict[int, list[Charge]] = {silo: [] for silo in header["silos"]}
        for charge in wire.read_charges(header["charges"]):
            by_silo[charge.silo].append(charge)
        self._computed.update(by_silo)
        described = wire.read_layout(header["up"])
        if self._layout and self._layout != described:
            raise TrainingError(f"rank {rank}: the silos of a round send vectors of different names, types or shapes.")
        self._layout = described
        return True

    def _charge(self) -> bool:
        """Write what is complete, stack by stack as one process does; when it is on disk, the uploads may leave."""
        self._clock.lap("communication")
        everybody, ready = self._plan.participants, self._charged
        while ready < len(everybody):
            part = everybody[ready : ready + self._stack_size]
            if not all(silo in self._computed for silo in part):
                break
            self._sink.append([charge for silo in part for charge in self._computed[silo]])
            ready += len(part)
        if ready == self._charged:
            return False
        self._sink.sync()  # before anything of an upload leaves its silo's rank
        self._clock.lap("I/O")
        released, self._charged = everybody[self._charged : ready], ready
        if self._gathers:
            for rank in self._ranks.silo_ranks:
                silos = [silo for silo in released if self._ranks.owner(silo) == rank]
                if silos:
                    self._ranks.tell_some([rank], "send", silos=silos)
        elif ready == len(everybody):
            self._reduce()
        return True

    def _reduce(self) -> None:
        self._ranks.tell_some(self._ranks.silo_ranks, "reduce", up=self._layout)
        total = wire.empty(self._layout, self._device)
        nothing = wire.zeros(self._layout, self._device)
        parts = [self._ranks.link.reduce(nothing[name], total[name]) for name in self._layout]
        self._ranks.finish(parts, self._ranks.silo_ranks, "adding up")
        self._total.total, self._received = total, len(self._plan.participants)

    def _receive(self) -> bool:
        """Ask for the next uploads in the order of silos, and add what has come."""
        if not self._gathers:
            return False
        while len(self._incoming) < AT_ONCE and self._asked < self._charged:
            silo = self._plan.participants[self._asked]
            into = self._free.pop() if self._free else wire.empty(self._layout, self._device, 1)
            self._incoming.append((silo, into, pull_all(self._ranks.link, self._ranks.owner(silo), into)))
            self._asked += 1
        if not self._incoming or not all_done(self._incoming[0][2]):
            return False
        silo, upload, _ = self._incoming.popleft()
        self._watch.heard(self._ranks.owner(silo))
        self._total.add(upload, [self._plan.weights[self._received]])
        if self._keeps:
            self.seen.append(upload)
        else:
            self._free.append(upload)
        self._received += 1
        return True
