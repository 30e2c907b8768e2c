"""A run's own ledger, and the one that it may share with other runs on the same data (`privacy.ledger`)."""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dpfl_plugin.config.schema import Config
from dpfl_plugin.errors import BusyError, ConfigError, DataError, LedgerBusyError, LedgerError
from dpfl_plugin.privacy.events import Charge
from dpfl_plugin.privacy.extra_releases import NOT_RUN
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.ledger_file import is_begun
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
            self.shared.begin_run({"noise": self.name, "started": now(), "ended": True})
            self.shared.sync()


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
    path: Path | None,
    name: str,
    run: Callable[[Ledger], Mapping[str, Any]],
    first_line: Callable[[], Mapping[str, Any]] = dict,
) -> Iterator[Ledgers]:
    """Both ledgers, holding the same charges of this run.

    Args:
        facts: what the own ledger is to say of the run.
        found: the checkpoint to go on from.
        path: of the shared ledger, which the caller has locked; name: of the run there; run: what its line is to say.
        first_line: what a new shared ledger is to say of totals.

    Raises:
        LedgerError: a ledger is damaged, or lacks charges that the checkpoint knows of.
    """
    with contextlib.ExitStack() as stack:
        shared = None if path is None else stack.enter_context(open_shared(path, first_line))
        own = stack.enter_context(_open_own(folder, facts, found, shared))
        if shared is not None:
            _add_missing(own, shared, name)
            shared.begin_run({**run(shared), "started": now()})
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
