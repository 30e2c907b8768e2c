"""The command line: parse, call, print. torch is imported when a command runs, not before."""

from __future__ import annotations

import contextlib
import enum
import logging
import os
import sys
import warnings
from pathlib import Path
from typing import Annotated, NoReturn, TextIO

import typer

import dpfl_plugin
from dpfl_plugin import interrupts, own_folders
from dpfl_plugin.cli import folder_commands, privacy_commands, project_commands, tool_commands
from dpfl_plugin.cli.output import show
from dpfl_plugin.cli.privacy_commands import AsJson, Settings
from dpfl_plugin.errors import ConfigError, DpflError, EarlierNameWarning, TrainingError, system_says

TRAIN, PRIVACY, TOOLS = "Train, and look at results", "Privacy: plan it, prove it, try it", tool_commands.TOOLS

app = typer.Typer(
    name="dpfl",
    help="Differentially private federated learning with drift control. `dpfl COMMAND --help` explains a command.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class Launcher(enum.Enum):
    """Where a sweep runs."""

    local = "local"
    slurm = "slurm"
    submitit = "submitit"


def _version(wanted: bool) -> None:
    if wanted:
        print(f"dpfl {dpfl_plugin.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    if context.invoked_subcommand not in ("run", "resume", "quickstart", "sweep", "tune"):  # which say when they begin
        interrupts.startup_is_over()


project_commands.add_to(app)


@app.command(rich_help_panel=TRAIN)
def run(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="A YAML file, e.g. configs/quickstart.yaml.")],
    settings: Settings = None,
    out: Annotated[Path | None, typer.Option(help="Folder of run folders (default: the file's, else runs).")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the last checkpoint, if any.")] = False,
    ledger: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Shared with other runs on the same data; states what all come to."),
    ] = None,
    ledger_wait: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", min=0, help="Patience with another run that uses --ledger (default: 60)."),
    ] = None,
    variant: Annotated[str | None, typer.Option(help="One variant of the file (default: all).")] = None,
    profile: Annotated[bool, typer.Option("--profile", help="Say where the time went; also in profile.json.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Say which engine and how much memory, and why; log.txt always does.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Train what a file describes; a run for each of its variants.

    Exit codes: 0 done, 1 failed, 2 bad configuration or input, 3 budget exhausted, 4 interrupted after a round
    of this command, 5 another run uses the ledger, 7 interrupted before one.
    """
    from dpfl_plugin.cli import run as command

    wait = {} if ledger_wait is None else {"ledger_wait": ledger_wait}
    how = {"resume": resume, "profile": profile, "verbose": verbose, "as_json": json, **wait}
    raise typer.Exit(command.run(config, settings or [], out, variant, ledger=ledger, **how))


@app.command(rich_help_panel=TRAIN)
def resume(
    folder: Annotated[Path, typer.Argument(metavar="RUN_FOLDER", help="Of a run that began: OUT/NAME/ID.")],
    ledger: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The one that it shares with other runs, if it began with one.")
    ] = None,
    profile: Annotated[bool, typer.Option("--profile", help="Say where the time went; also in profile.json.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Say which engine and how much memory, and why; log.txt always does.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Continue the run of a folder from its last checkpoint, or show a finished one. Exit codes: see dpfl run."""
    from dpfl_plugin.cli import run as command

    raise typer.Exit(command.resume(folder, ledger=ledger, profile=profile, verbose=verbose, as_json=json))


@app.command(rich_help_panel=TRAIN)
def tune(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="A YAML file with tune: (see docs/tuning.md).")],
    plan: Annotated[bool, typer.Option("--plan", help="Print what it will release and cost; train nothing.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder of the tuning (default: tunes/<name>).")] = None,
    settings: Settings = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Say which engine and how much memory, and why; log.txt always does.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Find hyper-parameters within one budget, which bounds all candidates and the winner's training together.

    The same command continues after an interruption.
    """
    from dpfl_plugin.api.experiment import Experiment
    from dpfl_plugin.api.progress import command_reporter
    from dpfl_plugin.api.tuning import plan_tuning, tune_file

    experiment = Experiment(config, tuple(settings or ()))
    if plan:
        show(plan_tuning(experiment, out=out), json)
        return
    try:
        tuning = tune_file(experiment, out, reporter=command_reporter(verbose=verbose), exits=True)
    except KeyboardInterrupt:
        raise typer.Exit(interrupts.INTERRUPTED) from None
    show(tuning, json)
    if tuning.failure:
        raise TrainingError(tuning.failure)


@app.command(rich_help_panel=TRAIN)
def sweep(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="A YAML file with sweep: (see docs/slurm.md).")],
    on: Annotated[Launcher, typer.Option("--on", help="This machine, Slurm, or Slurm by submitit.")] = Launcher.local,
    out: Annotated[Path | None, typer.Option(help="Folder of the sweep (default: sweeps/<name>).")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at the same time, on this machine or in each task.")] = 1,
    at_once: Annotated[int | None, typer.Option(min=1, help="Slurm tasks at the same time.")] = None,
    pack: Annotated[int, typer.Option(min=1, help="Runs in a Slurm task, one after another (or --jobs).")] = 1,
    retry: Annotated[bool, typer.Option("--retry", help="Run failed ones again.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print runs and script; write and run nothing.")] = False,
    ledger: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Shared by all runs, which take turns; states what all come to."),
    ] = None,
    settings: Settings = None,
) -> None:
    """Run, or submit, all runs of a sweep that are not finished; the same command continues after an interruption.

    Exit codes: 0 done (submitted), 1 some failed, or a disk is full, 2 bad configuration or input, 3 beyond the limit
    of the ledger, 4 interrupted: what began is saved.
    """
    from dpfl_plugin.api.sweep import sweep as run_sweep

    try:
        result = run_sweep(
            config,
            settings or [],
            on=on.value,
            out=out,
            jobs=jobs,
            at_once=at_once,
            pack=pack,
            retry=retry,
            dry_run=dry_run,
            ledger=ledger,
        )
    except KeyboardInterrupt:
        raise typer.Exit(interrupts.INTERRUPTED) from None
    print(result)
    raise typer.Exit(result.exit_code)


@app.command(rich_help_panel=PRIVACY)
def limits(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="A limits file (default: that of this machine).")
    ] = None,
    json: AsJson = False,
) -> None:
    """Check what the owner of the data on this machine has set (docs/limits.md), and show what is left of it."""
    show(dpfl_plugin.limits(file), json)


@app.command("sweep-task", hidden=True)
def sweep_task(
    folder: Annotated[Path, typer.Argument(help="DIR/sweeps/<digest>.")],
    task: Annotated[int, typer.Argument(help="Which rows of the manifest: TASK * PACK and on.")],
    pack: Annotated[int, typer.Option(min=1)] = 1,
    jobs: Annotated[int, typer.Option(min=1)] = 1,
) -> None:
    """What a batch task of a sweep does."""
    from dpfl_plugin.experiments.supervisor import run_task

    raise typer.Exit(run_task(folder, task, pack, jobs))


@app.command("sweep-run", hidden=True)
def sweep_run(
    folder: Annotated[Path, typer.Argument(help="DIR/sweeps/<digest>.")],
    index: Annotated[int, typer.Argument(help="Which row of the manifest.")],
) -> None:
    """What each MPI rank of a run in a sweep does."""
    from dpfl_plugin.experiments.supervisor import run_ranks

    raise typer.Exit(run_ranks(folder, index))


@app.command(rich_help_panel=TRAIN)
def status(
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="[DIR]",
            help="Of a run, runs, a sweep, or that sites share (default: the one sweep in sweeps, or runs).",
        ),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh it every two seconds, until all have ended.")] = False,
    every: Annotated[bool, typer.Option("--all", help="Every run, not the first of each kind only.")] = False,
    json: AsJson = False,
) -> None:
    """Progress of a sweep: runs that are pending, running (round, time left), done, failed, lost; and Slurm's queue.

    Of runs of dpfl run: running, interrupted, failed or done; rounds, score, epsilon, and how to go on.
    Of a folder that the sites of a federation share (dpfl server): rounds, who is waited for, what was refused.
    """
    from dpfl_plugin.cli.status import print_status

    print_status(folder, watch=watch, every=every, as_json=json)


app.command(rich_help_panel=PRIVACY)(privacy_commands.account)
app.command(rich_help_panel=PRIVACY)(privacy_commands.epsilon)
app.command(rich_help_panel=PRIVACY)(privacy_commands.calibrate)
app.command(rich_help_panel=PRIVACY)(privacy_commands.statement)
app.command(rich_help_panel=PRIVACY)(privacy_commands.plan)


@app.command(rich_help_panel=PRIVACY)
def audit(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="A YAML file, e.g. configs/quickstart.yaml.")],
    settings: Settings = None,
    variant: Annotated[str | None, typer.Option(help="One variant of the file (default: every private one).")] = None,
    canaries: Annotated[int, typer.Option(help="Records to replace by canaries, at most half of a silo's.")] = 1000,
    silos: Annotated[int | None, typer.Option(help="Silos to plant them in (default: up to 10).")] = None,
    rounds: Annotated[int | None, typer.Option(help="Fewer rounds than the file says.")] = None,
    seed: Annotated[int, typer.Option(help="Of canaries, batches and noise; try another to repeat it.")] = 0,
    json: AsJson = False,
    picture: Annotated[Path | None, typer.Option(help="Draw the canaries' scores to this PNG file.")] = None,
) -> None:
    """Check by experiment that the privacy of a configuration is what its accountant says.

    Plants canary gradients in silos, runs the configuration and looks at the uploads as the server does. Trains anew,
    writes no run folder. Exit codes: 0 consistent (or nothing claimed), 1 contradicted, 2 bad configuration or input.
    """
    from dpfl_plugin.api.experiment import Experiment

    experiment = Experiment(config, tuple(settings or ()), variant)
    result = dpfl_plugin.audit(experiment, canaries=canaries, silos=silos, rounds=rounds, seed=seed, picture=picture)
    show(result, json)
    if picture is not None and not json:
        print(f"picture: {picture}")
    raise typer.Exit(0 if result.consistent else 1)


@app.command(rich_help_panel=PRIVACY)
def attack(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="A YAML file, e.g. configs/quickstart.yaml.")],
    settings: Settings = None,
    variant: Annotated[str | None, typer.Option(help="Which of the file's variants (default: the first).")] = None,
    silo: Annotated[str, typer.Option(help="Whose messages the server attacks: a number, from 0, or a name.")] = "0",
    rounds: Annotated[int | None, typer.Option(help="Rounds to listen to (default: the file's).")] = None,
    repeats: Annotated[int, typer.Option(help="Seeds to repeat the membership attack over.")] = 10,
    out: Annotated[Path | None, typer.Option(help="Folder of the pictures (default: attack/<name>).")] = None,
    json: AsJson = False,
) -> None:
    """What a curious server could learn from a silo's messages: who is in the data, and what records look like.

    Membership inference and gradient inversion, with the configured noise and without any; two pictures.
    """
    from dpfl_plugin.api.experiment import Experiment

    experiment = Experiment(config, tuple(settings or ()), variant)
    folder = out or Path("attack") / experiment.loaded().variants[0].config.name
    whose = int(silo) if silo.removeprefix("-").isdecimal() else silo
    show(
        dpfl_plugin.attack(experiment, silo=whose, rounds=rounds, repeats=repeats, out=folder, progress=not json),
        json,
    )


@app.command(rich_help_panel=TRAIN)
def report(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Run folders, or folders above them.")],
    out: Annotated[Path, typer.Option(help="Folder of the page, the tables and the plots.")] = Path("report"),
    metric: Annotated[
        list[str] | None,
        typer.Option(
            help="Of metrics.jsonl, or a measure (auc); the first ranks; repeatable (default: the runs' own)."
        ),
    ] = None,
    against: Annotated[
        list[str] | None,
        typer.Option(help="Axis of plots: rounds, epsilon, epsilon_third_party, bytes, seconds; repeatable."),
    ] = None,
    group_by: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY", help="Average over all other keys, not only over seeds; repeatable."),
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Only such runs, e.g. --where algorithm.name=scaffold."),
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(metavar="ROW", help="Add each row's difference to this one, over equal seeds.")
    ] = None,
    pivot: Annotated[
        str | None,
        typer.Option(metavar="KEY,KEY", help="Also a table by two keys, e.g. algorithm.name,privacy.epsilon."),
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(metavar="OLD=NEW", help="Another name for a row, or for a word in rows; repeatable."),
    ] = None,
    html: Annotated[bool, typer.Option("--html/--no-html", help="Whether to write the page.")] = True,
) -> None:
    """Tables (CSV, LaTeX, Markdown), plots (PNG, PDF) and one HTML page from run folders.

    Runs that differ in their seed only are one row: mean and 95 % confidence interval. Partial and failed runs are
    shown as such and never averaged.
    """
    from dpfl_plugin.config.load import joined, parse_setting

    keys = None if pivot is None else tuple(pivot.split(","))
    if keys is not None and len(keys) != 2:
        raise ConfigError(f"--pivot {pivot} must be two keys: --pivot algorithm.name,privacy.epsilon.")
    names = dict(text.rpartition("=")[::2] for text in label or [])
    if "" in names or "" in names.values():
        raise ConfigError("--label must be OLD=NEW: --label scaffold=DP-SCAFFOLD.")

    show(
        dpfl_plugin.report(
            folders,
            out,
            metrics=metric or [],
            against=against or [],
            group_by=[key for keys in group_by or [] for key in keys.split(",")],
            where=joined(parse_setting(condition, "--where") for condition in where or []),
            baseline=baseline,
            pivot=keys,
            labels=names,
            html=html,
        )
    )


app.command(rich_help_panel=TRAIN)(project_commands.check)
app.command(rich_help_panel=TRAIN)(project_commands.describe)
app.command(rich_help_panel=TRAIN)(project_commands.predict)
app.command(rich_help_panel=TRAIN)(project_commands.coefficients)
app.command(rich_help_panel=TRAIN)(project_commands.export)


@app.command("list", rich_help_panel=TOOLS)
def list_plugins(
    group: Annotated[str | None, typer.Argument(help="algorithms, engines, datasets, ...; all if left out.")] = None,
    config: Annotated[
        Path | None,
        typer.Option("--for", metavar="CONFIG", help="With engines: which support its model, and what they cost."),
    ] = None,
    settings: Settings = None,
    json: AsJson = False,
) -> None:
    """Installed plugins and their options."""
    if config is None:
        show(dpfl_plugin.plugins(group), json)
        return
    if group != "engines":
        raise ConfigError("--for CONFIG is for engines: dpfl list engines --for CONFIG.")
    from dpfl_plugin.api.experiment import Experiment

    costs = dpfl_plugin.engines(Experiment(config, tuple(settings or ())))
    show(costs, json)
    if costs.refusal is not None:
        raise costs.refusal


@app.command(rich_help_panel=TOOLS)
def new(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="What to write: algorithm or flower-app.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the algorithm or app, e.g. my_method.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the package's folder is put.")] = Path(),
) -> None:
    """Write a package: an algorithm of your own with its tests, or a Flower app whose silos train privately."""
    from dpfl_plugin.api.projects import new as write_package

    show(write_package(kind, name, out))


folder_commands.add_to(app)
tool_commands.add_to(app)  # after all others, as in the help


NO_WINDOWS = (
    "Windows is not supported: ledgers and run folders are locked by fcntl, and runs are interrupted by POSIX signals, "
    "neither of which it has. Run dpfl inside WSL 2 (wsl --install)."
)


def main() -> NoReturn:
    """Run the command line; every error that a user can mend is one message and an exit code."""
    if os.name == "nt":
        sys.exit(f"dpfl: {NO_WINDOWS}")
    try:
        code = _code()
    finally:
        interrupts.startup_is_over()
    job = sys.modules.get("dpfl_plugin.runtimes.mpi.job")  # there if the command was one for several ranks
    if job is not None:
        job.leave(code)
    sys.exit(code)


def _show(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    note = issubclass(category, EarlierNameWarning)
    text = f"note: {message}\n" if note else warnings.formatwarning(message, category, filename, lineno, line)
    sys.stderr.write(text)


def _code() -> int:
    with contextlib.suppress(OSError):  # it is gone
        own_folders.look_in_working_folder()
    logging.getLogger("absl").setLevel(logging.ERROR)  # dp_accounting warns of orders that it leaves out, soundly
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("once", EarlierNameWarning)
            warnings.showwarning = _show
            app()
    except SystemExit as end:  # typer exits by itself
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except DpflError as error:
        print(f"dpfl: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # `dpfl ... | head`
        sys.stderr.close()
        return 1
    except OSError as error:  # a full or vanished disk
        print(f"dpfl: {system_says(error)}", file=sys.stderr)
        return 1
    except MemoryError as error:
        print(
            f"dpfl: there is not enough memory for what was asked ({str(error) or 'no more is known'}).",
            file=sys.stderr,
        )
        return 1
    except KeyboardInterrupt:
        print("dpfl: interrupted.", file=sys.stderr)
        return 4
    raise AssertionError("typer exits by itself")
