"""Commands that say what privacy costs, before or after a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

import dpfl_plugin
from dpfl_plugin.cli.output import show
from dpfl_plugin.errors import ConfigError

if TYPE_CHECKING:
    from dpfl_plugin.api.experiment import Experiment

# Options, in the order of the help.
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a value of the file, e.g. --set privacy.clip_norm=0.5."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON, and nothing else, on stdout.")]
Config = Annotated[Path, typer.Argument(metavar="CONFIG", help="A YAML file, e.g. configs/quickstart.yaml.")]
Source = Annotated[
    Path, typer.Argument(metavar="SOURCE", help="A configuration, a run's folder, or a ledger that runs share.")
]
Variant = Annotated[str | None, typer.Option(help="One variant of the file (default: all).")]
Delta = Annotated[float, typer.Option(help="At which epsilon holds: well below 1 / records.")]
RecordRate = Annotated[float | None, typer.Option(help="Fraction of the records in a batch (default: all of them).")]
Sampler = Annotated[
    str, typer.Option(help="fixed (replace-one neighbours), poisson (add-or-remove) or full: how a batch is drawn.")
]
Accountant = Annotated[str, typer.Option(help="See dpfl list accountants.")]

OF_TUNING: Final = (
    "{} has no meaning for a file with tune: the noise of all candidates is solved for its privacy.epsilon. Change the "
    "file by --set."
)


def epsilon(
    noise_multiplier: Annotated[float, typer.Option(help="Noise standard deviation / L2 sensitivity.")],
    steps: Annotated[int, typer.Option(help="Releases in all: rounds times local steps.")],
    delta: Delta,
    record_rate: RecordRate = None,
    sampler: Sampler = "fixed",
    accountant: Accountant = "pld",
    json: AsJson = False,
) -> None:
    """Epsilon of noisy sums over batches of one silo's records, from numbers alone."""
    result = dpfl_plugin.epsilon(
        noise_multiplier=noise_multiplier,
        steps=steps,
        delta=delta,
        record_rate=record_rate,
        sampler=sampler,
        accountant=accountant,
    )
    show(result, json)


def calibrate(
    epsilon: Annotated[float, typer.Option(help="The budget.")],
    delta: Delta,
    steps: Annotated[int | None, typer.Option(help="Releases in all; solves for the least noise.")] = None,
    noise_multiplier: Annotated[
        float | None, typer.Option(help="Noise standard deviation / L2 sensitivity; solves for the most steps.")
    ] = None,
    record_rate: RecordRate = None,
    sampler: Sampler = "fixed",
    accountant: Accountant = "pld",
    json: AsJson = False,
) -> None:
    """The least noise with which --steps fit a budget, or the most steps with --noise-multiplier."""
    result = dpfl_plugin.calibrate(
        epsilon=epsilon,
        delta=delta,
        steps=steps,
        noise_multiplier=noise_multiplier,
        record_rate=record_rate,
        sampler=sampler,
        accountant=accountant,
    )
    show(result, json)


def account(
    source: Source,
    settings: Settings = None,
    papers: Annotated[
        bool,
        typer.Option("--papers", help="Bounds and recipes of papers, too; --json has them anyway."),
    ] = False,
    json: AsJson = False,
) -> None:
    """Epsilon of a configuration that has not run yet, of a run, or of all runs that share a ledger."""
    show(dpfl_plugin.account(_experiment(source, settings) if settings else source, papers=papers), json)


def statement(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Of a finished run, or of a silo on a platform.")],
    name: Annotated[
        list[str] | None,
        typer.Option("--name", metavar="SILO=NAME", help="What a site is called, e.g. 0='Mercy Hospital'; repeatable."),
    ] = None,
    study: Annotated[str, typer.Option(metavar="TITLE", help="What the page is headed by (default: the run).")] = "",
    purpose: Annotated[str, typer.Option(metavar="TEXT", help="What the study is for (default: to fill in).")] = "",
    recipients: Annotated[
        str, typer.Option(metavar="TEXT", help="Who receives model and results (default: to fill in).")
    ] = "",
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A new file, in Markdown (default: to stdout).")
    ] = None,
) -> None:
    """Make a page to sign: the study, its variables and sites, what is guaranteed, in words, and what is not.

    The ledger is checked first, and epsilon computed anew from it.
    """
    made = dpfl_plugin.statement(
        folder, names=_names(name or []), study=study, purpose=purpose, recipients=recipients, out=out
    )
    if out is None:
        show(made)
    else:
        print(f"{out}: to be read and signed. It names the sites: hand it only to those whom they agree to.")


def _names(options: list[str]) -> dict[int, str]:
    names: dict[int, str] = {}
    for option in options:
        silo, _, name = option.partition("=")
        if not silo.isdecimal() or not name:
            raise ConfigError(f"--name {option!r} must be a silo's number and its name, e.g. 0='Mercy Hospital'.")
        if int(silo) in names:
            raise ConfigError(f"--name {option!r}: silo {silo} was named before.")
        names[int(silo)] = name
    return names


def plan(
    config: Config,
    epsilon: Annotated[float | None, typer.Option(help="The budget (default: the configuration's).")] = None,
    delta: Annotated[float | None, typer.Option(help="Its delta (default: the configuration's).")] = None,
    view: Annotated[
        str | None, typer.Option(help="Whose epsilon: server or third_party (default: the configuration's).")
    ] = None,
    solve: Annotated[
        str | None,
        typer.Option(
            help="noise_multiplier (default): the least. rounds, local_steps, max_participations: the most. "
            "record_rate: the smallest with next to the least noise on a mean gradient."
        ),
    ] = None,
    settings: Settings = None,
    variant: Variant = None,
    json: AsJson = False,
) -> None:
    """The noise, rounds, local steps, cap or record rate that a privacy budget allows, before anything is trained."""
    from dpfl_plugin.config.tune import has_tune

    budget: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "view": view}
    if has_tune(config, settings or ()):
        for name, value in {"solve": solve, "variant": variant, **budget}.items():
            if value is not None:
                raise ConfigError(OF_TUNING.format(f"--{name}"))
        show(dpfl_plugin.plan_tuning(_experiment(config, settings)), json)
        return
    show(dpfl_plugin.plan(_experiment(config, settings, variant), solve=solve or "noise_multiplier", **budget), json)


def _experiment(config: Path, settings: Settings, variant: str | None = None) -> Experiment:
    """A file's runs; its import takes torch's time, which a ledger does not need."""
    from dpfl_plugin.api.experiment import Experiment

    return Experiment(config, tuple(settings or ()), variant)
