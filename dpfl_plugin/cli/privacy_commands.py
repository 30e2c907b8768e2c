"""The commands that tell what privacy costs, before or after a run: they import late, as all do."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from dpfl_plugin.cli.output import show
from dpfl_plugin.errors import ConfigError

# Options, in the order of the help.
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a value of the file, e.g. --set privacy.clip_norm=0.5."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON, and nothing else, on stdout.")]
Spent = Annotated[
    Path | None, typer.Argument(metavar="[CONFIG]", help="A configuration, a run's folder, or a shared ledger.")
]
File = Annotated[Path | None, typer.Argument(metavar="[CONFIG]", help="A configuration.")]
Budget = Annotated[float | None, typer.Option(help="The budget (default: the configuration's).")]
Delta = Annotated[float | None, typer.Option("--delta")]
ItsDelta = Annotated[float | None, typer.Option(help="Its delta (default: the configuration's).")]
View = Annotated[str | None, typer.Option(help="Whose epsilon: server or third_party (default: the configuration's).")]
Solve = Annotated[
    str | None,
    typer.Option(
        help="sigma (default): the least noise. rounds, steps (local), cap (participations): the most. rate: the "
        "smallest record_rate with next to the least noise on a mean gradient."
    ),
]
One = Annotated[str | None, typer.Option(help="One variant of the file (default: all).")]
Mechanism = Annotated[
    str | None,
    typer.Option(help="gaussian-wor (fixed-size, replace one), gaussian-poisson (add or remove one), or gaussian."),
]
Instead = Annotated[
    str | None, typer.Option(help="Instead of CONFIG: gaussian-wor, gaussian-poisson or gaussian; see account.")
]
Share = Annotated[float | None, typer.Option("--q", help="Share of the records in a batch (default: 1).")]
Sigma = Annotated[float | None, typer.Option("--sigma", help="Noise std / L2 sensitivity.")]
SolvesSteps = Annotated[float | None, typer.Option("--sigma", help="Noise std / L2 sensitivity: solves for steps.")]
Steps = Annotated[int | None, typer.Option("--steps", help="Number of releases.")]
SolvesSigma = Annotated[int | None, typer.Option("--steps", help="Number of releases: solves for sigma.")]
Accountant = Annotated[str | None, typer.Option(help="See dpfl list accountants (default: pld).")]
ItsAccountant = Annotated[str | None, typer.Option(help="Of --mechanism (default: pld).")]

TO_MECHANISM: Final = "{} belongs to --mechanism. Change a configuration by --set"
OF_TUNING: Final = (
    "{} has no meaning for a file with tune: the noise of all candidates is solved for its privacy.epsilon. Change the "
    "file by --set."
)
TO_CONFIG: Final = "{} belongs to CONFIG: a mechanism by its numbers is seen by the server."


def account(
    config: Spent = None,
    settings: Settings = None,
    mechanism: Mechanism = None,
    q: Share = None,
    sigma: Sigma = None,
    steps: Steps = None,
    delta: Delta = None,
    accountant: Accountant = None,
    of_papers: Annotated[
        bool, typer.Option("--all", help="Bounds and recipes of papers, too: looser, or not proven (--json has all).")
    ] = False,
    json: AsJson = False,
) -> None:
    """Epsilon of a configuration, of a run's ledger, or of a mechanism given by its numbers."""
    from dpfl_plugin.cli.account import account_file, account_mechanism

    _one_of(config, mechanism)
    if config is not None:
        given = {"q": q, "sigma": sigma, "steps": steps, "delta": delta, "accountant": accountant}
        _belong(given, f"{TO_MECHANISM}, e.g. privacy.delta.")
        account_file(config, settings or [], of_papers=of_papers, as_json=json)
    elif of_papers:
        raise ConfigError("--all belongs to CONFIG: a mechanism by its numbers is for the one --accountant.")
    else:
        account_mechanism(str(mechanism), q, sigma, steps, delta, accountant or "pld", as_json=json)


def statement(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Of a finished run, or of a silo on a platform.")],
    name: Annotated[
        list[str] | None,
        typer.Option("--name", metavar="SILO=NAME", help="What a site is called, e.g. 0='Mercy Hospital'; repeatable."),
    ] = None,
    study: Annotated[str, typer.Option(metavar="TITLE", help="What the page is headed by (default: the run).")] = "",
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A new file, in Markdown (default: to stdout).")
    ] = None,
) -> None:
    """A page to sign: whose records, by name, what is guaranteed, in words, and what not; after checking the ledger."""
    from dpfl_plugin.cli.statement import write_statement

    write_statement(folder, name or [], study, out)


def plan(
    config: File = None,
    epsilon: Budget = None,
    delta: ItsDelta = None,
    view: View = None,
    solve: Solve = None,
    settings: Settings = None,
    variant: One = None,
    mechanism: Instead = None,
    q: Share = None,
    sigma: SolvesSteps = None,
    steps: SolvesSigma = None,
    accountant: ItsAccountant = None,
    json: AsJson = False,
) -> None:
    """The noise, rounds, local steps, cap or record rate that a privacy budget allows, before anything is trained."""
    _one_of(config, mechanism)
    budget: dict[str, Any] = {"epsilon": epsilon, "delta": delta}
    of_file: dict[str, Any] = {"view": view, "variant": variant}
    of_mechanism: dict[str, Any] = {"q": q, "sigma": sigma, "steps": steps, "accountant": accountant}
    if config is not None:
        _belong(of_mechanism, f"{TO_MECHANISM}.")
        _plan_file(config, settings, solve, {**budget, **of_file}, as_json=json)
        return
    _belong({**of_file, "set": settings}, TO_CONFIG)
    from dpfl_plugin.cli.mechanism import Numbers, plan_mechanism

    plan_mechanism(Numbers(mechanism=str(mechanism), **of_mechanism, **budget), solve, as_json=json)


def _plan_file(path: Path, settings: Settings, solve: str | None, asked: Mapping[str, Any], *, as_json: bool) -> None:
    """The plan of a configuration."""
    from dpfl_plugin.api.plans import Question
    from dpfl_plugin.cli.plan import plan_file
    from dpfl_plugin.config.tune import has_tune

    if has_tune(path):
        return _of_tuning(path, settings, {"solve": solve, **asked}, as_json=as_json)
    plan_file(Question(path=path, settings=tuple(settings or ()), **asked), solve, as_json=as_json)


def _one_of(config: Path | None, mechanism: str | None) -> None:
    if (config is None) == (mechanism is None):
        raise typer.BadParameter("give either CONFIG or --mechanism.")


def _of_tuning(path: Path, settings: Settings, others: Mapping[str, object], *, as_json: bool) -> None:
    """What all candidates of a tuning cost."""
    from dpfl_plugin.api.experiment import Experiment
    from dpfl_plugin.api.tuning import plan_tuning

    _belong(others, OF_TUNING)
    show(plan_tuning(Experiment(path, tuple(settings or ()))), as_json)


def _belong(options: Mapping[str, object], message: str) -> None:
    for name, value in options.items():
        if value is not None and value != []:
            raise ConfigError(message.format(f"--{name}"))
