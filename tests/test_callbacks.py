"""Callbacks are told what happens, get no more than may be shown, and change nothing."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dpfl_plugin.adapters.agreement import agree
from dpfl_plugin.adapters.server import Server
from dpfl_plugin.api.runs import Run
from dpfl_plugin.callbacks import Callback, RoundInfo, RunInfo, Stop, TensorBoard, Tracker
from dpfl_plugin.callbacks.tracker import statement_files
from dpfl_plugin.config.load import configure, run_id
from dpfl_plugin.errors import ConfigError
from dpfl_plugin.runs.folder import Result, RunFolder
from dpfl_plugin.runs.hooks import Silent, public_values
from dpfl_plugin.runs.run import run_config
from dpfl_plugin.runs.run_status import status_of
from dpfl_plugin.runtimes.in_process import InProcessBackend
from tests.adapters.federation import block
from tests.adapters.test_faults import begin, module
from tests.cli.command import BASE, charges, merged

ROUNDS = 4
SECURE_DRAWN: dict[str, Any] = {
    "rounds": 12,
    "silo_rate": 0.5,
    "data": {"num_silos": 6},
    "algorithm": {"name": "fedavg"},
    "privacy": {
        "unit": "silo",
        "sampler": "full",
        "record_rate": None,
        "noise_multiplier": 20.0,
        "randomness": "fresh",
    },
}


class Spy(Callback):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.rounds: list[RoundInfo] = []
        self.run: RunInfo | None = None
        self.result: dict[str, Any] = {}

    def on_begin(self, run: RunInfo) -> None:
        self.run = run
        self.events.append(f"begin {run.done}")

    def on_round(self, round: RoundInfo) -> None:
        self.rounds.append(round)
        self.events.append(f"round {round.number}")

    def on_end(self, result: Any) -> None:
        self.result = result
        self.events.append(f"end {result['status']}")


class Curious(Spy):
    per_silo = True
    epsilon_each_round = True


class Notes(Silent):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def session(
    out: Path,
    *callbacks: Callback,
    stop: Callable[[], bool] = lambda: False,
    resume: bool = False,
    reporter: Any = None,
    base: Path | None = None,
    label: str | None = None,
    **changes: Any,
) -> Result:
    config = configure(merged(BASE, {"rounds": ROUNDS, **changes, "out": str(out)}), source="test")
    how: dict[str, Any] = {
        "resume": resume,
        "backend": InProcessBackend(),
        "reporter": reporter or Silent(),
        "stop": stop,
    }
    return run_config(config, base or out, callbacks=callbacks, label=label, **how)


TOLD: dict[str, tuple[dict[str, Any], list[str]]] = {
    "whole": ({}, ["begin 0", *(f"round {n}" for n in range(1, 5)), "end done"]),
    "interrupted": ({"stop": 2}, ["begin 0", "round 1", "round 2", "end interrupted"]),
    "resumed": ({"stop": 2, "resume": True}, ["begin 2", "round 3", "round 4", "end done"]),
    "budget": (
        {"privacy": {"epsilon": 4.0}, "rounds": 500, "silo_rate": 0.5},
        ["begin 0", "round 1", "...", "end budget_exhausted"],
    ),
    "stopped early": (  # after which it is evaluated, and told once more
        {
            "rounds": 60,
            "evaluation": {"every": 50},
            "early_stopping": {"share": 0.25, "every": 2, "patience": 1, "noise_multiplier": 9.0},
        },
        ["begin 0", "round 1", "...", "end done"],
    ),
    "failed": ({"algorithm": {"local_lr": 1e38}}, ["begin 0", "...", "end failed"]),
}


@pytest.mark.parametrize("case", TOLD)
def test_a_callback_is_told_how_a_run_goes(tmp_path: Path, case: str) -> None:
    changes, expected = TOLD[case]
    changes, spy = dict(changes), Spy()
    after, resume = changes.pop("stop", None), changes.pop("resume", False)
    if resume:
        session(tmp_path, earlier := Spy(), stop=lambda: len(earlier.rounds) == after)
        after = None
    result = session(tmp_path, spy, stop=lambda: len(spy.rounds) == after, resume=resume, **changes)
    if "..." in expected:
        gap = expected.index("...")
        assert [*spy.events[:gap], *spy.events[gap + len(spy.events) - len(expected) + 1 :]] == [
            *expected[:gap],
            *expected[gap + 1 :],
        ]
    else:
        assert spy.events == expected
    assert spy.run is not None and spy.run.folder == Path(result["folder"]) and spy.run.delta == 1e-5
    lines = RunFolder(Path(result["folder"])).read_metrics()
    told = {info.number: info for info in spy.rounds if info.metrics is not None}
    for line in lines:
        if line["round"] <= spy.run.done or line["train_loss"] is None:
            continue
        info = told[line["round"]]
        assert info.metrics == {key: line[key] for key in ("train_loss", "test_accuracy")}
        assert info.epsilon == line["epsilon"] and info.silos is None and info.begun >= info.number
    if case == "stopped early":
        assert spy.events[-2] == spy.events[-3] and spy.rounds[-2].metrics is None, "evaluated after its end"
    elif result["status"] == "done":
        assert spy.rounds[-1].epsilon is not None
        assert spy.rounds[-1].epsilon["server"] == pytest.approx(result["epsilon"]["server"]["epsilon"])


class Broken(Spy):
    def __init__(self, at: str, error: type[BaseException]) -> None:
        super().__init__()
        self._at, self._error = at, error

    def _maybe(self, at: str) -> None:
        if at == self._at:
            raise self._error("no such server")

    def on_begin(self, run: RunInfo) -> None:
        super().on_begin(run)
        self._maybe("on_begin")

    def on_round(self, round: RoundInfo) -> None:
        super().on_round(round)
        self._maybe("on_round")

    def on_end(self, result: Any) -> None:
        super().on_end(result)
        self._maybe("on_end")


class BrokenTracker(Broken, Tracker):
    name = "broken"

    def goes_to(self, run: RunInfo) -> str:
        return "nowhere"


@pytest.mark.parametrize(("at", "calls"), [("on_begin", 1), ("on_round", 2 + ROUNDS), ("on_end", 2 + ROUNDS)])
def test_a_tracker_that_raises_is_told_once_and_the_run_goes_on(tmp_path: Path, at: str, calls: int) -> None:
    broken, spy, notes = BrokenTracker(at, OSError), Spy(), Notes()
    undisturbed = session(tmp_path / "other")
    result = session(tmp_path, broken, spy, reporter=notes)
    assert result["model_sha256"] == undisturbed["model_sha256"] and result["epsilon"] == undisturbed["epsilon"]
    assert len(broken.events) == calls and len(spy.events) == 2 + ROUNDS
    (said,) = [text for text in notes.notes if f"BrokenTracker failed in {at}: OSError: no such server" in text]
    log = RunFolder(Path(result["folder"])).log.read_text()
    assert said in log and log.count("Traceback") == 1
    again = [text for text in notes.notes if f"failed {ROUNDS} times" in text]
    assert len(again) == (at == "on_round")


@pytest.mark.parametrize(("at", "rounds", "status"), [("on_begin", 0, "failed"), ("on_round", 1, "failed")])
def test_a_callback_that_raises_ends_the_run_with_a_checkpoint(
    tmp_path: Path, at: str, rounds: int, status: str
) -> None:
    """It goes on from there, and comes to what it would have come to."""
    result = session(tmp_path, Broken(at, OSError))
    assert (result["status"], result["rounds"]) == (status, rounds)
    assert f"Broken failed in {at}: OSError: no such server" in result["reason"] and "log.txt" in result["reason"]
    assert "Traceback" in RunFolder(Path(result["folder"])).log.read_text()
    assert "A callback failed and ended the run" in (Path(result["folder"]) / "privacy.md").read_text()
    whole = session(tmp_path / "other")
    assert session(tmp_path, resume=True)["model_sha256"] == whole["model_sha256"]
    assert session(tmp_path / "end", Broken("on_end", OSError))["status"] == "done"


class Stopper(Spy):
    """Ends the run after so many rounds, or once a private score is there."""

    def __init__(self, after: int | None = None) -> None:
        super().__init__()
        self._after = after

    def on_round(self, round: RoundInfo) -> None:
        super().on_round(round)
        if round.number == self._after or (round.metrics and "private_score" in round.metrics):
            raise Stop("pruned")


class Careful(Stopper):
    sees = "released"


SCORES: dict[str, Any] = {"rounds": 12, "private_evaluation": {"share": 0.25, "every": 2, "noise_multiplier": 9.0}}


@pytest.mark.parametrize("kind", [Stopper, Careful])
def test_a_callback_may_stop_a_run_and_all_planned_rounds_are_charged(tmp_path: Path, kind: type[Stopper]) -> None:
    """Only one that sees released scores alone decides by nothing but them."""
    stopper = kind(after=3 if kind is Stopper else None)
    result = session(tmp_path, stopper, **SCORES)
    whole = session(tmp_path / "whole", **SCORES)
    assert (result["status"], result["rounds"]) == ("done", 3) and result["epsilon"] == whole["epsilon"]
    reason = f"stopped by callback {kind.__name__}: pruned; all planned rounds are charged"
    assert result["reason"] == reason
    text = str(Run.open(Path(result["folder"])))
    assert "done after 3 of 12 rounds, accuracy" in text and f"\n{reason}.\n" in text
    assert status_of(RunFolder(Path(result["folder"]))).ended_early(12) == f" after 3 of 12 rounds: {reason}"
    page = (Path(result["folder"]) / "privacy.md").read_text()
    assert ("saw measurements of raw records stopped the run" in page) == (kind is Stopper)
    seen = [info.metrics for info in stopper.rounds]
    if kind is Careful:
        assert all(metrics is None or list(metrics) == ["private_score"] for metrics in seen)
        assert "measures" not in stopper.result and "test_accuracy" not in stopper.result
    else:
        assert seen[0] is not None and "train_loss" in seen[0]
    assert session(tmp_path, resume=True, **SCORES)["finished"] == result["finished"], "it is not run again"


def test_without_noise_a_run_that_a_callback_stopped_charges_nothing(tmp_path: Path) -> None:
    result = session(tmp_path, Stopper(after=1), privacy={"noise_multiplier": 0.0})
    assert result["reason"] == "stopped by callback Stopper: pruned"
    assert "stopped by a callback" in (Path(result["folder"]) / "privacy.md").read_text()


def test_a_run_that_was_stopped_and_killed_before_its_result_stays_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was charged for the rounds that were not made would count beside those that a resume made."""
    budget = {"rounds": 12, "privacy": {"noise_multiplier": None, "epsilon": 2.0, "randomness": "fresh"}}

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("dpfl_plugin.runs.run.ActiveRun.finish", killed)
        with pytest.raises(KeyboardInterrupt):
            session(tmp_path, Stopper(after=3), **budget)
    result = session(tmp_path, Spy(), resume=True, **budget)
    assert (result["rounds"], result["cause"]) == (3, "callback") and "pruned" in result["reason"]
    assert 1.9 < result["epsilon"]["server"]["epsilon"] <= 2.0
    page = (Path(result["folder"]) / "privacy.md").read_text()
    assert "pruned" not in page and "saw measurements of raw records stopped the run" in page


FACTOR = [1.0]


def loss_by_factor(outputs: Any, labels: Any) -> Any:
    return FACTOR[0] * torch.nn.functional.cross_entropy(outputs, labels, reduction="none")


def test_an_interrupt_in_a_callback_passes(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        session(tmp_path, Broken("on_round", KeyboardInterrupt))


class Meddler(Callback):
    """Changes all that it is given."""

    def on_begin(self, run: RunInfo) -> None:
        _spoil(run.config)

    def on_round(self, round: RoundInfo) -> None:
        for given in (round.metrics, round.epsilon):
            if given is not None:
                _spoil(given)

    def on_end(self, result: Any) -> None:
        _spoil(result)


def _spoil(given: Any) -> None:
    for key in list(given):
        if isinstance(given[key], dict):
            _spoil(given[key])
        given[key] = 0.0


def test_what_a_callback_is_given_are_copies(tmp_path: Path) -> None:
    spy = Spy()
    alone = session(tmp_path / "alone")
    meddled = session(tmp_path / "meddled", Meddler(), spy)
    for key in ("model_sha256", "epsilon", "test_accuracy", "noise_multiplier", "status"):
        assert meddled[key] == alone[key]
    assert spy.result["status"] == "done" and spy.rounds[-1].metrics and all(spy.rounds[-1].metrics.values())
    assert spy.run is not None and spy.run.config["rounds"] == ROUNDS


def texts(value: Any) -> Any:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from (str(key), *texts(item))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from texts(item)
    else:
        yield value


class Handed(Tracker):
    """A tracker that keeps what it is handed, and what the others would send of it."""

    name = "handed"
    text = ""

    def goes_to(self, run: RunInfo) -> str:
        return "this test"

    def on_begin(self, run: RunInfo) -> None:
        self.folder = run.folder
        self.text += repr(run)

    def on_round(self, round: RoundInfo) -> None:
        self.text += repr(round)

    def on_end(self, result: Any) -> None:
        self.text += json.dumps(result) + "".join(path.read_text() for path in statement_files(self.folder))


def hospitals(folder: Path) -> dict[str, Any]:
    """The records of two silos whose classes nobody named, and what reads them."""
    for shift, name in enumerate(("st-mary", "st-paul")):
        rows = [f"{i % 7 + shift},{i},{('HIV_positive_Smith', 'healthy')[(i + i // 5) % 2]}" for i in range(40)]
        (folder / f"{name}.csv").write_text("\n".join(["a,b,label", *rows]))
    dataset = {"name": "csv", "files": "st-*.csv", "num_features": None, "num_classes": None, "records_per_silo": None}
    return {"data": {"dataset": dataset, "num_silos": None, "partition": "natural"}, "privacy": {"randomness": "fresh"}}


@pytest.mark.usefixtures("measured")
def test_what_callbacks_and_trackers_are_handed_has_no_single_silo_and_no_class_name_of_records(tmp_path: Path) -> None:
    spy, curious, handed, board = Spy(), Curious(), Handed(), TensorBoard(tmp_path / "logs")
    changes = hospitals(tmp_path)
    result = session(tmp_path / "out", spy, curious, handed, board, base=tmp_path, **changes)
    assert result["status"] == "done", result["reason"]
    assert result["inputs"]["classes"] == ["HIV_positive_Smith", "healthy"] and result["positive_class"] == "healthy"
    logged = b"".join(path.read_bytes() for path in (tmp_path / "logs").rglob("events.*")).decode(errors="replace")
    by_silo = result["measures"]["silos"]
    of_all = {
        repr(table["log_loss"]) for table in result["measures"]["pooled"].values()
    }  # a baseline may be a silo's, too
    single = {repr(table["log_loss"]) for of in by_silo.values() for table in of.values()} - of_all
    assert len(by_silo) == 2 and len(single) >= 2
    given = {"spy": repr((spy.run, spy.rounds)) + json.dumps(spy.result), "tracker": handed.text, "board": logged}
    for who, text in given.items():
        assert "log_loss" in text, who
        for hidden in (*single, "HIV_positive_Smith", "st-mary", "st-paul", "confusion", "_curve"):
            assert hidden not in text, (who, hidden)
        assert "Smith" not in text and (who != "spy" or "healthy" not in text), who
    assert not {"silos", "worst", "silo_names", "dearest_silo", "lost"} & {*texts(spy.result)}
    assert spy.result["inputs"] == {"shape": [2], "num_classes": 2, "columns": ["a", "b"], "classes": []}
    assert spy.result["positive_class"] == "1" and "Smith" not in json.dumps(curious.result)
    assert spy.result["measures"]["pooled"]["model"]["auc"] == result["measures"]["pooled"]["model"]["auc"]
    assert curious.result["measures"]["silos"] == by_silo and curious.result["silos"] == result["silos"]
    changes["data"]["dataset"]["classes"] = ["HIV_positive_Smith", "healthy"]
    session(tmp_path / "named", spy, base=tmp_path, **changes)
    assert spy.result["inputs"]["classes"] == ["HIV_positive_Smith", "healthy"], "the configuration says them"
    assert spy.result["positive_class"] == "healthy"


def test_settings_of_single_silos_are_not_in_the_configuration_that_callbacks_get() -> None:
    config = configure(merged(BASE, {"silos": {"2": {"noise_multiplier": 9.0}}}), source="test")
    assert config.silos and "silos" not in public_values(config)


def test_weights_of_silos_by_their_names_are_not_in_the_configuration_that_callbacks_get() -> None:
    named = configure(merged(BASE, {"silo_weights": {"st-mary": 2.0, "st-paul": 1.0}}), source="test")
    assert "st-mary" not in str(public_values(named))
    equal = configure(merged(BASE, {"silo_weights": "records"}), source="test")
    assert public_values(equal)["silo_weights"] == "records"


def test_whoever_took_part_callbacks_are_told_the_same(tmp_path: Path) -> None:
    """Where a statement is of outsiders who do not know it, as the statement itself."""
    spies = [Curious(), Curious()]
    results = [session(tmp_path / str(i), spy, **SECURE_DRAWN) for i, spy in enumerate(spies)]
    one, other = ({(c.round, c.silo) for c in charges(result["folder"])} for result in results)
    assert one != other and "outsider" in results[0]["epsilon"]
    told = [[info.epsilon for info in spy.rounds] for spy in spies]
    assert told[0] == told[1] and all(told[0])
    assert spies[0].result["epsilon"] == spies[1].result["epsilon"]
    last = told[0][-1]
    assert last is not None and last["server"] == pytest.approx(spies[0].result["epsilon"]["server"]["epsilon"])
    assert last["server"] == pytest.approx(results[0]["epsilon"]["server"]["worst_case_epsilon"])


def test_single_silos_measurements_are_for_who_asks_and_that_is_said(tmp_path: Path) -> None:
    spy, curious, notes = Spy(), Curious(), Notes()
    changes: dict[str, Any] = {"evaluation": {"every": 2}, "checkpoint": {"every": 1}}
    result = session(tmp_path, spy, curious, reporter=notes, stop=lambda: len(spy.rounds) == 3, **changes)
    assert all(info.silos is None for info in spy.rounds)
    evaluated = [info for info in curious.rounds if info.metrics is not None]
    assert evaluated and all(info.silos is not None and set(info.silos) == {0, 1, 2, 3} for info in evaluated)
    assert all(info.epsilon is not None for info in curious.rounds)
    assert any(info.epsilon is None for info in spy.rounds)
    assert len([text for text in notes.notes if "Curious gets what is measured at every single silo" in text]) == 1
    folder = RunFolder(Path(result["folder"]))
    said = "Callbacks were given the losses and accuracies of single silos"
    assert said in folder.privacy.read_text()
    session(tmp_path, resume=True, **changes)
    assert said in folder.privacy.read_text(), "what was given stays given"
    session(tmp_path / "other", **changes)
    other = session(tmp_path / "other", spy, **{**changes, "seed": 9})
    text = RunFolder(Path(other["folder"])).privacy.read_text()
    assert said not in text and "were given the losses and accuracies" in text


def test_what_is_no_callback_is_refused_and_a_finished_run_says_that_it_calls_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"callbacks\[0\].*make one: Spy\(\)"):
        session(tmp_path, Spy)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"callbacks\[0\]='mlflow'.*trackers=\['mlflow'\]"):
        session(tmp_path, "mlflow")  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir()), "before anything is written"
    session(tmp_path)
    spy, notes = Spy(), Notes()
    session(tmp_path, spy, reporter=notes)
    assert not spy.events and any("callbacks and trackers are not told about it" in text for text in notes.notes)


def test_trackers_are_no_part_of_a_runs_name(tmp_path: Path) -> None:
    made = functools.partial(configure, merged(BASE, {}), source="test")
    plain, tracked = made(), made({"trackers": ["tensorboard", {"name": "wandb", "mode": "online"}]})
    assert run_id(plain) == run_id(tracked)


def test_on_a_platform_the_server_tells_them_and_a_server_that_is_begun_again_goes_on(tmp_path: Path) -> None:
    notes, broken, curious = Spy(), Broken("on_round", OSError), Curious()
    with begin(tmp_path, block(rounds=4)) as made:
        made.server.close()
        made.server = Server(made.agreement, module(), tmp_path / "server", callbacks=[notes, broken])
        made.round()
        made.round()
        made.server.pause()  # the platform ends before the run
        made.server.close()
        assert notes.events == ["begin 0", "round 1", "round 2", "end interrupted"]
        made.server = Server(made.agreement, module(), tmp_path / "server", callbacks=[notes, curious])
        made.run()
        assert notes.events[4:] == ["begin 2", "round 3", "round 4", "end done"]
        said = {i: about["epsilon"] for i, about in made.server.summary()["silos"].items()}
        assert notes.rounds[-1].epsilon == {"server": max(said.values()), "third_party": None}
        assert notes.rounds[-1].metrics == {} and notes.rounds[-1].begun == 4
        assert "silos" not in notes.result and "reason" not in notes.result, "a silo's own words are in it"
        assert curious.result["silos"] == made.server.summary()["silos"]
        with pytest.raises(ConfigError, match=r"callbacks\[0\]"):
            Server(made.agreement, module(), callbacks=[Spy])  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="give them as callbacks"):
        agree(block(trackers=["tensorboard"]), num_silos=2, model=module())
