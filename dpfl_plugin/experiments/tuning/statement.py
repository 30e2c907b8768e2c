"""A tuning in words: what it costs before it begins, the statement and report at its end, and its winner's folder."""

from __future__ import annotations

import functools
import json
import math
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from dpfl_plugin.core.rounding import digits, odds
from dpfl_plugin.core.validation_scores import UNLIKELY, ValidationScore
from dpfl_plugin.errors import ConfigError
from dpfl_plugin.runs.statement import SIMULATION

RESULT: Final = "result.json"
MOST: Final = 0.5  # of a score's variance: more of one silo is said
RETRIED_WINNER: Final = (
    "The winner's training failed before, and was tried again; all that it released is charged. That it failed may "
    "depend on records: epsilon does not cover what that reveals."
)
ANEW: Final = "A new tuning without what failed, in another folder, has to be charged to a budget of its own."


def price_lines(price: Mapping[str, Any], budget: float) -> list[str]:
    """What a tuning will release and what it costs; ``price``: as of `Price.to_dict`."""
    score, std, statistics = _score(price), price["score_std"], price.get("statistics_noise")
    lines = [
        f"{place['candidates']} candidate{'s' * (place['candidates'] > 1)}: rounds {place['first'] + 1} to "
        f"{place['last']}, then a score each" + (" (the winner goes on to the end)" if last else "")
        for place, last in zip(price["places"], [*[False] * (len(price["places"]) - 1), True], strict=True)
    ]
    what = f"{price['rounds']} rounds and {price['scores']} scores"
    if statistics is not None:
        what = f"the private statistics, {what}"
        lines.insert(
            0,
            f"Private statistics, before the first round: one noisy sum of each silo, noise_multiplier {statistics:g}, "
            "from which all candidates begin",
        )
    return [
        *lines,
        f"In all {what} of every silo, charged to one ledger: epsilon "
        f"{digits(price['epsilon'], 4)} of {budget:g} at delta {price['delta']:.15g} (server, accountant "
        f"{price['accountant']}).",
        f"The tuning alone, up to the last rung: epsilon {digits(price['of_tuning'], 4)}; what the winner does after "
        f"it alone: {digits(price['of_rest'], 4)}. These compose, and do not add up; each is that of the dearer part "
        "of a silo's records: those in rounds, or those in scores.",
        f"noise_multiplier {price['noise_multiplier']:g} of every round, {price['score_noise']:g} of every score. "
        f"Without tuning the same budget gives one run noise_multiplier {price['without']:g}: tuning costs "
        f"{price['noise_multiplier'] / price['without']:.2f} times the noise.",
        f"A score is the {score.words}, ± {score.text(std, 3)} by its noise alone. Candidates whose scores differ by "
        f"less than {score.text(_reach(std), 3)} are not told apart: that is two standard deviations of a difference.",
        *_too_coarse(score, std),
        *_noisiest(price["noisiest"]),
    ]


def _too_coarse(score: ValidationScore, std: float) -> list[str]:
    """What scores cannot tell apart."""
    lines = []
    if score.measure == "accuracy":
        lines.append("Where one class is rare, accuracy hardly tells models apart: measure: log_loss does.")
    of_guessing = {"accuracy": 0.5, "brier": 0.25, "mae": score.bound / 2, "log_loss": score.bound - math.log(UNLIKELY)}
    if 4 * _reach(std) > of_guessing.get(score.measure, math.inf):
        lines.append(
            "Useful models seldom differ by so much: expect a choice by chance. Fewer candidates, a larger tune.share "
            "or more epsilon make scores sharper; training without a tuning has less noise."
        )
    return lines


def _noisiest(silo: Mapping[str, Any]) -> list[str]:
    """A silo with few records has a noisy score, which may drown those of all others."""
    if not MOST < silo["share"] < 1:  # 1: it is the only silo
        return []
    return [
        f"{silo['share']:.0%} of that noise's variance is of silo {silo['silo']} alone, which has {silo['records']} "
        f"record{'s' * (silo['records'] > 1)} to score. Weigh silos by their records (silo_weights: records), tune "
        "without it, or raise tune.share."
    ]


def _reach(std: float) -> float:
    """How far apart two scores must be, each with noise of standard deviation ``std``."""
    return 2 * math.sqrt(2) * std


def apart(result: Mapping[str, Any]) -> str:
    """Whether the winner is told apart from the second by the last scores that both have; "" where none are."""
    first, second = ({**one, "scores": dict(map(tuple, one["scores"]))} for one in result["ranking"][:2])
    common = first["scores"].keys() & second["scores"].keys()
    if not common:
        return ""
    at, score = max(common), _score(result)
    gap, reach = first["scores"][at] - second["scores"][at], _reach(first["noise_std"])
    how, limit = "more" if gap > 0 else "less", score.text(reach, 3)
    text = f"After round {at} it scored {score.text(abs(gap), 3)} {how} than the second, {second['label']}: "
    if score.gain(gap, 0.0) > reach:
        return f"{text}more than two standard deviations of the noise in a difference, {limit}."
    return (
        f"{text}**not told apart**, since two standard deviations of the noise in a difference are {limit}. With "
        "other noise the second might have won."
    )


def _score(price: Mapping[str, Any]) -> ValidationScore:
    return ValidationScore(price["measure"], price["bound"])


def statement(result: Mapping[str, Any], name: str) -> str:
    """`tuning.md`: the guarantee of a tuning and of its winner, and what it came to."""
    guarantee, winner = result["guarantee"], result["winner"]
    epsilon, delta = guarantee["epsilon"], guarantee["delta"]
    most = digits(epsilon, 6)
    parts = [
        f"# Tuning: {name}",
        f"**{SIMULATION.format(epsilon=most)}**" if result.get("randomness") == "seeded" else "",
        f"In short: one record changes the probability of whatever the server may see, of all "
        f"{result['num_candidates']} candidates and of the winner's whole training, by a factor of "
        f"at most e^{most} ({odds(epsilon)}), up to an "
        f"additional {digits(delta, 6)} (delta). **This is the guarantee of the winner, too**: it was chosen by what "
        "all candidates released. The epsilon of its run alone guarantees nothing.",
        _with_others(result),
        f"The ledger holds releases of epsilon {digits(guarantee['in_ledger'], 6)} in all; the plan, fixed before the "
        f"first of them, comes to {digits(result['epsilon'], 6)}, and no candidate can pass {most}.",
        "What is protected, from whom and on what assumptions is in the winner's `privacy.md`.",
        "## What it cost",
        "\n".join(f"* {line}" for line in price_lines(result, epsilon)),
        "## Candidates",
        f"A score is the {_score(result).words} of records that no round reads, the mean over silos, with noise; ± is "
        "the standard deviation of the noise alone. "
        f"{'The largest' if _score(result).higher_is_better else 'The smallest'} is the best. Who went on was decided "
        f"by them{_and_failures(result)} and written down at each rung, once. No candidate that was left behind was "
        "evaluated on test records. In the order in which they were left behind, the winner first.",
        "\n".join(_table(result)),
        "\n".join(f"* {failure(entry)}" for entry in result.get("failures", ())),
        "## Winner",
        f"{winner['label']}: {winner['status']}, in `{winner['folder']}`.",
        RETRIED_WINNER if winner.get("retried") else "",
        failed_winner(result),
        apart(result),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _with_others(result: Mapping[str, Any]) -> str:
    """What the tuning comes to with the other runs of its project's ledger; "" where that holds none."""
    total, number = result.get("adaptive_total"), result.get("other_runs")
    if not total or not number:
        return ""
    runs = "the other run" if number == 1 else f"the {number} other runs"
    comes_to = "no epsilon is known" if total["epsilon"] is None else f"epsilon {digits(total['epsilon'], 4)}"
    return f"**Together with {runs} of its project's ledger: {comes_to}** at delta {digits(total['delta'], 6)}."


def _and_failures(result: Mapping[str, Any]) -> str:
    return ", by which candidates failed (below)," if result.get("failures") else " alone,"


def failure(entry: Mapping[str, Any]) -> str:
    """That a candidate failed, which decided where it ranks; ``entry``: of `successive_halving.failures`."""
    return (
        f"Candidate {entry['label']} of the tuning failed in rounds {entry['first'] + 1} to {entry['last']}, before it "
        f"released its score after round {entry['last']}, and ranked last there. That it failed was seen beside "
        "scores, and may depend on records: epsilon does not cover what that reveals."
    )


def failed_winner(result: Mapping[str, Any], *, why: bool = False) -> str:
    """What to do where the winner failed; "" where it did not.

    Args:
        why: say it, too; no epsilon covers it, so that it is for the experimenter alone.
    """
    winner = result["winner"]
    if winner["status"] != "failed":
        return ""
    reason = f": {result['ranking'][0]['failed']}" if why else ""
    return (
        f"The winner, {winner['label']}, failed{reason}; see {winner['folder']}. No other candidate takes its place: "
        "scores decided, and epsilon does not cover that it failed. Whoever begins this tuning again tries the "
        f"winner's training again, from its last good state. {ANEW}"
    )


def _table(result: Mapping[str, Any]) -> list[str]:
    ends, text = [place["last"] for place in result["places"]], functools.partial(_score(result).text, places=3)
    lines = [
        f"| candidate |{''.join(f' score after {end} |' for end in ends)}",
        f"| --- |{' ---: |' * len(ends)}",
    ]
    for candidate in result["ranking"]:
        scores = dict(map(tuple, candidate["scores"]))
        noise = candidate["noise_std"]
        cells = [f"{text(scores[end])} ± {text(noise)}" if end in scores else "" for end in ends]
        failed = " (failed)" if candidate["failed"] else ""  # why may tell of a record: it is in result.json
        lines.append(f"| {candidate['label']}{failed} | {' | '.join(cells)} |")
    return lines


def winner_of(folder: Path) -> Path | None:
    """The winner's folder of a tuning that is done, also where that was moved; None of any other folder."""
    try:
        winner = Path(json.loads((folder / RESULT).read_text())["winner"]["folder"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return next((one for one in (winner, *folder.glob(f"**/{winner.name}")) if one.is_dir()), winner)


def check_run(folder: Path, command: str, *words: str) -> None:
    """Refuse a tuning's folder: the message has the command for its winner.

    Args:
        command: of `dpfl`; words: what follows the folder.

    Raises:
        ConfigError: the folder is a tuning's.
    """
    if (winner := winner_of(folder)) is not None:
        raise ConfigError(
            f"{folder} is the folder of a tuning, and each candidate is a run with a folder of its own. Give that of "
            f"the winner: {shlex.join(['dpfl', command, str(winner), *words])}"
        )
