"""A tuning as it goes: candidates from rung to rung, the best of them to the end; and how it goes on after a crash.

A candidate is one run of all rounds, which is paused at a rung and gone on with from its checkpoint. How far it is, its
own folder says, as that of any run; what all of them released, the ledger that they share; and who went on from a rung,
`decisions.json`. So a tuning that is begun again finds what is done, and decides nothing twice. Private statistics are
released by the first candidate; the others begin from what its checkpoint has of them.

Who goes on is decided once, by scores, and on disk before the next place on the plan begins. Whatever becomes of a
candidate later, one that was left behind stays there, and one that fails later keeps the place that its scores gave it
before. A candidate that fails before it releases a score ranks last at that rung. So that a candidate failed is seen,
beside scores. It may depend on records, and no epsilon covers it: `tuning.statement` says which did.
"""

from __future__ import annotations

import hashlib
import json
import math
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from torch import Tensor

from dpfl_plugin.config.load import run_id
from dpfl_plugin.config.schema import Config
from dpfl_plugin.config.tune import Candidate, TuneFile
from dpfl_plugin.core.validation_scores import DEFAULT_SCORE, ValidationScore
from dpfl_plugin.errors import ConfigError, DataError, LedgerError, TrainingError
from dpfl_plugin.experiments.tuning.price import Noise, Place, Price, configured, price
from dpfl_plugin.experiments.tuning.registration import registered
from dpfl_plugin.experiments.tuning.statement import ANEW, RETRIED_WINNER, failure
from dpfl_plugin.federation.outcome import Cause
from dpfl_plugin.federation.scaled_records import SUMS
from dpfl_plugin.privacy.accountants import Accountant
from dpfl_plugin.privacy.filters import planned_epsilon
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.ledger_file import is_begun
from dpfl_plugin.privacy.shared_ledger import Registration, plans_in
from dpfl_plugin.runs import checkpoint as checkpoints
from dpfl_plugin.runs.backend import Backend
from dpfl_plugin.runs.existing_run import begun_seed
from dpfl_plugin.runs.folder import TUNING, RunFolder, folder_of, locked, to_json
from dpfl_plugin.runs.hooks import Reporter
from dpfl_plugin.runs.ledgers import Wait, read_shared, why_not_counted
from dpfl_plugin.runs.plugins import make_accountant
from dpfl_plugin.runs.prepare import TuningStage
from dpfl_plugin.runs.run import run_config
from dpfl_plugin.runs.run_status import COMPLETE, status_of

LEDGER: Final = "ledger.jsonl"
PLAN: Final = TUNING
DECISIONS: Final = "decisions.json"
RETRIED: Final = "retried.json"  # that the winner failed, and was tried again
LOCK: Final = ".lock"
SCHEMA: Final = 1
LOST_STATISTICS: Final = (
    "A crash lost those that were charged, and every candidate begins from them. Give them less of the budget "
    "(private_statistics.epsilon_share), in another out, which is charged to a budget of its own."
)
OF_RECORDS: Final = ("records: ", "silos have ", "delta is ", "randomness ", "warning: privacy.")
"""How notes begin that are the same of every candidate."""


@dataclass(frozen=True, slots=True)
class Standing:
    """A candidate and what it released so far.

    Attributes:
        scores: (round, mean over silos of noisy scores).
        result: what its `result.json` holds; {} before it began, or since it was killed.
        kind: what scores are the mean of.
    """

    candidate: Candidate
    config: Config
    scores: tuple[tuple[int, float], ...]
    result: Mapping[str, Any]
    kind: ValidationScore = DEFAULT_SCORE

    @property
    def noise_std(self) -> float | None:
        """Standard deviation of the noise in each score."""
        return self.result["private_evaluation"]["noise_std"] if self.result else None

    @property
    def has_failed(self) -> bool:
        return self.result.get("status") == "failed"

    @property
    def rounds(self) -> int:
        """That it made."""
        return int(self.result.get("rounds", 0))

    def score(self, after: int) -> float | None:
        """After so many rounds; None where it made none: it failed, or a crash lost it and the budget has no room."""
        return dict(self.scores).get(after)

    def gain(self, after: int) -> float:
        """By how much its score is better than 0, by which candidates are ranked; -inf where it made none."""
        score = self.score(after)
        return -math.inf if score is None else self.kind.gain(score, 0.0)

    def failed_before_score(self, after: int) -> bool:
        """Whether it failed before it released its score after so many rounds, and no later."""
        return self.has_failed and self.rounds <= after and self.score(after) is None

    def reached(self, until: int | None) -> bool:
        """Whether nothing is left to do of it up to there."""
        is_paused = self.result.get("cause") == Cause.PAUSED.value
        ended = self.has_failed or self.result.get("status") in COMPLETE
        return ended or (until is not None and is_paused and self.rounds >= until)


@dataclass(frozen=True, slots=True)
class Decision:
    """What was decided at a rung; candidates are named by their index.

    Attributes:
        after: how many rounds; ranking: who was compared, the best first; failed: who of them failed before it released
            a score; goes_on: who does, none of those that failed.
    """

    after: int
    ranking: tuple[int, ...]
    failed: tuple[int, ...]
    goes_on: tuple[int, ...]

    @property
    def left_behind(self) -> tuple[int, ...]:
        """The best first."""
        return tuple(index for index in self.ranking if index not in self.goes_on)


def decide(compared: Sequence[Standing], after: int, places: int) -> Decision:
    """Who goes on: by score; of equals the first; without a score last, and behind all whoever failed.

    Args:
        places: how many go on at most.
    """
    ranked = sorted(compared, key=lambda standing: (-standing.gain(after), standing.failed_before_score(after)))
    failed = tuple(standing.candidate.index for standing in ranked if standing.failed_before_score(after))
    ranking = tuple(standing.candidate.index for standing in ranked)
    return Decision(after, ranking, failed, tuple(index for index in ranking if index not in failed)[:places])


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """A file's tuning in a folder.

    Attributes:
        out: the folder; price: what it costs, as it was begun.
    """

    file: TuneFile
    base: Path
    out: Path
    price: Price
    _configs: dict[int, Config] = field(default_factory=dict, repr=False)

    @property
    def id(self) -> str:
        return _digest(self.file)

    @property
    def ledger(self) -> Path:
        """What all candidates are charged to."""
        return self.out / LEDGER

    @property
    def winner_was_retried(self) -> bool:
        return (self.out / RETRIED).exists()

    def config(self, candidate: Candidate) -> Config:
        """The run of a candidate."""
        if candidate.index not in self._configs:
            self._configs[candidate.index] = configured(self.file, candidate, self.price.noise, self.out)
        return self._configs[candidate.index]

    def folder(self, candidate: Candidate) -> RunFolder:
        return folder_of(self.config(candidate))

    def standings(self, indices: Iterable[int]) -> list[Standing]:
        candidates = {candidate.index: candidate for candidate in self.file.candidates}
        return [self.standing(candidates[index]) for index in indices]

    def standing(self, candidate: Candidate) -> Standing:
        """What a candidate's folder says of it; its scores alone, and no measure without noise.

        Raises:
            DataError: the folder cannot be read.
        """
        folder = self.folder(candidate)
        result = status_of(folder).result
        if not result and folder.result.exists():
            raise DataError(f"{folder.result} cannot be read. Restore it from a copy.")
        facts = result["private_evaluation"] if result else checkpoints.load_facts(folder.checkpoint) or {}
        scores = tuple((int(after), float(score)) for after, score in facts.get("scores", ()))
        return Standing(candidate, self.config(candidate), scores, result, self.price.score)

    def statistics(self) -> Tensor | None:
        """The private statistics that all candidates begin from; None before the first of them has released any.

        Raises:
            DataError: a checkpoint cannot be read.
        """
        if self.price.noise.statistics is None:
            return None
        states = (checkpoints.load(self.folder(candidate).checkpoint) for candidate in self.file.candidates)
        return next((state.server[SUMS] for state in states if state is not None and SUMS in state.server), None)

    def decisions(self) -> dict[int, Decision]:
        """What was decided, by round.

        Raises:
            DataError: the file cannot be read, or is another tuning's.
        """
        path = self.out / DECISIONS
        content = _read(path)
        if content is None:
            return {}
        try:
            if (content["schema"], content["tuning"]) != (SCHEMA, self.id):
                raise ValueError("it is of another tuning")
            found = [
                Decision(entry["after"], *(tuple(entry[key]) for key in ("ranking", "failed", "goes_on")))
                for entry in content["decisions"]
            ]
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{path} cannot be read: {error}. Restore it from a copy, or use another folder."
            ) from error
        return {decision.after: decision for decision in found}

    def keep(self, decision: Decision, compared: Sequence[Standing]) -> Decision:
        """Have a decision on disk; returns the one that stands, which another process may have made meanwhile.

        Raises:
            DataError: as `decisions`. BusyError: another process is writing.
        """
        message = f"{self.out}: another process ({{holder}}) is deciding here. Begin again."
        with locked(self.out / LOCK, message, other="out"):
            decisions = self.decisions()
            if decision.after not in decisions:
                path = self.out / DECISIONS
                before = json.loads(path.read_text())["decisions"] if decisions else []
                # With the scores that it was made from, for people.
                scores = {standing.candidate.label: standing.score(decision.after) for standing in compared}
                content = [*before, {**asdict(decision), "scores": scores}]
                self._write(DECISIONS, {"schema": SCHEMA, "tuning": self.id, "decisions": content})
            return decisions.get(decision.after, decision)

    def note_retry(self, winner: Standing) -> None:
        """Note that the winner failed, which its folder will not say any more."""
        self._write(RETRIED, {"schema": SCHEMA, "winner": winner.candidate.label})

    def _write(self, name: str, content: Mapping[str, Any]) -> None:
        RunFolder(self.out).write(self.out / name, to_json(content))


def begin(file: TuneFile, base: Path, out: Path) -> Tuning:
    """A tuning in its folder: begun, or found there.

    Raises:
        ConfigError: the folder holds another one; or as `price`.
        DataError: its plan cannot be read.
    """
    plan = _known(file, out)
    if plan is None:
        if (out / LEDGER).exists():
            raise ConfigError(
                f"{out / PLAN} is missing, and {out / LEDGER} holds what a tuning released: what it planned, and "
                "with which noise, was fixed before the first release. Restore the file from a copy, or use "
                "another out."
            )
        return Tuning(file=file, base=base, out=out, price=price(file, base, out))
    noise = Noise(plan["noise_multiplier"], plan["score_noise"], plan.get("statistics_noise"))
    seed = begun_seed(configured(file, candidate, noise, out) for candidate in file.candidates)
    if seed is not None:
        file = replace(file, config=file.config.with_public_seed(seed))
    tuning = Tuning(file=file, base=base, out=out, price=price(file, base, out, noise))
    _check_runs(plan, tuning)
    return tuning


def _check_runs(plan: Mapping[str, Any], tuning: Tuning) -> None:
    """Raise ConfigError unless a plan names the very runs of this tuning, its noise included."""
    runs = [run_id(tuning.config(candidate)) for candidate in tuning.file.candidates]
    if [candidate["run"] for candidate in plan["candidates"]] != runs:
        raise ConfigError(
            f"{tuning.out / PLAN} names other runs than this tuning has: its noise was changed, or another process "
            "began it with other noise just now. Begin again; if that does not help, restore the file from a copy, "
            "or use another out."
        )


def _known(file: TuneFile, out: Path) -> dict[str, Any] | None:
    """The plan in a folder; None if there is none.

    Raises:
        ConfigError: it is another tuning's. DataError: it cannot be read.
    """
    path, digest = out / PLAN, _digest(file)
    plan = _read(path)
    if plan is not None and plan["id"] != digest:
        raise ConfigError(
            f"{path} is the plan of another tuning ({plan['id']}, this one is {digest}): its candidates are "
            "charged to the ledger beside it. Use another out, or the configuration that it was begun with."
        )
    return plan


def write_plan(tuning: Tuning) -> dict[str, Any]:
    """Have the plan on disk, before anything is released: a tuning that goes on has the noise that it began with.

    Returns:
        what is there.

    Raises:
        ConfigError: another process began another tuning here meanwhile, or is beginning one.
    """
    tuning.out.mkdir(parents=True, exist_ok=True)
    message = f"{tuning.out}: another process ({{holder}}) is beginning a tuning here. Begin again, or use another out"
    plan = _known(tuning.file, tuning.out)
    if plan is None:
        with locked(tuning.out / LOCK, message, other="out"):
            plan = _known(tuning.file, tuning.out)  # by another process meanwhile
            if plan is None:
                config = tuning.config(tuning.file.candidates[0])
                plan = {**_plan(tuning), "name": secrets.token_hex(16), "ledger": config.privacy.ledger}
                tuning._write(PLAN, plan)
    _check_runs(plan, tuning)
    return plan


def _plan(tuning: Tuning) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "id": tuning.id,
        **tuning.price.to_dict(),
        "candidates": [
            {
                "index": candidate.index,
                "label": candidate.label,
                "changes": candidate.changes,
                "run": run_id(tuning.config(candidate)),
            }
            for candidate in tuning.file.candidates
        ],
    }


def _read(path: Path) -> dict[str, Any] | None:
    try:
        content: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}. Restore it from a copy, or use another folder.") from error
    return content


def _digest(file: TuneFile) -> str:
    """Names what is tuned: the run of each candidate without noise, and when they are compared."""
    runs = [run_id(candidate.config) for candidate in file.candidates]
    spec = json.dumps([runs, file.rungs, file.spec.eta, file.spec.share, *file.spec.score.items()])
    return hashlib.sha256(spec.encode()).hexdigest()[:12]


class _Once:
    """A reporter that is told once what all candidates have to say of the same records."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter, self._said = reporter, set[str]()
        self.detail, self.start, self.evaluated = reporter.detail, reporter.start, reporter.evaluated
        self.ticked, self.end = reporter.ticked, reporter.end

    def note(self, text: str) -> None:
        if text not in self._said or not text.startswith(OF_RECORDS):
            self._reporter.note(text)
        self._said.add(text)


def carry_out(
    tuning: Tuning,
    *,
    backend: Callable[[Config], Backend],
    reporter: Reporter,
    stop: Callable[[], bool],
    wait: Wait,
) -> list[Standing] | None:
    """Train candidates from rung to rung, and the best to the end; returns all, ranked; None if it was stopped.

    Raises:
        TrainingError: no candidate is left, or the budget has no room for private statistics. As `run_config`.
    """
    plan = write_plan(tuning)
    reporter = _Once(reporter)
    config, name = tuning.config(tuning.file.candidates[0]), plan.get("name", tuning.id)
    if text := why_not_counted(config):
        reporter.note(text)
    if plan.get("ledger") is not None and config.privacy.ledger is None and is_begun(tuning.ledger):
        raise ConfigError(
            f"{tuning.out}: this tuning is a run in the ledger {plan['ledger']}, which has to know what it releases. "
            f"Give it again: privacy.ledger={plan['ledger']}."
        )
    with registered(config, tuning.base, name, tuning.price.slots, tuning.ledger, backend, wait) as project:
        return _carry_out(tuning, project, backend, reporter, stop, wait)


def _carry_out(
    tuning: Tuning,
    project: Registration | None,
    backend: Callable[[Config], Backend],
    reporter: Reporter,
    stop: Callable[[], bool],
    wait: Wait,
) -> list[Standing] | None:
    def advance(standing: Standing, stage: TuningStage) -> Standing:
        run_config(
            standing.config,
            tuning.base,
            resume=True,
            backend=backend(standing.config),
            reporter=reporter,
            stop=stop,
            label=standing.candidate.label,
            ledger=tuning.ledger,
            wait=wait,
            stage=stage,
        )
        return tuning.standing(standing.candidate)

    left = [candidate.index for candidate in tuning.file.candidates]
    places = tuning.price.places
    for number, place in enumerate(places):
        reporter.note(
            f"rounds {place.first + 1} to {place.last}: {len(left)} candidate{'s' * (len(left) > 1)}"
            + (f", the best by their scores after round {place.first}" if number else "")
        )
        decisions, following = tuning.decisions(), places[number + 1 :]
        decision = decisions.get(place.last)
        if decision is None:
            compared = _trained(tuning, tuning.standings(left), place, decisions, project, advance)
            if compared is None:
                return None
            for standing in compared:
                if standing.has_failed:
                    reporter.note(f"{standing.candidate.label} failed: {standing.result['reason']}")
            if not following:
                break
            decision = tuning.keep(decide(compared, place.last, following[0].candidates), compared)
        left = list(decision.goes_on)
        if not left:
            raise TrainingError(
                f"{tuning.out}: every candidate that was left failed before its score after round {place.last}; "
                f"{tuning.ledger} holds what they released. {ANEW}"
            )
    left_behind = [decision.left_behind for _, decision in sorted(tuning.decisions().items())]
    return tuning.standings([*left, *(index for of_rung in reversed(left_behind) for index in of_rung)])


def _trained(
    tuning: Tuning,
    standings: Sequence[Standing],
    place: Place,
    decisions: Mapping[int, Decision],
    project: Registration | None,
    advance: Callable[[Standing, TuningStage], Standing],
) -> list[Standing] | None:
    """Candidates after a place on the plan; None if it was stopped.

    The winner's run is tried again, if it failed: no other takes its place.
    """
    is_last = place is tuning.price.places[-1]
    if is_last and standings[0].has_failed:
        tuning.note_retry(standings[0])
    caveats = [failure(entry) for entry in failures(tuning, decisions)]
    if is_last and tuning.winner_was_retried:
        caveats.append(RETRIED_WINNER)
    until = None if is_last else place.last
    planned, statistics = tuning.price.planned, tuning.statistics()
    stage = TuningStage(until, is_last, planned, guarantee(tuning), tuple(caveats), project, statistics)
    done = []
    for standing in standings:
        again = is_last and standing.has_failed
        after = standing if standing.reached(until) and not again else advance(standing, stage)
        if not after.reached(until):
            return None
        if stage.statistics is None and tuning.price.noise.statistics is not None:
            stage = replace(stage, statistics=tuning.statistics())
            if stage.statistics is None and (after.result["status"], after.rounds) == ("budget_exhausted", 0):
                raise TrainingError(f"{tuning.out}: {after.result['reason']}. {LOST_STATISTICS}")
        done.append(after)
    return done


def failures(tuning: Tuning, decisions: Mapping[int, Decision]) -> list[dict[str, Any]]:
    """Which candidates failed before they released a score, and in which rounds: seen beside scores."""
    labels = {candidate.index: candidate.label for candidate in tuning.file.candidates}
    return [
        {"label": labels[index], "first": place.first, "last": place.last}
        for place in tuning.price.places
        if place.last in decisions
        for index in decisions[place.last].failed
    ]


def guarantee(tuning: Tuning) -> dict[str, Any]:
    """What is claimed of each candidate: what holds of all of them together, the budget.

    The plan's own epsilon is a hair less. But rounds that a crash lost, and that cannot be repeated bit for bit, are
    charged twice, up to the budget.
    """
    epsilon = tuning.file.config.privacy.epsilon
    assert epsilon is not None
    return {
        "epsilon": epsilon,
        "delta": tuning.price.delta,
        "num_candidates": tuning.price.num_candidates,
        "id": tuning.id,
    }


def in_ledger(tuning: Tuning, accountant: Accountant | None = None) -> float:
    """Epsilon, towards the server at the worst silo, of all that the ledger holds, whoever released it; 0 of nothing.

    Raises:
        LedgerError: it is damaged, or lacks what candidates released.
    """
    if not tuning.ledger.exists():
        return 0.0
    ledger = read_shared(tuning.ledger)
    _check_whole(tuning, ledger)
    accountant = make_accountant(tuning.file.config) if accountant is None else accountant
    return planned_epsilon(plans_in(ledger), tuning.price.delta, accountant)


def _check_whole(tuning: Tuning, ledger: Ledger) -> None:
    """Raise LedgerError unless the shared ledger holds all that the candidates' own say."""
    for candidate in tuning.file.candidates:
        path = tuning.folder(candidate).ledger
        own = Ledger.open(path, append=False) if path.exists() else ()
        lacking = {charge.round + 1 for charge in own if ledger.known(charge) < charge.count}
        if lacking:
            raise LedgerError(
                f"{tuning.ledger}: what {candidate.label or 'the candidate'} released in {len(lacking)} rounds, from "
                f"round {min(lacking)}, is in {path}, but not here: its end is missing. Restore the file from a copy."
            )


def outcome(tuning: Tuning, ranked: Sequence[Standing]) -> dict[str, Any]:
    """How a tuning ended, as plain values."""
    winner = ranked[0]
    total = winner.result.get("adaptive_total")  # of a tuning in the ledger of its project
    return {
        **_plan(tuning),
        "randomness": tuning.file.config.privacy.randomness,
        "guarantee": {**guarantee(tuning), "in_ledger": in_ledger(tuning)},
        "winner": {
            "label": winner.candidate.label,
            "folder": str(tuning.folder(winner.candidate).path),
            "status": winner.result.get("status"),
            "retried": tuning.winner_was_retried,
        },
        **({"other_runs": winner.result["earlier_runs"], "adaptive_total": total} if total else {}),
        "failures": failures(tuning, tuning.decisions()),
        "ranking": [
            {
                "label": standing.candidate.label,
                "scores": [list(score) for score in standing.scores],
                "noise_std": standing.noise_std,
                "failed": standing.result["reason"] or "" if standing.has_failed else None,
                "folder": str(tuning.folder(standing.candidate).path),
            }
            for standing in ranked
        ],
    }
