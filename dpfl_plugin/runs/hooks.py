"""Report how a run goes: to a person by a reporter, to log.txt, and to callbacks.

What callbacks get is decided here: copies, and no more than the published files of a run say, besides the measurements
(`callbacks.base`). Of raw records that is losses, accuracies and other measures that are one number each, of all silos
together. No epsilon covers them. Confusion matrices and calibration curves stay in `result.json`: a bin of a curve may
hold one record.
"""

from __future__ import annotations

import copy
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Protocol

from dpfl_plugin.callbacks.base import Callback, RoundInfo, RunInfo, Stop
from dpfl_plugin.callbacks.tracker import Tracker
from dpfl_plugin.config.load import run_id
from dpfl_plugin.config.schema import Config
from dpfl_plugin.core.outcomes import score_key
from dpfl_plugin.core.rounding import digits, places
from dpfl_plugin.errors import ConfigError, told
from dpfl_plugin.federation.outcome import Cause, RunOutcome
from dpfl_plugin.federation.progress import Progress
from dpfl_plugin.privacy.account import PrivacyAccount
from dpfl_plugin.privacy.rules import PrivacyRules
from dpfl_plugin.runs.folder import RunFolder
from dpfl_plugin.runs.plugins import build_plugin, traceback_of

LOGGED: Final = {"train_loss": "training loss", "test_accuracy": "test accuracy"}
METRICS: Final = (*LOGGED, "gradient_dissimilarity")
STAYED_AT_RANKS: Final = "losses and accuracies are with the silo ranks"
MEASURED_KEY: Final = re.compile("test_|train_loss$|measures$|silos$")
OF_SILOS: Final = re.compile(r"(?<!\S)(silos|silo_weights)[.=]")
MEASURED: Final = "Losses and accuracies are measured on raw records: no epsilon covers them"
GIVEN: Final = (
    "Callbacks or trackers were given the losses and accuracies that were known here, means over silos, and other "
    "measures of the final model and of a baseline, of all silos together; what they keep or send is not covered by "
    "any epsilon.",
    "Callbacks were given the losses and accuracies of single silos that were known here, and other measures of the "
    "final model and of a baseline at each; what they keep or send is not covered by any epsilon.",
)

GIVEN_OF_RESULT: Final = (
    "schema",
    "status",
    "cause",
    "name",
    "id",
    "algorithm",
    "seed",
    "randomness",
    "rounds",
    "num_silos",
    "num_train_records",
    "num_test_records",
    "test_accuracy",
    "train_loss",
    "outcome",
    "early_stopping",
    "private_evaluation",
    "private_statistics",
    "noise_multiplier",
    "warnings",
    "earlier_runs",
    "seconds",
    "bytes_up",
    "bytes_down",
    "engine",
    "model_sha256",
    "tuning",
    "finished",
)
GIVEN_OF_MEASURES: Final = ("outcome", "ranked_by", "higher_is_better", "baseline")
GIVEN_OF_INPUTS: Final = ("shape", "num_classes", "columns")


class Reporter(Protocol):
    """Tells a person how it goes."""

    def note(self, text: str) -> None: ...

    def detail(self, text: str) -> None:
        """What only somebody who asks for it wants to see."""
        ...

    def start(self, rounds: int, done: int) -> None: ...

    def evaluated(self, line: dict[str, Any]) -> None: ...

    def ticked(self, progress: Progress) -> None: ...

    def end(self) -> None: ...


class Silent:
    """A reporter for runs whose log.txt is enough."""

    def note(self, text: str) -> None: ...

    def detail(self, text: str) -> None: ...

    def start(self, rounds: int, done: int) -> None: ...

    def evaluated(self, line: dict[str, Any]) -> None: ...

    def ticked(self, progress: Progress) -> None: ...

    def end(self) -> None: ...


def callbacks_of(config: Config, base: Path, given: Sequence[Callback]) -> tuple[Callback, ...]:
    """Those that were given, and the trackers of the configuration.

    Raises:
        ConfigError: one of them is no callback, or a tracker's package is missing.
    """
    named = [build_plugin("callbacks", block, base, where=f"trackers[{i}]") for i, block in enumerate(config.trackers)]
    check_callbacks(given, "callbacks")
    check_callbacks(named, "trackers")
    return (*given, *named)


def check_callbacks(given: Sequence[object], where: str) -> None:
    """Raise ConfigError unless all are callbacks."""
    for i, callback in enumerate(given):
        if not isinstance(callback, Callback):
            hint = f"; make one: {callback.__name__}()" if isinstance(callback, type) else ""
            if isinstance(callback, str):
                hint = (
                    f", such as dpfl.callbacks.TensorBoard(). To name a tracker as in a file: trackers=[{callback!r}]"
                )
            raise ConfigError(f"{where}[{i}]={callback!r} must be an instance of dpfl_plugin.callbacks.Callback{hint}.")


def public_values(config: Config) -> dict[str, Any]:
    """A configuration as callbacks get it: without settings and weights of single silos, which have their names."""
    hidden = {"trackers", "silos"}
    hidden |= {"silo_weights"} if isinstance(config.silo_weights, Mapping) else set()
    values = config.model_dump(mode="json", exclude=hidden)
    return dict(values)


def public_label(label: str | None) -> str | None:
    """A run's label as callbacks get it: a sweep's may say names of silos; see `public_values`."""
    return None if label is None or OF_SILOS.search(label) else label


def epsilon_of(config: Config, neighbouring: str) -> str:
    """Whom epsilon protects, and from what, in words."""
    delta = digits(config.privacy.delta, 6)
    return (
        f"one {config.privacy.unit}, {neighbouring.replace('_', '-')} neighbours, at delta {delta}; "
        "server: against the server, of the silo that spent most; third_party: against whoever sees the models alone. "
        "Of this run alone; total: with what a shared ledger holds of earlier ones. "
        "What is assumed and what is not covered: privacy.md"
    )


class Calls:
    """Calls callbacks, each with a copy.

    Args:
        say: tells a person, in one line. log: keeps a traceback.
        may_end: whether callbacks end the run; not on a platform, which decides that itself.

    Attributes:
        ending: how the first that did so ended the run; None while none has.
        charge: what is said of the plan of a run that ends so; "" where there is no privacy to pay for.
    """

    def __init__(
        self,
        callbacks: Sequence[Callback],
        say: Callable[[str], None],
        log: Callable[[str], None],
        *,
        may_end: bool = True,
    ) -> None:
        self.callbacks, self._say, self._log, self._may_end = list(callbacks), say, log, may_end
        self.ending: RunOutcome | None = None
        self.charge = ""
        self._failed: Counter[int] = Counter()

    def begin(self, run: RunInfo) -> None:
        """A callback that cannot begin is left out from then on."""
        for callback in list(self.callbacks):
            if not self._call(callback, "on_begin", run, then="It is left out from now on"):
                self.callbacks.remove(callback)
                self._close(callback)

    def round(self, info: RoundInfo, score: float | None = None) -> None:
        """``score``: the last one that was released."""
        for callback in self.callbacks:
            silos = info.silos if callback.per_silo else None
            epsilon = None if info.metrics is None and not callback.epsilon_each_round else info.epsilon
            metrics = info.metrics
            if callback.sees == "released":
                silos, metrics = None, None if score is None else {"private_score": score}
            self._call(callback, "on_round", replace(info, metrics=metrics, silos=silos, epsilon=epsilon))

    def end(self, shown: Callable[[bool], Mapping[str, Any]]) -> None:
        """``shown``: the result, with or without what was measured at single silos."""
        for callback in self.callbacks:
            result = shown(callback.per_silo and callback.sees != "released")
            if callback.sees == "released":
                result = {key: value for key, value in result.items() if not MEASURED_KEY.match(key)}
            self._call(callback, "on_end", result)
            if (times := self._failed[id(callback)]) > 1:
                self._say(f"callback {_name(callback)} failed {times} times in this session")

    def close(self) -> None:
        """However the session ended, also where `end` was not reached."""
        for callback in self.callbacks:
            self._close(callback)
        self.callbacks = []

    def _close(self, callback: Callback) -> None:
        if isinstance(callback, Tracker):
            self._call(callback, "close")

    def _call(self, callback: Callback, event: str, *given: Any, then: str = "It is called again") -> bool:
        """Whether it did not fail. The first failure of a callback is told and logged, the others are counted."""
        try:
            if event == "on_begin":
                self._tell_what_leaves(callback, *given)
            getattr(callback, event)(*copy.deepcopy(given))
        except Stop as stop:
            self._stopped(callback, event, stop)
        except Exception as error:  # whatever it does, the run's data come first
            if self._may_end and event != "on_end" and not isinstance(callback, Tracker):
                self._log(traceback_of(error))
                what = f"callback {_name(callback)} failed in {event}: {told(error)}; the traceback is in log.txt"
                self.ending = self.ending or RunOutcome("failed", Cause.CALLBACK_FAILED, what)
                self._say(f"warning: {what}")
                return False
            self._failed[id(callback)] += 1
            if self._failed[id(callback)] == 1:
                self._log(traceback_of(error))
                what = f"callback {_name(callback)} failed in {event}: {told(error)}"
                self._say(f"warning: {what}. The run continues. {then}")
            return False
        return True

    def _stopped(self, callback: Callback, event: str, stop: Stop) -> None:
        text = f"stopped by callback {_name(callback)}" + (f": {stop}" if str(stop) else "")
        if event == "on_end":
            self._say(f"{text}, after the run had ended: that changes nothing")
        elif not self._may_end:
            self._say(f"{text}: on a platform a callback does not end a run. The run continues")
        else:
            cause = Cause.CALLBACK_OF_RELEASED if callback.sees == "released" else Cause.CALLBACK
            self.ending = self.ending or RunOutcome("done", cause, text + self.charge)

    def _tell_what_leaves(self, callback: Callback, run: RunInfo) -> None:
        if isinstance(callback, Tracker):
            self._say(f"tracker {callback.name}: {callback.goes_to(run)}. {MEASURED}")
        if callback.per_silo:
            self._say(f"callback {_name(callback)} gets what is measured at every single silo. {MEASURED}")


def _name(callback: Callback) -> str:
    return type(callback).__qualname__


def plan_charge(rules: PrivacyRules) -> str:
    """What a callback's end of a run costs; "" without noise."""
    return "; all planned rounds are charged" if rules.noise_multiplier else ""


class Hooks:
    """Passes on to the reporter; writes notes and evaluations to log.txt with the time; and calls the callbacks."""

    def __init__(self, reporter: Reporter, folder: RunFolder, callbacks: Sequence[Callback] = ()) -> None:
        self._reporter, self._folder = reporter, folder
        self._calls = Calls(callbacks, self.note, lambda text: folder.append(folder.log, text))
        measured = [callback for callback in callbacks if callback.sees != "released"]
        self.given = 0 if not measured else 2 if any(callback.per_silo for callback in measured) else 1
        self._each_round = any(callback.epsilon_each_round for callback in callbacks)
        self._has_begun = self._said_hidden = False
        self._account: PrivacyAccount | None = None
        self._whoever = False
        self._evaluated: RoundInfo | None = None
        self._score: float | None = None

    def ending(self) -> RunOutcome | None:
        """How a callback ended the run; None while none has."""
        return self._calls.ending

    def _write(self, text: str) -> None:
        self._folder.append(self._folder.log, f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")

    def note(self, text: str) -> None:
        self._write(text)
        self._reporter.note(text)

    def detail(self, text: str) -> None:
        self._write(text)
        self._reporter.detail(text)

    def begin(
        self,
        config: Config,
        rules: PrivacyRules,
        account: PrivacyAccount,
        rounds: int,
        done: int,
        label: str | None,
    ) -> None:
        """The run begins, or goes on; for callbacks once, although memory that ran out begins it anew.

        Args:
            rounds: where it is expected to end; done: already.
        """
        release = rules.release(1.0)
        self._account, self._whoever = account, (release.unit, release.neighbouring) == ("silo", "replace_one")
        self._calls.charge = plan_charge(rules)
        if not self._has_begun:
            self._has_begun = True
            values = public_values(config)
            of, out = epsilon_of(config, release.neighbouring), Path(config.out)
            where = (self._folder.path, out, values, rounds, done, config.privacy.delta, of)
            self._calls.begin(RunInfo(config.name, run_id(config), public_label(label), *where))
        self._write(f"rounds {done + 1} to {rounds}")
        self._reporter.start(rounds, done)

    def evaluated(self, line: dict[str, Any], progress: Progress) -> None:
        """The model was evaluated; callbacks hear of it with the round."""
        self._write(_evaluation(line))
        self._reporter.evaluated(line)
        if not self._calls.callbacks:
            return
        keys = dict.fromkeys((*METRICS, score_key(line)))
        metrics = {key: float(line[key]) for key in keys if line.get(key) is not None}
        silos = {
            silo: {"train_loss": m.train_loss, score_key(line): m.test_score} for silo, m in progress.by_silo.items()
        }
        if not metrics and not self._said_hidden:
            self._said_hidden = True
            self.note(f"callbacks and trackers get epsilon alone: {STAYED_AT_RANKS} (evaluation.reveal)")
        self._evaluated = RoundInfo(
            progress.rounds, progress.seconds, progress.begun, metrics, self._spent(line["epsilon"]), silos
        )

    def ticked(self, progress: Progress) -> None:
        self._reporter.ticked(progress)
        if not self._calls.callbacks:
            return
        spent = self._spent(None) if self._each_round and self._evaluated is None else None
        info = self._evaluated or RoundInfo(progress.rounds, progress.seconds, progress.begun, None, spent)
        self._evaluated = None
        self._score = progress.scores[-1][1] if progress.scores else None
        self._calls.round(info, self._score)

    def _spent(self, known: Mapping[str, float | None] | None) -> dict[str, float | None]:
        """Epsilon so far; where a statement may be of outsiders who do not know who took part, whoever did."""
        assert self._account is not None
        epsilon = dict(self._account.epsilons_so_far() if known is None else known)
        if self._whoever:
            worst = self._account.epsilon_ahead("server")
            epsilon["server"] = worst if math.isfinite(worst) else None
        return epsilon

    def end(self) -> None:
        self._reporter.end()
        if self._evaluated is not None:  # after the last round was told
            info, self._evaluated = self._evaluated, None
            self._calls.round(info, self._score)

    def close(self) -> None:
        """The session is over, whatever it came to."""
        self._calls.close()

    def over(self, result: Mapping[str, Any], published: Mapping[str, Any], *, named: bool) -> None:
        """The run ended, for now.

        Args:
            result: what `result.json` holds; published: what may be shown of its statement.
            named: whether the names of classes may be shown, see `public_facts.names_its_classes`.
        """
        self._calls.end(lambda per_silo: _for_callbacks(result, published, named=named, per_silo=per_silo))


def _evaluation(line: Mapping[str, Any]) -> str:
    """An evaluation for people; metrics.jsonl has it for programs."""
    logged = LOGGED | {key: key.replace("_", " ") for key in [score_key(line)] if key not in LOGGED}
    words = [f"{name} {line[key]:.4g}" for key, name in logged.items() if line[key] is not None]
    spent = line["epsilon"].get("server")
    words += [] if spent is None else [f"epsilon {places(spent, 3)} (server)"]
    return f"after round {line['round']} ({line['phase']}): {', '.join(words) or STAYED_AT_RANKS}"


def _for_callbacks(
    result: Mapping[str, Any], published: Mapping[str, Any], *, named: bool, per_silo: bool
) -> dict[str, Any]:
    """What of a result a callback is given when a run ends.

    Args:
        result: what `result.json` holds. published: what may be shown of its statement.
        named: whether the names of classes may be shown. per_silo: whether it asks for measures of single silos.
    """
    shown = {key: result[key] for key in dict.fromkeys((*GIVEN_OF_RESULT, score_key(result))) if key in result}
    if result["status"] == "failed":
        shown.pop("cause", None)  # it may be a loss, measured on raw records
    if per_silo:
        shown["silos"] = result["silos"]
    return shown | {
        "positive_class": result["positive_class"] if named or result["positive_class"] is None else "1",
        "inputs": _inputs(result["inputs"], named=named),
        "measures": _measures(result["measures"], per_silo=per_silo),
        "reason": published["run"]["reason"],
        "epsilon": published["views"],
    }


def _inputs(inputs: Mapping[str, Any] | None, *, named: bool) -> dict[str, Any] | None:
    if inputs is None:
        return None
    return {**{key: inputs[key] for key in GIVEN_OF_INPUTS}, "classes": list(inputs["classes"]) if named else []}


def _measures(measures: Mapping[str, Any] | None, *, per_silo: bool) -> dict[str, Any] | None:
    """Measures that are one number each; of single silos for who asks for them."""
    if measures is None:
        return None
    shown = {key: measures[key] for key in GIVEN_OF_MEASURES}
    shown |= {key: _numbers(measures[key]) for key in ("pooled", "mean_of_silos") if key in measures}
    by_silo = measures["silos"]
    if per_silo:
        shown["silos"] = None if by_silo is None else {silo: _numbers(of) for silo, of in by_silo.items()}
    return shown


def _numbers(tables: Mapping[str, Mapping[str, Any]] | None) -> dict[str, Any] | None:
    """``tables``: of the model, the baseline and silos' own models."""
    if tables is None:
        return None
    return {
        who: {name: value for name, value in table.items() if value is None or isinstance(value, int | float)}
        for who, table in tables.items()
    }
