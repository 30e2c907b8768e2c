"""The commands that tell what privacy costs, before or after a run: they import late, as all do."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

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
Paper = Annotated[
    str | None,
    typer.Option(help="What a paper prescribes for CONFIG: scaffnew, gao, noble, chang or li; next to what is proven."),
]
Recommend = Annotated[
    bool, typer.Option("--recommend", help="Which method to begin with, by what was measured nearest (docs/drift.md).")
]
Skew = Annotated[
    str | None,
    typer.Option(
        help="--recommend: how silos differ, as is known publicly: labels (few classes each), shares (classes in "
        "unequal shares), alike, or source (writers, scanners, sites). Default: what data.partition deals out."
    ),
]
Psi0 = Annotated[float | None, typer.Option(help="scaffnew: psi_0 (default: a bound known without data).")]
Convexity = Annotated[float | None, typer.Option(help="scaffnew: mu of the losses (default: l2).")]
Smoothness = Annotated[
    float | None, typer.Option(help="scaffnew, li, gao: L, or beta, of the losses (default: of linear models, known).")
]
Lipschitz = Annotated[float | None, typer.Option(help="gao: L of a record's loss (default: clip_norm).")]
Distance = Annotated[float | None, typer.Option(help="gao: D, diameter of the ball that is searched.")]
Beta = Annotated[float | None, typer.Option(help="chang: the factor of the noise's variance, in (0, 1].")]
Threshold = Annotated[int | None, typer.Option(help="chang: the last round of constant noise.")]
FromRecords = Annotated[
    bool, typer.Option("--from-records", help="scaffnew: compute mu, L and psi_0 from the records. NOT PRIVATE.")
]
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
    paper: Paper = None,
    recommend: Recommend = False,
    skew: Skew = None,
    psi0: Psi0 = None,
    strong_convexity: Convexity = None,
    smoothness: Smoothness = None,
    lipschitz: Lipschitz = None,
    distance: Distance = None,
    beta: Beta = None,
    threshold: Threshold = None,
    from_records: FromRecords = False,
    mechanism: Instead = None,
    q: Share = None,
    sigma: SolvesSteps = None,
    steps: SolvesSigma = None,
    accountant: ItsAccountant = None,
    json: AsJson = False,
) -> None:
    """The noise, rounds, local steps, cap or record rate that a privacy budget allows, before anything is trained."""
    _one_of(config, mechanism)
    constants = {
        "psi0": psi0,
        "strong_convexity": strong_convexity,
        "smoothness": smoothness,
        "lipschitz": lipschitz,
        "distance": distance,
        "beta": beta,
        "threshold": threshold,
        "from_records": from_records or None,
    }
    budget: dict[str, Any] = {"epsilon": epsilon, "delta": delta}
    of_file: dict[str, Any] = {"view": view, "variant": variant}
    asked: dict[str, Any] = {"paper": paper, "recommend": recommend or None, "skew": skew}
    of_mechanism: dict[str, Any] = {"q": q, "sigma": sigma, "steps": steps, "accountant": accountant}
    if config is not None:
        _belong(of_mechanism, f"{TO_MECHANISM}.")
        _plan_file(config, settings, solve, constants, budget, of_file, asked, as_json=json)
        return
    if any(value is not None for value in constants.values()):
        _check_constants(constants, paper)
    _belong({**of_file, "set": settings, **asked}, TO_CONFIG)
    from dpfl_plugin.cli.mechanism import Numbers, plan_mechanism

    plan_mechanism(Numbers(mechanism=str(mechanism), **of_mechanism, **budget), solve, as_json=json)


def _check_constants(constants: Mapping[str, Any], paper: str | None) -> Any:
    """The constants of theorems that are given, in their ranges and of this paper."""
    from dpfl_plugin.api.plans import Given

    given = Given(**constants)
    given.check(paper)
    return given


def _plan_file(
    path: Path,
    settings: Settings,
    solve: str | None,
    constants: Mapping[str, Any],
    budget: Mapping[str, Any],
    of_file: Mapping[str, Any],
    asked: Mapping[str, Any],
    *,
    as_json: bool,
) -> None:
    """The plan of a configuration."""
    from dpfl_plugin.api.plans import Question
    from dpfl_plugin.api.tuning import has_tune
    from dpfl_plugin.cli.plan import plan_file

    paper, recommend, skew = asked["paper"], bool(asked["recommend"]), asked["skew"]
    given = _check_constants(constants, paper)
    if has_tune(path):
        return _of_tuning(path, settings, {"solve": solve, **asked, **budget, **of_file}, as_json=as_json)
    question = Question(path=path, settings=tuple(settings or ()), **budget, **of_file)
    if not _recommended(question, skew, solve, paper, recommend=recommend, as_json=as_json):
        plan_file(question, solve, paper, given, as_json=as_json)


def _one_of(config: Path | None, mechanism: str | None) -> None:
    if (config is None) == (mechanism is None):
        raise typer.BadParameter("give either CONFIG or --mechanism.")


def _recommended(
    question: Any, skew: str | None, solve: str | None, paper: str | None, *, recommend: bool, as_json: bool
) -> bool:
    """Print the method to begin with, if that is asked for."""
    if not recommend and skew is None:
        return False
    from dpfl_plugin.cli.recommend import plan_method

    plan_method(question, skew, solve, paper, recommend=recommend, as_json=as_json)
    return True


def _of_tuning(path: Path, settings: Settings, others: Mapping[str, object], *, as_json: bool) -> None:
    """What all candidates of a tuning cost."""
    from dpfl_plugin.cli.tune import print_plan

    _belong(others, OF_TUNING)
    print_plan(path, settings or [], None, as_json=as_json)


def _belong(options: Mapping[str, object], message: str) -> None:
    for name, value in options.items():
        if value is not None and value != []:
            raise ConfigError(message.format(f"--{name}"))
