"""The commands that begin a project and use what came of it: they import late, as all do."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

import dpfl_plugin
from dpfl_plugin import interrupts
from dpfl_plugin.cli.output import show
from dpfl_plugin.errors import ConfigError

START = "Start here"


def add_to(app: typer.Typer) -> None:
    """Register the commands; before all others, so that the help begins with them."""
    app.command(rich_help_panel=START)(quickstart)
    app.command(rich_help_panel=START)(init)


def quickstart(
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a value of both examples, e.g. --set rounds=5."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of run folders and the picture (default: runs).")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Seeds to repeat every run over (default: 5 and 3).", show_default=False)
    ] = None,
    copy: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write copies of the two configurations; run nothing.")
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print the result as JSON, and nothing else, on stdout.")
    ] = False,
) -> None:
    """Run the first examples: four real hospitals at epsilon 1, and where drift control wins; a minute, no download.

    Continues after an interruption. Exit codes are those of dpfl run.
    """
    from dpfl_plugin.api import quickstart as api

    if copy is not None:
        if settings or out is not None or seeds is not None or json:
            raise ConfigError("--copy runs nothing: --set, --out, --seeds and --json have no meaning with it.")
        files = api.copy_configurations(copy)
        print("\n".join(map(str, files)) + f"\nNext: dpfl run {shlex.quote(str(files[0]))}")
        return
    with interrupts.stopping(exits=True) as stop:
        try:
            result = api.quickstart(settings or [], out=out or Path("runs"), seeds=seeds, tell=_say, stop=stop)
        except KeyboardInterrupt:
            _say("dpfl: interrupted; what is done is saved. Run the same command again to continue.")
            raise typer.Exit(interrupts.INTERRUPTED) from None
    show(result, json)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


_Person = Annotated[
    str | None, typer.Option(metavar="COLUMN", help="With --from: the column that says whose record it is.")
]
_Encoding = Annotated[
    str | None, typer.Option(metavar="NAME", help="With --from: of text that is not UTF-8, e.g. windows-1252.")
]
_Sheet = Annotated[
    str | None, typer.Option(metavar="NAME", help="With --from: of workbooks, where it is not the first.")
]


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
    source: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="FILES",
            help="Tables of your own (CSV, Parquet, xlsx): a file, a folder or a quoted pattern. A schema is drafted "
            "by looking at their values, which is not private.",
        ),
    ] = None,
    label: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="With --data or --from: the column to predict.")
    ] = None,
    guess_label: Annotated[
        bool, typer.Option("--guess-label", help="With --data: choose it by its name, or take the last column.")
    ] = False,
    silo: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="With --data or --from: the column that names a record's silo.")
    ] = None,
    person: _Person = None,
    time: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="With --from, for survival: a time instead of a label.")
    ] = None,
    event: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="With --time: whether the event was at this time.")
    ] = None,
    encoding: _Encoding = None,
    sheet: _Sheet = None,
) -> None:
    """Make a project: a configuration that runs, data (made up, --data or --from), a notebook, a .gitignore.

    Overwrites nothing, and writes nothing if anything is wrong.
    """
    if data is not None and source is not None:
        raise ConfigError(
            "--data and --from are both given: --from drafts a schema, --data reads CSV files of numbers."
        )
    drafted = source is not None
    of_schema = {"person": person, "time": time, "event": event, "encoding": encoding, "sheet": sheet}
    for name, value in of_schema.items():
        if value is not None and not drafted:
            raise ConfigError(f"--{name} has no meaning without --from.")
    if guess_label and drafted:
        raise ConfigError("--guess-label has no meaning without --data.")
    columns = {"label": label, "silo": silo, **of_schema}
    project = dpfl_plugin.init(folder, data=source or data, guess_label=guess_label, schema=drafted, **columns)
    print(project)


def check(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="A YAML file, e.g. configs/quickstart.yaml.")],
    files: Annotated[
        list[Path] | None,
        typer.Option(
            "--file", metavar="FILE", help="Check this table by data.schema, instead of all records; repeatable."
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a value of the file, e.g. --set rounds=5."),
    ] = None,
    variant: Annotated[str | None, typer.Option(help="One variant of the file (default: all).")] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print the result as JSON, and nothing else, on stdout.")
    ] = False,
) -> None:
    """Check a configuration and its records as a run would before its first round; train, release, write nothing.

    Everything wrong with tables is reported together, by file, line, column and value. Exit codes: 0 a run could begin,
    2 it could not.
    """
    from dpfl_plugin.api.experiment import Experiment
    from dpfl_plugin.api.tables import check_tables_of

    experiment = Experiment(config, tuple(settings or ()), variant)
    show(check_tables_of(experiment, files) if files else dpfl_plugin.check(experiment), json)


def describe(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="A YAML file whose data are a table with a schema.")],
    epsilon: Annotated[float, typer.Option(help="What the release may cost, at privacy.delta.")],
    cross: Annotated[
        list[str] | None,
        typer.Option("--cross", metavar="COLUMN,COLUMN", help="Count two columns together; repeatable."),
    ] = None,
    bins: Annotated[int, typer.Option(help="Of the histograms from which quantiles of numbers are read.")] = 16,
    ledger: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Charge this one (default: privacy.ledger of the file).")
    ] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Print the price and how much noise there would be; release nothing.")
    ] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a value of the file, e.g. --set privacy.delta=1e-6."),
    ] = None,
    variant: Annotated[str | None, typer.Option(help="One variant of the file.")] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print the result as JSON, and nothing else, on stdout.")
    ] = False,
) -> None:
    """Counts, means, quantiles and cross-tables of the training records, by site and in all: one charged release.

    Each call is another release, which the ledger adds to those of runs on the same records. Exit codes: 0 done, 2 bad
    configuration or input, 3 beyond the limit of the ledger, 5 another run uses it.
    """
    from dpfl_plugin.api.experiment import Experiment

    experiment = Experiment(config, tuple(settings or ()), variant)
    pairs = [tuple(pair.split(",")) for pair in cross or []]

    def tell(text: str) -> None:
        _say(f"records: {text}")

    description = dpfl_plugin.describe(
        experiment, epsilon=epsilon, cross=pairs, bins=bins, ledger=ledger, plan=plan, tell=tell
    )
    show(description, json)


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
    id_column: Annotated[
        str | None,
        typer.Option("--id", metavar="COLUMN", help="Of DATA: written first with each prediction, e.g. patient_id."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="JSON instead of CSV, with epsilon and what it covers.")] = False,
) -> None:
    """Apply a finished run's model to records: classes by name, and their probabilities."""
    from dpfl_plugin.runs.folder import check_new, to_json, write_new

    if out is not None:
        check_new(out)
    made = dpfl_plugin.predict(folder, data, id_column=id_column)
    print("\n".join(made.remarks), file=sys.stderr)
    text = f"{to_json(made.to_dict())}\n" if json else made.to_csv()
    if out is None:
        print(text, end="")
    else:
        write_new(out, text)
        print(f"{len(made.rows)} predictions: {out}", file=sys.stderr)


def coefficients(
    folder: Annotated[Path, typer.Argument(metavar="RUN_FOLDER", help="Of a finished run: runs/<name>/<id>.")],
    json: Annotated[
        bool, typer.Option("--json", help="Print the result as JSON, and nothing else, on stdout.")
    ] = False,
) -> None:
    """Show the coefficients of a finished run's linear model: odds, rate or hazard ratios in the units of its table."""
    from dpfl_plugin.api.coefficients import coefficients as of_run

    show(of_run(folder), json)


def export(
    folder: Annotated[Path, typer.Argument(metavar="RUN_FOLDER", help="Of a finished run: runs/<name>/<id>.")],
    out: Annotated[Path, typer.Argument(metavar="FOLDER", help="A new folder for the files.")],
    onnx: Annotated[bool, typer.Option("--onnx", help="Also as ONNX; needs the extra onnx.")] = False,
) -> None:
    """Write a finished run's model for other programs: torch, ONNX, a model card, the privacy statement."""
    show(dpfl_plugin.export(folder, out, onnx=onnx))
