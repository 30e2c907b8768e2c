"""What rank 0 does: it draws up the survey of a session, and runs rounds at the silo ranks.

A round: every silo rank is told the plan and gets the download; each stack that is computed is reported with its
charges; the charges are written in the order of silos and synced; then, and not before, the silos are told to send.
Uploads are taken in the order of silos, two at a time, and added: rank 0 holds O(d), and adds in the same order as a
run in one process.
"""

from __future__ import annotations

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
from dpfl_plugin.oracle import Draw
from dpfl_plugin.privacy.events import Charge
from dpfl_plugin.runtimes.mpi import wire
from dpfl_plugin.runtimes.mpi.link import Link, Patience, Transfer, all_done, pull_all, push_all
from dpfl_plugin.runtimes.mpi.silos import owner
from dpfl_plugin.runtimes.mpi.wire import Header
from dpfl_plugin.training import environment
from dpfl_plugin.training.build import Parts
from dpfl_plugin.training.host import SiloMetrics
from dpfl_plugin.training.runtime import ChargeSink, Interrupted, Observer

AT_ONCE = 2  # uploads on their way to rank 0: one is added while the next comes in


class SiloLostError(DpflError):
    """A silo rank does not answer any more; the message says which, and what it was asked for."""


class Ranks:
    """Rank 0's connections to the silo ranks.

    Args:
        timeout: seconds that a rank may take over one answer; None: for ever.
        clock: seconds, for the time-outs.
    """

    def __init__(self, link: Link, timeout: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.link, self.timeout, self._clock = link, timeout, clock
        self.silo_ranks = range(1, link.size)
        self.clean = True  # no rank is in the middle of anything
        self._number = 0
        self._shares: dict[int, Any] = {}  # what silo ranks tell each other by way of this one

    def owner(self, silo: int) -> int:
        return owner(silo, self.link.size)

    def tell(self, do: str, **more: Any) -> None:
        """Begin something new at all silo ranks: answers to what was asked before are not listened to any more."""
        self._number += 1
        self._shares.clear()
        self.tell_some(self.silo_ranks, do, **more)

    def tell_some(self, ranks: Iterable[int], do: str, **more: Any) -> None:
        """Go on with what was begun."""
        for rank in ranks:
            self.link.send(rank, {"do": do, "number": self._number, **more})

    def poll(self) -> tuple[int, Header] | None:
        """The next answer to what was begun last.

        Raises:
            DpflError: a rank met with an error: the same one if it is one of ours, else a SiloError.
        """
        while (found := self.link.poll()) is not None:
            rank, header = found
            if header["number"] != self._number:
                continue
            if header["say"] == "error":
                raise _error(rank, header)
            return rank, header
        return None

    def answers(self, say: str, what: str, ranks: Iterable[int] | None = None) -> dict[int, Header]:
        """What each of ``ranks`` (None: all silo ranks) says, by ascending rank; ``what``: its work meanwhile."""
        missing = set(self.silo_ranks if ranks is None else ranks)
        got: dict[int, Header] = {}
        self.until(lambda: self._collect(say, got) or not missing - set(got), lambda: missing - set(got), what)
        return dict(sorted(got.items()))

    def _collect(self, say: str, got: dict[int, Header]) -> bool:
        while (found := self.poll()) is not None:
            rank, header = found
            if header["say"] == say:
                got[rank] = header
            elif header["say"] == "share":
                self._shares[rank] = header["value"]
                if len(self._shares) == len(self.silo_ranks):
                    values = [value for _, value in sorted(self._shares.items())]
                    self._shares.clear()
                    self.tell_some(self.silo_ranks, "shared", values=values)
        return False

    def finish(self, transfers: Sequence[Transfer], ranks: Iterable[int], what: str) -> None:
        self.until(lambda: all_done(transfers), lambda: ranks, what)

    def until(self, ready: Callable[[], bool], owing: Callable[[], Iterable[int]], what: str) -> None:
        """Wait; the clock is for the whole wait."""
        patience, watch = Patience(), self.watch()
        while not ready():
            watch.check(dict.fromkeys(owing(), what))
            patience.wait()

    def watch(self) -> Watch:
        return Watch(self.timeout, self._clock)

    def part(self, seconds: float) -> bool:
        """Tell all ranks to end; whether they heard it in so many seconds, with nothing left on its way."""
        if not self.clean:
            return False
        self.tell("quit")
        self.timeout = seconds
        try:
            self.answers("bye", "ending")
        except DpflError:
            return False
        return True


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
        late = [f"{rank} ({owing[rank]})" for rank, since in self._since.items() if now - since > self._timeout]
        if late:
            raise SiloLostError(
                f"silo rank{'s' * (len(late) > 1)} {', '.join(late)} did not answer for {self._timeout:g} s: the "
                "process hangs, or runtime.silo_timeout is shorter than its work takes. The last good state is in "
                "the run's checkpoint; go on with --resume."
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

    def hold(self, config: Config, base: Path) -> Holding:
        """Have the silo ranks load their records; rank 0 holds none.

        Raises:
            ConfigError: the ranks do not run the same version of this package.
            DataError: as in one process, or silo ranks do not see the same data.
        """
        ranks = self._ranks
        ranks.timeout = config.runtime.silo_timeout
        ranks.tell("survey", config=config.model_dump(mode="python"), base=str(base.resolve()))
        found = ranks.answers("surveyed", "loading records")
        others = [rank for rank, header in found.items() if header["package"] != environment.package_sha256()]
        if others:
            raise ConfigError(
                f"ranks {', '.join(map(str, others))} run other code of dpfl_plugin than rank 0 does: install the same "
                "version everywhere."
            )
        self._survey = _joined(found)
        machines = tuple(header["machine"] for header in found.values())
        return Holding(self._survey, {}, machines, self._device(config.runtime.device))

    def runtime(self, parts: Parts, charges: ChargeSink, config: Config, stop: Callable[[], bool]) -> MpiRuntime:
        """Get the silo ranks ready for the rounds of a run."""
        assert self._survey is not None
        self._ranks.tell(
            "begin",
            survey=wire.survey_header(self._survey),
            noise_multiplier=parts.noise_multiplier,
            engine=parts.engine_name,
            profile=parts.host.clock.on,
        )
        self._ranks.answers("ready", "getting ready")
        return MpiRuntime(
            self._ranks,
            charges,
            num_silos=parts.setting.num_silos,
            stack_size=config.runtime.stack,
            aggregation=config.runtime.aggregation,
            stop=stop,
            stopwatch=parts.host.clock,
        )


def _joined(found: dict[int, Header]) -> Survey:
    """The survey of all silos, from what each rank says of its own."""
    first, keys = found[1], ("num_silos", "num_classes", "feature_shape", "caveats")  # rank 1 always has a silo
    for rank, header in found.items():
        if header["silos"] and any(header[key] != first[key] for key in keys):
            raise DataError(f"rank {rank} sees other data than rank 1 does: data files have to be the same everywhere.")
    silos = sorted(tuple(silo) for header in found.values() for silo in header["silos"])
    _, num_records, num_test_records, digests = zip(*silos, strict=True)
    return Survey(
        num_classes=first["num_classes"],
        feature_shape=tuple(first["feature_shape"]),
        caveats=tuple(first["caveats"]),
        num_records=num_records,
        num_test_records=num_test_records,
        digests=digests,
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

    def run_round(self, down: Vectors, plan: RoundPlan, draw: Draw) -> Vectors:
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
        except (Interrupted, DpflError, OSError):
            current.cancel()
            raise
        self._ranks.clean = True
        for observer in self._observers:
            observer(draw.round, plan.participants, stack(current.seen))
        self._clock.lap("communication")
        return total

    def commit(self) -> None:
        self._ranks.tell("commit")

    def evaluate(self, model: Tensor, dissimilarity: bool) -> dict[int, SiloMetrics]:
        ranks = self._ranks
        ranks.clean = False
        ranks.tell("evaluate", model=wire.layout({"model": model}), dissimilarity=dissimilarity)
        ranks.finish([ranks.link.broadcast(model.contiguous())], ranks.silo_ranks, "taking the model to evaluate")
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
        return dict(sorted(found.items()))

    def states(self) -> Vectors:
        ranks = self._ranks
        ranks.clean = False
        ranks.tell("states")
        described = wire.read_layout(ranks.answers("states", "sending its states")[1]["states"])
        states = wire.empty(described, torch.device("cpu"), self._num_silos)
        self._pull({silo: {name: value[silo] for name, value in states.items()} for silo in range(self._num_silos)})
        ranks.clean = True
        return states

    def load_states(self, states: Vectors) -> None:
        ranks = self._ranks
        ranks.clean = False
        ranks.tell("load", states=wire.layout(states, row=True))
        on_their_way: list[Transfer] = []
        for silo in range(self._num_silos):
            row = {name: value[silo].contiguous() for name, value in states.items()}
            on_their_way += push_all(ranks.link, ranks.owner(silo), row)
        ranks.finish(on_their_way, ranks.silo_ranks, "taking its states")
        ranks.answers("loaded", "taking its states")
        ranks.clean = True

    def profiles(self) -> dict[int, Seconds]:
        self._ranks.tell("profile")
        found = self._ranks.answers("profiled", "telling its times")
        return {rank: header["seconds"] for rank, header in found.items()}

    def _pull(self, into: dict[int, Vectors]) -> None:
        """What every silo sends, in the order of silos."""
        for silo, vectors in into.items():
            rank = self._ranks.owner(silo)
            self._ranks.finish(pull_all(self._ranks.link, rank, vectors), [rank], f"sending what silo {silo} has")


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
        self._ranks.tell("round", **wire.plan_header(self._plan, draw), down=wire.layout(down))
        copies = [self._ranks.link.broadcast(value.contiguous()) for value in down.values()]
        self._ranks.finish(copies, self._ranks.silo_ranks, "taking the download")

    def run(self, stop: Callable[[], bool]) -> Vectors:
        """The weighted sum of the uploads."""
        patience, everybody = Patience(), len(self._plan.participants)
        while self._received < everybody:
            if self._charged < everybody and stop():
                raise Interrupted
            if self._listen() | self._charge() | self._receive():
                patience.reset()
                continue
            self._watch.check(self._owing())
            patience.wait()
        return self._total.total

    def cancel(self) -> None:
        """End the round at all ranks; what was asked for still comes, and is let go."""
        self._keeps = False
        self._ranks.tell_some(self._ranks.silo_ranks, "cancel")
        missing = set(self._ranks.silo_ranks)
        patience = Patience()
        while missing or self._received < self._asked_for:
            moved = self._receive()
            found = self._ranks.link.poll()
            if found is not None and found[1]["say"] == "cancelled":
                missing.discard(found[0])
            if moved or found is not None:
                patience.reset()
                continue
            self._watch.check(dict.fromkeys(missing, "leaving a round") | self._owing())
            patience.wait()
        self._ranks.clean = True

    @property
    def _asked_for(self) -> int:
        return self._charged if self._gathers else self._received

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
