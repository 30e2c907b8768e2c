"""The command line: parse, call, print. torch is imported when a command runs, not before."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

import dpfl_plugin
from dpfl_plugin.errors import ConfigError, DpflError

app = typer.Typer(
    name="dpfl",
    help="Differentially private federated learning with drift control.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a value of the file, e.g. --set privacy.clip_norm=0.5."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON, and nothing else, on stdout.")]


def _version(wanted: bool) -> None:
    if wanted:
        print(f"dpfl {dpfl_plugin.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
def run(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="A YAML file, e.g. configs/quickstart.yaml.")],
    settings: Settings = None,
    out: Annotated[Path | None, typer.Option(help="Folder of run folders (default: the file's, else runs).")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint, if there is one.")] = False,
    ledger: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Shared with other runs on the same data: privacy.epsilon bounds them all."),
    ] = None,
    json: AsJson = False,
) -> None:
    """Train as a file says; several runs if it has variants.

    Exit codes: 0 done, 1 failed, 2 bad configuration or input, 3 budget exhausted, 4 interrupted with a checkpoint.
    """
    from dpfl_plugin.cli.run import run_file

    raise typer.Exit(run_file(config, settings or [], out, resume=resume, as_json=json, ledger=ledger))


@app.command()
def account(
    config: Annotated[
        Path | None, typer.Argument(metavar="[CONFIG]", help="A configuration, a run's folder, or a shared ledger.")
    ] = None,
    settings: Settings = None,
    mechanism: Annotated[
        str | None,
        typer.Option(help="gaussian-wor (fixed-size, replace one), gaussian-poisson (add or remove one), or gaussian."),
    ] = None,
    q: Annotated[float | None, typer.Option("--q", help="Share of the records in a batch (default: 1).")] = None,
    sigma: Annotated[float | None, typer.Option("--sigma", help="Noise std / L2 sensitivity.")] = None,
    steps: Annotated[int | None, typer.Option("--steps", help="Number of releases.")] = None,
    delta: Annotated[float | None, typer.Option("--delta")] = None,
    accountant: Annotated[str | None, typer.Option(help="See dpfl list accountants (default: pld).")] = None,
    json: AsJson = False,
) -> None:
    """Epsilon of a configuration, of a run's ledger, or of a mechanism given by its numbers."""
    from dpfl_plugin.cli.account import account_file, account_mechanism

    if (config is None) == (mechanism is None):
        raise typer.BadParameter("give either CONFIG or --mechanism.")
    if config is not None:
        given = {"--q": q, "--sigma": sigma, "--steps": steps, "--delta": delta, "--accountant": accountant}
        for option, value in given.items():
            if value is not None:
                raise ConfigError(
                    f"{option} belongs to --mechanism. Change a configuration by --set, e.g. privacy.delta."
                )
        account_file(config, settings or [], as_json=json)
    else:
        account_mechanism(str(mechanism), q, sigma, steps, delta, accountant or "pld", as_json=json)


@app.command()
def plan(
    config: Annotated[Path | None, typer.Argument(metavar="[CONFIG]", help="A configuration.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="The budget (default: the configuration's).")] = None,
    delta: Annotated[float | None, typer.Option(help="Its delta (default: the configuration's).")] = None,
    view: Annotated[
        str | None, typer.Option(help="Whose epsilon: server or third_party (default: the configuration's).")
    ] = None,
    solve: Annotated[
        str | None,
        typer.Option(help="sigma (default): the least noise. rounds, steps (local), cap (participations): the most."),
    ] = None,
    settings: Settings = None,
    mechanism: Annotated[
        str | None, typer.Option(help="Instead of CONFIG: gaussian-wor, gaussian-poisson or gaussian; see account.")
    ] = None,
    q: Annotated[float | None, typer.Option("--q", help="Share of the records in a batch (default: 1).")] = None,
    sigma: Annotated[
        float | None, typer.Option("--sigma", help="Noise std / L2 sensitivity: solves for steps.")
    ] = None,
    steps: Annotated[int | None, typer.Option("--steps", help="Number of releases: solves for sigma.")] = None,
    accountant: Annotated[str | None, typer.Option(help="Of --mechanism (default: pld).")] = None,
    json: AsJson = False,
) -> None:
    """The noise, rounds, local steps or cap that a privacy budget allows, before anything is trained."""
    from dpfl_plugin.cli.plan import plan_file, plan_mechanism

    if (config is None) == (mechanism is None):
        raise typer.BadParameter("give either CONFIG or --mechanism.")
    if config is not None:
        for option, value in {"--q": q, "--sigma": sigma, "--steps": steps, "--accountant": accountant}.items():
            if value is not None:
                raise ConfigError(f"{option} belongs to --mechanism. Change a configuration by --set.")
        plan_file(config, settings or [], epsilon, delta, view, solve or "sigma", as_json=json)
    else:
        for option, given in {"--view": view, "--set": settings}.items():
            if given:
                raise ConfigError(f"{option} belongs to CONFIG: a mechanism by its numbers is seen by the server.")
        plan_mechanism(str(mechanism), q, sigma, steps, epsilon, delta, solve, accountant or "pld", as_json=json)


@app.command()
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
    from dpfl_plugin.cli.audit import audit_file
    from dpfl_plugin.training.audit import Options

    options = Options(canaries=canaries, silos=silos, rounds=rounds, seed=seed)
    raise typer.Exit(audit_file(config, settings or [], variant, options, as_json=json, picture=picture))


@app.command()
def attack(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="A YAML file, e.g. configs/quickstart.yaml.")],
    settings: Settings = None,
    variant: Annotated[str | None, typer.Option(help="Which of the file's variants (default: the first).")] = None,
    silo: Annotated[int, typer.Option(help="Whose messages the server attacks, from 0.")] = 0,
    rounds: Annotated[int | None, typer.Option(help="Rounds to listen to (default: the file's).")] = None,
    repeats: Annotated[int, typer.Option(help="Seeds to repeat the membership attack over.")] = 10,
    out: Annotated[Path | None, typer.Option(help="Folder of the pictures (default: attack/<name>).")] = None,
    json: AsJson = False,
) -> None:
    """What a curious server could learn from a silo's messages: who is in the data, and what records look like.

    Membership inference and gradient inversion, with the configured noise and without any; two pictures.
    """
    from dpfl_plugin.cli.attack import attack_file

    attack_file(
        config, settings or [], variant=variant, silo=silo, rounds=rounds, repeats=repeats, out=out, as_json=json
    )


@app.command("list")
def list_plugins(
    group: Annotated[str | None, typer.Argument(help="algorithms, engines, datasets, ...; all if left out.")] = None,
    json: AsJson = False,
) -> None:
    """Plugins that are installed, with their options."""
    from dpfl_plugin.cli.plugins import list_group

    list_group(group, as_json=json)


@app.command()
def schema() -> None:
    """JSON schema of configuration files, for editors."""
    import json

    from dpfl_plugin.config.load import json_schema

    print(json.dumps(json_schema(), indent=2))


def main() -> NoReturn:
    """Run the command line; every error that a user can mend is one message and an exit code."""
    if "" not in sys.path:
        sys.path.insert(0, "")  # users' own modules, as with python -m
    logging.getLogger("absl").setLevel(logging.ERROR)  # dp_accounting warns of orders that it leaves out, soundly
    try:
        app()
    except DpflError as error:
        print(f"dpfl: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except BrokenPipeError:  # `dpfl ... | head`
        sys.stderr.close()
        sys.exit(1)
    except OSError as error:  # a full or vanished disk
        print(f"dpfl: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("dpfl: interrupted.", file=sys.stderr)
        sys.exit(4)
    raise AssertionError("typer exits by itself")
