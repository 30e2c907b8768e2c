"""A federation over a folder that all sites can reach: keys, the server's loop, a silo's loop, how it stands."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from safetensors.torch import save

from dpfl_plugin.adapters.folder import keys
from dpfl_plugin.adapters.folder.keys import Members, SecretKey
from dpfl_plugin.adapters.folder.place import SharedFolderError
from dpfl_plugin.adapters.folder.project import for_server, for_silo
from dpfl_plugin.adapters.folder.server import FolderServer, utc
from dpfl_plugin.adapters.folder.server import Waits as ServerWaits
from dpfl_plugin.adapters.folder.silo import FolderSilo, Over
from dpfl_plugin.adapters.folder.silo import Waits as SiloWaits
from dpfl_plugin.adapters.owner import silo_limits
from dpfl_plugin.adapters.platforms import is_over, over_before
from dpfl_plugin.api.experiment import Experiment
from dpfl_plugin.config.load import mapping_in
from dpfl_plugin.core.text import duration
from dpfl_plugin.errors import BusyError, ConfigError, DpflError, LimitError, system_says
from dpfl_plugin.owners.limits import Surroundings
from dpfl_plugin.runs.folder import write_atomic

MODEL: Final = "model.safetensors"
LEAST_POLL, MOST_POLL, GROWS = 0.1, 30.0, 1.3  # seconds between two looks at the folder, while nothing comes
FIRST_SAID, MOST_SAID = 30.0, 3600.0  # seconds between two lines on who is waited for, each twice the last
EXIT: Final = {"done": 0, "budget_exhausted": 3, "refused": 3}

Say = Callable[[str], None]
Event = TypeVar("Event")


@dataclass(frozen=True, slots=True)
class Waiting:
    """That one look at the folder was all that was asked for, and others have to do something first."""

    what: str


@dataclass(frozen=True, slots=True)
class SiteOutcome:
    """How the run ended. status: "done", "budget_exhausted" or "refused"; text: for people."""

    status: str
    text: str

    @property
    def exit_code(self) -> int:
        return EXIT.get(self.status, 1)


def new_key_file(name: str, folder: Path) -> tuple[Path, str]:
    """(the file of a new secret key, its line for the list of members).

    Raises:
        ConfigError: the name cannot be used, or the file is there.
    """
    if name != keys.SERVER:
        keys.check_name(name, "keys")
    key, path = keys.new_key(), folder / f"{name}.key"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise ConfigError(f"{path} is there: a key is made once. To make another, remove it, and tell all.") from error
    with open(handle, "w") as file:
        file.write(f"{key.text}\n")
        file.flush()
        os.fsync(handle)
    return path, f"{name}: {key.public.text}"


def public_keys(path: Path) -> dict[str, tuple[str, str]]:
    """{name: (public key, its fingerprint)} of a list of members, or of a secret key's file.

    Raises:
        ConfigError: it is neither.
    """
    try:
        secret = path.read_bytes()[:14] == b"dpfl-secret-1:"
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}).") from error
    if secret:
        public = SecretKey.read(path).public
        return {path.stem: (public.text, public.fingerprint)}
    members = Members.of(mapping_in(path.read_text(encoding="utf-8"), path), str(path))
    return {name: (key.text, key.fingerprint) for name, key in members.keys.items()}


def serve(
    folder: Path,
    experiment: Experiment,
    *,
    members: Path,
    key: Path,
    own: Path | None = None,
    patience: float | None = None,
    once: bool = False,
    say: Say = print,
    sleep: Callable[[float], None] = time.sleep,
) -> SiteOutcome | Waiting:
    """Be the server of a shared folder until the run is over; or do, ``once``, what can be done now.

    Args:
        members, key: files, see docs/folder.md. own: what lasts, on this machine; by default `<name>-server`.
        patience: seconds after which a round goes on without silos that have not answered, if enough have.

    Raises:
        ConfigError, DataError: the configuration, keys or members are wrong. TrainingError: see `Server.end`.
        BusyError: another process is the server.
    """
    listed, config = Members.read(members), experiment.config
    project, own = for_server(config, experiment.base, listed), own or Path(f"{config.name}-server")
    secret = SecretKey.read(key)
    if (name := listed.name_of(secret)) != keys.SERVER:
        raise ConfigError(f"{key} is the key of {name}, and a server is wanted: name that of the server.")
    for note in project.notes:
        say(note)
    with FolderServer(folder, listed, secret, project.agreement, project.model, own, patience=patience) as site:
        if site.server.status != "running":
            say(over_before(own, site.server.summary()))
        rounds_noted = 0

        def look() -> Waiting | None:
            nonlocal rounds_noted
            waits = site.step()
            if site.server.rounds > rounds_noted:
                rounds_noted = site.server.rounds
                say(f"round {rounds_noted} of {config.rounds or 'as many as the budget allows'} is done")
            return None if waits is None else Waiting(_server_waits(waits))

        waiting = _until(look, once, say, sleep)
        if waiting is not None:
            return waiting
        site.server.write_to(project.model)
        summary = site.server.summary()
    state = {name: value.detach().cpu().contiguous() for name, value in project.model.state_dict().items()}
    write_atomic(own / MODEL, save(state))
    return SiteOutcome(summary["status"], f"{is_over(own, summary)}\nthe model is in {own / MODEL}")


def work(
    folder: Path,
    experiment: Experiment,
    *,
    members: Path,
    key: Path,
    file: Path | None = None,
    own: Path | None = None,
    simulation: bool = False,
    once: bool = False,
    say: Say = print,
    sleep: Callable[[float], None] = time.sleep,
) -> SiteOutcome | Waiting:
    """Be a silo of a shared folder until the run is over; or do, ``once``, what can be done now.

    Args:
        members, key: files, see docs/folder.md; the key says which silo this is.
        file: with this site's records; None where the configuration's data are those of all silos.
        own: this silo's own folder, in that of its owner's limits; None for a place there.
        simulation: the records are nobody's own, and need no limits.

    Raises:
        LimitError: the owner of the records does not allow it. ConfigError, DataError, LedgerError, BusyError: see
            `Silo`.
    """
    listed, config = Members.read(members), experiment.config
    secret = SecretKey.read(key)
    name = listed.name_of(secret)
    if name == keys.SERVER:
        raise ConfigError(f"{key} is the server's key. A silo has one of its own: name that.")
    silo, where = listed.silos.index(name), _surroundings(simulation)
    if own is None and simulation:
        own = Path(f"{config.name}-{name}")
    at = functools.partial(FolderSilo, folder, listed, secret)
    limits = None
    try:
        limits = silo_limits(where, own=silo if simulation else None)
        if limits is not None:
            # All of it, the data included, before records are read; at each request it is looked at anew.
            limits.check_settings(config, listed.num_records)
        project, train = for_silo(config, experiment.base, listed, silo, file)
    except DpflError as error:
        if limits is None and not isinstance(error, LimitError):
            raise
        say(f"{name}: {error} The server is told when it asks.")  # that it does not take part, as silence would, too
        site = at(None, None, None, own, surroundings=where, refused=error)
    else:
        for note in project.notes:
            say(f"records: {note}")
        site = at(project.agreement, project.model, train, own, surroundings=where)

    def look() -> Waiting | SiteOutcome:
        event = site.step()
        return _silo_outcome(name, event) if isinstance(event, Over) else Waiting(_silo_waits(event))

    return _until(look, once, say, sleep)


def _surroundings(simulation: bool) -> Surroundings:
    return "simulation" if simulation else "deployment"


def _until(look: Callable[[], Event], once: bool, say: Say, sleep: Callable[[float], None]) -> Event | Waiting:
    """Look at the folder until something else than `Waiting` is found, at growing intervals; say what is waited for."""
    last_wait, poll, said_at, pause = "", LEAST_POLL, 0.0, FIRST_SAID
    began = time.monotonic()
    while True:
        event: Event | Waiting
        try:
            event = look()
        except SharedFolderError as error:
            if once:
                raise
            event = Waiting(f"{system_says(error)}; it is tried again")
        except BusyError as error:
            if not once:
                raise
            event = Waiting(f"one of this site's own, that began before: {error}")  # as cron starts them
        if once or not isinstance(event, Waiting):
            return event
        now = time.monotonic()
        if event.what != last_wait:
            say(f"waiting for {event.what}")
            last_wait, poll, said_at, pause, began = event.what, LEAST_POLL, now, FIRST_SAID, now
        elif now - said_at >= pause:
            say(f"waiting for {event.what}, for {duration(now - began)} so far")
            said_at, pause = now, min(2 * pause, MOST_SAID)
        sleep(poll)
        poll = min(GROWS * poll, MOST_POLL)


def _server_waits(waits: ServerWaits) -> str:
    silos = ", ".join(f"{name} ({waits.odd[name]})" if name in waits.odd else name for name in waits.silos)
    return f"{silos}: round {waits.round}, asked at {utc(waits.since)}"


def _silo_waits(waits: SiloWaits) -> str:
    return f"{waits.what} (round {waits.round} is answered)" if waits.round else waits.what


def _silo_outcome(name: str, over: Over) -> SiteOutcome:
    why = f": {over.reason}" if over.reason else ""
    kept = f" The model and privacy.md are in {over.folder}." if over.folder is not None else ""
    text = f"{name}: the run is over, by its server: {over.status} after {over.rounds} rounds{why}.{kept}"
    return SiteOutcome(over.status, text)
