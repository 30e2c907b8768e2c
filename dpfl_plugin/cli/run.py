"""`dpfl run`."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from dpfl_plugin.api import fitting, pictures, signals
from dpfl_plugin.api.experiment import Experiment
from dpfl_plugin.api.run_text import doubts, ledger_lines, measures_lines, not_covered, silos_line, spread, worst_silo
from dpfl_plugin.api.running import (
    LEDGER_WAIT,
    MANY_ROUNDS,
    Cause,
    OtherCodeError,
    Result,
    Wait,
    carried_out,
    cause_of,
    in_file,
    of_one_seed,
    place_of,
    register,
    rounds_saved,
)
from dpfl_plugin.api.runs import Scored, difference
from dpfl_plugin.api.signals import Stop
from dpfl_plugin.cli import profiles, starting
from dpfl_plugin.cli.progress import reporter_on
from dpfl_plugin.config.load import Plan, Variant
from dpfl_plugin.core.outcomes import ACCURACY, score_key
from dpfl_plugin.core.rounding import digits, places
from dpfl_plugin.core.text import counted
from dpfl_plugin.data.names import called
from dpfl_plugin.errors import ConfigError, DataError
from dpfl_plugin.runs.folder import RunFolder, to_json
from dpfl_plugin.runtimes.mpi import job

MOST_COLUMNS = 8  # whose private statistics are printed
UNSPENT = 0.95  # of the epsilon that noise was solved for; a run that spent less is told why
EXIT_CODES = {"done": 0, "failed": 1, "budget_exhausted": 3, "interrupted": 4}
NO_ROUND = 7  # interrupted before this command finished a round


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of `dpfl run`, each by its name."""

    out: Path | None = None
    resume: bool = False
    as_json: bool = False
    ledger: Path | None = None
    ledger_wait: float | None = None
    variant: str | None = None
    profile: bool = False
    verbose: bool = False

    def command(self, path: Path, settings: Sequence[str], *, out: Path | None = None) -> list[str]:
        """The words of this command without --resume; ``out``: of another one that differs in its folder."""
        words = ["dpfl", "run", str(path), *(f"--set={setting}" for setting in settings)]
        if out is None and self.out is not None:
            words += ["--out", str(self.out)]
        if self.ledger is not None:
            words += ["--ledger", str(self.ledger)]
            words += [] if self.ledger_wait is None else ["--ledger-wait", f"{self.ledger_wait:g}"]
        if self.variant is not None:
            words += ["--variant", self.variant]
        words += ["--profile"] if self.profile else []
        return words if out is None else [*words, "--out", str(out)]


def run_file(path: Path, settings: list[str], options: Options) -> int:
    """Run what a file describes and print how it went; returns the exit code (the most severe of several runs).

    As one of several MPI ranks, only the first does so; the others hold silos and do what it asks.
    """
    joined = job.join()
    if joined is not None:
        starting.over()
    if joined is not None and joined.rank > 0:
        joined.serve()
        return 0
    given = settings if options.out is None else [*settings, f"out={json.dumps(str(options.out))}"]
    experiment = Experiment(path, tuple(given), options.variant)
    plan, results, told = of_one_seed(experiment.loaded()), dict[str, Result](), set[str]()
    before = [rounds_saved(variant.config) for variant in plan.variants]
    console = Console(stderr=True)
    with stopping() as stop:
        configs, waits = (
            [one.config for one in plan.variants],
            Wait(_ledger_wait(options), reporter_on(console, "").note),
        )
        register(configs, experiment.base, options.ledger, waits, waits.say)
        for one in plan.variants:
            label = one.label or one.config.name
            try:
                results[label] = _run_one(one, experiment.base, options, stop, console, told)
            except KeyboardInterrupt:
                _tell(plan, results, told, options)
                print(f"dpfl: {label}: interrupted during planning: no round began.", file=sys.stderr)
                return _interrupted(plan, before)
            except (ConfigError, DataError) as error:
                _tell(plan, results, told, options)  # what the variants before it came to is not lost
                anew = ""
                if isinstance(error, OtherCodeError):
                    other = options.command(path, settings, out=Path(f"{one.config.out}-anew"))
                    anew = f" A command for it: {shlex.join(other)}"
                raise in_file(error, path, one, anew) from error
            if results[label]["status"] == "interrupted":
                break
    _tell(plan, results, told, options)
    if options.profile:
        profiles.show(results, as_json=options.as_json)
    again = shlex.join([*options.command(path, settings), "--resume"])
    for label, result in results.items():
        if result["status"] != "done":
            prefix = f"{label}: " if len(plan.variants) > 1 else ""
            print(f"dpfl: {prefix}{_ending(result, again)}", file=sys.stderr)
    code = max((EXIT_CODES[result["status"]] for result in results.values()), default=0)
    return _interrupted(plan, before) if code == EXIT_CODES["interrupted"] else code


def _interrupted(plan: Plan, before: list[int]) -> int:
    """The exit code of an interrupted command, by the rounds of each run that were saved before it began."""
    progress = [rounds_saved(variant.config) for variant in plan.variants] != before
    return EXIT_CODES["interrupted"] if progress else NO_ROUND


def _tell(plan: Plan, results: dict[str, Result], told: Collection[str], options: Options) -> None:
    """Print the results, by label; of a file without variants, or of the one that was named, just the result."""
    if not results:
        return
    if options.as_json:
        alone = options.variant is not None or plan.variants[0].label is None
        print(to_json(next(iter(results.values())) if alone else results))
    else:
        _show(plan, results, told)


def _run_one(variant: Variant, base: Path, options: Options, stop: Stop, console: Console, told: set[str]) -> Result:
    """The result of one variant; what was warned of is added to ``told``."""
    config = variant.config
    stop.listening = (config.rounds or 0) < MANY_ROUNDS
    reporter = reporter_on(console, variant.label or "", options.verbose)
    result = carried_out(
        config,
        base,
        place=place_of(config),
        reporter=reporter,
        stop=stop,
        resume=options.resume,
        label=variant.label,
        ledger=options.ledger,
        ledger_wait=_ledger_wait(options),
        profile=options.profile,
    )
    told.update(reporter.warned)
    return result


def _ledger_wait(options: Options) -> float:
    return LEDGER_WAIT if options.ledger_wait is None else options.ledger_wait


@contextmanager
def stopping() -> Iterator[Stop]:
    starting.over()
    with signals.stopping(exits=True) as stop:
        yield stop


def _ending(result: Result, resume: str) -> str:
    done = f"{counted(result['rounds'], 'round')} done"
    match result["status"]:
        case "interrupted":
            return f"interrupted; {done} and saved. Go on with: {resume}"
        case "budget_exhausted":
            by = "max_participations" if cause_of(result) == Cause.MAX_PARTICIPATIONS else "the budget"
            return f"stopped by {by} after {counted(result['rounds'], 'round')}: {result['reason']}."
        case _:
            return f"failed: {result['reason']}. The last good state is in {result['folder']}/checkpoint."


def _show(plan: Plan, results: dict[str, Result], told: Collection[str]) -> None:
    """The table at the end, what it means, and where the files are."""
    config = plan.variants[0].config
    # Without a terminal to fit into, lines are as long as they are. What an MPI rank writes to is none, though it may
    # look like one.
    fits = sys.stdout.isatty() and job.num_started() == 1
    console = Console(highlight=False, width=None if fits else 200, force_terminal=fits)
    table = Table(title=config.name, title_justify="left")
    table.add_column("run")
    names = list(dict.fromkeys(score_key(result).replace("_", " ") for result in results.values()))
    called = " or ".join(names)
    over = "\nmean of silos" if any(result["num_silos"] > 1 for result in results.values()) else ""
    for column in ("rounds", f"{called}{over}\nlast round", f"{called}{over}\nlast 10 %", "worst silo\nlast round"):
        table.add_column(column, justify="right")
    for column in ("epsilon\nserver", "epsilon\nthird party", "delta", "seconds"):
        table.add_column(column, justify="right")
    for label, result in results.items():
        server, third_party = result["epsilon"]["server"], result["epsilon"]["third_party"]
        key = score_key(result)
        last, mean = result[key]["last"], result[key]["mean_last_10_percent"]
        worst = result["silos"][key]["min" if key == ACCURACY else "max"] if result.get("silos") else None
        table.add_row(
            label,
            str(result["rounds"]),
            *("-" if value is None else f"{value:.4f}" for value in (last, mean, worst)),
            *(_epsilon(view) for view in (server, third_party)),
            digits(server["delta"], 6),
            f"{result['seconds']:.1f}",
        )
    for warning in dict.fromkeys(text for result in results.values() for text in result.get("warnings", ())):
        console.print(f"warning: {warning}", soft_wrap=True, markup=False)
    fitting.show(console, table)
    for line in [
        *_statistics(results),
        *_of_silos(results),
        *_doubts(plan, results),
        *_meaning(results, told),
        *_seeded(plan, results),
        *_unspent(plan, results),
        *_comparisons(plan, results),
        *_files(plan, results),
    ]:
        console.print(line, soft_wrap=True, markup=False)


def _statistics(results: dict[str, Result]) -> list[str]:
    """The private statistics of columns, as they were released."""
    lines = []
    for label, result in results.items():
        columns = result.get("private_statistics", {}).get("columns", {})
        said = [
            f"{name} " + ", ".join(f"{key.replace('_', ' ')} {_short(value)}" for key, value in found.items())
            for name, found in columns.items()
        ]
        if said:
            more = f"; and {len(said) - MOST_COLUMNS} more in result.json" if len(said) > MOST_COLUMNS else ""
            lines.append(f"{label}: private statistics, noise included: {'; '.join(said[:MOST_COLUMNS])}{more}.")
    return lines


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _of_silos(results: dict[str, Result]) -> list[str]:
    """How the final models do at single silos, which a mean hides; and when they were stopped."""
    lines = []
    for label, result in results.items():
        silos, early = result.get("silos"), result.get("early_stopping")
        if early is not None and early["stopped"]:
            lines.append(f"{label}: {result['reason']}.")
        if early is not None and early["kept_round"] != result["rounds"]:
            lines.append(f"{label}: the model that is kept is that after round {early['kept_round']}.")
        private = result.get("private_evaluation")
        if private is not None and private["scores"]:
            after, score = private["scores"][-1]
            lines.append(
                f"{label}: private accuracy after round {after}: {score:.4f}, with noise of standard deviation "
                f"{private['noise_std']:.4f}."
            )
            lines += [_private_auc(label, found) for found in private.get("auc", ())[-1:]]
        names = {int(silo): name for silo, name in result.get("silo_names", {}).items()}
        if names and result.get("dearest_silo") is not None:
            lines.append(f"{label}: the epsilon is that of {called(result['dearest_silo'], names)}, which spent most.")
        if len(results) == 1 and result.get("measures"):
            lines += measures_lines(result["measures"], result.get("positive_class"))
        if not silos or result["num_silos"] < 2:
            continue
        key, count = score_key(silos), result["num_silos"]
        if len(results) == 1:  # of several runs the table has the worst silo
            lines.append(silos_line(result))
        elif names:
            lines.append(f"{label}: the final model is worst{worst_silo(result)}.")
        own = silos.get(f"personalised_{key.removeprefix('test_')}")
        if own is not None:
            lines.append(
                f"{label}: of silos' own models: {spread(own, key, count)}; better than the final "
                f"model at {silos['better_personalised']} of {count} silos, worse at "
                f"{silos['worse_personalised']}."
            )
    return lines


def _private_auc(label: str, found: dict[str, Any]) -> str:
    said = "the noise leaves nothing of it: a class has too few records for so much"
    if found["value"] is not None:
        said = f"{found['value']:.4f}, with noise of standard deviation {found['noise_std']:.4f} (to first order)"
    return f"{label}: private AUC after round {found['round']}: {said}."


def _meaning(results: dict[str, Result], told: Collection[str]) -> list[str]:
    """What the epsilons mean, and what else a reader should know; each sentence once, and not what was ``told``."""
    both = [result["epsilon"] for result in results.values()]
    views = [view["server"] for view in both]
    lines = [
        f"epsilon: {view['unit']} level, {_neighbours(view['neighbouring'])}, the worst silo, "
        f"accountant {view['accountant']}. Server: sees every message. Third party: sees the global models."
        for view in views
        if view["epsilon"] is not None and view["neighbouring"] is not None
    ]
    lines += [line for result in results.values() for line in not_covered(result)]
    if any(view["neighbouring"] is None for view in views):
        lines.append("epsilon 0 where no round began: nothing was released.")
    if any(view["epsilon"] is None for view in views):
        lines.append("epsilon none: nothing is guaranteed, or so little that epsilon is too large to compute.")
    lines += ledger_lines(list(results.values())[-1])
    if any((view["third_party"]["epsilon"] or 0) > (view["server"]["epsilon"] or 0) for view in both):
        lines.append(
            "The third party's epsilon is larger where it has to hold in advance, whoever is drawn, and counts every "
            "round that was begun as if all its silos had sent; the server's counts what silos sent. What a third "
            "party has seen is never more than the server has."
        )
    said = [f"note: {note}" for result in results.values() for note in result["notes"]]
    lines += [line for line in said if line.removeprefix("note: ") not in told]
    return list(dict.fromkeys(lines))


def _doubts(plan: Plan, results: dict[str, Result]) -> list[str]:
    """Models that are worth no more than a baseline, which accuracy hides, and those that were hardly trained."""
    lines = []
    for variant in plan.variants:
        label, options = variant.label or variant.config.name, variant.config.algorithm.options
        if (result := results.get(label)) is None:
            continue
        of = f"{label}: " if len(results) > 1 else ""
        lines += [f"{kind}: {of}{said}" for kind, said in doubts(result, options, Path(result["folder"]))]
    return lines


def _seeded(plan: Plan, results: dict[str, Result]) -> list[str]:
    """That an epsilon does not hold against whoever has the seed."""
    private = [v for v in plan.variants if (v.label or v.config.name) in results and not v.config.fresh]
    if not any(results[v.label or v.config.name]["epsilon"]["server"]["epsilon"] for v in private):
        return []
    return [
        "This is a simulation: its noise follows from the seed, and whoever has the folder can compute it. Before "
        "anything of a run leaves your hands: privacy.randomness=fresh."
    ]


def _unspent(plan: Plan, results: dict[str, Result]) -> list[str]:
    """Why less was spent than noise was solved for, where no silo was drawn as often as it might have been."""
    lines = []
    for variant in plan.variants:
        config, result = variant.config, results.get(variant.label or variant.config.name)
        if result is None or config.privacy.noise_multiplier is not None or config.privacy.budget_view != "server":
            continue
        view = result["epsilon"]["server"]
        spent, worst = view["epsilon"], view["worst_case_epsilon"]
        if result["status"] == "done" and spent and worst and spent < UNSPENT * worst:
            cap = config.max_participations
            often = "every round" if cap is None else f"{cap} rounds, the cap"
            lines.append(
                f"{result['name']}: the noise is solved for the worst case, a silo in {often}, at epsilon "
                f"{places(worst, 3)}. No silo was drawn as often: {places(spent, 3)} was spent. A "
                f"{'' if cap is None else 'lower '}cap, max_participations, would allow less noise."
            )
    return lines


def _epsilon(view: dict[str, Any]) -> str:
    return "none" if view["epsilon"] is None else places(view["epsilon"], 3)


def _neighbours(relation: str) -> str:
    """The relation in words; where something is added or removed, its number stays public."""
    words = relation.replace("_", "-") + " neighbours"
    return words + " (added or removed: counted as zero or not; the numbers are public)" * (relation == "add_or_remove")


def _comparisons(plan: Plan, results: dict[str, Result]) -> list[str]:
    """The pairs that the file asks for, and whether their difference is more than chance would make."""
    lines, configs = [], {one.label: one.config for one in plan.variants}
    for first, second in plan.compare:
        if first in results and second in results:
            a, b = (Scored.of(results[label], configs[label]) for label in (first, second))
            if a is not None and b is not None:
                lines.append(f"{first} against {second}: {difference(a, b)}")
    return lines


def _files(plan: Plan, results: dict[str, Result]) -> list[str]:
    """Where the results are; one picture of all variants beside their folders."""
    lines = [f"{label}: folder {result['folder']}" for label, result in results.items()]
    if any((Path(result["folder"]) / "privacy.md").exists() for result in results.values()):
        lines.append("who is protected, against whom, and what is not covered: privacy.md there.")
    if len(plan.variants) > 1:
        measured = {label: RunFolder(Path(result["folder"])).read_metrics() for label, result in results.items()}
        path = pictures.of_variants(plan.variants[0].config, measured)
    else:
        path = RunFolder(Path(next(iter(results.values()))["folder"])).curves
    return [*lines, f"picture: {path}"] if path is not None and path.exists() else lines
