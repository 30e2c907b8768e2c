"""A run's result as an object: its numbers, its model, its statement, and all of it in words."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dpfl_plugin import given, own_folders
from dpfl_plugin.api.plots import baseline_of, detailed, embedded, of_measures, shown
from dpfl_plugin.config.load import base_of, load
from dpfl_plugin.config.schema import Config
from dpfl_plugin.core.outcomes import ACCURACY, Outcome, score_key
from dpfl_plugin.core.rounding import digits, places
from dpfl_plugin.core.stopwatch import PARTS
from dpfl_plugin.core.text import Printed, aligned, counted
from dpfl_plugin.core.validation_scores import ValidationScore
from dpfl_plugin.data.names import called
from dpfl_plugin.errors import ConfigError, DataError, require
from dpfl_plugin.federation.outcome import BY_CALLBACK, EXIT_CODES, Cause, cause_of
from dpfl_plugin.runs.folder import RunFolder
from dpfl_plugin.runs.training_diagnostics import (
    WEIGHTED,
    cut_short,
    mostly_clipped,
    price,
    too_small_a_step,
    worse_than_baseline,
)

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure
    from torch import nn

    from dpfl_plugin.api.coefficients import Coefficients

Shape = tuple[tuple[int, ...], int]
"""(shape of a record's features, number of classes)."""
MEAN: Final = " (mean over silos)"
SILOS_FOR_A_TENTH: Final = 10  # with fewer, the 10th percentile is but a mixture of the worst two
MOST_COLUMNS: Final = 8  # whose private statistics are printed
UNSPENT: Final = 0.95  # of the epsilon that noise was solved for; a run that spent less is told why


@dataclass(frozen=True, eq=False, repr=False)
class Run:
    """The result of a run, read from its folder; `dpfl.train` returns one, and `Run.open` reads it again.

    Attributes:
        folder: the run's folder, with all its files.
        result: what `result.json` holds.
        held: objects of this program that its configuration names. shape: of its records, where that is known.
    """

    folder: Path
    result: dict[str, Any]
    held: object = None
    shape: Shape | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Without the records and other objects that the program gave: who is sent a result is not sent these."""
        return {**self.__dict__, "held": None}

    @property
    def _files(self) -> RunFolder:
        return RunFolder(self.folder)

    @classmethod
    def open(cls, folder: str | Path) -> Run:
        """The run of a folder, ``OUT/NAME/ID``, begun in Python or by `dpfl run`.

        Raises:
            DataError: no run ended there, its result cannot be read, or the statement beside it says something else.
        """
        require(isinstance(folder, str | Path), "folder", folder, "be the path of a run's folder, OUT/NAME/ID")
        files = RunFolder(Path(folder))
        try:
            result = json.loads(files.result.read_text())
        except FileNotFoundError as error:
            raise DataError(
                f"{folder} has no result.json: no run ended there. Give a run's folder, OUT/NAME/ID."
            ) from error
        except (OSError, ValueError) as error:
            raise DataError(f"{files.result} cannot be read: {error}.") from error
        return cls(files.path, result)

    @property
    def status(self) -> str:
        """ "done", "budget_exhausted", "interrupted" or "failed"; ``result["reason"]`` says why."""
        return str(self.result["status"])

    @property
    def exit_code(self) -> int:
        """Of the command that ran it."""
        return EXIT_CODES[self.result["status"]]

    @property
    def epsilon(self) -> float:
        """Of this run, for the server, at the worst silo; math.inf where nothing is guaranteed. See `statement`.

        Of a candidate of a tuning that of the whole tuning: it was chosen by what all candidates released.
        """
        if "tuning" in self.result:
            return float(self.result["tuning"]["epsilon"])
        epsilon = self.result["epsilon"]["server"]["epsilon"]
        return math.inf if epsilon is None else float(epsilon)

    @property
    def delta(self) -> float:
        """At which `epsilon` holds."""
        return float(self.result["epsilon"]["server"]["delta"])

    @property
    def accuracy(self) -> float | None:
        """Mean over silos of the final model's test accuracy; None where nothing was measured."""
        accuracy = self.result["test_accuracy"]["last"]
        return None if accuracy is None else float(accuracy)

    @property
    def score(self) -> float | None:
        """Mean over silos of what the outcome is ranked by, of the final model on test records: the accuracy of
        classes, the error of a regression (`score_name`), ...; None where nothing was measured."""
        score = self.result[score_key(self.result)]["last"]
        return None if score is None else float(score)

    @property
    def score_name(self) -> str:
        """What `score` is, e.g. "accuracy" or "rmse"."""
        return score_key(self.result).removeprefix("test_")

    @property
    def measures(self) -> dict[str, Any] | None:
        """All measures of the final model on test records, pooled and by silo, with a baseline that knows no feature
        beside each, and those of silos' own models where they have some (docs/outcomes.md); None where they were not
        made. They are computed without noise: no epsilon covers them."""
        measures: dict[str, Any] | None = self.result.get("measures")
        return measures

    @property
    def positive_class(self) -> str | None:
        """Of two classes the one that sensitivity, precision, F1, AUC and PR-AUC are of: the second; None of other
        outcomes, and of runs of earlier versions."""
        name: str | None = self.result.get("positive_class")
        return name

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The evaluations, as `metrics.jsonl` has them; `history` is their table."""
        return self._files.read_metrics()

    @property
    def history(self) -> pandas.DataFrame:
        """One row for each evaluated round: its measures, and seconds, bytes and epsilons so far."""
        import pandas

        return pandas.json_normalize(self.lines, sep="_")

    @property
    def profile(self) -> Profile | None:
        """Where the time went, as `profile.json` has it: ``rounds``, and seconds by part; None where none was taken.

        The parts are those of ``process``, or with MPI of ``server`` and of each of ``silo_ranks``.

        Raises:
            DataError: the file cannot be read.
        """
        path = self._files.profile
        try:
            return Profile(json.loads(path.read_text()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise DataError(f"{path} cannot be read: {error}.") from error

    @property
    def config(self) -> Config:
        """The configuration, as `config.yaml` holds it."""
        return load(self._files.config).variants[0].config

    @property
    def statement(self) -> str:
        """What is guaranteed to whom, and what is not, in words: `privacy.md`.

        Raises:
            DataError: the run did not end, or the file is gone.
        """
        try:
            return self._files.privacy.read_text()
        except OSError as error:
            raise DataError(f"{self._files.privacy} cannot be read: {error.strerror}.") from error

    @property
    def model(self) -> nn.Module:
        """The final model, in eval mode on the CPU; a new one at each call. Of a simulation it is not to be published.

        Raises:
            DataError: its file is missing or damaged; ConfigError: the code that it is built from is missing, or, of a
                run by an earlier version, the records.
        """
        from dpfl_plugin.runs.predictions import shape_of, trained_model

        config, base = self.config, base_of(self._files.config)
        known = self.shape is not None or self.result.get("inputs") is not None
        given.check_all(config.model_dump(), records=not known)
        own_folders.look_in(base)
        shape = shape_of(config, base, self.result) if self.shape is None else self.shape
        return trained_model(self._files, config, *shape, Outcome.of_result(self.result))

    @property
    def coefficients(self) -> Coefficients:
        """Of a linear model, in the units of its table: odds, rate or hazard ratios, or differences of a regression.

        Raises:
            UnsupportedError: the model is not linear in the columns of a table.
            DataError, ConfigError: as `predict`.
        """
        from dpfl_plugin.api.coefficients import coefficients

        return coefficients(self.folder)

    def export(self, folder: str | Path, *, onnx: bool = False) -> Path:
        """Write the model for other programs into a new folder, which is returned; see `dpfl_plugin.export`."""
        from dpfl_plugin.api.export import export

        return export(self, folder, onnx=onnx).folder

    def plot(self, kind: str = "curves") -> Figure:
        """A picture.

        Args:
            kind: curves: accuracy (or what the outcome is ranked by) and epsilon against rounds, as in `curves.png`. Of
                the final model on all test records, which no epsilon covers: calibration and roc of two classes,
                survival by thirds of predicted risk, beside Kaplan-Meier.

        Raises:
            ConfigError: the run has no such picture.
        """
        name = str(self.result["name"])
        if kind == "curves":
            title, baseline = f"{name}: {self.result['algorithm']}", baseline_of(self.result)
            return shown(detailed({name: self.lines}, title, self.delta, baseline))
        pooled = (self.measures or {}).get("pooled")
        if pooled is None:
            raise ConfigError(
                f"plot({kind!r}) needs measures of all test records together, which this run does not have."
            )
        return shown(of_measures(kind, pooled.get("own_models", pooled["model"]), f"{name}: test records"))

    def to_dict(self) -> dict[str, Any]:
        """What `dpfl run --json` prints: `result`."""
        return self.result

    def ending(self, again: str) -> str:
        """Why the run is not done, and how to go on: ``again``, a command or the arguments of a call."""
        rounds, reason = counted(self.result["rounds"], "round"), self.result["reason"]
        match self.status:
            case "interrupted":
                return f"interrupted; {rounds} done and saved. Go on with: {again}"
            case "budget_exhausted":
                capped = cause_of(self.result) == Cause.MAX_PARTICIPATIONS
                return f"stopped by {'max_participations' if capped else 'the budget'} after {rounds}: {reason}."
            case _:
                return (
                    f"failed: {reason}. The last good state is in {self._files.checkpoint}. To try again from there: "
                    f"{again}"
                )

    def __repr__(self) -> str:
        return f"Run({self._summary()}, folder={str(self.folder)!r})"

    def _summary(self) -> str:
        score = "not measured" if self.score is None else f"{self.score:.4f}{MEAN * (self.result['num_silos'] > 1)}"
        epsilon = "none" if math.isinf(self.epsilon) else f"{places(self.epsilon, 3)} at delta {self.delta:.15g}"
        done = counted(self.result["rounds"], "round")
        if cause_of(self.result) in BY_CALLBACK and self.config.rounds:
            done = f"{self.result['rounds']} of {self.config.rounds} rounds"
        return f"{self.status} after {done}, {self.score_name} {score}{_of_two_classes(self.result)}, epsilon {epsilon}"

    def __str__(self) -> str:
        lines = [_more(self.result), *lines_of_run(self), *lines_of_any(self)]
        lines += [*lines_of_shared_ledger(self.result), *files_of(self)]
        warnings = [f"warning: {text}" for text in self.result.get("warnings", ())]
        return "\n".join([*warnings, f"{self.result['name']}: {self._summary()}", *lines])

    def _repr_html_(self) -> str:
        text, picture = html.escape(str(self)), embedded(self.plot()) if self.lines else ""
        return f'<pre style="white-space: pre-wrap">{text}</pre>{picture}'


class Profile(Printed, dict[str, Any]):
    """Where the time of a run went, by the keys of `profile.json`; ``print`` shows a table."""

    def __str__(self) -> str:
        ranks = list(self.get("silo_ranks", {}).values())
        columns = {"this process": self["process"]} if "process" in self else {"server": self["server"]}
        if ranks:
            columns[f"mean of {len(ranks)} silo ranks"] = {
                part: sum(rank.get(part, 0.0) for rank in ranks) / len(ranks) for part in PARTS
            }
        rows = [["part", *(f"{name}, seconds" for name in columns)]]
        for part, what in PARTS.items():
            cells = []
            for seconds in columns.values():
                total = math.fsum(seconds.values()) or 1.0
                cells.append(f"{seconds[part]:.3f} ({seconds[part] / total:.1%})" if seconds.get(part) else "-")
            rows.append([f"{part}: {what}", *cells])
        rows.append(["all", *(f"{math.fsum(seconds.values()):.3f}" for seconds in columns.values())])
        return (
            f"where the time of {self['rounds']} rounds went\n{aligned(rows)}\n"
            'The "seconds" of a run are those from its first round to its last: without the start, and without the '
            "evaluation and the files that follow. Loading Python's libraries comes before all of it."
        )


def lines_of_run(run: Run, *, label: str = "") -> list[str]:
    """What is to be known of this run alone; ``label``: its name where it is one of several."""
    result, of = run.result, f"{label}: " if label else ""
    lines = [*_statistics(result), *_stopping(result), *_private_scores(result)]
    names = _names(result)
    if names and result.get("dearest_silo") is not None:
        lines.append(f"the epsilon is that of {called(result['dearest_silo'], names)}, which spent most.")
    if not label and result.get("measures"):
        lines += measures_lines(result["measures"], run.positive_class)
    return [
        f"{of}{line}" for line in [*lines, *_silos(result), *(": ".join(pair) for pair in doubts(run)), *_unspent(run)]
    ]


def lines_of_any(run: Run) -> list[str]:
    """What its epsilons mean, and what else a reader should know: sentences that other runs may share."""
    result, views = run.result, run.result["epsilon"]
    server, third_party = views["server"], views["third_party"]
    lines = []
    if server["neighbouring"] is None:
        lines.append("epsilon 0: no round began, and nothing was released.")
    elif server["epsilon"] is not None:
        lines.append(
            f"epsilon: {server['unit']} level, {_neighbours(server['neighbouring'])}, the worst silo, accountant "
            f"{server['accountant']}. Server: sees every message. Third party: sees the global models."
        )
    lines += [" ".join(result.get("not_covered", ()))] if server["epsilon"] and result.get("not_covered") else []
    if server["epsilon"] is None:
        lines.append("epsilon none: nothing is guaranteed, or so little that epsilon is too large to compute.")
    if (third_party["epsilon"] or 0) > (server["epsilon"] or 0):
        lines.append(
            "The third party's epsilon is larger where it has to hold in advance, whoever is drawn, and counts every "
            "round that was begun as if all its silos had sent; the server's counts what silos sent. What a third "
            "party has seen is never more than the server has."
        )
    lines += [f"note: {note}" for note in result["notes"]]
    if server["epsilon"] and result.get("randomness") == "seeded":
        lines.append(
            "This is a simulation: its noise follows from the seed, and whoever has the folder can compute it. Before "
            "anything of a run leaves your hands: privacy.randomness=fresh."
        )
    return lines


def files_of(run: Run, *, label: str = "") -> list[str]:
    """Where the run's files are; ``label`` as in `lines_of_run`."""
    files = RunFolder(run.folder)
    lines = [f"{label}: folder {run.folder}" if label else f"folder: {run.folder}"]
    if not label and files.privacy.exists():
        lines.append("who is protected, against whom, and what is not covered: privacy.md there.")
    return [*lines, f"picture: {files.curves}"] if not label and files.curves.exists() else lines


def doubts(run: Run) -> list[tuple[str, str]]:
    """("warning" or "note", text) of a model whose probabilities, or expected values, are worse than a baseline's,
    which accuracy hides, and of one that was hardly trained."""
    scores, options = [line[score_key(line)] for line in run.lines], run.config.algorithm.options
    clip_norm = run.config.privacy.clip_norm
    clipped = None if run.config.class_weights else cut_short(run.result, clip_norm)
    texts = (
        ("warning", WEIGHTED if run.config.class_weights else worse_than_baseline(run.result, options, scores)),
        ("warning", clipped),
        ("note", None if clipped else mostly_clipped(run.result, clip_norm)),
        ("note", too_small_a_step(run.result, scores, options)),
    )
    return [(kind, text) for kind, text in texts if text is not None]


def worst_score(result: Mapping[str, Any]) -> float | None:
    """The final model's score at the silo where it is worst; None where nothing was measured."""
    silos, key = result.get("silos"), score_key(result)
    return float(silos[key]["min" if key == ACCURACY else "max"]) if silos else None


def third_party_epsilon(result: Mapping[str, Any]) -> float | None:
    """That of the tuning, if one chose the run by what all candidates released; None if nothing is guaranteed."""
    view = result["tuning"] if "tuning" in result else result["epsilon"]["third_party"]
    return None if view["epsilon"] is None else float(view["epsilon"])


def _more(result: Mapping[str, Any]) -> str:
    mean, third_party = result[score_key(result)]["mean_last_10_percent"], third_party_epsilon(result)
    words = [] if mean is None else [f"{score_key(result).replace('_', ' ')} over the last 10 % of rounds: {mean:.4f}"]
    words.append(f"epsilon of a third party: {'none' if third_party is None else places(third_party, 3)}")
    return f"{'; '.join(words)}; {result['seconds']:.1f} seconds."


def _of_two_classes(result: Mapping[str, Any]) -> str:
    """AUC, that of the baseline and the positive class; "" of other outcomes, or without measures."""
    measures, positive = result.get("measures"), result.get("positive_class")
    measured = (measures or {}).get("pooled") or (measures or {}).get("mean_of_silos") or {}
    auc = measured.get("own_models", measured.get("model", {})).get("auc")
    if positive is None or auc is None:
        return ""
    baseline = measured["baseline"].get("auc")
    beside = "" if baseline is None else f"baseline {baseline:.4f}, "
    return f", AUC {auc:.4f} ({beside}positive class {positive})"


def _statistics(result: Mapping[str, Any]) -> list[str]:
    """The private statistics of columns, as they were released."""
    columns = result.get("private_statistics", {}).get("columns", {})
    texts = [
        f"{name} " + ", ".join(f"{key.replace('_', ' ')} {_short(value)}" for key, value in of_column.items())
        for name, of_column in columns.items()
    ]
    more = f"; and {len(texts) - MOST_COLUMNS} more in result.json" if len(texts) > MOST_COLUMNS else ""
    return [f"private statistics, noise included: {'; '.join(texts[:MOST_COLUMNS])}{more}."] if texts else []


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _stopping(result: Mapping[str, Any]) -> list[str]:
    early = result.get("early_stopping")
    lines = [f"{result['reason']}."] if cause_of(result) in (Cause.EARLY_STOPPING, *BY_CALLBACK) else []
    if early is None:
        return lines
    if early["kept_round"] != result["rounds"]:
        lines.append(f"the model that is kept is that after round {early['kept_round']}.")
    if "noise_std" in early:
        kind = ValidationScore(early["measure"], early["bound"])
        noise = f"with noise of standard deviation {kind.text(early['noise_std'])}"
        lines.append(f"scores are the {kind.words} of records set apart, {noise}; all of them are in result.json.")
    return lines


def _private_scores(result: Mapping[str, Any]) -> list[str]:
    private = result.get("private_evaluation")
    if private is None or not private["scores"]:
        return []
    after, score = private["scores"][-1]
    measure = "accuracy" if "auc" in private else private.get("measure", "accuracy")
    kind = ValidationScore(measure, private.get("bound", 1.0))
    text = f"private {kind.words} after round {after}: {kind.text(score)}"
    if "intervals" in private:
        low, high = map(kind.text, private["intervals"][-1])
        text += f" (95 % interval {low} to {high}, noise and chance)"
    higher = " Test measures cut nothing: theirs may be higher." if measure in ("deviance", "log_loss") else ""
    lines = [f"{text}, with noise of standard deviation {kind.text(private['noise_std'])}.{higher}"]
    for auc in private.get("auc", ())[-1:]:
        text = "the noise leaves nothing of it: a class has too few records for so much"
        if auc["value"] is not None:
            text = f"{auc['value']:.4f}, with noise of standard deviation {auc['noise_std']:.4f} (to first order)"
        lines.append(f"private AUC after round {auc['round']}: {text}.")
    return lines


def _names(result: Mapping[str, Any]) -> dict[int, str]:
    return {int(silo): name for silo, name in result.get("silo_names", {}).items()}


def _silos(result: Mapping[str, Any]) -> list[str]:
    """How the final model, and silos' own, do at single silos, which a mean hides."""
    silos, count = result.get("silos"), result["num_silos"]
    if not silos or count < 2:
        return []
    key = score_key(silos)
    worst = f" at {called(silos['worst'], _names(result))}" if "worst" in silos else ""
    lines = [f"{key.replace('_', ' ')} of the final model at silos: {_spread(silos[key], key, count, worst)}."]
    own = silos.get(f"personalised_{key.removeprefix('test_')}")
    if own is not None:
        lines.append(
            f"of silos' own models: {_spread(own, key, count)}; better than the final model at "
            f"{silos['better_personalised']} of {count} silos, worse at {silos['worse_personalised']}."
        )
    return lines


def _spread(of: dict[str, float], key: str, num_silos: int, worst: str = "") -> str:
    """The worst, the middle and the best of silos' scores; ``worst``: where the worst is."""
    if key != ACCURACY:  # an error: the largest is the worst
        middle = f"median {of['median']:.3f}, best {of['min']:.3f}, mean {of['mean']:.3f}"
        return f"worst {of['max']:.3f}{worst}, {middle}"
    tenth = f", 10th percentile {of['p10']:.3f}" if num_silos >= SILOS_FOR_A_TENTH else ""
    middle = f"median {of['median']:.3f}, best {of['max']:.3f}, mean {of['mean']:.3f}"
    return f"worst {of['min']:.3f}{worst}{tenth}, {middle}"


def _unspent(run: Run) -> list[str]:
    """Why less was spent than noise was solved for, where no silo was drawn as often as it might have been."""
    config, view = run.config, run.result["epsilon"]["server"]
    spent, worst, cap = view["epsilon"], view.get("worst_case_epsilon"), config.max_participations
    if config.privacy.noise_multiplier is not None or config.privacy.budget_view != "server":
        return []
    if run.status != "done" or not spent or not worst or spent >= UNSPENT * worst:
        return []
    often = "every round" if cap is None else f"{cap} rounds, the cap"
    fix = f"A {'' if cap is None else 'lower '}cap, max_participations, would allow less noise."
    if capped := run.result.get("capped"):
        noise = f"{capped['noise_multiplier']:g} instead of {run.result['noise_multiplier']:g}"
        fix = f"max_participations={capped['max_participations']} would take noise_multiplier {noise}."
    return [
        f"the noise is solved for the worst case, a silo in {often}, at epsilon {places(worst, 3)}. No silo was drawn "
        f"as often: {places(spent, 3)} was spent. {fix}{price(run.result)}"
    ]


def _neighbours(relation: str) -> str:
    """The relation in words; where something is added or removed, its number stays public."""
    words = relation.replace("_", "-") + " neighbours"
    return words + " (added or removed: counted as zero or not; the numbers are public)" * (relation == "add_or_remove")


def lines_of_shared_ledger(result: Mapping[str, Any]) -> list[str]:
    """What the runs of a shared ledger came to when this one ended; nothing where it was the only one."""
    adaptive, planned = result.get("adaptive_total"), result.get("planned_total")
    if not (adaptive and result["earlier_runs"]):
        return []
    lines = [
        f"shared ledger, when this run ended: {_total(adaptive)} for all its runs together, also if later ones were "
        f"chosen by looking at earlier ones: {adaptive['why']}."
    ]
    if planned:
        lines.insert(
            0,
            f"shared ledger: {_total(planned)} for the {planned['num_runs']} runs that were registered before the "
            "first of them released anything.",
        )
    return lines


def _total(total: Mapping[str, Any]) -> str:
    epsilon = "none" if total["epsilon"] is None else places(total["epsilon"], 3)
    return f"epsilon {epsilon} at delta {digits(total['delta'], 6)}"


def measures_lines(measures: Mapping[str, Any], positive_class: str | None) -> list[str]:
    """A line for each measure: of the model, of silos' own where they have some, and of a baseline."""
    measured = measures["pooled"] or measures["mean_of_silos"]
    model, baseline = measured.get("own_models", measured["model"]), measured["baseline"]
    where = "all test records together" if measures["pooled"] else "mean of silos, weighted by their test records"
    whose = "; each silo's by its own model" if "own_models" in measured else ""
    rows = [(f"{where}{whose}", "model", "baseline")] + [
        (f"  {key.replace('_', ' ')}", f"{value:.4g}", "undefined" if baseline[key] is None else f"{baseline[key]:.4g}")
        for key, value in model.items()
        if isinstance(value, float) and isinstance(baseline.get(key, ""), float | None)
    ]
    if len(rows) == 1:
        return [f"{where}{whose}: no measure is defined."]
    first, *others = (max(map(len, column)) for column in zip(*rows, strict=True))
    lines = [
        row[0].ljust(first) + "".join(f"  {text:>{width}}" for text, width in zip(row[1:], others, strict=True))
        for row in rows
    ]
    name, sign = measures["ranked_by"], 1 if measures["higher_is_better"] else -1
    value, known = model.get(name), baseline.get(name)
    beaten = value is not None and known is not None and sign * value <= sign * known
    positive = "" if positive_class is None else f" The positive class is {positive_class}."
    no_use = f" By {name.replace('_', ' ')} the model is no better." if beaten else ""
    return [*lines, f"The baseline is without features: {measures['baseline']}.{positive}{no_use}"]
