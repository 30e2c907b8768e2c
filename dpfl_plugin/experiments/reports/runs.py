"""Run folders as they are found: what ran, how far it got, and what came out. Nothing here starts or changes a run."""

from __future__ import annotations

import contextlib
import functools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import yaml

from dpfl_plugin.config.load import NOT_IN_ID, flat
from dpfl_plugin.config.sweep import Row
from dpfl_plugin.core.outcomes import ACCURACY, OF_SILOS, score_key
from dpfl_plugin.errors import DataError
from dpfl_plugin.experiments import manifest
from dpfl_plugin.federation.outcome import Cause
from dpfl_plugin.runs.folder import RESULT_SCHEMA, RunFolder, run_folders
from dpfl_plugin.runs.measurements import join_lines, join_result

COMPLETE: Final = ("done", "budget_exhausted")
STOPS: Final = (Cause.CALLBACK, Cause.CALLBACK_OF_RELEASED)
LEFT_BEHIND: Final = "left behind by its tuning"
STATUSES: Final = (*COMPLETE, LEFT_BEHIND, "interrupted", "failed", "running", "unfinished")
POINTS: Final = 100  # of a curve that are kept
MOST_LABELS: Final = 5  # of missing runs
VARIANT: Final = "variant"
AXES: Final = {
    "rounds": "communication rounds",
    "epsilon": "epsilon, server's view",
    "epsilon_third_party": "epsilon, third party's view",
    "bytes": "bytes sent, both ways, all silos",
    "seconds": "seconds",
}
# libyaml where PyYAML was built with it: ten times as fast
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class UnreadableError(Exception):
    """A folder's files are not what a run leaves; the message names the file."""


@dataclass(frozen=True, slots=True)
class Guarantee:
    """What a run spent, towards whom.

    Attributes:
        server, third_party: epsilon; infinite where nothing is guaranteed.
        noise_multiplier: as named, or solved for.
        simulated: whether its noise follows from a seed.
        capped: a cap on participations and the noise that it would have taken; None where it would take no less.
        planned, adaptive: epsilon and delta of all runs in a shared ledger, if all of them were registered before the
            first release, and whatever decided on them. None without one.
        caveat: what keeps the accountant's number from being a guarantee; empty for nothing.
    """

    server: float
    third_party: float
    delta: float
    unit: str | None
    neighbouring: str | None
    accountant: str
    noise_multiplier: float
    simulated: bool
    capped: Mapping[str, float] | None
    planned: Mapping[str, float] | None
    adaptive: Mapping[str, float] | None
    caveat: str


@dataclass(frozen=True, slots=True)
class Run:
    """One run.

    Attributes:
        config: the resolved configuration, `{"algorithm.name": "scaffold", ...}`, without what changes no result; with
            the label of its variant as `VARIANT`, in a file of several.
        status: as in result.json; running or unfinished where there is none that is up to date; `LEFT_BEHIND` of a
            candidate that its tuning, which has ended, did not choose.
        rounds: that are known to be done. stopped: whether a callback ended it after fewer than were planned.
        numbers: of each metric the mean over the last 10 % of rounds; None where it is not finite.
        curve: columns over evaluations, ``AXES`` and metrics, NaN where there is no finite value; thinned to `POINTS`.
        measures: {name: {"model": ..., "baseline": ...}} of the final model on all test records, or of silos' own where
            they have some; None where not defined.
        ranked_by: the measure that such models are ranked by; None of old runs.
        positive_class: that of measures of two classes; None of other outcomes, and where it is not known.
        guarantee: None where the run goes on, or ended without a word: the ledger alone knows.
        finished: when; code: digests of the files of users' code that its configuration names.
        test_part: runs of one seed that have it in common have the same test records.
        ledger: the one that it shares, or the tuning that it is a candidate of, if it does. model: its digest.
        compared_with: labels of variants that its file compares it with.
        missing: ids of runs that differ from it in their seed only, and that its sweep has no folder of.
    """

    folder: Path
    name: str
    id: str
    seed: int
    config: dict[str, Any]
    status: str
    reason: str
    rounds: int
    numbers: dict[str, float | None]
    curve: dict[str, np.ndarray]
    guarantee: Guarantee | None
    measures: dict[str, dict[str, float | None]] = field(default_factory=dict)
    ranked_by: str | None = None
    positive_class: str | None = None
    finished: str = ""
    code: Mapping[str, str] = field(default_factory=dict)
    test_part: str = ""
    ledger: str = ""
    model: str = ""
    compared_with: tuple[str, ...] = ()
    stopped: bool = False
    missing: frozenset[str] = frozenset()

    @property
    def own_measures(self) -> list[str]:
        """What it is judged by: of two classes the AUC of the final model first, then what its evaluations are."""
        auc = [name for name in self.measures if name.removesuffix(OF_SILOS) == "auc"] if self.positive_class else []
        score = score_key(self.numbers)
        return [*auc, *([score] if score in self.numbers else [])]

    def number(self, metric: str) -> float | None:
        """Of a metric of evaluations, or of a measure of the final model ("auc"); None where there is none."""
        measure: Mapping[str, float | None] = self.measures.get(metric, {})
        return self.numbers[metric] if metric in self.numbers else measure.get("model")

    @property
    def complete(self) -> bool:
        """Whether it ended as it was meant to: only such runs are averaged."""
        return self.status in COMPLETE


@dataclass(frozen=True, slots=True)
class Problem:
    """A folder that was left out, and why."""

    folder: Path
    reason: str


def scan(folders: Sequence[Path]) -> tuple[list[Run], list[Problem]]:
    """All runs in ``folders`` and below, in the order of their paths; each run (name and id) once.

    A run of the same id as another one is the same run in another place: averaged over, it would pretend to be one
    more seed. The complete one counts, else the one that got further.
    """
    by_id: dict[str, Run] = {}
    problems = []
    for folder in sorted({path for root in folders for path in run_folders(root)}):
        try:
            run = read(folder)
        except UnreadableError as error:
            problems.append(Problem(folder, str(error)))
            continue
        other = by_id.get(run.id)
        if other is not None:
            counted, left = (other, run) if _further(other) >= _further(run) else (run, other)
            problems.append(Problem(left.folder, _why_not_counted(left, counted)))
            by_id[run.id] = counted
        else:
            by_id[run.id] = run
    problems += [problem for root in folders for problem in _missing(root, by_id)]
    return _with_other_code(_variants(list(by_id.values()))), problems


def _why_not_counted(left: Run, counted: Run) -> str:
    if left.model and counted.model and left.model != counted.model:
        return (
            f"the configuration of {counted.folder}, which counts, with other noise: what it released is in no number "
            "here"
        )
    return f"the same run as {counted.folder}, which counts"


def _missing(out: Path, known: dict[str, Run]) -> list[Problem]:
    """The sweeps in a folder of which a run has no folder of its own; a known run of the same row counts it."""
    problems = []
    for folder in sorted(path.parent for path in out.glob("sweeps/*/manifest.jsonl")):
        try:
            sweep = manifest.read(folder)
        except DataError as error:
            problems.append(Problem(folder, str(error)))
            continue
        missing = [row for row in sweep.rows if row.id not in known and not sweep.folder_of(row).path.exists()]
        same_row = {_but_seed(row): row.id for row in sweep.rows if row.id in known}
        for row in missing:
            if (run := known.get(same_row.get(_but_seed(row), ""))) is not None:
                known[run.id] = replace(run, missing=run.missing | {row.id})
        if missing:
            labels = "; ".join(row.label for row in missing[:MOST_LABELS]) + "; ..." * (len(missing) > MOST_LABELS)
            count = f"{len(missing)} of {len(sweep.rows)} runs have not begun, or were deleted"
            problems.append(Problem(folder, f"{count}: {labels}. The same dpfl sweep runs them"))
    return problems


def _but_seed(row: Row) -> str:
    return json.dumps({key: value for key, value in row.changes.items() if key != "seed"}, sort_keys=True)


def _with_other_code(runs: list[Run]) -> list[Run]:
    """Runs that were made with another file of users' code than the newest that names it say so."""
    newest: dict[str, str] = {}
    for run in sorted(runs, key=lambda run: run.finished):
        newest.update(run.code)
    noted = []
    for run in runs:
        others = [module for module, digest in run.code.items() if digest != newest[module]]
        what = f"made with another version of {', '.join(others)} than the newest run here"
        noted.append(replace(run, reason="; ".join(filter(None, [run.reason, what]))) if others else run)
    return noted


def _further(run: Run) -> tuple[bool, int]:
    return run.complete, run.rounds


def read(path: Path) -> Run:
    """The run in a folder.

    Raises:
        UnreadableError: a file is missing, damaged, or contradicts another.
    """
    try:
        return _read(path)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise UnreadableError(f"its files are not what a run leaves: {error!r}") from error


def _read(path: Path) -> Run:
    folder = RunFolder(path)
    config = _config(folder)
    apart = _silo_ranks(config, folder)
    lines = join_lines(_metrics(folder), apart)
    result = join_result(_result(folder), lines, apart)
    status, reason, guarantee = _ended(folder, result, lines)
    if status in COMPLETE:
        _check(result, lines)
    done, facts = lines[-1]["round"] if lines else 0, _ledger_facts(folder)
    settings = flat({key: value for key, value in config.items() if key != "seed"}, NOT_IN_ID)
    rounds = max(done, int(result["rounds"]) if result else 0)
    return Run(
        folder=path,
        name=str(config.get("name", "run")),
        id=str(result["id"]) if result else path.resolve().name,
        seed=int(result.get("seed", config.get("seed") or 0)),
        config=settings,
        status=status,
        reason=reason,
        rounds=rounds,
        numbers={metric: _tail_mean(lines, metric) for metric in _metric_names(lines)},
        curve=_curve(lines, alone="tuning" not in result),
        guarantee=guarantee,
        measures=(measures := _measures(result)),
        ranked_by=_ranked_by(result, measures),
        positive_class=result.get("positive_class"),
        finished=str(result.get("finished", "")),
        code=result.get("code") or {},
        test_part=_test_part(facts, settings),
        ledger=str(folder.tuning() or _shared_ledger(facts)),
        model=str(result.get("model_sha256") or ""),
        stopped=result.get("cause") in STOPS and rounds < float(settings.get("rounds") or math.inf),
    )


def _variants(runs: Sequence[Run]) -> list[Run]:
    """Runs with the label of their variant as a key of their configuration, and what it is compared with."""
    named = []
    sweeps = functools.cache(manifest.variants_in)
    for run in runs:
        labels, pairs = sweeps((run.folder / "../../..").resolve())  # of a sweep: OUT/runs/NAME/ID
        of_sweep = (run.folder / "task.json").exists()  # whose labels name values, too
        label = labels.get(run.id) if of_sweep else RunFolder(run.folder).label()
        rivals = tuple(second for first, second in pairs if first == label)
        named.append(replace(run, config={VARIANT: label, **run.config}, compared_with=rivals) if label else run)
    return named


def _ledger_facts(folder: RunFolder) -> dict[str, Any]:
    """What the ledger's first line says of the run; {} without one."""
    if folder.ledger.exists():
        with folder.ledger.open(encoding="utf-8") as file, contextlib.suppress(ValueError):
            return dict(json.loads(file.readline()).get("facts", {}))
    return {}


def _test_part(facts: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """Where a silo's secret cut them, which the ledger's first line names; else they follow from data and seed."""
    data = {key: value for key, value in config.items() if key.startswith("data.")}
    return json.dumps(facts.get("cuts") or data, sort_keys=True, default=str)


def _shared_ledger(facts: Mapping[str, Any]) -> str:
    """Name of a shared ledger, with the id of the key beside it; "" where the run has none."""
    shared, cuts = facts.get("shared"), facts.get("cuts") or {}
    return f"{shared['file']} {cuts.get('key')}" if shared else ""


def _measures(result: Mapping[str, Any]) -> dict[str, dict[str, float | None]]:
    measures, more = result.get("measures") or {}, ""
    values = measures.get("pooled") or {}
    if not values and "mean_of_silos" in measures:  # by MPI ranks, whose test records do not meet
        values, more = measures["mean_of_silos"], OF_SILOS
    model, baseline = values.get("own_models") or values.get("model") or {}, values.get("baseline") or {}
    single = [name for name, value in model.items() if value is None or isinstance(value, int | float)]
    return {f"{name}{more}": {"model": model[name], "baseline": baseline.get(name)} for name in single}


def _ranked_by(result: Mapping[str, Any], measures: Iterable[str]) -> str | None:
    """The name in ``measures`` of what models are ranked by."""
    name = (result.get("measures") or {}).get("ranked_by")
    return next((measure for measure in measures if measure.removesuffix(OF_SILOS) == name), None)


def _silo_ranks(config: Mapping[str, Any], folder: RunFolder) -> Path:
    """Where silo ranks noted what rank 0 must not have."""
    elsewhere = (config.get("runtime") or {}).get("silo_folder")
    return Path(elsewhere) / str(config.get("name")) / folder.path.resolve().name if elsewhere else folder.silo_ranks


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise UnreadableError(f"{path.name} is missing") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableError(f"{path.name} cannot be read: {error}") from error


def _config(folder: RunFolder) -> dict[str, Any]:
    try:
        values = yaml.load(_text(folder.config), Loader=_LOADER)  # a SafeLoader
    except yaml.YAMLError as error:
        raise UnreadableError(f"config.yaml is not YAML: {getattr(error, 'problem', None) or error}") from error
    if not isinstance(values, dict) or not isinstance(values.get("seed") or 0, int):
        raise UnreadableError("config.yaml holds no configuration")
    return values


def _json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(_text(path))
    except ValueError as error:
        raise UnreadableError(f"{path.name} is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise UnreadableError(f"{path.name} holds no mapping")
    return values


def _metrics(folder: RunFolder) -> list[dict[str, Any]]:
    """The evaluations; a last line that was being written is left out."""
    if not folder.metrics.exists():
        if folder.result.exists():
            raise UnreadableError("metrics.jsonl is missing")
        return []
    *whole, torn = _text(folder.metrics).split("\n")
    evaluations: list[dict[str, Any]] = []
    for number, line in enumerate([*whole, torn] if folder.result.exists() and torn else whole, start=1):
        try:
            values = json.loads(line)
            good = values["round"] > (evaluations[-1]["round"] if evaluations else 0) and isinstance(
                values["epsilon"], dict
            )
        except (ValueError, KeyError, TypeError) as error:
            raise UnreadableError(f"metrics.jsonl, line {number}: is not an evaluation") from error
        if not good:
            raise UnreadableError(f"metrics.jsonl, line {number}: does not follow the one before it")
        evaluations.append(values)
    return evaluations


def _result(folder: RunFolder) -> dict[str, Any]:
    """What result.json holds; nothing if there is none."""
    if not folder.result.exists():
        return {}
    result = _json(folder.result)
    if result.get("schema") != RESULT_SCHEMA:
        raise UnreadableError(f"result.json has schema {result.get('schema')}; this version reads {RESULT_SCHEMA}")
    if result.get("status") not in (*COMPLETE, "interrupted", "failed") or not isinstance(result.get("rounds"), int):
        raise UnreadableError("result.json says neither how the run ended nor after how many rounds")
    return result


def _ended(folder: RunFolder, result: dict[str, Any], lines: list[dict[str, Any]]) -> tuple[str, str, Guarantee | None]:
    """Status, reason, and what was spent, as far as that is certain."""
    if result and result["status"] in COMPLETE:
        return result["status"], str(result.get("reason", "")), _guarantee(folder, result)
    if result and _last_check(folder) == _head(folder):  # nothing was released since
        tuning = folder.tuning()
        is_left_behind = result["status"] == "interrupted" and tuning and (tuning / folder.result.name).exists()
        status = LEFT_BEHIND if is_left_behind else result["status"]
        return status, str(result.get("reason", "")), _guarantee(folder, result)
    if folder.at_work():
        return "running", "", None
    before = f"; it was {result['status']} before, and resumed" if result else ""
    gone = "" if result else ", or its result.json was deleted"
    return "unfinished", f"it ended without a word, or runs on another machine{gone}{before}", None


def _last_check(folder: RunFolder) -> str | None:
    """The checksum of the ledger's last line: what it was when result.json was written, unless more was released."""
    try:
        with open(folder.ledger, "rb") as file:
            file.seek(max(0, folder.ledger.stat().st_size - 65536))
            return str(json.loads(file.read().splitlines()[-1])["check"])
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return None


def _head(folder: RunFolder) -> Any:
    """The last line's checksum when result.json was written; an older version has it in the statement."""
    return _json(folder.details if folder.details.exists() else folder.statement).get("head")


def _guarantee(folder: RunFolder, result: dict[str, Any]) -> Guarantee:
    statement = _json(folder.statement)
    try:
        views = result["epsilon"]
        server, third_party = views["server"], views["third_party"]
        if "tuning" in result:  # a candidate was chosen by what all of them released, and has the guarantee of all
            server, third_party = ({**view, "epsilon": result["tuning"]["epsilon"]} for view in (server, third_party))
        planned, adaptive = result.get("planned_total"), result.get("adaptive_total")
        if planned and planned["num_runs"] <= result["earlier_runs"]:  # others came later
            planned = None
        if "tuning" in result:
            planned = {"epsilon": server["epsilon"], "delta": server["delta"]}
        nothing = str(statement["guarantee"]).startswith("none")
        guarantee = Guarantee(
            server=math.inf if nothing else _epsilon(server),
            third_party=math.inf if nothing else _epsilon(third_party),
            delta=float(server["delta"]),
            unit=server["unit"],
            neighbouring=server["neighbouring"],
            accountant=str(server["accountant"]),
            noise_multiplier=float(result.get("noise_multiplier") or 0.0),
            simulated=result.get("randomness") == "seeded",
            capped=result.get("capped"),
            planned=planned,
            adaptive=adaptive,
            caveat=str(statement["accountant"]["caveat"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UnreadableError(f"result.json or ledger.json does not say what was spent ({error!r})") from error
    return guarantee


def _epsilon(view: Mapping[str, Any]) -> float:
    return math.inf if view["epsilon"] is None else float(view["epsilon"])


def _check(result: dict[str, Any], lines: list[dict[str, Any]]) -> None:
    """Lines that were lost would change the number that is reported."""
    for metric in dict.fromkeys((ACCURACY, "train_loss", score_key(result))):
        expected = (result.get(metric) or {}).get("mean_last_10_percent")
        actual = _tail_mean(lines, metric)
        if (expected is None) != (actual is None) or (
            expected is not None and not math.isclose(expected, actual or 0, rel_tol=1e-9)
        ):
            raise UnreadableError(f"metrics.jsonl does not give the {metric} that result.json has: lines are missing")


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan


def _metric_names(lines: list[dict[str, Any]]) -> list[str]:
    """What is measured: every key of an evaluation that has numbers, but for what is spent."""
    spent = {"round", "seconds", "bytes_up", "bytes_down"}
    keys = dict.fromkeys(key for line in lines for key in line if key not in spent)
    names = [key for key in keys if any(math.isfinite(_number(line.get(key))) for line in lines)]
    score = score_key(lines[-1]) if lines else ACCURACY
    return sorted(names, key=lambda name: (name != score, name != "train_loss", name))


def _tail_mean(lines: list[dict[str, Any]], metric: str) -> float | None:
    """The mean over the last 10 % of rounds, as in result.json; None if a value in them is not finite."""
    if not lines:
        return None
    rounds = lines[-1]["round"]
    tail = [_number(line.get(metric)) for line in lines if line["round"] > rounds - math.ceil(rounds / 10)]
    mean = math.fsum(tail) / len(tail)
    return mean if math.isfinite(mean) else None


def _curve(lines: list[dict[str, Any]], *, alone: bool) -> dict[str, np.ndarray]:
    """``alone``: what the run spent says what it guarantees; else no epsilon of its own is shown."""
    evaluations = [lines[i] for i in _thinned(len(lines))]
    columns = {
        "rounds": [line["round"] for line in evaluations],
        "epsilon": [_number(line["epsilon"].get("server")) if alone else math.nan for line in evaluations],
        "epsilon_third_party": [
            _number(line["epsilon"].get("third_party")) if alone else math.nan for line in evaluations
        ],
        "bytes": [_number(line.get("bytes_up")) + _number(line.get("bytes_down")) for line in evaluations],
        "seconds": [_number(line.get("seconds")) for line in evaluations],
        **{metric: [_number(line.get(metric)) for line in evaluations] for metric in _metric_names(lines)},
    }
    return {name: np.asarray(values, dtype=np.float64) for name, values in columns.items()}


@functools.cache
def _thinned(count: int) -> tuple[int, ...]:
    """At most `POINTS` of ``count`` places, evenly, with the first and the last."""
    return tuple(sorted({round(i) for i in np.linspace(0, count - 1, min(count, POINTS))}))
