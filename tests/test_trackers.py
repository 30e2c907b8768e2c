"""Trackers keep what they are told, in the real packages' own files, and go on where they were."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dpfl_plugin.callbacks import MLflow, TensorBoard, Tracker, WandB
from dpfl_plugin.callbacks.tracker import finals
from dpfl_plugin.errors import ConfigError
from dpfl_plugin.runs.folder import RunFolder
from tests.cli.command import dpfl, write
from tests.cli.test_resume import crash
from tests.test_callbacks import Notes, session

FRESH = ("--set", "privacy.randomness=fresh", "--json")
SCALARS = {"train_loss", "test_accuracy", "epsilon/server", "epsilon/third_party"}
EVERY_ROUND: dict[str, Any] = {"evaluation": {"every": 1}, "checkpoint": {"every": 2}}
pytestmark = [
    pytest.mark.filterwarnings("default::DeprecationWarning", "default::FutureWarning", "default::UserWarning"),
    pytest.mark.filterwarnings("default::ResourceWarning", "default::pytest.PytestUnraisableExceptionWarning"),
]


def read_tensorboard(folder: Path) -> dict[str, dict[int, float]]:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = accumulator.EventAccumulator(str(folder / "tensorboard"))
    found.Reload()
    tags = found.Tags()
    util = pytest.importorskip("tensorboard.util.tensor_util")
    protos = {tag: found.Tensors(tag)[-1].tensor_proto for tag in tags["tensors"]}
    said = {tag: util.make_ndarray(proto).item().decode() for tag, proto in protos.items()}
    assert "Who is protected" in said["privacy.md/text_summary"] and "local_lr" in said["configuration/text_summary"]
    series = {tag: [(event.step, event.value) for event in found.Scalars(tag)] for tag in SCALARS}
    assert all(len(dict(values)) == len(values) for values in series.values()), "no step twice"
    return {tag: dict(values) for tag, values in series.items()}


def read_mlflow(folder: Path) -> dict[str, dict[int, float]]:
    mlflow = pytest.importorskip("mlflow")
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{folder.parents[1] / 'mlflow.db'}")
    (experiment,) = [one for one in client.search_experiments() if one.name == folder.parent.name]
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED" and run.data.params["privacy.clip_norm"] == "1.0"
    assert {one.path for one in client.list_artifacts(run.info.run_id)} == {"ledger.json", "privacy.md", "result.json"}
    series = {
        tag: [(one.step, one.value) for one in client.get_metric_history(run.info.run_id, tag)] for tag in SCALARS
    }
    assert all(len(dict(values)) == len(values) for values in series.values()), "no step twice"
    return {tag: dict(values) for tag, values in series.items()}


def test_a_tracker_has_the_total_of_a_shared_ledger_beside_the_runs_own_epsilon(tmp_path: Path) -> None:
    config, ledger = write(tmp_path), tmp_path / "all.jsonl"
    results = [
        dpfl("run", config, "--out", tmp_path, "--ledger", ledger, "--set", f"algorithm.local_lr={lr}", *FRESH).json
        for lr in (0.1, 0.2)
    ]
    one, two = map(finals, results)
    assert two["epsilon_total"] > one["epsilon_total"] > two["epsilon/server"] == one["epsilon/server"]


def records_of(file: bytes) -> Iterator[bytes]:
    """Those of a log of LevelDB: blocks of 32 KiB, in them pieces with a checksum, a length and a kind."""
    at, record, block = 7, b"", 2**15  # a header of its own
    while at + 7 <= len(file):
        if block - at % block < 7:
            at += block - at % block
            continue
        length, kind = int.from_bytes(file[at + 4 : at + 6], "little"), file[at + 6]
        record += file[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last piece
            yield record
            record = b""


def read_wandb(folder: Path) -> dict[str, dict[int, float]]:
    wandb = pytest.importorskip("wandb")
    from wandb.proto import wandb_internal_pb2

    wandb.teardown()  # its own process writes the file, at times after finish() has returned
    series: dict[str, list[tuple[int, float]]] = {tag: [] for tag in SCALARS}
    ids = set()
    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        for data in records_of(path.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            if record.WhichOneof("record_type") == "run":
                ids.add((record.run.run_id, record.run.run_group))
            if record.WhichOneof("record_type") == "history":
                items = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
                for tag in SCALARS:
                    series[tag].append((int(record.history.step.num), items[tag]))
    ((_, group),) = ids
    assert group == folder.parent.name
    assert all(len(dict(values)) == len(values) for values in series.values()), "no step twice"
    return {tag: dict(values) for tag, values in series.items()}


READ = {"tensorboard": read_tensorboard, "mlflow": read_mlflow, "wandb": read_wandb}


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    for name in ("WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR", "HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "tensorboard" else pytest.mark.slow) for name in READ]
)
def test_a_tracker_has_accuracy_beside_epsilon_and_goes_on_where_it_was(tmp_path: Path, name: str) -> None:
    """After a crash rounds are run again; each is there once all the same."""
    pytest.importorskip(name)
    config = write(tmp_path, {**EVERY_ROUND, "trackers": [name]})
    crash(config, 4)
    done = dpfl("run", config, "--out", tmp_path / "runs", "--resume", "--json")
    assert done.code == 0, done.err
    result = done.json
    folder = RunFolder(Path(result["folder"]))
    assert "warning: callback" not in folder.log.read_text(), folder.log.read_text()
    found = READ[name](folder.path)
    for tag in SCALARS:
        assert sorted(found[tag]) == list(range(1, 7)), tag
    assert found["test_accuracy"][6] == pytest.approx(result["test_accuracy"]["last"])
    for view in ("server", "third_party"):
        assert found[f"epsilon/{view}"][6] == pytest.approx(result["epsilon"][view]["epsilon"], rel=1e-4)
    assert "nothing leaves this machine" in done.err and "no epsilon covers" in done.err


def test_a_tracker_whose_package_is_missing_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, made in (("tensorboard", TensorBoard), ("mlflow", MLflow), ("wandb", WandB)):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(ConfigError, match=rf"pip install 'dpfl-plugin\[{name}\]'"):
            made()
        with pytest.raises(ConfigError, match=rf"pip install 'dpfl-plugin\[{name}\]'"):
            session(tmp_path / "out", trackers=[name])
    assert not (tmp_path / "out").exists()


class Sender(Tracker):
    name = "sender"

    def goes_to(self, run: Any) -> str:
        return f"SENT over the network to somewhere, of {run.name}"


def test_what_is_sent_is_said_before_the_first_round(tmp_path: Path) -> None:
    notes = Notes()
    result = session(tmp_path, Sender(), reporter=notes)
    assert [text for text in notes.notes if "tracker sender: SENT over the network to somewhere, of run" in text]
    log = RunFolder(Path(result["folder"])).log.read_text()
    assert log.index("SENT over the network") < log.index("after round 1")


@pytest.mark.parametrize(
    ("block", "said"),
    [
        ({"name": "mlflow", "uri": "https://me:secret@host/x"}, "must hold no password"),
        ({"name": "wandb", "mode": "on"}, "mode"),
        ({"name": "tensorbord"}, "did you mean 'tensorboard'"),
        ({"name": "tensorboard", "logdir": "x"}, "logdir is not a known option"),
    ],
)
def test_what_is_wrong_with_a_tracker_is_said(tmp_path: Path, block: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        session(tmp_path / "out", trackers=[block])
    assert said in str(error.value) and "secret" not in str(error.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_each_run_of_a_sweep_is_a_run_of_the_tracker_under_its_name(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    changes = {"name": "lr-sweep", "rounds": 2, "trackers": [{"name": "tensorboard", "folder": "logs"}]}
    config = write(tmp_path, {**changes, "sweep": {"grid": {"algorithm.local_lr": [0.1, 0.5]}}})
    done = dpfl("sweep", config, "--out", tmp_path / "sweep")
    assert done.code == 0, done.err
    logged = sorted(path.name for path in (tmp_path / "logs" / "lr-sweep").iterdir())
    assert len(logged) == 2 and all(list((tmp_path / "logs" / "lr-sweep" / name).glob("events.*")) for name in logged)
    shutil.rmtree(tmp_path / "logs")
