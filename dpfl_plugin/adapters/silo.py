"""One silo's process: it trains by the private oracle, charges its ledger, and answers the server.

What it keeps is in its folder, and nobody else's: `ledger.jsonl`, `state.safetensors`, `config.yaml`, `key` (of its
records' order, unless an owner's limits have a secret), and the privacy statement, `privacy.md` and `ledger.json`,
which is never behind the ledger. An answer leaves when its charges are on disk, and it is on disk itself: a silo that
is asked the same again sends the same bits again, which costs nothing.
Whether an upload counted is known with the next download only; till then the silo keeps both states, so that one whose
upload was lost, refused or computed just before a crash goes on as if it had not taken part, but for what it was
charged.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from torch import nn

from dpfl_plugin.adapters.agreement import Agreement
from dpfl_plugin.adapters.beginning import begun, holds, own, parts_of
from dpfl_plugin.adapters.frozen import FILE as FROZEN
from dpfl_plugin.adapters.frozen import Frozen
from dpfl_plugin.adapters.kept import Decided, Hashed, Kept, Made, hashed
from dpfl_plugin.adapters.message import Message
from dpfl_plugin.adapters.owner import begins, place, plan_facts, plan_of, say_once, silo_limits
from dpfl_plugin.adapters.records import silo_for
from dpfl_plugin.adapters.replies import checked, facts, failure, plan_from
from dpfl_plugin.adapters.standing import Standing, further
from dpfl_plugin.adapters.state import STATE, State, load, save
from dpfl_plugin.adapters.stated import stated
from dpfl_plugin.algorithms.base import RoundPlan
from dpfl_plugin.config.load import to_yaml
from dpfl_plugin.config.schema import Config
from dpfl_plugin.data.base import Silo as SiloRecords
from dpfl_plugin.data.record_order import key_of
from dpfl_plugin.errors import DataError, LimitError, MessageError, require
from dpfl_plugin.gradients.base import Loss
from dpfl_plugin.oracle import Draw
from dpfl_plugin.owners import lifetime as lifetimes
from dpfl_plugin.owners.grant import Grant
from dpfl_plugin.owners.lifetime import Lifetime, order_secret_of
from dpfl_plugin.owners.limits import Limits, Surroundings
from dpfl_plugin.privacy.account import PrivacyAccount
from dpfl_plugin.privacy.events import Charge
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.runs.accounting import make_account
from dpfl_plugin.runs.build import Parts
from dpfl_plugin.runs.folder import RunFolder, locked
from dpfl_plugin.runs.record_marks import MarkKey
from dpfl_plugin.runs.statement import void_statement

KEY: Final = "key"
"""In a silo's folder: the secret of its records' order, where no owner has set limits."""
RECORDS: Final = "records.txt"
"""There, too: for the owner, what of the records is not as the limits file says."""


class Silo:
    """Answers what the server sends.

    Args:
        id: from 0 to M - 1, the same whenever and wherever this silo's process is started.
        model: the project's own; a copy of it is used.
        records: see `records.silo_of`.
        folder: this silo's own; made if it is missing. None for a place in the folder of the limits, which is where
            it has to be if there are limits.
        loss: (outputs (n, ...), labels (n,)) -> (n,), one value for each record; None for what the agreement says.
        draw: names the seeded bits of a round, for simulations without limits. None for noise from the operating
            system, which is new in every answer that is computed.
        limits: what the owner of the records lets be released, as it is now. None for what the owner has set on this
            machine (see `find_limits`), looked up anew for each round; without any only a simulation begins.
        surroundings: whether the records are somebody's own ("deployment"), or of whoever runs the whole
            ("simulation").
        kept: where this process keeps what is dear to make (see `Kept`), for platforms that open a silo for every
            message. None to build them each time.

    Attributes:
        begins: a line for the log: agreed epsilon, folder, and what is left of the lifetime budget.
        limits: those that the owner had set when it was opened; None without any.

    Raises:
        LimitError: the agreement is more than the owner allows, or nobody has set limits.
        ConfigError, DataError: something is wrong with the configuration, the model or the records; or the folder is
            that of another silo, another agreement or other records.
        BusyError: another process has the folder.
        LedgerError: the ledger is damaged, or lacks what the state knows of.
    """

    def __init__(
        self,
        agreement: Agreement,
        id: int,
        model: nn.Module,
        records: Any,
        folder: Path | str | None = None,
        *,
        loss: Loss | None = None,
        draw: Callable[[int], Draw] | None = None,
        limits: Limits | None = None,
        surroundings: Surroundings = "deployment",
        kept: Kept | None = None,
    ) -> None:
        require(0 <= id < agreement.num_silos, "silo id", id, f"be in 0..{agreement.num_silos - 1}")
        agreement.check(model)
        self.id, self._agreement, self._where, self._draw = id, agreement, surroundings, draw or _fresh_draw
        self._passed, self._turn = None if kept is None else kept.passed, threading.Lock()
        self._limits_now = functools.partial(_limits_now, limits, surroundings, id)
        limits = self.limits = self._limits_now()
        if limits is not None:
            limits.check_settings(agreement.config, agreement.setting.num_records)
            limits.check_noise(seeded=draw is not None)
        self._files, self._stack = RunFolder(place(folder, limits, agreement, id)), contextlib.ExitStack()
        with contextlib.ExitStack() as stack:
            lifetime = None if limits is None else stack.enter_context(lifetimes.opened(limits))
            self._files.make()
            taken = f"{self._files.path}: another process ({{holder}}) is this silo. End it first."
            stack.enter_context(locked(self._files.path / ".lock", taken))
            self._open(model, records, loss, lifetime, stack, None if kept is None else kept.take(self._files.path))
            if kept is not None:
                stack.callback(self._keep, kept)
            self._stack = stack.pop_all()

    def _open(
        self,
        model: nn.Module,
        records: Any,
        loss: Loss | None,
        lifetime: Lifetime | None,
        stack: contextlib.ExitStack,
        kept: Made | None,
    ) -> None:
        agreement = self._agreement
        self._frozen = Frozen(self._files.path / FROZEN, model)
        ledger = self._recognise(records, kept)
        known, sha256 = None if ledger is None else stack.enter_context(ledger).facts, self._hashed.digest
        self._config, self._loss = own(agreement, seeded=self._draw is not _fresh_draw, limits=self.limits), loss
        parts, config_text = self._prepare(kept, known)
        key = f"{agreement.run}-silo-{self.id}"
        plan = plan_of(self._config, agreement, parts, ledger, self.id, needed=lifetime is not None)
        planned = None if plan is None else list(plan.planned)
        if lifetime is not None:
            assert plan is not None
            name, relation = f"{self._config.name}, silo {self.id}", parts.rules.release(1.0).neighbouring
            planned = lifetime.begin(key, name, {self.id: plan}, sha256, relation)[self.id]
        begins_with = {
            "run": agreement.run,
            "silo": self.id,
            "name": self._config.name,
            "noise_multiplier": parts.noise_multiplier,
            "num_records": list(parts.num_records),
            "records_sha256": sha256,
            "cut": self._hashed.records.cut,
            **plan_facts(plan),
        }
        if not holds(self._files.config, config_text):
            self._files.write(self._files.config, config_text)
        if ledger is None:
            ledger = stack.enter_context(Ledger(self._files.ledger, begins_with))
        self._ledger = ledger
        if lifetime is not None and any(ledger.known(one) < one.count for one in lifetime.of(key)):
            void_statement(self._files)  # it is of before the folder was set back; the ledger gets what was released
        self._grant = None if planned is None else Grant({self.id: planned}, ledger, lifetime, key)
        self.begins = begins(self.id, plan, self._files.path, lifetime)
        say_once(logging.INFO, self.begins)
        # Not how many records it has: a platform may let others read its log, and no owner has allowed that.
        say_once(logging.INFO, f"silo {self.id}: noise multiplier {parts.noise_multiplier:.6g}")
        self._kept = load(self._files.path / STATE, ledger, self._host.states)
        self._account = make_account(
            self._config,
            rules=parts.rules,
            accountant=parts.accountant,
            setting=parts.setting,
            num_records=parts.num_records,
            ledger=ledger,
        )
        budget = self._config.privacy.epsilon
        says = functools.partial(stated, agreement, self.id, self._config, parts, ledger.notes, self._where)
        self._standing = stack.enter_context(Standing(self._files, ledger, self._account, budget, says))

    def _recognise(self, records: Any, kept: Made | None) -> Ledger | None:
        """Have the records, and the ledger of this silo, these records and this agreement; None if it begins."""
        agreement = self._agreement
        limits, notes = self.limits, list[str]()
        mine = silo_for(records, lambda: self._frozen.seen, limits=limits, notes=notes)
        if limits is None:  # else its owner's file says of how many settings may ask, whatever there are
            require(
                (agreement.setting.num_records or 0) <= len(mine.train_y),
                "num_records",
                agreement.setting.num_records,
                f"be that of the smallest silo; silo {self.id} has {len(mine.train_y)}",
            )
        key = self._order_key()
        self._hashed = kept.hashed if kept is not None and kept.hashed.same(mine) else hashed(mine, key)
        ledger = begun(self._files, self.id, agreement.run, self._hashed.digest)
        if ledger is None and hasattr(records, "__len__"):
            _check_again(self._hashed, silo_for(records, lambda: self._frozen.seen, limits=limits), self.id)
        if ledger is None and limits is not None:
            self._tell_owner(notes, limits)
        return ledger

    def _tell_owner(self, notes: Sequence[str], limits: Limits) -> None:
        """What of the records is not as the owner's file says; in a file, as others may read a platform's log."""
        path = self._files.path / RECORDS
        path.unlink(missing_ok=True)
        if notes:
            self._files.write(path, "".join(f"{note}.\n" for note in notes))
            what = f"not all records are as {limits.source} says (min_records, num_classes, ranges)"
            say_once(logging.WARNING, f"silo {self.id}: {what}; those add nothing to what is released. See {path}")

    def _order_key(self) -> bytes | None:
        """The key of the records' order, which is this silo's secret; None in a seeded simulation, which takes records
        in the order in which they are given, as a run in one process has them."""
        if self._draw is not _fresh_draw:
            return None
        if self.limits is not None:
            return order_secret_of(self.limits)
        secret = MarkKey.at(self._files.path / KEY)
        secret.keep()
        return key_of(secret.value, self.id)

    def _prepare(self, kept: Made | None, known: Mapping[str, Any] | None) -> tuple[Parts, str]:
        """(the parts of this silo, its configuration as text), made anew or kept; ``known``: its ledger's facts."""
        self._decided = self._decided_with(self._frozen)
        if kept is not None and kept.serves(self._hashed, self._decided, known):
            parts, config_text = kept.again(), kept.config_text
        else:
            began_with = None if known is None else known["noise_multiplier"]
            parts, config_text = self._parts(began_with), to_yaml(self._config)
        self._made, self._sound = Made(self._hashed, self._decided, parts, config_text), True
        self._host, self._rules, self._device = parts.host, parts.rules, parts.model.device
        return parts, config_text

    def _decided_with(self, frozen: Frozen) -> Decided:
        return Decided.by(self._config, self._agreement.structure, frozen.digest, frozen.described, self._loss)

    def serves(self, model: nn.Module, records: Any) -> bool:
        """Whether it would be the same opened anew, and without limits: then it may answer the next message as it is.

        Raises:
            ConfigError, DataError: as if it was opened with them.
        """
        if self.limits is not None or self._limits_now() is not None:
            return False
        self._agreement.check(model)
        frozen = Frozen(self._files.path / FROZEN, model)
        others = silo_for(records, lambda: frozen.seen)
        same = self._hashed.same(others) and self._decided_with(frozen).same(self._decided)
        return self._sound and same

    @property
    def num_bytes(self) -> int:
        """Of its records, in memory."""
        return self._made.num_bytes

    def _parts(self, noise_multiplier: float | None) -> Parts:
        what = self._decided, self._hashed, self._frozen.model(), self._agreement.num_silos, self.id
        return parts_of(*what, noise_multiplier, self._passed, self.limits)

    def _keep(self, kept: Kept) -> None:
        if self._sound:
            kept.put(self._files.path, self._made)

    def close(self) -> None:
        """Let go of the folder."""
        self._stack.close()

    def __enter__(self) -> Silo:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def epsilon(self) -> float | None:
        """What this silo's releases come to towards the server; None where nothing is guaranteed."""
        return self._account.server_so_far()

    @property
    def noise_multiplier(self) -> float:
        return self._rules.noise_multiplier

    def answer(self, message: Message) -> Message:
        """Take part in the round that the server asks for: the upload, or why there is none.

        When it returns, the charges are on disk, and so is the upload. One message at a time: another thread waits.

        Raises:
            MessageError: the message is damaged, of another agreement, or contradicts what this silo knows.
            LedgerError, OSError: something could not be written; nothing left.
        """
        with self._turn:
            return self._answered(message)

    def _answered(self, message: Message) -> Message:
        round, tag, counted = checked(self._agreement, self.id, message)
        asked = message.digest()
        if asked == self._kept.asked and self._kept.upload is not None:
            return Message(dict(self._kept.header or {}), self._kept.upload)  # the same bits: charged once
        plan = plan_from(self.id, message.header)
        settled = self._kept.settled(round, counted, self.id, self._files.ledger)
        self._take_frozen(message)
        down = {name: message.vectors[name].to(self._device) for name in self._agreement.down}
        draw = self._draw(round)
        if (why := spent(self.id, self._config, self._account, self._grant, round, plan, draw.noise_id)) is not None:
            self.write_statement()
            return self._answer(round, tag, "spent", reason=why)
        self._host.states = settled.states
        self._account.begin_round(round, plan)
        self._sound = False  # till it is over: what an error leaves is not kept
        ahead = functools.partial(further, self._config, self._account, self._ledger, round, plan)
        try:
            self._standing.begin(self._account.charges(round, plan, draw.noise_id), ahead)
            up, charges = self._host.run([self.id], down, plan, draw)
            self._standing.cover(charges, ahead)
            self._charge(charges)  # before anything of the upload leaves, or is kept
            staged = self._host.staged()
        finally:
            self._host.discard()
        upload = {name: value[0].cpu().contiguous().clone() for name, value in up.items()}
        answer = self._answer(round, tag, "upload", epsilon=self.epsilon, delta=self._config.privacy.delta)
        kept = State(settled.states, settled.counted, round, tag, asked, answer.header, staged, upload)
        save(self._files, kept, self._ledger)
        self._kept = kept
        if round + 1 == self._config.rounds:
            self.write_statement()
        self._sound = True
        return Message(answer.header, upload)

    def _charge(self, charges: list[Charge]) -> None:
        """To the owner's ledger first: what this silo's own holds, that one has to know of."""
        _check_unchanged(self.limits, self._limits_now())
        if self._grant is not None:
            self._grant.append(charges)
            self._grant.sync()
        self._account.append(charges)
        self._account.sync()

    def _take_frozen(self, message: Message) -> None:
        """Have the server's frozen layers and buffers, before anything is computed from records."""
        try:
            if self._frozen.take(message):
                self._decided = self._decided_with(self._frozen)
                parts = self._parts(self._made.parts.noise_multiplier)
                self._made = replace(self._made, decided=self._decided, parts=parts)
                self._host = parts.host
            self._frozen.keep()
        except MessageError as error:
            raise MessageError(f"silo {self.id}, a message of the server: {error}") from error

    def write_frozen_to(self, model: nn.Module) -> None:
        """Set the server's frozen layers and buffers in a model that is built alike, to evaluate it."""
        self._frozen.write_to(model)

    def failure(self, message: Message) -> Message:
        """What to answer where `answer` raised: that there is nothing. Why stays here, as it may tell of records."""
        return failure(self._agreement, self.id, message)

    def _answer(self, round: int, tag: str, status: str, **more: Any) -> Message:
        return Message({**facts(self._agreement, self.id, round, tag), "status": status, **more})

    def write_statement(self) -> None:
        """Write `privacy.md` and `ledger.json`, which `answer` never lets fall behind its ledger (see `standing`)."""
        self._standing.renew()

    @property
    def standing(self) -> Standing:
        """Its statement on disk, and how far that counts ahead."""
        return self._standing


def spent(
    id: int,
    config: Config,
    account: PrivacyAccount,
    grant: Grant | None,
    round: int,
    plan: RoundPlan,
    noise_id: str,
) -> str | None:
    """Why a silo takes no part in a round; None if it does. Decided by what it released, never by its records."""
    if config.rounds is not None and round >= config.rounds:
        return f"round {round + 1} is more than the {config.rounds} that were agreed on"
    eligible = account.eligible()
    if eligible is not None and id not in eligible:
        return f"it took part in max_participations={config.max_participations} rounds"
    asked, tally = account.charges(round, plan, noise_id), account.ledger.tally
    before = {(c.release, c.share, c.count) for c in map(tally.charge, tally.of_round(round))}
    if before and before != {(c.release, c.share, c.count) for c in asked}:
        return f"round {round + 1} was answered before, with another plan"
    if grant is None:
        return None if account.affords(round, plan) else account.why_not()
    lack = grant.lacking(asked)
    if lack is None:
        return None
    more = account.why_not() if lack.planned and config.privacy.epsilon is not None else ""
    return f"{lack}: {more}" if more else str(lack)


def _check_again(known: Hashed, again: SiloRecords, id: int) -> None:
    """Raise DataError where the same data give other records when they are read once more."""
    if not known.same(again):
        raise DataError(
            f"silo {id}: its data give other records when they are read again: loaders must not change records at "
            "random (augmentation). Leave that out; nothing was released."
        )


def _limits_now(given: Limits | None, surroundings: Surroundings, id: int) -> Limits | None:
    """What is given, else what the owner has set on this machine now; in a simulation every silo is an owner."""
    return given or silo_limits(surroundings, own=id if surroundings == "simulation" else None)


def _check_unchanged(began: Limits | None, now: Limits | None) -> None:
    """An owner's word counts from the next release on, also for a silo that stays open.

    Raises:
        LimitError: the limits are not those that the silo was opened with.
    """
    if now != began:
        why = "the owner of the data has changed the limits since the silo was opened"
        source = getattr(now or began, "source", "limits")
        raise LimitError(f"{source}: {why}. Nothing of this round was released. Open the silo again.", why)


def _fresh_draw(round: int) -> Draw:
    """Of one answer; the bits come from the operating system."""
    return Draw.fresh(round, "silo")
