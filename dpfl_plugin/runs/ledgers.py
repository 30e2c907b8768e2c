"""A run's own ledger, and the one that it may share with other runs on the same data (`privacy.ledger`)."""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from dpfl_plugin.config.schema import Config
from dpfl_plugin.core.rounding import digits, digits_down
from dpfl_plugin.data.base import Survey
from dpfl_plugin.errors import BudgetError, BusyError, ConfigError, DataError, LedgerBusyError, LedgerError
from dpfl_plugin.privacy.accountants import LEAST_NOISE, why_infinite
from dpfl_plugin.privacy.composition import Planned
from dpfl_plugin.privacy.events import Charge, SampledGaussian
from dpfl_plugin.privacy.extra_releases import NOT_RUN
from dpfl_plugin.privacy.filters import RegisteredPlan, adaptive_epsilon, affords, chosen_filter, epsilon_left
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.ledger_file import is_begun
from dpfl_plugin.privacy.shared_ledger import (
    Reuse,
    check_protection,
    first_line,
    limit_of,
    nothing_released,
    plans_in,
    reuses_to_plain,
    runs_in,
    slots_to_plain,
    unused,
    without_reused,
)
from dpfl_plugin.runs.checkpoint import Checkpoint, load_facts
from dpfl_plugin.runs.folder import RunFolder, locked, locks_of_one_machine

BESIDE_ROUNDS = {
    "score": "validation scores",
    "statistics": "statistics of columns",
    "personalise": "silos' own models",
}


@dataclass(frozen=True, slots=True)
class Ledgers:
    """What a session of the run ``name`` charges to."""

    own: Ledger
    shared: Ledger | None
    name: str

    def end(self) -> None:
        """Have later runs know that this one has ended for good, so that they may use slots that it left."""
        if self.shared is not None:
            end_run(self.shared, self.name)


@dataclass(frozen=True, slots=True)
class Wait:
    """How to wait for a shared ledger that another run has.

    Attributes:
        seconds: at most; 0 does not wait.
        say: gets a line once the waiting takes some seconds, and every minute.
        stop: asked meanwhile; once it is true the waiting ends as if the time were over.
    """

    seconds: float = 0.0
    say: Callable[[str], None] = lambda text: None
    stop: Callable[[], bool] = lambda: False


NO_WAIT = Wait()
NOT_COUNTED: Final = (
    "{why}: this run is not counted in privacy.ledger ({ledger}), and its epsilon is no part of the total"
)
FIRST_SECONDS, SAY_SECONDS = 5.0, 60.0  # waited before the first line, and between lines
LOOK_SECONDS = 0.2


def ledger_of(config: Config, base: Path, path: Path | None = None) -> Path | None:
    """The ledger that a run shares: ``path``, or the one that its configuration names, which is beside ``base``.

    A ledger that a configuration names counts what protects somebody: no seeded run, and none without noise.
    """
    if path is not None or config.privacy.ledger is None or why_not_counted(config):
        return path
    return base / config.privacy.ledger


def why_not_counted(config: Config) -> str:
    """Why a run is no part of the ledger that its configuration names; "" where it is one."""
    if config.privacy.ledger is None:
        return ""
    why = "" if config.fresh else "seeded: the noise can be computed from the seed and protects nobody"
    why = "no noise: nothing is guaranteed" if config.privacy.noise_multiplier == 0 else why
    return why and NOT_COUNTED.format(why=why, ledger=config.privacy.ledger)


@contextlib.contextmanager
def locked_shared(path: Path | None, wait: Wait = NO_WAIT) -> Iterator[Ledger | None]:
    """Keep other runs from a shared ledger, and read what it holds; None stays None.

    Raises:
        LedgerBusyError: another run has it, and had it for as long as was waited.
        ConfigError: it cannot be written to, locks do not work there, or it is one run's own ledger.
        LedgerError: it is damaged; names the line, and what is still proven. Or it is not a ledger.
    """
    if path is None:
        yield None
        return
    if not path.parent.is_dir() or (path.exists() and not path.is_file()):
        raise ConfigError(f"ledger {path}: must be a file in a folder that exists.")
    real = path.resolve()  # by whatever name it is given
    with contextlib.ExitStack() as stack:
        _enter(stack, path, real.with_name(f"{real.name}.lock"), wait)
        yield read_shared(path) if is_begun(path) else Ledger()


def _enter(stack: contextlib.ExitStack, path: Path, lock: Path, wait: Wait) -> None:
    """Take the lock of a shared ledger, once the run that has it lets go."""
    began, say_at = time.monotonic(), FIRST_SECONDS
    _check_machine(path, lock)
    while True:
        try:
            stack.enter_context(locked(lock, f"ledger {path}: another run ({{holder}}) is writing to it."))
            return
        except BusyError as error:
            waited = time.monotonic() - began
            if waited >= wait.seconds or wait.stop():
                how = f" Waited {waited:.0f} s for it." if wait.seconds else ""
                more = "Wait for that run (longer: dpfl run --ledger-wait SECONDS), or end it."
                raise LedgerBusyError(f"{error}{how} {more}") from error
            if waited >= say_at:
                say_at = waited + SAY_SECONDS
                most = "until it ends" if math.isinf(wait.seconds) else f"up to {wait.seconds:g} s (--ledger-wait)"
                wait.say(f"{error} Waiting for it {most}; {waited:.0f} s so far.")
        time.sleep(min(LOOK_SECONDS, wait.seconds))


def _check_machine(path: Path, lock: Path) -> None:
    """Raise ConfigError where another machine had the ledger last, and locks here do not keep that from it."""
    last = lock.read_text(errors="replace") if lock.is_file() else ""
    if last and not last.endswith(f" on {os.uname().nodename}") and (option := locks_of_one_machine(lock)):
        raise ConfigError(
            f"ledger {path}: was written to by {last[:100]}, and file locks there hold on one machine alone "
            f"(mount option {option}): runs on both could write to it at once, and charges be lost. Move it to a "
            "file system whose locks all machines see (Lustre: the mount option flock). If this machine alone "
            f"goes on with it, remove {lock}."
        )


def read_shared(path: Path) -> Ledger:
    """A shared ledger, for reading.

    Raises:
        ConfigError: it is one run's own ledger.
        LedgerError: it is damaged.
    """
    ledger = Ledger.open(path, append=False)
    if isinstance(ledger.facts.get("shared"), Mapping | None):  # of one run, which may share another
        raise ConfigError(
            f"{path} is the ledger of one run: dpfl account and dpfl.account take its folder. For several runs give "
            "--ledger a file of its own, or a new name."
        )
    return ledger


def check_shared(folder: RunFolder, path: Path | None, shared: Ledger | None) -> None:
    """Check that a run goes on, or is shown, with the shared ledger that it began with.

    Raises:
        ConfigError: it began with one and none is given, or it began without.
        LedgerError: it began with another one, or the end of this one is missing, as far as its checkpoint knows.
    """
    if not is_begun(folder.ledger):
        return
    began_with = Ledger.open(folder.ledger, append=False).facts.get("shared")
    if began_with is None and shared is not None:
        raise ConfigError(
            f"{folder.path}: this run began without ledger, so what it released is not in that ledger. Leave "
            "ledger out, or start over with another out."
        )
    if began_with is not None and shared is None:
        raise ConfigError(
            f"{folder.path}: this run shares its budget with others by the ledger {began_with['file']}, which has to "
            f"know what this one releases. Give it by ledger (privacy.ledger, --ledger): .../{began_with['file']}."
        )
    if began_with is None or shared is None:
        return
    last = (load_facts(folder.checkpoint) or {}).get("shared_head", began_with["head"])
    if not (shared.holds(began_with["head"]) and shared.holds(last)):
        raise LedgerError(
            f"ledger {path}: is not the ledger {began_with['file']} that this run began with, or "
            "its end is missing, and with it what other runs released. Restore the file from a copy."
        )


@contextlib.contextmanager
def open_ledgers(
    folder: RunFolder,
    facts: Mapping[str, Any],
    found: Checkpoint | None,
    name: str,
    entry: LedgerEntry | None,
) -> Iterator[Ledgers]:
    """Both ledgers, holding the same charges of this run.

    Args:
        facts: what the own ledger is to say of the run.
        found: the checkpoint to go on from.
        name: by which ledgers know the run. entry: the run in a shared ledger.

    Raises:
        LedgerError: a ledger is damaged, or lacks charges that the checkpoint knows of.
    """
    with contextlib.ExitStack() as stack:
        shared = None if entry is None else stack.enter_context(open_shared(entry.path, entry.totals))
        own = stack.enter_context(_open_own(folder, facts, found, shared))
        if entry is not None and shared is not None:
            _add_missing(own, shared, name)
            shared.begin_run({**entry.line(shared), "started": now()})
            shared.append(own)
            shared.sync()
        own.sync()
        yield Ledgers(own, shared, name)


def now() -> str:
    """In UTC, as ledgers have it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


@contextlib.contextmanager
def open_shared(path: Path, first_line: Callable[[], Mapping[str, Any]] = dict) -> Iterator[Ledger]:
    """A shared ledger to append to, which the caller has locked; a new one where there is none.

    Args:
        first_line: what a new one is to say of totals.
    """
    if is_begun(path):
        ledger = Ledger.open(path)
    else:  # a link stays one: by the name that it leads to it is locked, and found by others
        ledger = Ledger(path.resolve(), {"shared": uuid.uuid4().hex, **first_line()})
    with ledger:
        yield ledger


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """A run, a tuning, a description or an oracle in a shared ledger, which the caller has locked.

    Attributes:
        path: the ledger. name: by which it knows the run. facts: what its lines say of the run beside all that follows.
        config: has the ledger's limit, and delta. survey: of the run's records.
        slots: what each silo may release. reuses: which unused slots of earlier runs serve some of them.
    """

    path: Path
    name: str
    facts: Mapping[str, Any]
    config: Config
    survey: Survey
    slots: Mapping[int, Sequence[Planned]] = field(default_factory=dict)
    reuses: Sequence[Reuse] = ()

    @property
    def plan(self) -> RegisteredPlan:
        """What is registered: without what earlier runs' slots serve."""
        return RegisteredPlan(self.survey.data_sha256, without_reused(self.slots, self.reuses))

    def check_noise(self, ledger: Ledger, release: SampledGaussian) -> None:
        """Check that one epsilon can bound such releases together with all that the ledger holds.

        Raises:
            ConfigError, UnsupportedError: it cannot.
        """
        noise_multiplier = release.noise_multiplier
        if noise_multiplier < LEAST_NOISE:
            no_noise = "no noise covers what this run would release"
            raise ConfigError(
                f"ledger {self.path}: {no_noise if noise_multiplier == 0 else why_infinite(noise_multiplier)}, so that "
                "after it nothing that the ledger holds would have an epsilon. Leave ledger out."
            )
        try:
            check_protection(ledger, self.name, self.survey.data_sha256, release)
        except ConfigError as error:
            raise type(error)(f"ledger {self.path}: {error}") from error

    def afforded(self, ledger: Ledger, slots: Mapping[int, Sequence[Planned]], *, reuse: bool = True) -> LedgerEntry:
        """With these slots, which the ledger affords.

        Args:
            reuse: have unused slots of earlier runs serve what they can.

        Raises:
            ConfigError, BudgetError: as `check_limit`.
        """
        reuses = unused(ledger, self.survey.data_sha256, slots) if reuse else ()
        entry = replace(self, slots=slots, reuses=reuses)
        check_limit(ledger, self.path, self.config, [entry.plan])
        return entry

    def totals(self) -> dict[str, Any]:
        """What the ledger says of totals if this run begins it; nothing of a tuning's, which has one of its own."""
        privacy = self.config.privacy
        return first_line(self.plan, privacy.ledger_epsilon, privacy.delta, privacy.epsilon) if self.slots else {}

    def line(self, ledger: Ledger) -> dict[str, Any]:
        """What the ledger says of the run: all when it is registered, then that it goes on."""
        facts = {"noise": self.name, **self.facts}
        if any(run.name == self.name for run in runs_in(ledger)):
            return facts
        return {
            **facts,
            "data_sha256": self.survey.data_sha256,
            **self.survey.cut_facts,
            "num_silos": len(self.survey.num_records),
            "delta": self.config.privacy.delta,
            **({"early": True} if nothing_released(ledger) else {}),
            **({"slots": slots_to_plain(self.slots)} if self.slots else {}),
            **({"reuses": reuses_to_plain(self.reuses)} if self.reuses else {}),
        }

    @contextlib.contextmanager
    def begin(self) -> Iterator[Ledger]:
        """Register the run, or have it go on; yields the ledger, to charge."""
        with open_shared(self.path, self.totals) as ledger:
            ledger.begin_run({**self.line(ledger), "started": now()})
            ledger.sync()
            yield ledger


def check_limit(ledger: Ledger, path: Path, config: Config, new: Sequence[RegisteredPlan]) -> None:
    """Check that a shared ledger has the limit that runs are to have, and affords their plans.

    Raises:
        ConfigError: the ledger was begun with another limit, or without one.
        BudgetError: it does not afford the plans.
    """
    wanted, filter = config.privacy.ledger_epsilon, limit_of(ledger)
    if ledger.facts and wanted is not None and (filter is None or filter.epsilon != wanted):
        has = "without a limit" if filter is None else f"with the limit {filter.epsilon:g} at delta {filter.delta:g}"
        raise ConfigError(
            f"ledger {path}: privacy.ledger_epsilon={wanted:g}, and this ledger was begun {has}, which cannot "
            "be changed after its first release. Leave privacy.ledger_epsilon out, or use another ledger."
        )
    if not ledger.facts and wanted is not None:  # it will be begun by this run
        filter = chosen_filter(wanted, config.privacy.delta, new[0])
    new = [plan for plan in new if plan.silos]
    if filter is None or not new:
        return
    plans = plans_in(ledger)
    if not affords(filter, [*plans, *new]):
        together = digits(adaptive_epsilon(filter, [*plans, *new]), 4)
        raise BudgetError(
            f"ledger {path}: with this plan all its runs would come to epsilon {together} at delta "
            f"{digits(filter.delta, 6)}, and the ledger's limit is {filter.epsilon:g}: a run of about epsilon "
            f"{digits_down(epsilon_left(filter, plans), 3)} would still fit. Ask for more noise, or fewer rounds "
            "or local steps."
        )


def end_run(ledger: Ledger, name: str) -> None:
    """Have later runs know that this one has ended for good, so that they may use slots that it left."""
    ledger.begin_run({"noise": name, "started": now(), "ended": True})
    ledger.sync()


def _open_own(folder: RunFolder, facts: Mapping[str, Any], found: Checkpoint | None, shared: Ledger | None) -> Ledger:
    known = 0 if found is None else int(found.facts["charges"])

    def check_end(held: int) -> None:
        _check_end(folder.ledger, held, known, "the checkpoint")

    if is_begun(folder.ledger):
        return Ledger.open(folder.ledger, check=lambda ledger: check_end(len(ledger)))
    check_end(0)
    if shared is not None and shared.path is not None:
        limited = {"limited": True} if "limit" in shared.facts else {}
        facts = {**facts, "shared": {"file": shared.path.name, "head": shared.head, **limited}}
    return Ledger(folder.ledger, facts)


def read_whole(folder: RunFolder) -> tuple[Ledger, dict[str, Any] | None]:
    """A run's own ledger, for reading, and the facts of its newest checkpoint, if there is one.

    Raises:
        LedgerError: it is damaged, or lacks what the checkpoint or `details.json` knows of.
        DataError: one of these cannot be read.
    """
    # Before the ledger, which may grow meanwhile.
    # An older version has it in the statement itself.
    last = folder.details if folder.details.exists() else folder.statement
    facts, stated = load_facts(folder.checkpoint), _read_statement(last)
    ledger = Ledger.open(folder.ledger, append=False)
    _check_end(folder.ledger, len(ledger), 0 if facts is None else int(facts["charges"]), "the checkpoint")
    if stated is not None:
        num_charges, head = stated
        _check_end(folder.ledger, len(ledger), num_charges, last.name)
        if not ledger.holds(head):
            raise LedgerError(
                f"{folder.ledger} does not hold the line {head} that {last.name} names as its last: its "
                "end is missing, and without it no epsilon can be stated. Restore the file from a copy."
            )
    return ledger, facts


def check_ledger(folder: RunFolder) -> None:
    """Check that a finished run's ledger is whole, if its folder has one.

    Raises:
        LedgerError, DataError: see `read_whole`.
    """
    if folder.ledger.exists() or folder.statement.exists():
        read_whole(folder)


def _read_statement(path: Path) -> tuple[int, str] | None:
    """How many charges a ledger held when its statement was written, and its last line's checksum.

    None where nothing was stated, or nothing that could be read before it was voided.
    """
    if not path.exists():
        return None
    try:
        document = json.loads(path.read_text())
        if "head" not in document and str(document["guarantee"]).startswith("void"):
            return None
        in_ledger = document["counted"]["in_ledger"] if "counted" in document else document["num_charges"]
        return int(in_ledger), str(document["head"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        path = path.with_name("details.json") if isinstance(error, KeyError) else path  # which alone has the last line
        raise DataError(
            f"{path} cannot be read ({error}), so nothing shows whether the ledger is whole. Restore it from a copy."
        ) from error


def _check_end(path: Path, num_charges: int, known: int, source: str) -> None:
    if num_charges < known:
        raise LedgerError(
            f"{path} holds {num_charges} charges where {source} knows of {known}: its end is missing, and "
            "without it no epsilon can be stated. Restore the file from a copy."
        )


def _add_missing(own: Ledger, shared: Ledger, noise: str) -> None:
    """Add what only the shared ledger knows of this run."""
    before = len(own)
    own.append(shared.tally_of_run(noise))  # one after the other: there may be a million
    if len(own) > before:
        own.note(
            f"{len(own) - before} charges that only the shared ledger held were added: a crash came between the two, "
            "or this very run was computed elsewhere."
        )


def is_known(checkpoint: Checkpoint | None, charge: Charge) -> bool:
    """Whether what was released beside the rounds is in the checkpoint: then it is not released again."""
    if checkpoint is None:
        return False
    if charge.kind == "score":
        return any(charge.round == int(at) for at, _ in checkpoint.facts.get("scores", ()))
    if charge.kind != "statistics":
        return False
    from dpfl_plugin.federation.scaled_records import SUMS  # which imports torch: ledgers are read without it

    return SUMS in checkpoint.server


def made_again(own: Iterable[Charge], checkpoint: Checkpoint | None) -> str:
    """What of the ledger was released after the checkpoint, in words; nothing where a run was only paused there."""
    first = 0 if checkpoint is None else checkpoint.rounds
    later = [
        charge
        for charge in own
        if charge.round >= first and not charge.noise_id.startswith(NOT_RUN) and not is_known(checkpoint, charge)
    ]
    rounds = len({charge.round for charge in later if charge.kind not in BESIDE_ROUNDS})
    counted = [f"{rounds} round{'s' * (rounds != 1)}"] if rounds else []
    return ", ".join([*counted, *(name for kind, name in BESIDE_ROUNDS.items() if any(kind == c.kind for c in later))])
