"""`dpfl.account`: epsilon by view and accountant, of a configuration, of a run's ledger, or of one that runs share.

A ledger is read without torch, data or models.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.table import Table

from dpfl_plugin import registry, terminal
from dpfl_plugin.algorithms.base import Setting, in_sums
from dpfl_plugin.api.progress import say
from dpfl_plugin.api.runs import Run
from dpfl_plugin.config.load import in_file, load
from dpfl_plugin.config.schema import Config
from dpfl_plugin.core.rounding import digits, places
from dpfl_plugin.core.text import Printed, counted
from dpfl_plugin.errors import ConfigError, DataError, UnsupportedError
from dpfl_plugin.privacy.account import PrivacyAccount
from dpfl_plugin.privacy.accountants import Accountant, named_accountant
from dpfl_plugin.privacy.costs import MOST_ROUNDS, RoundCost
from dpfl_plugin.privacy.events import Charge
from dpfl_plugin.privacy.filters import planned_epsilon
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.observers import FROM_THE_SEED, Statement
from dpfl_plugin.privacy.paper import NOBLE_THIRD_PARTY_UNSOUND, Paper, noble_third_party_epsilon
from dpfl_plugin.privacy.rules import PrivacyRules
from dpfl_plugin.privacy.shared_ledger import Run as SharingRun
from dpfl_plugin.privacy.shared_ledger import adaptive_total, planned_total, plans_in, runs_in
from dpfl_plugin.privacy.tally import Tally
from dpfl_plugin.privacy.views import server_composed, server_view
from dpfl_plugin.runs.accounting import make_account, read_costs
from dpfl_plugin.runs.algorithm_setting import make_setting
from dpfl_plugin.runs.folder import RunFolder
from dpfl_plugin.runs.ledgers import read_shared, read_whole
from dpfl_plugin.runs.plugins import build_plugin
from dpfl_plugin.runs.privacy_rules import privacy_rules, weak_claims
from dpfl_plugin.runs.silo_settings import in_facts, with_own

if TYPE_CHECKING:
    from dpfl_plugin.api.experiment import Experiment

RECIPE: Final = "published recipe, NOT A GUARANTEE"
TUNED: Final = "guarantee, of the tuning"  # towards the server, which bounds all others
ADAPTIVE: Final = "server, whatever decided on later runs"
PLANNED: Final = "server, runs that were planned together"
SEES: Final = {
    TUNED: "Whatever the server may see: ",
    "server": "Sees every message, and who took part: ",
    "server, worst case": "As the server, whoever is drawn: ",
    "third party": "Sees the global models only: ",
    ADAPTIVE: "Runs may have been chosen by what was seen of earlier ones: ",
    PLANNED: "Whatever the server may see of these runs: ",
    "outsider": "As a third party, but knowing less: ",
}
RECIPE_IN_SHORT: Final = (
    "Noble et al. 2022, third party. Not sound: it credits the other silos' noise, which is not proven for K > 1, "
    "amplifies by the sampling of silos as if of records, and takes control variates for free. It may still be "
    "the larger number, because Lemma B.7 is loose. See its caveat (--json)."
)
SIDE_BY_SIDE: Final = (
    "Every number is an upper bound, unless marked as not proven: the smallest holds. How far each may be off: its "
    "error (--json); what each accountant knows: docs/privacy.md."
)
PAPERS_HIDDEN: Final = "papers=True (--papers) shows bounds and recipes of papers, too."


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountRow:
    """Epsilon of a run in one view, by one accountant.

    Attributes:
        run: its label, or that of a total.
        view: who sees what; see docs/privacy.md.
        epsilon: None if nothing is guaranteed.
        accountant: what composed the releases; sound: whether its number is an upper bound.
        caveat, error: what the accountant takes for granted, and how far it may be off.
        basis: what the number is of. note: how to read it, if that needs saying.
    """

    run: str
    view: str
    epsilon: float | None
    delta: float
    neighbouring: str | None
    accountant: str
    sound: bool
    caveat: str
    error: str
    basis: str
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """All but the label, and the note only if there is one."""
        document = dataclasses.asdict(self)
        return {key: value for key, value in document.items() if key != "run" and (key != "note" or value)}


@dataclass(frozen=True, slots=True)
class Account(Printed):
    """Epsilon of one or several runs, by view and accountant.

    Attributes:
        rows: by run, then by accountant, the default one first.
        papers: whether bounds and recipes of papers are displayed; `rows` always has them.
    """

    rows: tuple[AccountRow, ...]
    papers: bool = False

    @property
    def runs(self) -> dict[str, list[AccountRow]]:
        """The rows of each run, by its label."""
        runs: dict[str, list[AccountRow]] = {}
        for row in self.rows:
            runs.setdefault(row.run, []).append(row)
        return runs

    def to_dict(self) -> Any:
        """What ``--json`` prints: the rows; by label if there are several runs."""
        documents = {label: [row.to_dict() for row in rows] for label, rows in self.runs.items()}
        return next(iter(documents.values())) if len(documents) == 1 else documents

    def __str__(self) -> str:
        shown = [row for row in self.rows if self.papers or (row.view != RECIPE and row.accountant != Paper.name)]
        text = terminal.printed(lambda console: _show(console, shown))
        return text if len(shown) == len(self.rows) else f"{text}\n{PAPERS_HIDDEN}"

    __repr__ = __str__


def account(source: Experiment | Run | str | Path, *, papers: bool = False) -> Account:
    """Epsilon of a configuration that has not run yet, of a run by its ledger, or of all runs that share one.

    Args:
        source: an experiment or its file; a run or its folder; a ledger that runs share.
        papers: display bounds and recipes of papers, too: looser, or not proven. A configuration with
            ``privacy.accountant: paper`` always does.

    Raises:
        ConfigError, DataError: the configuration or its records are wrong, or ``source`` is something else.
        LedgerError: the ledger is damaged; names the line, and what is still proven.
    """
    source = source.folder if isinstance(source, Run) else source
    if isinstance(source, str | Path):
        path = Path(source)
        if path.is_dir():
            config = RunFolder(path).config
            papers |= config.is_file() and _is_papers(load(config).variants[0].config)
            return Account(tuple(_of_folder(path)), papers)
        if is_ledger(path):
            return Account(tuple(_of_shared(path)), papers)
    from dpfl_plugin.api.experiment import experiment_of

    experiment = experiment_of(source)
    if is_ledger(experiment.path):
        raise ConfigError(f"{experiment.path} is a ledger: no setting changes what was released.")
    rows: list[AccountRow] = []
    for variant in experiment.loaded().variants:
        papers |= _is_papers(variant.config)
        try:
            rows += _of_config(variant.label or variant.config.name, variant.config, experiment.base)
        except (ConfigError, DataError) as error:
            raise in_file(error, experiment.path, variant) from error
    return Account(tuple(rows), papers)


def _is_papers(config: Config) -> bool:
    return config.privacy.accountant.name == Paper.name.lower()


def is_ledger(path: Path) -> bool:
    """Whether a file is a ledger, intact or not, and no configuration."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return path.suffix == ".jsonl" or file.read(9) == b'{"facts":'


def _by_all_accountants(rows_by: Callable[[Accountant], Iterable[AccountRow]]) -> Iterator[AccountRow]:
    """Rows by every registered accountant that knows the mechanism, the default one first."""
    for name in sorted(registry.names("accountants"), key=lambda name: (name != "pld", name)):
        try:
            yield from list(rows_by(named_accountant(name)))
        except UnsupportedError:
            continue


def _row(
    run: str,
    delta: float,
    neighbouring: str | None,
    accountant: Accountant,
    view: str,
    epsilon: float | None,
    basis: str,
    note: str = "",
) -> AccountRow:
    return AccountRow(
        run=run,
        view=view,
        epsilon=epsilon if epsilon is not None and math.isfinite(epsilon) else None,
        delta=delta,
        neighbouring=neighbouring,
        accountant=accountant.name,
        sound=accountant.sound,
        caveat=accountant.caveat,
        error=accountant.error,
        basis=basis,
        note=note,
    )


# A configuration


def _of_config(label: str, config: Config, base: Path) -> Iterator[AccountRow]:
    """The views of all rounds of a configuration; nothing is trained."""
    from dpfl_plugin.runs.forecast import forecast, solving
    from dpfl_plugin.runs.prepare import slots_ahead, total_with

    ahead = forecast(config, base)
    ahead.check()
    noise, solved = config.privacy.noise_multiplier, ""
    if noise is None:
        if message := solving(config):
            say(message)
        noise = ahead.noise()
        solved = f", noise_multiplier {noise:g} as solved for"
    account = ahead.all_rounds(noise)
    rules, costs, setting = privacy_rules(config, noise), account.costs, ahead.setting
    for caveat in weak_claims(config, rules, ahead.num_records):
        say(f"note: {caveat}")
    rounds, cap = _rounds_ahead(config, account) + solved, config.max_participations
    where = "all of them" if cap is None or cap >= len(costs) else f"{cap} of them, the cap"
    drawn = f"each with probability {setting.num_participants}/{setting.num_silos}"
    likeliest = max(cost.probability for cost in costs.values())
    if any(cost.participation.law == "with_replacement" for cost in costs.values()):
        drawn = f"each with probability {likeliest:.4g} at most, by its weight"
    if likeliest < 1 and not rules.fresh:
        drawn += f"; {FROM_THE_SEED}"
    if cap is not None and cap < (config.rounds or MOST_ROUNDS):
        drawn = "with a cap draws depend on earlier ones: the server's worst case, no mixture"

    def rows_by(accountant: Accountant) -> Iterator[AccountRow]:
        account = ahead.account(noise, costs, accountant)
        worst, mixture = account.ahead()
        views = [("server, worst case", worst, f"a silo that takes part in {where}"), ("third party", mixture, drawn)]
        if (outsider := account.outsider()) is not None:
            views.append(("outsider", outsider.epsilon, outsider.basis))
        row = functools.partial(_row, label, config.privacy.delta, rules.release(1.0).neighbouring, accountant)
        for view, epsilon, basis in views:
            yield row(view, epsilon, f"{rounds}; {basis}")

    yield from _by_all_accountants(rows_by)
    yield from _recipe(label, config, rules, setting, ahead.num_records, costs.values())
    if total := total_with(config, base, lambda: slots_ahead(ahead, noise, len(costs))):
        relation = rules.release(1.0).neighbouring
        there = f"with the {counted(total['num_runs'], 'run')} that {total['ledger']} holds: {total['why']}"
        row = _row(label, total["delta"], relation, named_accountant("pld"), ADAPTIVE, total["epsilon"], there)
        yield dataclasses.replace(row, accountant="filter")


def _rounds_ahead(config: Config, account: PrivacyAccount) -> str:
    releases = sum(cost.num_releases for cost in account.costs.values())
    rounds, fit = len(account.costs), ""
    if config.rounds and rounds < config.rounds:
        limits = [] if config.privacy.epsilon is None else [f"epsilon {config.privacy.epsilon:g}"]
        limits += [] if config.max_participations is None else [f"max_participations {config.max_participations}"]
        fit = f" of the {config.rounds} asked for fit {' and '.join(limits)}"
    return f"{counted(rounds, 'round')}{fit}, {counted(releases, 'release')}"


# The folder of a run


def _of_folder(folder: Path) -> list[AccountRow]:
    """All views of what a run's ledger holds.

    Raises:
        LedgerError: the ledger is damaged, or lacks what the checkpoint or `ledger.json` knows of.
    """
    files, label = RunFolder(folder), folder.name
    if not files.ledger.exists():
        raise DataError(f"{folder}: holds no ledger.jsonl, so it is not the folder of a run.")
    config = load(files.config).variants[0].config
    ledger, facts = read_whole(files)
    _say_notes(ledger)
    num_records, delta = ledger.facts.get("num_records"), config.privacy.delta
    if num_records is None:
        return list(_by_all_accountants(functools.partial(_realised, label, ledger, delta)))
    setting = _setting(config, ledger)
    silos, silo_noise = in_facts(ledger.facts)
    rules = with_own(privacy_rules(config, ledger.facts["noise_multiplier"]), config, silos, silo_noise)
    costs, tuning = read_costs(facts, setting), ledger.facts.get("tuning")
    note = _tuning_note(tuning) if tuning else ""
    own: Accountant = build_plugin("accountants", config.privacy.accountant, where="privacy.accountant")
    algorithm = functools.partial(build_plugin, "algorithms", config.algorithm, where="algorithm")  # imports torch

    @functools.cache
    def statement() -> Statement:
        made = make_account(
            config,
            rules=rules,
            accountant=own,
            setting=setting,
            num_records=num_records,
            ledger=ledger,
            costs=costs,
            in_sums=rules.unit == "silo" and in_sums(algorithm()),  # no other claim asks
            lost=bool((facts or {}).get("losses")),
            stating=True,
            epsilons=silos.epsilons(),
        )
        made.failed = _has_failed(files)
        return made.statement()

    def rows_by(accountant: Accountant) -> Iterator[AccountRow]:
        views = statement().views(accountant)
        server, third_party, outsider = views["server"], views["third_party"], views.get("outsider")
        row = functools.partial(_row, label, delta, server["neighbouring"], accountant, note=note)
        yield row("server", server["epsilon"], server["basis"])
        yield row("server, worst case", server["worst_case_epsilon"], server["worst_case_basis"])
        yield row("third party", third_party["epsilon"], third_party["basis"])
        if outsider is not None:
            yield row("outsider", outsider["epsilon"], outsider["basis"])

    rows = [*_by_all_accountants(rows_by), *_recipe(label, config, rules, setting, num_records, costs.values())]
    if not tuning:
        return rows
    basis = f"all {tuning['num_candidates']} candidates of tuning {tuning['id']} together, their scores included"
    return [_row(label, delta, rows[0].neighbouring, own, TUNED, tuning["epsilon"], basis, note), *rows]


def _say_notes(ledger: Ledger) -> None:
    for note in dict.fromkeys(ledger.notes):
        say(f"note: {note}")


def _has_failed(files: RunFolder) -> bool:
    """Whether its result says so. One that cannot be read may; that of a session which goes on is gone."""
    if not files.result.exists():
        return False
    try:
        return bool(json.loads(files.result.read_text())["status"] == "failed")
    except (OSError, ValueError, KeyError, TypeError):
        return True


def _tuning_note(tuning: Mapping[str, Any]) -> str:
    return (
        f"This run is one of {tuning['num_candidates']} candidates of a tuning, and what all of them released decided "
        f"which is kept: its guarantee is epsilon {digits(tuning['epsilon'], 6)} of all together. The other numbers "
        "are of what it released alone, and guarantee nothing."
    )


def _setting(config: Config, ledger: Ledger) -> Setting:
    """Of the run that a ledger is of; its silos' names are not known here."""
    num_records, weights = ledger.facts["num_records"], ledger.facts.get("weights")
    if weights is None:
        return make_setting(config, num_records)
    equal = make_setting(config.model_copy(update={"silo_weights": "equal"}), num_records)
    return dataclasses.replace(equal, weights=tuple(weights))


def _realised(label: str, ledger: Ledger, delta: float, accountant: Accountant) -> list[AccountRow]:
    """What a ledger without the silos' numbers of records says."""
    view = server_view(ledger.tally, accountant, delta)
    note = "The run is of an older version, whose ledger lacks the silos' numbers of records: no other view is known."
    return [_row(label, delta, view.neighbouring, accountant, "server", view.epsilon, view.basis, note)]


# A ledger that runs share


def _of_shared(path: Path) -> Iterator[AccountRow]:
    """The server's view of each run and of all together, by every accountant that knows the mechanisms.

    Raises:
        ConfigError: it is one run's own ledger.
        LedgerError: it is damaged; names the line, and what is still proven.
    """
    ledger = read_shared(path)
    _say_notes(ledger)
    runs, rows = runs_in(ledger), []
    for run in runs:
        rows = _of_sharing_run(run, ledger)
        yield from rows
    if not rows:
        return
    delta = runs[0].facts["delta"]
    like = dataclasses.replace(rows[0], run=f"total at delta {delta:.15g}", delta=delta, view=PLANNED)
    if all("candidate" in run.facts for run in runs):
        epsilon = planned_epsilon(plans_in(ledger), delta)
        basis = "what the candidates of a tuning released, within a plan that was fixed before the first of them"
        yield dataclasses.replace(like, epsilon=epsilon if math.isfinite(epsilon) else None, basis=basis)
        return
    total = adaptive_total(ledger, delta)
    like = dataclasses.replace(like, run=f"total at delta {total['delta']:.15g}", delta=total["delta"])
    error = "above the epsilon of planned runs by what choosing them after looking may have gained"
    adaptive = dataclasses.replace(like, view=ADAPTIVE, epsilon=total["epsilon"], error=error, basis=total["why"])
    yield dataclasses.replace(adaptive, accountant="filter")
    if planned := planned_total(ledger, total["delta"]):
        basis = f"the joint plan of the {planned['num_runs']} runs that were registered before the first release"
        yield dataclasses.replace(like, epsilon=planned["epsilon"], basis=basis)


def _of_sharing_run(run: SharingRun, ledger: Ledger) -> list[AccountRow]:
    composed = functools.cache(lambda: server_composed(_tally(run, ledger)))  # for all accountants
    name = run.facts.get("candidate") or run.facts["name"]
    label = ", ".join(filter(None, [name, run.facts.get("id"), run.name[:8], run.facts["started"]]))

    def rows_by(accountant: Accountant) -> list[AccountRow]:
        view = composed().stated(accountant, run.facts["delta"])
        return [_row(label, view.delta, view.neighbouring, accountant, "server", view.epsilon, view.basis)]

    return list(_by_all_accountants(rows_by))


def _tally(run: SharingRun, ledger: Ledger) -> Tally:
    """What a run released; of a tuning, which charges that to a ledger of its own, what it registered."""
    if not run.facts.get("tuning"):
        return ledger.tally_of_run(run.name)
    planned = Ledger()
    for silo, counts in run.slots.items():
        for round, ((release, share), count) in enumerate(counts.items()):
            planned.append([Charge(round=round, silo=silo, release=release, count=count, share=share, noise_id="plan")])
    return planned.tally


# What papers would publish


def _recipe(
    label: str,
    config: Config,
    rules: PrivacyRules,
    setting: Setting,
    num_records: Iterable[int],
    costs: Iterable[RoundCost],
) -> list[AccountRow]:
    """What Noble et al. would publish, where their recipe applies; the worst silo's."""
    costs = list(costs)
    kinds, fixed = set(costs), rules.sampler.name == "fixed" and rules.unit == "record"
    share = setting.num_participants / setting.num_silos
    if not fixed or not rules.noise_multiplier or len(kinds) != 1 or rules.silos or rules.varies:
        return []
    (kind,) = kinds
    if kind.share != (0.0, 1.0) or kind.probability != share or kind.participation.law == "with_replacement":
        return []
    epsilon = max(
        noble_third_party_epsilon(
            noise_multiplier=rules.noise_multiplier,
            local_steps=kind.num_releases,
            rounds=len(costs),
            silo_rate=share,
            record_rate=rules.sampler.rate(count),
            num_silos=setting.num_silos,
            delta=config.privacy.delta,
        )
        for count in set(num_records)
    )
    return [
        AccountRow(
            run=label,
            view=RECIPE,
            epsilon=epsilon if math.isfinite(epsilon) else None,
            delta=config.privacy.delta,
            neighbouring="replace_one",
            accountant="Noble et al. 2022",
            sound=False,
            caveat=NOBLE_THIRD_PARTY_UNSOUND,
            error="",
            basis=f"the recipe of their appendix B.4 for {len(costs)} rounds; not sound",
        )
    ]


# Display


def _show(console: Console, rows: Sequence[AccountRow]) -> None:
    """Print a line for each run and view, a column for each accountant; then what the numbers are of."""
    proven = [row for row in rows if row.view != RECIPE]
    smallest: dict[str, float] = {}  # the first number of each accountant
    for row in proven:
        smallest.setdefault(row.accountant, math.inf if row.epsilon is None else row.epsilon)
    accountants = sorted(smallest, key=lambda name: smallest[name])
    table = Table(box=None, pad_edge=False, title="epsilon, by accountant", title_justify="left")
    table.add_column("run", overflow="fold")
    table.add_column("view", no_wrap=True)
    for column in (*accountants, "delta"):
        table.add_column(column, justify="right", no_wrap=True)
    for run, view in dict.fromkeys((row.run, row.view) for row in proven):
        cells = {row.accountant: row for row in proven if (row.run, row.view) == (run, view)}
        numbers = [_number(cells[name]) if name in cells else "-" for name in accountants]
        table.add_row(run, view, *numbers, digits(next(iter(cells.values())).delta, 6))
    terminal.show_table(console, table)
    recipes = {row.run: _number(row) for row in rows if row.view == RECIPE}
    for title, lines in (
        ("views", _bases(proven)),
        ("not proven", {row.accountant: row.caveat for row in proven if not row.sound}),
        (RECIPE, {**recipes, "why": RECIPE_IN_SHORT} if recipes else {}),
    ):
        if lines:
            grid = Table(box=None, pad_edge=False, show_header=False, title=f"\n{title}", title_justify="left")
            grid.add_column(no_wrap=True)
            grid.add_column()
            for term, text in lines.items():
                grid.add_row(f"  {term}", text)
            console.print(grid)
    if len(accountants) > 1:
        console.print(f"\n{SIDE_BY_SIDE}")
    for note in [row.note for row in proven if row.note][:1]:
        console.print(note)


def _bases(rows: Sequence[AccountRow]) -> dict[str, str]:
    """What each view is of; with the runs' labels where it is not the same for all."""
    runs: dict[str, dict[str, dict[str, None]]] = {}
    for row in rows:
        basis = f"{row.basis}; {(row.neighbouring or 'no').replace('_', '-')} neighbours"
        runs.setdefault(row.view, {}).setdefault(basis, {})[row.run] = None
    several = len({row.run for row in rows}) > 1
    return {
        view: SEES[view]
        + "; or ".join(
            f"{basis} ({', '.join(labels)})" if several and len(bases) > 1 else basis for basis, labels in bases.items()
        )
        for view, bases in runs.items()
    }


def _number(row: AccountRow) -> str:
    return "none" if row.epsilon is None else places(row.epsilon, 4)
