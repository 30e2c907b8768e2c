"""A tuning as it goes: candidates from rung to rung, the best of them to the end; and how it goes on after a crash.

How far it is, is kept in the candidates' own folders, in the ledger that they share, and in what was decided at each
rung (`decisions`). A candidate is one run of all rounds, which is paused at a rung and gone on with from its
checkpoint. So a tuning that is begun again finds what is done, and decides nothing twice.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from dpfl_plugin.config.load import run_id
from dpfl_plugin.config.schema import Config
from dpfl_plugin.config.tune import Candidate, TuneFile
from dpfl_plugin.errors import ConfigError, DataError, LedgerError, TrainingError
from dpfl_plugin.experiments.tuning import decisions
from dpfl_plugin.experiments.tuning.decisions import Decision, Standing
from dpfl_plugin.experiments.tuning.price import Place, Price, configured, price
from dpfl_plugin.experiments.tuning.statement import ANEW, RETRIED_WINNER, failure
from dpfl_plugin.federation.outcome import Cause
from dpfl_plugin.privacy.accountants import Accountant
from dpfl_plugin.privacy.filters import planned_epsilon
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.shared_ledger import plans_in
from dpfl_plugin.runs.backend import Backend
from dpfl_plugin.runs.checkpoint import load_facts
from dpfl_plugin.runs.existing_run import begun_seed
from dpfl_plugin.runs.folder import TUNING, RunFolder, folder_of, locked, to_json
from dpfl_plugin.runs.hooks import Reporter
from dpfl_plugin.runs.ledgers import Wait, read_shared
from dpfl_plugin.runs.plugins import make_accountant
from dpfl_plugin.runs.prepare import TuningStage
from dpfl_plugin.runs.run import run_config

LEDGER: Final = "ledger.jsonl"
PLAN: Final = TUNING
RETRIED: Final = "retried.json"  # that the winner failed, and was tried again
SCHEMA: Final = 1
OF_RECORDS: Final = ("records: ", "silos have ", "delta is ", "warning: privacy.")
"""How notes begin that are the same of every candidate."""


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
    def ledger(self) -> Path:
        """What all candidates are charged to."""
        return self.out / LEDGER

    def config(self, candidate: Candidate) -> Config:
        """The run of a candidate."""
        if candidate.index not in self._configs:
            noise = self.price.noise_multiplier, self.price.score_noise
            self._configs[candidate.index] = configured(self.file, candidate, noise, self.out)
        return self._configs[candidate.index]

    def folder(self, candidate: Candidate) -> RunFolder:
        return folder_of(self.config(candidate))

    def standing(self, candidate: Candidate) -> Standing:
        """What a candidate's folder says of it; its scores alone, and no measure without noise.

        Raises:
            DataError: the folder cannot be read.
        """
        path, config = self.folder(candidate).result, self.config(candidate)
        try:
            result = json.loads(path.read_text())
        except FileNotFoundError:  # before it began, or since it was killed
            return Standing(candidate, config, self._of_checkpoint(candidate))
        except (OSError, ValueError) as error:
            raise DataError(f"{path} cannot be read: {error}. Restore it from a copy.") from error
        private = result["private_evaluation"]
        scores = tuple((int(after), float(score)) for after, score in private["scores"])
        return Standing(
            candidate,
            config,
            scores,
            private["noise_std"],
            result["status"],
            result["reason"] or "",
            result["rounds"],
            result["cause"] == Cause.PAUSED.value,
        )

    def _of_checkpoint(self, candidate: Candidate) -> tuple[tuple[int, float], ...]:
        facts = load_facts(self.folder(candidate).checkpoint) or {}
        return tuple((int(after), float(score)) for after, score in facts.get("scores", ()))


def begin(file: TuneFile, base: Path, out: Path) -> Tuning:
    """A tuning in its folder: begun, or found there.

    Raises:
        ConfigError: the folder holds another one; or as `price`.
        DataError: its plan cannot be read.
    """
    known = _known(file, out)
    if known is None:
        if (out / LEDGER).exists():
            raise ConfigError(
                f"{out / PLAN} is missing, and {out / LEDGER} holds what a tuning released: what it planned, and "
                "with which noise, was fixed before the first release. Restore the file from a copy, or use "
                "another out."
            )
        return Tuning(file=file, base=base, out=out, price=price(file, base, out))
    noise = float(known["noise_multiplier"]), float(known["score_noise"])
    begun = begun_seed(configured(file, one, noise, out) for one in file.candidates)
    if begun is not None:
        file = replace(file, config=file.config.with_public_seed(begun))
    tuning = Tuning(file=file, base=base, out=out, price=price(file, base, out, noise))
    _check_runs(known, tuning)
    return tuning


def _check_runs(known: Mapping[str, Any], tuning: Tuning) -> None:
    """Raise ConfigError unless a plan names the very runs of this tuning, its noise included."""
    if [one["run"] for one in known["candidates"]] != [run_id(tuning.config(one)) for one in tuning.file.candidates]:
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
    known = _read(path)
    if known is not None and known["id"] != digest:
        raise ConfigError(
            f"{path} is the plan of another tuning ({known['id']}, this one is {digest}): its candidates are "
            "charged to the ledger beside it. Use another out, or the configuration that it was begun with."
        )
    return known


def write_plan(tuning: Tuning) -> None:
    """Have the plan on disk, before anything is released: a tuning that goes on has the noise that it began with.

    Raises:
        ConfigError: another process began another tuning here meanwhile, or is beginning one.
    """
    tuning.out.mkdir(parents=True, exist_ok=True)
    taken = f"{tuning.out}: another process ({{holder}}) is beginning a tuning here. Begin again, or use another out"
    known = _known(tuning.file, tuning.out)
    if known is None:
        with locked(tuning.out / decisions.LOCK, taken, other="out"):
            known = _known(tuning.file, tuning.out)  # by another process meanwhile
            if known is None:
                known = _plan(tuning)
                RunFolder(tuning.out).write(tuning.out / PLAN, to_json(known))
    _check_runs(known, tuning)


def _plan(tuning: Tuning) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "id": _digest(tuning.file),
        **priced(tuning.price),
        "candidates": [
            {"index": one.index, "label": one.label, "changes": one.changes, "run": run_id(tuning.config(one))}
            for one in tuning.file.candidates
        ],
    }


def priced(price: Price) -> dict[str, Any]:
    """A price as plain values."""
    names = ("noise_multiplier", "score_noise", "score_std", "epsilon", "of_tuning", "of_rest", "delta", "without")
    return {
        **{name: getattr(price, name) for name in (*names, "accountant")},
        "noisiest": asdict(price.noisiest),
        "num_candidates": price.num_candidates,
        "rounds": price.rounds,
        "scores": price.scores,
        "places": [asdict(place) for place in price.places],
    }


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}. Restore it from a copy, or use another folder.") from error
    return found


def _digest(file: TuneFile) -> str:
    """Names what is tuned: the run of each candidate without noise, and when they are compared."""
    runs = [run_id(candidate.config) for candidate in file.candidates]
    spec = json.dumps([runs, file.rungs, file.spec.eta, file.spec.share])
    return hashlib.sha256(spec.encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Course:
    """What `carry_out` was given."""

    tuning: Tuning
    backend: Callable[[Config], Backend]
    reporter: Reporter
    stop: Callable[[], bool]
    wait: Wait

    def standings(self, indices: Iterable[int]) -> list[Standing]:
        candidates = {one.index: one for one in self.tuning.file.candidates}
        return [self.tuning.standing(candidates[index]) for index in indices]

    def trained(self, indices: Sequence[int], part: Place, seen: Sequence[str]) -> list[Standing] | None:
        """Candidates after a place on the plan; None if it was stopped.

        The winner's run is tried again, if it failed: no other takes its place.
        """
        last, standings = part is self.tuning.price.places[-1], self.standings(indices)
        if last and standings[0].status == "failed":  # its folder will not say so any more
            _keep_retry(self.tuning, standings[0])
        if last and _retried(self.tuning):
            seen = [*seen, RETRIED_WINNER]
        stage = TuningStage(
            None if last else part.last, last, self.tuning.price.planned, guarantee(self.tuning), tuple(seen)
        )
        done = []
        for one in standings:
            again = last and one.status == "failed"
            found = one if one.reached(stage.until) and not again else self._advanced(one, stage)
            if not found.reached(stage.until):
                return None
            if found.status == "failed":
                self.reporter.note(f"{found.candidate.label} failed: {found.reason}")
            done.append(found)
        return done

    def _advanced(self, one: Standing, stage: TuningStage) -> Standing:
        """A candidate after its next rounds."""
        run_config(
            one.config,
            self.tuning.base,
            resume=True,
            backend=self.backend(one.config),
            reporter=self.reporter,
            stop=self.stop,
            label=one.candidate.label,
            ledger=self.tuning.ledger,
            wait=self.wait,
            stage=stage,
        )
        return self.tuning.standing(one.candidate)


def carry_out(
    tuning: Tuning,
    *,
    backend: Callable[[Config], Backend],
    reporter: Reporter,
    stop: Callable[[], bool],
    wait: Wait,
) -> list[Standing] | None:
    """Train candidates from rung to rung, and the best to the end; returns all, as `ranked`; None if it was stopped.

    Raises:
        TrainingError: no candidate is left. As `run_config`.
    """
    write_plan(tuning)
    course = _Course(tuning=tuning, backend=backend, reporter=_Once(reporter), stop=stop, wait=wait)
    left = [one.index for one in tuning.file.candidates]
    places = tuning.price.places
    for number, part in enumerate(places):
        course.reporter.note(
            f"rounds {part.first + 1} to {part.last}: {len(left)} candidate{'s' * (len(left) > 1)}"
            + (f", the best by their scores after round {part.first}" if number else "")
        )
        decided = _decided(tuning)
        decision, following = decided.get(part.last), places[number + 1 :]
        if decision is None:
            seen = [failure(one) for one in failures(tuning, decided)]
            done = course.trained(left, part, seen)
            if done is None:
                return None
            if not following:
                break
            decision = _kept(tuning, decisions.decide(done, part.last, following[0].candidates), done)
        left = list(decision.goes_on)
        if not left:
            raise TrainingError(
                f"{tuning.out}: every candidate that was left failed before its score after round {part.last}; "
                f"{tuning.ledger} holds what they released. {ANEW}"
            )
    left_behind = [one.left_behind for _, one in sorted(_decided(tuning).items())]
    return course.standings([*left, *(index for of_rung in reversed(left_behind) for index in of_rung)])


def _decided(tuning: Tuning) -> dict[int, Decision]:
    """What was decided, by round."""
    return decisions.read(tuning.out, _digest(tuning.file))


def _kept(tuning: Tuning, decision: Decision, compared: Sequence[Standing]) -> Decision:
    folder = RunFolder(tuning.out)
    return decisions.keep(folder, _digest(tuning.file), decision, compared)


def failures(tuning: Tuning, decided: Mapping[int, Decision]) -> list[dict[str, Any]]:
    """Which candidates failed before they released a score, and in which rounds: seen beside scores."""
    labels = {one.index: one.label for one in tuning.file.candidates}
    return [
        {"label": labels[index], "first": place.first, "last": place.last}
        for place in tuning.price.places
        if place.last in decided
        for index in decided[place.last].failed
    ]


def _reopened(standings: Sequence[Standing], decided: Mapping[int, Decision]) -> list[dict[str, Any]]:
    """Candidates that went on after they were left behind, as earlier versions had them when another one failed."""
    left_behind = {index: after for after, decision in decided.items() for index in decision.left_behind}
    return [
        {"label": one.candidate.label, "after": left_behind[one.candidate.index]}
        for one in standings
        if one.rounds > left_behind.get(one.candidate.index, math.inf)
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
        "id": _digest(tuning.file),
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


def _keep_retry(tuning: Tuning, winner: Standing) -> None:
    folder = RunFolder(tuning.out)
    folder.write(tuning.out / RETRIED, to_json({"schema": SCHEMA, "winner": winner.candidate.label}))


def _retried(tuning: Tuning) -> bool:
    return (tuning.out / RETRIED).exists()


def outcome(tuning: Tuning, ranked: Sequence[Standing]) -> dict[str, Any]:
    """How a tuning ended, as plain values."""
    winner, decided = ranked[0], _decided(tuning)
    return {
        **_plan(tuning),
        "randomness": tuning.file.config.privacy.randomness,
        "guarantee": {**guarantee(tuning), "in_ledger": in_ledger(tuning)},
        "winner": {
            "label": winner.candidate.label,
            "folder": str(tuning.folder(winner.candidate).path),
            "status": winner.status,
            "retried": _retried(tuning),
        },
        "failures": failures(tuning, decided),
        "reopened": _reopened(ranked, decided),
        "ranking": [
            {
                "label": one.candidate.label,
                "scores": [list(score) for score in one.scores],
                "noise_std": one.noise_std,
                "failed": one.reason if one.status == "failed" else None,
                "folder": str(tuning.folder(one.candidate).path),
            }
            for one in ranked
        ],
    }
