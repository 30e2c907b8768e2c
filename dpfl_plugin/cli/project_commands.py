"""The commands that begin a project and use what came of it: they import late, as all do."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpfl_plugin.errors import ConfigError

START = "Start here"


def add_to(app: typer.Typer) -> None:
    """Register the commands; before all others, so that the help begins with them."""
    app.command(rich_help_panel=START)(quickstart)
    app.command(rich_help_panel=START)(init)


def quickstart(
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a value of the example, e.g. --set rounds=5."),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder of run folders (default: runs).")] = None,
    copy: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a copy of the example's configuration; run nothing.")
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print the result as JSON, and nothing else, on stdout.")
    ] = False,
) -> None:
    """Run the first example: DP-SCAFFOLD against DP-FedAvg on real digits, epsilon < 4; seconds, no download.

    Goes on where it was interrupted. Exit codes as those of dpfl run.
    """
    from dpfl_plugin.cli.quickstart import quickstart as run_quickstart

    if copy is not None and (settings or out is not None or json):
        raise ConfigError("--copy runs nothing: --set, --out and --json have no meaning with it.")
    raise typer.Exit(run_quickstart(settings or [], out, copy, as_json=json))


def init(
    folder: Annotated[
        Path, typer.Argument(metavar="[FOLDER]", help="The project's folder (default: this one).")
    ] = Path(),
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE_OR_FOLDER", help="CSV files of your own: one file, or a folder with one for each silo."
        ),
    ] = None,
    label: Annotated[str | None, typer.Option(metavar="COLUMN", help="With --data: the column to predict.")] = None,
    guess_label: Annotated[
        bool, typer.Option("--guess-label", help="With --data: choose it by its name, or take the last column.")
    ] = False,
    silo: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="With --data: the column that names a record's silo.")
    ] = None,
) -> None:
    """Make a project: a configuration that runs, data (made up, or --data), a notebook, a .gitignore.

    Overwrites nothing, and writes nothing if anything is wrong.
    """
    from dpfl_plugin.cli.init import OwnData, init_project

    if data is None:
        for option, value in {"--label": label, "--guess-label": guess_label or None, "--silo": silo}.items():
            if value is not None:
                raise ConfigError(f"{option} has no meaning without --data: made-up data come with their own columns.")
    init_project(folder, None if data is None else OwnData(data, label, guess_label, silo))


def predict(
    folder: Annotated[Path, typer.Argument(metavar="RUN_FOLDER", help="Of a finished run: runs/<name>/<id>.")],
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA",
            help="A CSV (or NPZ) file as for training, labels optional; or the run's data set, e.g. mnist.",
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the predictions to a new file (default: to stdout).")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="JSON instead of CSV, with epsilon and what it covers.")] = False,
) -> None:
    """Apply a finished run's model to records: classes by name, and their probabilities."""
    from dpfl_plugin.cli.predict import predict_file

    predict_file(folder, data, out, as_json=json)
