"""The commands of a federation over a shared folder: server, silo, keys."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpfl_plugin.cli.privacy_commands import AsJson, Settings
from dpfl_plugin.errors import printable

if TYPE_CHECKING:
    from dpfl_plugin.api.shared_folder import SiteOutcome, Waiting

DEPLOY = "A federation over a shared folder (docs/folder.md)"
WAITING = 6  # exit code: others have to do something first

Shared = Annotated[Path, typer.Argument(metavar="FOLDER", help="That all sites reach: NFS, synchronised, by courier.")]
Config = Annotated[Path, typer.Argument(metavar="CONFIG", help="A YAML file as of dpfl run, the same at every site.")]
MembersFile = Annotated[
    Path, typer.Option("--members", metavar="FILE", help="Public keys of all, the same at every site.")
]
KeyFile = Annotated[Path, typer.Option("--key", metavar="FILE", help="This site's secret key, of dpfl keys new.")]
Once = Annotated[
    bool, typer.Option("--once", help="Do what can be done now, for cron: exit code 6 if others are next.")
]
Own = Annotated[Path | None, typer.Option("--own", metavar="DIR", help="What lasts, on this machine, not in FOLDER.")]

keys = typer.Typer(no_args_is_help=True, help="Keys of the members of a federation over a shared folder.")


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.command(rich_help_panel=DEPLOY)(server)
    app.command(rich_help_panel=DEPLOY)(silo)
    app.add_typer(keys, name="keys", rich_help_panel=DEPLOY)


def server(
    folder: Shared,
    config: Config,
    key: KeyFile,
    members: MembersFile = Path("members.yaml"),
    own: Own = None,
    patience: Annotated[
        float | None,
        typer.Option(metavar="HOURS", min=0, help="After which a round goes on with those who answered, if enough."),
    ] = None,
    once: Once = False,
    settings: Settings = None,
) -> None:
    """Be the server of a federation over a shared folder; the same command goes on after anything.

    Exit codes: 0 done, 1 failed, 2 wrong configuration or keys, 3 budgets are spent or owners refuse, 4 interrupted,
    6 waiting for silos (--once).
    """
    from dpfl_plugin.api.experiment import Experiment
    from dpfl_plugin.api.shared_folder import serve

    _log()
    seconds = None if patience is None else 3600 * patience
    experiment = Experiment(config, tuple(settings or ()))
    _end(serve(folder, experiment, members=members, key=key, own=own, patience=seconds, once=once, say=_say))


def silo(
    folder: Shared,
    config: Config,
    key: KeyFile,
    members: MembersFile = Path("members.yaml"),
    file: Annotated[
        Path | None, typer.Option("--file", help="This site's records; else the part of CONFIG's data that is its own.")
    ] = None,
    own: Own = None,
    simulation: Annotated[
        bool, typer.Option("--simulation", help="The records are nobody's own: no owner's limits are needed.")
    ] = False,
    once: Once = False,
    settings: Settings = None,
) -> None:
    """Be a silo of a federation over a shared folder, within its owner's limits (docs/limits.md).

    The key says which silo. Exit codes: 0 done, 1 failed, 2 wrong configuration, records or keys, 3 the owner refuses,
    or budgets are spent, 4 interrupted, 6 waiting for the server (--once).
    """
    from dpfl_plugin.api.experiment import Experiment
    from dpfl_plugin.api.shared_folder import work

    _log()
    experiment = Experiment(config, tuple(settings or ()))
    _end(
        work(
            folder,
            experiment,
            members=members,
            key=key,
            file=file,
            own=own,
            simulation=simulation,
            once=once,
            say=_say,
        )
    )


@keys.command("new")
def new_key(
    name: Annotated[str, typer.Argument(help="Of the site, as the list of members has it; server for the server.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where NAME.key is put.")] = Path(),
) -> None:
    """Make a secret key, which never leaves this machine, and print its line for the list of members."""
    from dpfl_plugin.api.shared_folder import new_key_file

    path, line = new_key_file(name, out)
    print(f"dpfl: {path} is secret: whoever has it can speak for {name}. For the list of members:", file=sys.stderr)
    print(line)


@keys.command("show")
def show_keys(
    file: Annotated[Path, typer.Argument(help="The list of members, or a secret key.")], json: AsJson = False
) -> None:
    """Print public keys and their fingerprints, to be compared by telephone."""
    from dpfl_plugin.api.shared_folder import public_keys
    from dpfl_plugin.runs.folder import to_json

    found = public_keys(file)
    if json:
        print(to_json({name: {"key": key, "fingerprint": print_} for name, (key, print_) in found.items()}))
        return
    for name, (key, fingerprint) in found.items():
        print(f"{name}: {key}\n  fingerprint {fingerprint}")


def _say(text: str) -> None:
    print(printable(text, "\n"), flush=True)


def _end(found: SiteOutcome | Waiting) -> None:
    from dpfl_plugin.api.shared_folder import Waiting

    if isinstance(found, Waiting):
        _say(f"waiting for {found.what}")
        raise typer.Exit(WAITING)
    _say(found.text)
    raise typer.Exit(found.exit_code)


def _log() -> None:
    """What server and silo log, on stderr."""
    log = logging.getLogger("dpfl_plugin")
    if not any(isinstance(handler, _ToStderr) for handler in log.handlers):
        log.addHandler(_ToStderr())
    log.setLevel(logging.INFO)


class _ToStderr(logging.Handler):
    """To stderr as it is now."""

    def emit(self, record: logging.LogRecord) -> None:
        print(f"dpfl: {printable(record.getMessage(), chr(10))}", file=sys.stderr, flush=True)
