"""The server's side: it plans rounds, checks what comes in, and takes the algorithm's step.

The rule for what is missing. An upload that is damaged, of another round, too long, not finite, or sent twice is
refused, and its silo named; after one of an earlier request the right one may still come. The round goes on without it,
and without silos that have spent their budget or do not answer: it counts, with the agreed weights, if at least half of
the silos that were asked sent a good upload; where an algorithm needs every silo (scaffnew), if all did. Else it is
void: nothing changes, and it is asked for again under another tag. Each silo learns with the next download which of its
uploads was the last that counted.

A folder has one server at a time. One that is started again sends the request of the round that was cut as it was.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import secrets
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal

from torch import Tensor, nn

from dpfl_plugin.adapters.agreement import Agreement
from dpfl_plugin.adapters.frozen import FIXED
from dpfl_plugin.adapters.message import Message, num_bytes
from dpfl_plugin.adapters.request import Requests, request_message
from dpfl_plugin.adapters.round import LateError, Round
from dpfl_plugin.adapters.silo_reports import SiloReports
from dpfl_plugin.adapters.told import Told
from dpfl_plugin.algorithms.base import RoundPlan
from dpfl_plugin.callbacks.base import Callback
from dpfl_plugin.core.average import WeightedSum
from dpfl_plugin.core.vectors import all_finite
from dpfl_plugin.errors import ConfigError, DataError, MessageError, TrainingError, UnsupportedError, require
from dpfl_plugin.federation.planning import Planner
from dpfl_plugin.file_permissions import private_folder
from dpfl_plugin.models.fixed import pack, unpack
from dpfl_plugin.runs import checkpoint as checkpoints
from dpfl_plugin.runs.checkpoint import Checkpoint
from dpfl_plugin.runs.folder import locked, to_json, write_atomic

HEADER_BYTES: Final = 2**16  # enough for every header that a silo sends
MOST_VOID: Final = 3  # rounds in a row that do not count
TAKEN: Final = (
    "{}: another server ({{holder}}) is at work in this folder. Two would ask the same silos, which would spend their "
    "budgets on both. End that one first; this one then continues where it ended."
)
LOG: Final = logging.getLogger("dpfl_plugin.server")

Status = Literal["running", "done", "budget_exhausted", "refused"]


class Server:
    """Keeps the server's vectors, and takes a round's uploads one by one.

    Args:
        model: the initial model; `model` is the present one.
        folder: where the state after every round is saved, with `summary.json`; the same folder goes on. None: nothing
            is written, and a server that is restarted finds its silos ahead of it. Held until the run is over, or
            `close`.
        min_share: of the silos that were asked, how many have to send a good upload; more than 0.
        callbacks: are told how the run goes; see docs/callbacks.md.

    Attributes:
        rounds: how many counted. status: "running" until there is no further round.

    Raises:
        ConfigError: the folder holds another agreement's server.
        BusyError: another process is the server in this folder.
        DataError: what the folder holds cannot be read.
    """

    def __init__(
        self,
        agreement: Agreement,
        model: nn.Module,
        folder: Path | str | None = None,
        *,
        min_share: float = 0.5,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        require(0 < min_share <= 1, "min_share", min_share, "be in (0, 1]")
        config, setting = agreement.config, agreement.setting
        self.agreement, self._folder, self._min_share = agreement, None if folder is None else Path(folder), min_share
        self._planner = Planner(agreement.algorithm, setting, setting.weights, config.public_seed)
        self.rounds, self.status, self.reason = 0, "running", ""
        self._void = 0
        self._counted: dict[int, str] = {}
        self._silos = SiloReports()
        self._round: Round | None = None
        self._vectors = agreement.algorithm.init_server(agreement.flatten(model).clone(), setting)
        self._fixed = pack(model)
        self._told = Told(callbacks, agreement, self._folder)
        self._requests: Requests | None = None
        self._stack = contextlib.ExitStack()
        if self._folder is not None:
            private_folder(self._folder)
            with contextlib.ExitStack() as stack:
                stack.enter_context(locked(self._folder / ".lock", TAKEN.format(self._folder)))
                self._go_on(checkpoints.load(self._folder / "checkpoint"))
                self._requests = Requests(self._folder)
                if self.status == "running":  # else nothing is written any more
                    self._stack = stack.pop_all()

    status: Status

    def close(self) -> None:
        """Let go of the folder; so does the end of the run."""
        self._stack.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def model(self) -> Tensor:
        """The global model (d,)."""
        return self._vectors["model"]

    def write_to(self, model: nn.Module) -> None:
        """Set the model's parameters and buffers to those of the global model."""
        self.agreement.write(self.model, model)
        unpack(self._fixed, model)

    @property
    def max_bytes(self) -> int:
        """The most bytes that a good upload of this round has, as `Message.to_bytes` writes it."""
        assert self._round is not None
        return HEADER_BYTES + num_bytes(self._round.up)

    @property
    def asked(self) -> tuple[int, ...]:
        """The silos that this round is asked of, ascending."""
        return () if self._round is None else self._round.plan.participants

    @property
    def missing(self) -> list[int]:
        """Those of them that have not answered."""
        return [] if self._round is None else self._round.missing

    @property
    def needed(self) -> int:
        """How many of them have to send a good upload, for the round to count."""
        assert self._round is not None
        return self._round.needed(self._min_share)

    def begin(self, asked: Sequence[int] | None = None, *, expected: int | None = None) -> Message | None:
        """What to send to every silo that is asked for this round; None if there is no further one.

        Args:
            asked: whom the platform picked; None to draw them here, as a run in one process does.
            expected: how many of them will be asked, where the platform does not say which.

        Raises:
            UnsupportedError: the algorithm needs every silo, and the platform picked some.
        """
        if self.status != "running":
            return None
        if self.agreement.config.rounds is not None and self.rounds >= self.agreement.config.rounds:
            self._end("done", "")
            return None
        plan = self._plan(asked, expected)
        self._told.asked(self.rounds, self.summary())
        message = self._request(plan)
        tag = message.header["tag"]
        up = self.agreement.up(self._vectors, plan)
        self._round = Round(self.agreement, self.rounds, plan, tag, up, expected or len(plan.participants))
        return message

    def _request(self, plan: RoundPlan) -> Message:
        made = functools.partial(
            request_message, self.agreement, self.rounds, plan, self._vectors, self._fixed, self._counted
        )
        return made(secrets.token_hex(8)) if self._requests is None else self._requests.message(self.rounds, made)

    def _plan(self, asked: Sequence[int] | None, expected: int | None) -> RoundPlan:
        if asked is None:
            plan = self._planner.plan(self._vectors, self.rounds)
            assert plan is not None
            return plan
        plan, num_silos = self._planner.asks(self._vectors, self.rounds), self.agreement.num_silos
        self._check_all(plan, len(asked) if expected is None else expected)
        chosen = tuple(sorted(set(asked)))
        if not chosen or len(chosen) != len(asked) or not all(0 <= silo < num_silos for silo in chosen):
            raise ConfigError(f"the platform asks silos {list(asked)}: ids must be distinct, in 0..{num_silos - 1}.")
        among = _among(plan, chosen, self._planner)
        if expected is None:
            return among
        _check_known(self._planner, expected)
        return replace(among, silo_share=expected / num_silos)

    def _check_all(self, plan: RoundPlan, asked: int) -> None:
        if plan.participation == "all" and asked < self.agreement.num_silos:
            raise UnsupportedError(
                f"algorithm {self.agreement.config.algorithm.name!r} needs every silo in every round, and the platform "
                f"asks {asked} of {self.agreement.num_silos}. Let it ask all of them, or use scaffold."
            )

    def receive(self, silo: int, upload: Message | MessageError) -> str | None:
        """Take what came from a silo; None if it is good, else why it was refused.

        Args:
            silo: from whom it came, as the platform knows it: not what the upload says.
            upload: or the error that reading it gave.
        """
        current = self._round
        if current is None or silo not in current.plan.participants:
            return self._refuse(silo, "it was not asked in this round")
        if silo not in self.missing:
            return self._refuse(silo, "it answered before", keep=True)
        try:
            if isinstance(upload, MessageError):
                raise upload
            if not current.take(silo, upload, self.model.device):
                return None
        except MessageError as error:  # a late one must not shut out the right one, which it overtook
            return self._refuse(silo, str(error), keep=isinstance(error, LateError))
        self._silos.sent(silo, upload.header.get("epsilon"))
        return None

    def _refuse(self, silo: int, why: str, keep: bool = False) -> str:
        """Note it; with ``keep`` what the silo sent before stays, or is still awaited."""
        if self._round is not None and silo in self._round.plan.participants and not keep:
            self._round.refused[silo] = why
        self._silos.refused(self.rounds + 1, silo, why)
        LOG.warning("round %d: an upload of silo %d is refused: %s", self.rounds + 1, silo, why)
        return why

    def end(self) -> bool:
        """No more is awaited: take the step. Returns whether the round counted.

        Raises:
            TrainingError: the model is not finite, or rounds were void too often in a row.
        """
        current = self._round
        assert current is not None, "begin a round first"
        for silo in self.missing:
            LOG.warning("round %d: silo %d did not answer", self.rounds + 1, silo)
        plan, good, needed, unheard = current.plan, tuple(sorted(current.uploads)), self.needed, len(self.missing)
        self._round = None
        if len(good) < needed:
            self._is_void(current, needed, unheard)
            return False
        plan, total = _among(plan, good, self._planner), WeightedSum()
        for silo, weight in zip(plan.participants, plan.weights, strict=True):
            total.add({name: value.unsqueeze(0) for name, value in current.uploads[silo].items()}, [weight])
        vectors = self.agreement.algorithm.aggregate(self._vectors, total.total, plan)
        if not all_finite(vectors):
            raise TrainingError(f"the global model is not finite after round {self.rounds + 1}. Use smaller steps.")
        self._vectors, self.rounds, self._void = vectors, self.rounds + 1, 0
        for silo in good:
            self._counted[silo] = current.tag
            self._silos.counted(silo)
        last = self.rounds == self.agreement.config.rounds
        if not last:
            self._save()
        self._told.counted(self.rounds, self.summary())
        if last:
            self._end("done", "")
        return True

    def _is_void(self, current: Round, needed: int, unheard: int) -> None:
        """End the run where no further try can count; ``unheard`` silos did not answer this one, and may the next."""
        good, asked = len(current.uploads), len(current.plan.participants)
        why = f"round {self.rounds + 1}: {good} of {asked} silos sent a good upload, {needed} are needed"
        LOG.warning("%s: it does not count", why)
        if (stopped := current.disallowed or current.spent) and good + unheard < needed:
            silo, reason = next(iter(stopped.items()))
            self._end("refused" if current.disallowed else "budget_exhausted", f"silo {silo}: {reason}")
            return
        self._void += 1
        if self._void >= MOST_VOID:
            raise TrainingError(f"{why}, for the {self._void}th time in a row. {current.why_missing()}")

    def _end(self, status: Status, reason: str) -> None:
        self.status, self.reason = status, reason
        self._save()
        self._told.over(self.summary())
        self.close()

    def pause(self) -> None:
        """The platform ends here, maybe before the run: callbacks are told. A later `begin` goes on."""
        self._told.over(self.summary())

    def summary(self) -> dict[str, Any]:
        """How the run stands, and what silos say of their epsilon; what proves it are their own ledgers."""
        config = self.agreement.config
        return {
            "name": config.name,
            "run": self.agreement.run,
            "status": self.status,
            "reason": self.reason,
            "rounds": self.rounds,
            "num_silos": self.agreement.num_silos,
            "delta": config.privacy.delta,
            "epsilon_is": "the server's view, of each silo by its own account, as it said with the last upload that "
            "was taken from it: uploads that were lost or refused since cost it more; amplified by no draw of silos",
            **self._silos.as_plain(),
        }

    def _save(self) -> None:
        if self._folder is None:
            return
        facts = {
            "run": self.agreement.run,
            "counted": {str(silo): tag for silo, tag in self._counted.items()},
            **self._silos.facts(),
            "status": self.status,
            "reason": self.reason,
        }
        fixed = {FIXED: self._fixed} if self._fixed.numel() else {}
        now = Checkpoint(self.rounds, {**self._vectors, **fixed}, {}, facts)
        checkpoints.save(self._folder / "checkpoint", now)
        self._write_summary()

    def _write_summary(self) -> None:
        """For people: nothing goes by it, and a server that goes on writes it anew. So no round waits for the disk."""
        if self._folder is not None:
            path, over = self._folder / "summary.json", self.status != "running"
            write_atomic(path, to_json(self.summary()), outlasts_power=over)

    def _go_on(self, found: Checkpoint | None) -> None:
        if found is None:
            self._save()  # so that a server which is restarted in its first round is known to be the same
            return
        if found.facts.get("run") != self.agreement.run:
            raise ConfigError(
                f"{self._folder} is the folder of another agreement's server ({found.facts.get('run')}, not "
                f"{self.agreement.run}). Use another one, or go back to its settings and its model."
            )
        try:
            self.rounds, self.status, self.reason = found.rounds, found.facts["status"], found.facts["reason"]
            self._counted = {int(silo): tag for silo, tag in found.facts["counted"].items()}
            self._silos = SiloReports.of(found.facts)
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise DataError(
                f"{self._folder}: the checkpoint cannot be read: {error}. Restore it from a copy."
            ) from error
        self._fixed = found.server.pop(FIXED, self._fixed)  # whatever the process that goes on has built
        self._vectors = found.server
        self._write_summary()


def _among(plan: RoundPlan, silos: tuple[int, ...], planner: Planner) -> RoundPlan:
    """The plan with these participants, and their weights among them."""
    weights, share = planner.shares_of(silos)
    return replace(plan, participants=silos, weights=weights, silo_share=share)


def _check_known(planner: Planner, expected: int) -> None:
    """Raise UnsupportedError unless it is known what all silos that a platform will ask weigh together."""
    if not planner.equal_weights and expected < planner.setting.num_silos:
        raise UnsupportedError(
            "silo_weights with a platform that asks some of the silos, one after another: what those who will be "
            "asked weigh together is not known. Leave silo_weights out, or have all silos take part."
        )
