"""What a curious server could learn from a silo's messages: attacks on a configuration, with its noise and without."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dpfl_plugin.api import attack_plots
from dpfl_plugin.api.experiment import Experiment, experiment_of
from dpfl_plugin.api.plots import png
from dpfl_plugin.api.progress import Teller, duration
from dpfl_plugin.api.running import in_file
from dpfl_plugin.api.runs import Run
from dpfl_plugin.attacks import demonstration
from dpfl_plugin.attacks.demonstration import BOUND_OF_ONE_NOISE, FPR, Inversion, Membership, Note
from dpfl_plugin.attacks.roc import Measured
from dpfl_plugin.config.load import Variant
from dpfl_plugin.config.schema import Config
from dpfl_plugin.core.rounding import places
from dpfl_plugin.core.text import Printed, aligned
from dpfl_plugin.core.threads import threads
from dpfl_plugin.data.names import called, listed, number_of
from dpfl_plugin.errors import ConfigError, DataError, UnsupportedError, require
from dpfl_plugin.file_permissions import private_folder
from dpfl_plugin.runs.extra_releases import refuse_extra_releases
from dpfl_plugin.runs.folder import to_json, write_atomic
from dpfl_plugin.runs.setting import federate
from dpfl_plugin.runs.silo_settings import refuse_cycles, refuse_silos

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["FPR", "NOISE", "QUIET", "AttackReport", "Inversion", "Measured", "Membership", "Options", "attack"]

NOISE: Final = "with noise"
QUIET: Final = "without noise"
WITHOUT_NOISE: Final = (
    "privacy.noise_multiplier=0",
    "privacy.clip_norm=inf",
    "privacy.clip=flat",
    "privacy.epsilon=null",
)
FEW_NUMBERS: Final = 8  # of a record; correlations over fewer are large by chance
SIMULATION: Final = (
    "A simulation by you, who hold all records: no run folder is written, no budget is charged. The pictures show "
    "records of the silo as they are: keep them where the records may be kept."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Whom to attack, and how often.

    Attributes:
        silo: whose messages: its number, from 0, or its name. rounds: to listen to; None: the configuration's.
        repeats: seeds of the membership attack.
    """

    silo: int | str = 0
    rounds: int | None = None
    repeats: int = 10

    def __post_init__(self) -> None:
        for name, least in (("silo", 0), ("repeats", 1)):
            value = getattr(self, name)
            named = name == "silo" and isinstance(value, str)
            whole = isinstance(value, int) and not isinstance(value, bool)
            require(named or (whole and value >= least), name, value, f"be a whole number, at least {least}")


@dataclass(frozen=True)
class AttackReport(Printed):
    """What both attacks on one run came to.

    Attributes:
        config: what was attacked. variant: its label; None of a file without variants.
        silo: whose messages. silo_name: None where silos have no names.
        repeats: seeds, from ``config.public_seed`` on.
        membership: "without noise" and, of a run with noise, "with noise": each with ``auc``, ``tpr`` at 1 % false
            alarms (``value``, ``low``, ``high``), ``epsilon`` of what the silo released, and ``bound`` on any attack.
        inversion: by the same names; empty where the attack does not know the model: ``inversion_refused`` says why.
    """

    config: Config = field(repr=False)
    _: KW_ONLY
    variant: str | None
    silo: int
    silo_name: str | None
    repeats: int
    membership: Mapping[str, Membership] = field(repr=False)
    inversion: Mapping[str, Inversion] = field(repr=False)
    inversion_refused: str | None
    _features: tuple[tuple[int, ...], tuple[str, ...]] = field(repr=False)  # (their shape, columns by name)

    @property
    def title(self) -> str:
        """Run and silo in words."""
        of = self.variant or self.config.algorithm.name or self.config.algorithm.module
        return f"{self.config.name}: {of}, {called(self.silo, {self.silo: self.silo_name} if self.silo_name else {})}"

    @property
    def notes(self) -> list[str]:
        """What the numbers mean, and what they do not."""
        return _notes(self)

    @property
    def rows(self) -> list[list[str]]:
        """What the server achieves: a row for each number, of `membership`'s columns, then the bound on any attack."""
        return _rows(self)

    def __str__(self) -> str:
        head = ["", *self.membership, *(["no attack can exceed, on average"] if NOISE in self.membership else [])]
        return "\n".join([self.title, aligned([head, *self.rows]), *self.notes])

    def plot_membership(self) -> Figure:
        """ROC curves of the membership attacks, below the bound on all attacks."""
        return attack_plots.membership(self.membership, self.title, self.config.privacy.delta)

    def plot_inversion(self) -> Figure:
        """Records, and what was read off the messages. It shows records as they are.

        Raises:
            UnsupportedError: inversion was not tried.
        """
        if not self.inversion:
            raise UnsupportedError(f"inversion was not tried: {self.inversion_refused}")
        return attack_plots.inversion(self.inversion, self._features[0], self.title, self._features[1])

    def as_plain(self) -> dict[str, Any]:
        """Plain values, as `attack.json` and `dpfl attack --json` have them."""
        delta = self.config.privacy.delta
        return {
            "schema": 1,
            "name": self.config.name,
            "variant": self.variant,
            "silo": self.silo,
            "silo_name": self.silo_name,
            "seeds": [self.config.public_seed + repeat for repeat in range(self.repeats)],
            "membership": {name: _plain(one, delta) for name, one in self.membership.items()},
            "inversion": {name: _plain_inversion(one) for name, one in self.inversion.items()},
            "inversion_refused": self.inversion_refused,
        }


def attack(
    experiment: Experiment | Run | str | Path,
    *,
    silo: int | str = 0,
    rounds: int | None = None,
    repeats: int = 10,
    out: str | Path | None = None,
    progress: bool | None = None,
) -> AttackReport:
    """Infer membership and invert gradients from a silo's messages, with the configured noise and without any.

    As `dpfl attack`. It is a simulation by somebody who holds all records: no run folder is written, no budget charged.

    Args:
        experiment: of several variants the first; ``load(path).variants[label]`` names another.
        silo: whose messages the server attacks: its number, from 0, or its name.
        rounds: to listen to; None: the configuration's. repeats: seeds to repeat the membership attack over.
        out: folder for `membership.png`, `inversion.png`, which shows records as they are, and `attack.json`; None:
            nothing is written.
        progress: whether to tell how far it is; None: where a person looks on, in a terminal or in Jupyter.

    Raises:
        ConfigError, DataError: an argument, the configuration or its records are wrong; UnsupportedError: the attacks
            do not know what it releases.
    """
    require(progress is None or isinstance(progress, bool), "progress", progress, "be True, False or None")
    require(out is None or (isinstance(out, str | Path) and str(out).strip() != ""), "out", out, "be a path")
    options = Options(silo=silo, rounds=rounds, repeats=repeats)
    return attacked(experiment_of(experiment), options, Teller(progress).note, None if out is None else Path(out))


def attacked(experiment: Experiment, options: Options, note: Note, out: Path | None) -> AttackReport:
    """As `attack`; ``note`` is told how far it is."""
    settings = ["privacy.randomness=seeded"]  # a demonstration that can be repeated
    settings += ["seed=0"] if experiment.loaded().variants[0].config.seed is None else []
    settings += [] if options.rounds is None else [f"rounds={options.rounds}"]
    chosen = replace(experiment, settings=(*experiment.settings, *settings))
    one = chosen.loaded().variants[0]
    with threads(one.config.runtime.threads):  # as in a run; more are slower on vectors this small
        try:
            report = _attacked(replace(chosen, variant=one.label), one, options, note, out)
        except (ConfigError, DataError) as error:
            raise in_file(error, experiment.path, one) from error
    if out is not None:
        write_pictures(out, report)
        write_atomic(out / "attack.json", to_json(report.as_plain()))
    return report


def _attacked(chosen: Experiment, one: Variant, options: Options, note: Note, out: Path | None) -> AttackReport:
    config = one.config
    if config.privacy.unit != "record":
        raise UnsupportedError(f"privacy.unit={config.privacy.unit!r}: these attacks are on records. Use unit: record.")
    refuse_extra_releases(config, "these attacks are on what rounds release")
    refuse_silos(config, BOUND_OF_ONE_NOISE)
    refuse_cycles(config, "attacks know releases that stand each for itself")
    known = federate(config, chosen.base)
    silo = number_of(options.silo, known.names, known.num_silos)
    if isinstance(silo, str):
        they = f"They are {listed(range(known.num_silos), known.names)}."
        raise ConfigError(f"silo={silo!r} must be the number or the name of a silo. {they}")
    if out is not None:  # before the work: it may not be allowed. Records may be recognised in its files
        private_folder(out)
    inverted, refusal = _inversion(config, chosen.base, silo)
    return AttackReport(
        config,
        variant=one.label,
        silo=silo,
        silo_name=known.names.get(silo),
        repeats=options.repeats,
        membership=_membership(chosen, config, silo, options.repeats, note),
        inversion=inverted,
        inversion_refused=refusal,
        _features=(known.feature_shape, tuple(known.columns)),
    )


def write_pictures(folder: Path, report: AttackReport) -> None:
    """`membership.png` and, where it was tried, `inversion.png`."""
    write_atomic(folder / "membership.png", png(report.plot_membership(), dpi=120))
    if report.inversion:
        write_atomic(folder / "inversion.png", png(report.plot_inversion(), dpi=120))


def _membership(chosen: Experiment, config: Config, silo: int, repeats: int, say: Note) -> dict[str, Membership]:
    private_too = demonstration.is_private(config, chosen.base)
    runs, began, done = repeats * (1 + private_too), time.monotonic(), 0
    kinds = f", {NOISE} and {QUIET}" if private_too else ""
    say(f"membership: {runs} runs ({_seeds(repeats)}{kinds}); the first shows how long the others take.")

    def measured(name: str, config: Config) -> Membership:
        def note(text: str) -> None:
            nonlocal done
            done += 1
            say(f"membership, {name}, {text}")
            if done == 1 and runs > 1:
                took = time.monotonic() - began
                say(f"it took {duration(took)}; {runs - 1} more: about {duration(took * (runs - 1))}.")

        return demonstration.membership(config, chosen.base, silo, repeats, note)

    if not private_too:
        return {QUIET: measured(QUIET, config)}
    private = measured(NOISE, config)
    # As many rounds as the private run's budget allowed.
    settings = (*chosen.settings, *WITHOUT_NOISE, f"rounds={config.rounds or private.rounds}")
    quiet = replace(chosen, settings=settings).loaded().variants[0].config
    return {QUIET: measured(QUIET, quiet), NOISE: private}


def _inversion(config: Config, base: Path, silo: int) -> tuple[dict[str, Inversion], str | None]:
    """Both settings' inversions; or none, and why."""
    try:
        quiet, noisy = demonstration.inversion(config, base, silo)
    except UnsupportedError as error:
        return {}, str(error)
    return {QUIET: quiet, **({NOISE: noisy} if noisy else {})}, None


def _plain(one: Membership, delta: float) -> dict[str, Any]:
    members, others = one.runs[0]
    return {
        "rounds": one.rounds,
        "epsilon": one.epsilon if math.isfinite(one.epsilon) else None,
        "delta": delta,
        "members": len(members),
        "non_members": len(others),
        "auc": _interval(one.auc),
        "auc_bound": one.bound.auc(),
        "fpr": FPR,
        "tpr": _interval(one.tpr),
        "tpr_bound": float(one.bound.tpr(FPR)),
    }


def _interval(value: Measured) -> dict[str, float]:
    return {"value": value.value, "low": value.low, "high": value.high}


def _plain_inversion(one: Inversion) -> dict[str, Any]:
    return {
        "batch_of_1": {
            "correlations": [float(message.correlations[0]) for message in one.single],
            "relative_errors": [float(message.errors[0]) for message in one.single],
            "correlations_of_guesses": [_or_none(message.guesses[0]) for message in one.single],
        },
        "batch": None
        if one.batch is None
        else {
            "records": len(one.batch.originals),
            "correlations": one.batch.correlations.tolist(),
            "relative_errors": one.batch.errors.tolist(),
            "correlations_of_guesses": list(map(_or_none, one.batch.guesses)),
            "correlation_of_other_records": one.batch.control,
        },
    }


def _or_none(value: Any) -> float | None:
    return None if math.isnan(value) else float(value)


def _notes(report: AttackReport) -> list[str]:
    measured, config = report.membership, report.config
    some = next(iter(measured.values()))
    members, others = (len(scores) for scores in some.runs[0])
    lines = [
        f"membership: {members} training and {others} test records of the silo, {some.rounds} rounds, "
        f"{_seeds(len(some.runs))}; in brackets 95 % intervals over seeds and records."
    ]
    if NOISE not in measured:
        lines.append("the configuration adds no noise: nothing bounds an attack.")
    elif math.isfinite(measured[NOISE].epsilon):
        spent = f"epsilon {places(measured[NOISE].epsilon, 3)} at delta {config.privacy.delta:.15g}"
        lines.append(f"the bound follows from what the silo released ({spent}, and the same at other deltas).")
    else:
        lines.append("no noise covers all that the silo released: nothing bounds an attack.")
    if config.data.test == "own":
        lines.append(
            "note: the test records are the data set's own test part. If they differ in kind from the training "
            "records, that alone tells them apart, which no epsilon hides; use data.test=split."
        )
    if report.inversion:
        lines.append("inversion: a silo's first message of one local step, clipped as configured in both columns.")
        lines.append(
            "inversion: 1 is the record itself. If records that were not in the batch reach as much, nothing was read "
            "off the message; 0.000 means that the message gave no estimate."
        )
        lines += _of_guesses(report.inversion)
    if report.inversion_refused:
        lines.append(f"inversion was not tried: {report.inversion_refused}")
    if any(float(one.bound.tpr(FPR)) < one.tpr.value or one.bound.auc() < one.auc.value for one in measured.values()):
        lines.append("a value above the bound: chance, if its interval reaches below; if more seeds confirm it, a bug.")
    return [*lines, "a failed attack proves nothing, as a better one may come; the bound does.", SIMULATION]


def _of_guesses(inverted: Mapping[str, Inversion]) -> list[str]:
    """Where inversion told no more than a guess; and that few numbers correlate by chance."""
    lines = [
        "inversion: a guess is as many other records of the silo, drawn at random, as the message gave estimates; the "
        "best of them counts, as for the attack."
    ]
    lines += [
        f"inversion {setting}, {name}: no more than a guess."
        for setting, one in inverted.items()
        for name, (value, more) in one.against_guesses.items()
        if not more and not math.isnan(value)
    ]
    count = next(iter(inverted.values())).num_features
    if count < FEW_NUMBERS:
        lines.append(
            f"inversion: records have {count} numbers, and correlations over so few are large by chance: look at the "
            "difference from a guess alone."
        )
    return lines


def _seeds(count: int) -> str:
    return "1 seed" if count == 1 else f"{count} seeds"


def _rows(report: AttackReport) -> list[list[str]]:
    """A line of the table for each number."""
    measured, inverted = report.membership, report.inversion
    noisy = measured.get(NOISE)
    bounds = [] if noisy is None else [places(noisy.bound.auc(), 3), places(float(noisy.bound.tpr(FPR)), 3)]
    rows = [
        ["membership: area under the ROC curve (chance: 0.5)", *(_range(one.auc) for one in measured.values())],
        [f"membership: members found at {FPR:.0%} false alarms", *(_range(one.tpr) for one in measured.values())],
    ]
    rows = [[*row, *limit] for row, limit in zip(rows, [bounds[:1], bounds[1:]], strict=True)]
    if inverted:
        single = [f"{one.correlation_single:.3f}" for one in inverted.values()]
        guesses = [[f"{value:.3f}" for value, _ in one.against_guesses.values()] for one in inverted.values()]
        first, *more = [
            ["  what a guess gets", *(v.replace("nan", "-") for v in of)] for of in zip(*guesses, strict=True)
        ]
        rows += [["inversion: correlation with the record, batch of 1", *single], first]
        whole = [one.batch for one in inverted.values() if one.batch is not None]
        if whole:
            count = len(whole[0].originals)
            rows.append([f"inversion: the same, batch of {count}", *(f"{b.correlations.mean():.3f}" for b in whole)])
            rows += more
            rows.append(["inversion: with records that were not in that batch", *(f"{b.control:.3f}" for b in whole)])
    return rows


def _range(value: Measured) -> str:
    return f"{value.value:.3f} ({value.low:.3f} to {value.high:.3f})"
