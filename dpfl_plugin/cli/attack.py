"""`dpfl attack`: what the server of a run could learn from its messages, with the configured noise and without."""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from dpfl_plugin import own_folders
from dpfl_plugin.access import make_folder
from dpfl_plugin.attacks import demonstration
from dpfl_plugin.attacks.demonstration import FPR, Inversion, Membership
from dpfl_plugin.attacks.roc import Measured
from dpfl_plugin.cli import attack_plot, fitting
from dpfl_plugin.cli.progress import duration
from dpfl_plugin.config.load import Variant, base_of, load
from dpfl_plugin.config.schema import Config
from dpfl_plugin.data.names import called
from dpfl_plugin.errors import ConfigError, UnsupportedError, require
from dpfl_plugin.training.beside import refuse_beside
from dpfl_plugin.training.folder import to_json, write_atomic
from dpfl_plugin.training.setting import federate

NOISE, QUIET = "with noise", "without noise"
WITHOUT_NOISE = ("privacy.noise_multiplier=0", "privacy.clip_norm=inf", "privacy.clip=flat", "privacy.epsilon=null")
SIMULATION = (
    "A simulation by you, who hold all records: no run folder is written, no budget is charged. The pictures show "
    "records of the silo as they are: keep them where the records may be kept."
)


def attack_file(
    path: Path,
    settings: list[str],
    *,
    variant: str | None,
    silo: int,
    rounds: int | None,
    repeats: int,
    out: Path | None,
    as_json: bool,
) -> None:
    """Attack one run of a file by both attacks; print what came of it, and draw it in a folder."""
    require(silo >= 0, "--silo", silo, "be 0 or more")
    require(repeats >= 1, "--repeats", repeats, "be at least 1")
    own_folders.look_in(base_of(path))
    settings = [*settings, "privacy.secure=false"]  # a demonstration that can be repeated
    if rounds is not None:
        settings.append(f"rounds={rounds}")
    chosen = _variant(path, settings, variant)
    config, base = chosen.config, base_of(path)
    if config.privacy.unit == "silo":
        raise UnsupportedError("privacy.unit='silo': these attacks are on records. Use unit: record.")
    refuse_beside(config, "these attacks are on what rounds release")
    torch.set_num_threads(config.runtime.threads)  # as `dpfl run` does; more are slower on vectors this small
    folder = out or Path("attack") / config.name
    known = federate(config, base)
    which = called(silo, known.names)
    title = f"{config.name}: {chosen.label or config.algorithm.name or config.algorithm.module}, {which}"

    make_folder(folder, config.access)  # before the work: it may not be allowed. Records may be recognised in its files
    inverted, refusal = _inversion(config, base, silo)
    measured = _membership(path, settings, chosen, silo, repeats, quiet_output=as_json)
    attack_plot.membership(folder / "membership.png", measured, title, config.privacy.delta)
    if inverted:
        attack_plot.inversion(folder / "inversion.png", inverted, known.feature_shape, title, known.columns)
    result = _result(chosen, silo, known.names.get(silo), repeats, measured, inverted, refusal)
    write_atomic(folder / "attack.json", to_json(result), config.access)
    if as_json:
        print(to_json(result))
    else:
        _show(title, config, measured, inverted, refusal, folder)


def _variant(path: Path, settings: list[str], label: str | None) -> Variant:
    """The run of a file that ``label`` names; the first if it is None."""
    runs = load(path, settings).variants
    if label is None:
        return runs[0]
    for run in runs:
        if run.label == label:
            return run
    known = ", ".join(str(run.label) for run in runs if run.label is not None)
    raise ConfigError(f"--variant={label!r} is not in {path}. " + (f"It has: {known}." if known else "It has none."))


def _membership(
    path: Path, settings: list[str], chosen: Variant, silo: int, repeats: int, *, quiet_output: bool
) -> dict[str, Membership]:
    private_too = demonstration.is_private(chosen.config, base_of(path))
    runs, began, done = repeats * (1 + private_too), time.monotonic(), 0

    def say(text: str) -> None:
        if not quiet_output:
            print(text, file=sys.stderr, flush=True)

    kinds = f", {NOISE} and {QUIET}" if private_too else ""
    say(f"membership: {runs} runs ({repeats} seeds{kinds}); after the first it says how long the others take.")

    def attack(name: str, config: Config) -> Membership:
        def note(text: str) -> None:
            nonlocal done
            done += 1
            say(f"membership, {name}, {text}")
            if done == 1 and runs > 1:
                took = time.monotonic() - began
                say(f"it took {duration(took)}; {runs - 1} more: about {duration(took * (runs - 1))}.")

        return demonstration.membership(config, base_of(path), silo, repeats, note)

    if not private_too:
        return {QUIET: attack(QUIET, chosen.config)}
    private = attack(NOISE, chosen.config)
    # As many rounds as the private run's budget allowed.
    change = [*settings, *WITHOUT_NOISE, f"rounds={chosen.config.rounds or private.rounds}"]
    return {QUIET: attack(QUIET, _variant(path, change, chosen.label).config), NOISE: private}


def _inversion(config: Config, base: Path, silo: int) -> tuple[dict[str, Inversion], str]:
    """Both settings' inversions; or none, and why."""
    try:
        quiet, noisy = demonstration.inversion(config, base, silo)
    except UnsupportedError as error:
        return {}, str(error)
    return {QUIET: quiet, **({NOISE: noisy} if noisy else {})}, ""


def _result(
    chosen: Variant,
    silo: int,
    silo_name: str | None,
    repeats: int,
    measured: dict[str, Membership],
    inverted: dict[str, Inversion],
    refusal: str,
) -> dict[str, Any]:
    """What `attack.json` holds."""
    config = chosen.config
    return {
        "schema": 1,
        "name": config.name,
        "variant": chosen.label,
        "silo": silo,
        "silo_name": silo_name,
        "seeds": [config.seed + repeat for repeat in range(repeats)],
        "membership": {name: _plain(one, config.privacy.delta) for name, one in measured.items()},
        "inversion": {name: _plain_inversion(one) for name, one in inverted.items()},
        "inversion_refused": refusal or None,
    }


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
        },
        "batch": None
        if one.batch is None
        else {
            "records": len(one.batch.originals),
            "correlations": one.batch.correlations.tolist(),
            "relative_errors": one.batch.errors.tolist(),
            "correlation_of_other_records": one.batch.control,
        },
    }


def _show(
    title: str,
    config: Config,
    measured: dict[str, Membership],
    inverted: dict[str, Inversion],
    refusal: str,
    folder: Path,
) -> None:
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 200)
    table = Table(title=title, title_justify="left")
    table.add_column("what the server achieves")
    for name in measured:
        table.add_column(name, justify="right")
    if NOISE in measured:
        table.add_column("no attack can\nexceed, on average", justify="right")
    for row in _rows(measured, inverted):
        table.add_row(*row)
    fitting.show(console, table)
    for line in _sentences(config, measured, inverted, refusal, folder):
        console.print(line, soft_wrap=True, markup=False)


def _rows(measured: dict[str, Membership], inverted: dict[str, Inversion]) -> list[list[str]]:
    """A line of the table for each number."""
    noisy = measured.get(NOISE)
    bounds = [] if noisy is None else [f"{noisy.bound.auc():.3f}", f"{float(noisy.bound.tpr(FPR)):.3f}"]
    rows = [
        ["membership: area under the ROC curve (chance: 0.5)", *(_range(one.auc) for one in measured.values())],
        [f"membership: members found at {FPR:.0%} false alarms", *(_range(one.tpr) for one in measured.values())],
    ]
    rows = [[*row, *limit] for row, limit in zip(rows, [bounds[:1], bounds[1:]], strict=True)]
    if inverted:
        single = [f"{one.correlation_single:.3f}" for one in inverted.values()]
        rows.append(["inversion: correlation with the record, batch of 1", *single])
        whole = [one.batch for one in inverted.values() if one.batch is not None]
        if whole:
            count = len(whole[0].originals)
            rows.append([f"inversion: the same, batch of {count}", *(f"{b.correlations.mean():.3f}" for b in whole)])
            rows.append(["inversion: with records that were not in that batch", *(f"{b.control:.3f}" for b in whole)])
    return rows


def _range(value: Measured) -> str:
    return f"{value.value:.3f} ({value.low:.3f} to {value.high:.3f})"


def _sentences(
    config: Config,
    measured: dict[str, Membership],
    inverted: dict[str, Inversion],
    refusal: str,
    folder: Path,
) -> list[str]:
    """What the numbers mean, and where the pictures are."""
    some = next(iter(measured.values()))
    members, others = (len(scores) for scores in some.runs[0])
    lines = [
        f"membership: {members} training and {others} test records of the silo, {some.rounds} rounds, "
        f"{len(some.runs)} seeds; in brackets 95 % intervals over seeds and records."
    ]
    if NOISE in measured:
        spent = f"epsilon {measured[NOISE].epsilon:.3f} at delta {config.privacy.delta:g}"
        lines.append(f"the bound follows from what the silo released ({spent}, and the same at other deltas).")
    else:
        lines.append("the configuration adds no noise: nothing bounds an attack.")
    if config.data.test == "own":
        lines.append(
            "note: the test records are the data set's own test part. If they differ in kind from the training "
            "records, that alone tells them apart, which no epsilon hides; use data.test=split."
        )
    if inverted:
        lines.append("inversion: a silo's first message of one local step, clipped as configured in both columns.")
        lines.append(
            "inversion: 1 is the record itself. What records that were not in the batch give, too, was not read off "
            "the message; 0.000 means that the message gave no estimate."
        )
    if refusal:
        lines.append(f"inversion was not tried: {refusal}")
    if any(float(one.bound.tpr(FPR)) < one.tpr.value or one.bound.auc() < one.auc.value for one in measured.values()):
        lines.append("a value above the bound: chance, if its interval reaches below; if more seeds confirm it, a bug.")
    lines.append("a failed attack proves nothing, as a better one may come; the bound does.")
    lines.append(SIMULATION)
    names = ["membership.png", *(["inversion.png"] if inverted else []), "attack.json"]
    return [*lines, f"written: {', '.join(str(folder / name) for name in names)}"]
