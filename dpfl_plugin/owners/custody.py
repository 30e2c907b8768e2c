"""`dpfl run` within the limits of who owns the records of a process: of a silo rank, or of all silos in one process.

A rank that is started with DPFL_LIMITS (see `dpfl_plugin.owners.limits`) keeps them, whatever rank 0 asks for: its
plan is reserved in the lifetime ledger before the first round, each release takes a slot of the plan, and is in that
ledger, on disk, before anything of it leaves the rank. Noise is fresh, so each computation is a release, by whatever
name it is asked for. Without limits nothing is bounded here.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from dpfl_plugin.config.incompatible import check_compatible
from dpfl_plugin.config.named_code import named_code
from dpfl_plugin.config.schema import Config
from dpfl_plugin.errors import ConfigError, LimitError
from dpfl_plugin.federation.runtime import ChargeSink
from dpfl_plugin.owners.grant import Grant
from dpfl_plugin.owners.lifetime import opened, order_secret_of, secret_of
from dpfl_plugin.owners.limits import Limits, find_limits, own_folder
from dpfl_plugin.owners.named_code import is_own
from dpfl_plugin.owners.record_description import Description
from dpfl_plugin.privacy.events import Charge
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.runs.agreed_plan import agreed_plan
from dpfl_plugin.runs.build import Parts
from dpfl_plugin.runs.forecast import Forecast
from dpfl_plugin.runs.privacy_rules import privacy_rules
from dpfl_plugin.runs.record_marks import MarkKey

NOT_AGREED: Final[dict[str, Any]] = {"out": True, "description": True, "checkpoint": True, "runtime": True}


class Custody:
    """The limits of this process, and what they leave."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits, self._stack = limits, contextlib.ExitStack()
        self._ledger, self._grant = Ledger(), None
        self._of_machine = False

    _grant: Grant | None

    @classmethod
    def here(cls) -> Custody:
        """With what is set on this machine.

        Raises:
            ConfigError: see `find_limits`.
        """
        custody = cls(find_limits())
        custody._of_machine = True
        return custody

    def check(self, config: Config) -> None:
        """Check what a run is to do, before records are read.

        Raises:
            LimitError: it is more than the owner allows. ConfigError: it does not go together with limits.
        """
        if self.limits is not None:
            check_compatible(config, "limits")
            self.limits.check(config)
            self.limits.check_noise(seeded=not config.fresh)

    def allow(self, extra: Any, what: str) -> None:
        """See `Limits.allow`."""
        if self.limits is not None:
            self.limits.allow(extra, what)

    def check_gradients(self, asked: bool) -> None:
        """Check that a server is to have no gradient without noise, which no word of an owner lets be sent.

        Raises:
            LimitError: it is.
        """
        if asked and self.limits is not None:
            self.limits.refuse(
                "evaluation.dissimilarity: every silo's gradient would be sent, without noise",
                "have it measured in one process, where nothing is sent",
            )

    def check_folder(self, config: Config, base: Path) -> None:
        """Check that nobody else has written the code that is found in the folder of a configuration.

        Raises:
            LimitError: others may have, and the configuration names code.
        """
        if self.limits is not None and named_code(config) and not is_own(base):
            self.limits.refuse(
                "the configuration names code (module:), which would be looked for in a folder that others may write "
                "to, the configuration's",
                f"install the code on this machine; or have {base} belong to this user, with nobody else writing there",
            )

    def keep_description(self, config: Config, base: Path) -> None:
        """Records are about to be read, and counted for others: from here on only those of this description may be.

        Raises:
            LimitError: see `Description.keep`.
        """
        if self.limits is not None:
            Description.of(config, base).keep(self.limits)

    def key_at(self, path: Path) -> MarkKey:
        """The key of all silos, of a file; with limits one that follows from the owner's secret, and no file is read or
        written where a server says.

        Raises:
            DataError: see `MarkKey.at`.
        """
        if self.limits is None:
            return MarkKey.at(path)
        own_folder(self.limits.folder, self.limits.source)
        value = hmac.digest(secret_of(self.limits), b"key " + os.fsencode(path), "sha256")
        return MarkKey(path, value, kept=True)

    def mark_key(self, silos_key: MarkKey) -> MarkKey:
        """By which records are marked for a server: with limits one that follows from the owner's secret, too.

        The silos' key is in a file that the server names, and other owners have it.
        """
        if self.limits is None:
            return silos_key
        own_folder(self.limits.folder, self.limits.source)
        return replace(silos_key, value=hmac.digest(secret_of(self.limits), b"marks" + silos_key.value, "sha256"))

    def order_secret(self) -> bytes | None:
        """By which the records of an owner are ordered (`dpfl_plugin.data.record_order`); None without limits."""
        if self.limits is None:
            return None
        own_folder(self.limits.folder, self.limits.source)
        return order_secret_of(self.limits)

    def begin(self, config: Config, parts: Parts, silos: Iterable[int]) -> str | None:
        """Reserve the plan of the silos of this process; the line with which their log begins, None without limits.

        Raises:
            LimitError: not enough of the lifetime's budget is left.
            ConfigError, LedgerError: see `opened`.
        """
        self.close()
        mine = sorted(silos)
        if self.limits is None or not mine:
            return None
        forecast = Forecast(config, parts.algorithm, parts.accountant, parts.setting, parts.num_records, privacy_rules)
        sizes = {parts.num_records[silo] for silo in mine}
        of_size = {size: agreed_plan(forecast, parts.rules, size) for size in sizes}
        plans = {silo: of_size[parts.num_records[silo]] for silo in mine}
        agreement = _agreement(config, parts.noise_multiplier)
        relation = parts.rules.release(1.0).neighbouring
        with contextlib.ExitStack() as stack:
            lifetime = stack.enter_context(opened(self.limits))
            # Not by their marks, whose key another folder has not.
            digests = [parts.holding.digests[silo] for silo in mine]
            records = hashlib.sha256(json.dumps(digests).encode()).hexdigest()
            slots = lifetime.begin(agreement, config.name, plans, records, relation)
            self._ledger = Ledger()
            self._grant = Grant({**dict.fromkeys(mine, ()), **slots}, self._ledger, lifetime, agreement)
            self._stack = stack.pop_all()
        dearest = max(plans.values(), key=lambda plan: plan.epsilon)
        return f"silos {_named(mine)}: {lifetime.line(dearest.epsilon, dearest.delta, self.limits.folder)}"

    def charge(self, charges: Sequence[Charge]) -> None:
        """Take the slots of what silos are about to send; it is in the owner's ledger, on disk, when this returns.

        Raises:
            LimitError: the plan has no slots for it, or none is reserved; or the owner has changed the limits.
                LedgerError: it could not be written. Nothing of it may leave.
        """
        self._check_unchanged()
        if self.limits is None:
            return
        if self._grant is None:
            self.limits.refuse("no plan is reserved in the owner's lifetime ledger", "start the run over")
        if self._grant.named_elsewhere(charges):
            self.limits.refuse(
                "the name of the noise is that of another agreement, and names of fresh noise are always new",
                "start the run over",
            )
        charges = self._grant.apart(charges)
        lack = self._grant.lacking(charges)
        if lack is not None:
            self.limits.refuse(
                str(lack), "give the run another name: that is another agreement, with a plan of its own"
            )
        self._grant.append(charges)
        self._ledger.append(charges)
        self._grant.sync()

    def _check_unchanged(self) -> None:
        """An owner's word counts from the next release on: whoever lowers a limit, or sets one, need not wait.

        Raises:
            LimitError: the limits of this machine are not those that the run began with, or cannot be read.
        """
        if not self._of_machine:
            return
        kept = "Nothing of this round was released."
        try:
            now = find_limits()
        except ConfigError as error:
            why = "the limits on the silo's machine cannot be used; its own log says why"
            raise LimitError(f"{error} {kept}", why) from error
        if now != self.limits:
            source = getattr(now or self.limits, "source", "limits")
            why = "the owner of the data has changed the limits since the run began"
            raise LimitError(f"{source}: {why}. {kept} Resume it: they are asked anew.", why)

    def close(self) -> None:
        """Let go of the owner's folder."""
        self._stack.close()
        self._grant = None


@dataclass(frozen=True, slots=True)
class CheckedCharges:
    """Charges that go to the owner of the records first."""

    custody: Custody
    charges: ChargeSink

    def append(self, charges: Sequence[Charge]) -> None:
        self.custody.charge(charges)
        self.charges.append(charges)

    def sync(self) -> None:
        self.charges.sync()


def _agreement(config: Config, noise_multiplier: float) -> str:
    """What tells a run from others: all that it was asked for. The same on a resume."""
    asked = json.dumps([config.model_dump(mode="json", exclude=NOT_AGREED), noise_multiplier], sort_keys=True)
    return hashlib.sha256(asked.encode()).hexdigest()[:16]


def _named(silos: Sequence[int]) -> str:
    return ", ".join(map(str, silos[:8])) + (f" and {len(silos) - 8} more" if len(silos) > 8 else "")
