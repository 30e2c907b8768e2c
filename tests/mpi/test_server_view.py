"""Every byte that rank 0 of an MPI job receives: explained by the ledger, or by what is public. Nothing else is sent.

A whole run, by the functions of the command, over ranks in threads; each message to rank 0 is looked at.
"""

from __future__ import annotations

import json
import math
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from torch import Tensor

from dpfl_plugin.algorithms.fedavg import FedAvg
from dpfl_plugin.callbacks import Callback
from dpfl_plugin.config.load import load
from dpfl_plugin.config.schema import Config
from dpfl_plugin.core.vectors import Vectors
from dpfl_plugin.data.base import Dataset, Holding, digest, survey
from dpfl_plugin.errors import (
    ConfigError,
    DataError,
    DpflError,
    LimitError,
    UnplannedError,
    UnsupportedError,
    require,
)
from dpfl_plugin.federation.runtime import ChargeSink, Runtime
from dpfl_plugin.federation.silo_group import SiloGroup, SiloMetrics
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.runs.build import Parts
from dpfl_plugin.runs.folder import Result, RunFolder
from dpfl_plugin.runs.hooks import Silent
from dpfl_plugin.runs.measurements import join_lines, join_result
from dpfl_plugin.runs.public_errors import kind_and_place
from dpfl_plugin.runs.records import federate
from dpfl_plugin.runs.run import run_config
from dpfl_plugin.runtimes.mpi import wire
from dpfl_plugin.runtimes.mpi.ranks import Ranks
from dpfl_plugin.runtimes.mpi.session import MpiSession
from dpfl_plugin.runtimes.mpi.silos import SiloRank, owner
from dpfl_plugin.runtimes.mpi.wire import Header, encode
from tests.cli.command import write
from tests.mpi.network import Loopback, Moving, Network
from tests.test_callbacks import Curious

# What a silo rank may say, and of what it is a function. Numbers of records, what labels are (by the configuration),
# names of columns and the model's shapes are public; marks are HMACs under the silos' key; charges are in the ledger;
# an error ends the run, and the statement says that no epsilon covers it; seconds are said to be uncovered.
PUBLIC = {
    "surveyed": {
        *(
            "key",
            "num_silos",
            "num_classes",
            "feature_shape",
            "outcome",
            "inputs",
            "caveats",
            "silos",
            "host",
            "pid",
            "package",
            "device",
            "limits",
        )
    },
    "ready": {"code", "model", "fixed"},  # digests of users' sources, and of the model that all ranks begin with
    "computed": {"silos", "charges", "up"},
    "evaluated": {"metrics"},
    "measured": {"tables"},
    "states": {"states"},
    "loaded": set[str](),
    "cancelled": set[str](),
    "profiled": {"seconds"},
    "error": {"kind", "text", "host"},
    "bye": set[str](),
}
SILOS = 5


class Recorded(Loopback):
    """A link that keeps what rank 0 asks for, and all that a silo rank sends it, in the order of time."""

    def send(self, to: int, header: Header) -> None:
        assert self.rank == 0 or to == 0, "silo ranks talk to each other by tell_peer"
        self._keep("asked" if self.rank == 0 else "said", to or self.rank, json.loads(encode(header)))
        super().send(to, header)

    def push(self, to: int, value: Tensor) -> Moving:
        if self.rank > 0:
            self._keep("sent", self.rank, value)
        return super().push(to, value)

    def reduce(self, value: Tensor, into: Tensor | None) -> Moving:
        if self.rank > 0:
            self._keep("sent", self.rank, value)
        return super().reduce(value, into)

    def _keep(self, kind: str, rank: int, what: Any) -> None:
        self.network.timeline.append((kind, rank, what))


class Recorder(Network):
    """Ranks in threads, as those of a job are in processes."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.timeline: list[tuple[str, int, Any]] = []
        self.silo_ranks = [SiloRank(Recorded(self, rank)) for rank in range(1, size)]

    def said(self, say: str | None = None) -> list[Header]:
        """What silo ranks said to rank 0."""
        return [what for kind, _, what in self.timeline if kind == "said" and say in (None, what["say"])]

    def step(self) -> None:
        """Each silo rank has a thread of its own."""


class Place:
    def __init__(self, network: Network) -> None:
        self.ranks = Ranks(Recorded(network, 0))
        self._session = MpiSession(self.ranks)

    def hold(self, config: Config, base: Path, key: Path) -> Holding:
        return self._session.hold(config, base, key)

    def begin(self) -> None: ...

    def runtime(self, parts: Parts, charges: ChargeSink, config: Config) -> Runtime:
        return self._session.runtime(parts, charges, config)


@pytest.fixture
def measured() -> Iterator[list[SiloMetrics]]:
    """Every measurement that a silo makes."""
    found: list[SiloMetrics] = []
    real = SiloGroup.evaluate

    def evaluate(self: SiloGroup, model: Tensor, dissimilarity: bool) -> dict[int, SiloMetrics]:
        by_silo = real(self, model, dissimilarity)
        found.extend(by_silo.values())
        return by_silo

    with mock.patch.object(SiloGroup, "evaluate", evaluate):
        yield found


def recorded(
    path: Path, resume: bool = False, callbacks: Sequence[Callback] = (), network: Recorder | None = None
) -> tuple[Recorder, Config, Result]:
    config = load(path).variants[0].config
    config = config.model_copy(update={"out": str(path.parent / "runs")})
    network = network or Recorder(4)
    threads = [threading.Thread(target=rank.serve, daemon=True) for rank in network.silo_ranks]
    for thread in threads:
        thread.start()
    place = Place(network)
    try:
        how = {"reporter": Silent(), "stop": lambda: False, "profile": True, "callbacks": callbacks}
        result = run_config(config, path.parent, resume=resume, backend=place, **how)
    finally:
        place.ranks.clean = True
        assert place.ranks.part(30.0)
        for thread in threads:
            thread.join(30.0)
    return network, config, result


EVERYTHING: dict[str, Any] = {
    "rounds": 6,
    "silo_rate": 0.6,
    "checkpoint": {"every": 2},
    "early_stopping": {"share": 0.25, "every": 2, "patience": 9, "noise_multiplier": 2.0},
    "personalise": {"local_steps": 2, "local_lr": 0.1},
    "data": {
        "dataset": {"name": "csv", "files": "silo-*.csv", "num_features": None, "num_classes": None,
                    "records_per_silo": None},
        "num_silos": None,
        "partition": "natural",
    },
}  # fmt: skip
OPTIONS: dict[str, dict[str, Any]] = {
    "everything": {},
    "fresh": {"privacy": {"randomness": "fresh"}},
    "adaptive": {"privacy": {"clip": "adaptive"}, "early_stopping": None, "personalise": None},
    "reduce": {"runtime": {"aggregation": "reduce"}, "early_stopping": None, "personalise": None},
    "silo": {
        "algorithm": {"name": "fedavg"},
        "privacy": {"unit": "silo", "sampler": "full", "record_rate": None, "noise_multiplier": 20.0},
        "early_stopping": None,
        "personalise": None,
    },
    "revealed": {"evaluation": {"reveal": "server", "dissimilarity": True}},
}


def configured(folder: Path, **changes: Any) -> Path:
    rng = np.random.default_rng(1)
    for silo in range(SILOS):
        # One silo alone has a label that the others lack: that, too, is nothing for rank 0.
        names = ["no", "yes", "rare" if silo == 3 else "yes"]
        rows = [f"{rng.normal()},{rng.normal()},{names[i % 3]}" for i in range(20 + silo)]
        (folder / f"silo-{silo}.csv").write_text("\n".join(["a,b,label", *rows]))
    return write(folder, {**EVERYTHING, **changes})


def texts(value: Any) -> Iterator[Any]:
    """Everything in a message, at any depth."""
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from texts(item)
    else:
        yield value


@pytest.mark.parametrize("name", OPTIONS)
def test_every_byte_to_rank_0_is_explained(tmp_path: Path, measured: list[SiloMetrics], name: str) -> None:
    network, config, result = recorded(configured(tmp_path, **OPTIONS[name]))
    assert result["status"] == "done" and result["rounds"] == 6
    folder, revealed = RunFolder(Path(result["folder"])), name == "revealed"
    charges = set(Ledger.open(folder.ledger, append=False))

    for header in network.said():
        assert set(header) == {"say", "number", *PUBLIC[header["say"]]}, header
    kinds = {header["say"] for header in network.said()}
    assert kinds >= {"surveyed", "ready", "computed", "evaluated", "states", "profiled"}

    # Charges: exactly what the ledger has.
    computed = network.said("computed")
    assert {charge for header in computed for charge in wire.read_charges(header["charges"])} == charges
    assert sum(len(header["silos"]) for header in computed) == len({(c.round, c.silo, c.share) for c in charges})
    explain_vectors(network.timeline, of_each(), gradients=revealed)

    # Digests: none of the records, in full or in part.
    federation = federate(config, tmp_path)
    known = survey(federation)
    private = {known.data_sha256, *known.digests}
    wired = json.dumps(network.said())
    assert not [one for one in private if one[:8] in wired or one[-8:] in wired]
    silos = [silo for header in network.said("surveyed") for silo in header["silos"]]
    marks = [mark for *_, mark, cut in silos for mark in (mark, cut[0])]
    guessed = {digest(silo) for silo in federation.silos} | {cut.mark for cut in known.cuts}
    assert len(silos) == SILOS and not set(marks) & guessed

    # Measurements: none, unless the configuration says so.
    values = {m.train_loss for m in measured}
    assert values and bool(values & set(texts(network.said()))) == revealed
    assert any(header["metrics"] for header in network.said("evaluated")) == revealed
    assert (folder.read_metrics()[-1]["test_accuracy"] is not None) == revealed
    assert join_lines(folder.read_metrics(), folder.silo_ranks)[-1]["test_accuracy"] is not None
    assert any(header["tables"] for header in network.said("measured")) == revealed
    assert bool(result["warnings"]) == revealed

    # All measures are of each silo, and of none together; what is joined from silo ranks' files is what rank 0 may get.
    assert (result["measures"] is not None) == revealed
    joined = join_result(result, join_lines(folder.read_metrics(), folder.silo_ranks), folder.silo_ranks)["measures"]
    assert joined["pooled"] is None and list(joined["silos"]) == [str(silo) for silo in range(SILOS)]
    accuracies = [joined["silos"][str(silo)]["model"]["accuracy"] for silo in range(SILOS)]
    sizes = [len(silo.test_y) for silo in federation.silos]
    assert joined["mean_of_silos"]["model"]["accuracy"] == pytest.approx(np.average(accuracies, weights=sizes))
    assert "auc" in joined["silos"]["0"]["model"] and "baseline" in joined["mean_of_silos"]


def of_each() -> dict[int, list[int]]:
    """The silos of each silo rank."""
    return {rank: [silo for silo in range(SILOS) if owner(silo, (1, 2, 3)) == rank] for rank in (1, 2, 3)}


def numbers(layout: wire.Layout) -> list[tuple[str, int]]:
    """(type, how many) of each of its vectors."""
    return [(dtype, math.prod(shape)) for dtype, shape in layout.values()]


def explain_vectors(timeline: list[tuple[str, int, Any]], silos: dict[int, list[int]], *, gradients: bool) -> None:
    """Every vector to rank 0 is an upload that was charged and then asked for, a sum of such, or a state that belongs
    into a checkpoint; with ``gradients`` also those that the configuration reveals."""
    owed: dict[int, deque[Any]] = {rank: deque() for rank in silos}
    layout: dict[int, wire.Layout] = {}  # of the upload of a silo whose charges rank 0 has
    for kind, rank, what in timeline:
        if kind == "sent":
            assert owed[rank], f"rank {rank} sent a vector of shape {tuple(what.shape)} that nothing explains"
            assert owed[rank].popleft() == (str(what.dtype).removeprefix("torch."), what.numel())
        elif kind == "asked" and what["do"] == "send":
            for silo in what["silos"]:
                owed[rank] += numbers(layout.pop(silo))
        elif kind == "asked" and what["do"] == "reduce":
            owed[rank] += numbers(wire.read_layout(what["up"]))
            layout.clear()
        elif kind == "said" and what["say"] == "computed":
            layout |= dict.fromkeys(what["silos"], wire.read_layout(what["up"]))
        elif kind == "said" and what["say"] == "states":
            owed[rank] += numbers(wire.read_layout(what["states"])) * len(silos[rank])
        elif kind == "asked" and what["do"] == "evaluate" and what["dissimilarity"]:
            assert gradients
            owed[rank] += numbers(wire.read_layout(what["model"])) * len(silos[rank])
    assert not any(owed.values())


def test_what_labels_a_silo_has_is_told_between_silo_ranks_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    network, _, result = recorded(configured(tmp_path, early_stopping=None, personalise=None))
    public = {"shape": [2], "num_classes": 3, "columns": ["a", "b"], "classes": [], "backbones": []}
    assert result["inputs"] == {**public, "label_type": "text"}  # of files, whatever they hold
    surveyed = [json.dumps([header["num_classes"], header["caveats"]]) for header in network.said("surveyed")]
    assert len(set(surveyed)) == 1 and "3 classes" in surveyed[0], "as many as all have, the same from every rank"
    assert "rare" not in json.dumps(network.said())
    assert capsys.readouterr().err.count("rare -> ") == 1, "for who runs the silo ranks"


SECRET = "4711.0815"  # a record's


def quoting_loader(source: Any) -> Any:
    """A stranger's loader that meets with a cell that is no number."""
    raise ValueError(f"could not convert string to float: {SECRET}")


def refusing_loader(source: Any) -> Any:
    """One that knows this package's errors."""
    raise ConfigError(f"the age of a patient is {SECRET}")


def checking_loader(source: Any) -> Any:
    """One that checks as the guide to plugins does."""
    require(False, "age", float(SECRET), "be from 0 to 120")


def limiting_loader(source: Any) -> Any:
    """One that takes an error whose texts are for others."""
    raise LimitError(f"the age of a patient is {SECRET}")


def opening_loader(source: Any) -> Any:
    """One that takes a file's name from a record."""
    return source.file(f"scans/{SECRET}.png", url=None)


def listing_loader(source: Any) -> Any:
    """One that takes files' names from records."""
    return source.paths([f"scans/{SECRET}.png"], "scan")


def naming_loader(source: Any) -> Any:
    """One whose kinds of errors are called by what it reads."""
    raise type(SECRET, (DpflError,), {"__module__": __name__})(SECRET)


def computing_loader(source: Any) -> Any:
    """One that makes code of a formula, and calls it by what it reads."""
    exec(compile(f"raise ValueError({SECRET})", f"formula {SECRET}", "exec"))


class Unplanned(FedAvg):
    def local_update(self, down, silos, oracle, plan):  # type: ignore[no-untyped-def]
        raise UnplannedError(SECRET)


class Quoting(FedAvg):
    def local_update(self, down, silos, oracle, plan):  # type: ignore[no-untyped-def]
        raise ZeroDivisionError(SECRET)


def loaded_by(name: str) -> dict[str, Any]:
    of_others = dict.fromkeys(("name", "num_features", "num_classes", "records_per_silo"))
    return {"data": {"dataset": {**of_others, "module": f"{__name__}:{name}"}}}


QUOTED: dict[str, tuple[dict[str, Any], str]] = {
    "a cell": ({}, "DataError (dpfl_plugin/data/"),
    "a loader": (loaded_by("quoting_loader"), "PluginError (test_server_view.py, line "),
    "no header": ({}, "ConfigError (dpfl_plugin/data/table.py, line "),
    "a check": (loaded_by("checking_loader"), "ConfigError (test_server_view.py, line "),
    "a limit": (loaded_by("limiting_loader"), "LimitError (test_server_view.py, line "),
    "an error of ours": (loaded_by("refusing_loader"), "ConfigError (test_server_view.py, line "),
    "a file": (loaded_by("opening_loader"), "NoFileError (dpfl_plugin/data/fetch.py, line "),
    "files": (loaded_by("listing_loader"), "NoFileError (dpfl_plugin/data/fetch.py, line "),
    "a plugin": ({"algorithm": {"module": f"{__name__}:Quoting", "name": None}}, "ZeroDivisionError in plugin "),
    "a plugin that knows": ({"algorithm": {"module": f"{__name__}:Unplanned", "name": None}}, "UnplannedError in "),
    "a kind": (loaded_by("naming_loader"), "DpflError (test_server_view.py, line "),
    "a formula": (loaded_by("computing_loader"), "PluginError (code without a file, line 1)"),
}


@pytest.mark.parametrize("quoted", QUOTED)
def test_rank_0_is_told_where_a_silo_failed_and_no_text_that_may_quote_records(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], quoted: str
) -> None:
    changes, place = QUOTED[quoted]
    path = configured(tmp_path, early_stopping=None, personalise=None, **changes)
    if quoted in ("a cell", "no header"):
        header = "a,b,label\n" if quoted == "a cell" else ""
        (tmp_path / "silo-2.csv").write_text(f"{header}0.5,p{SECRET},yes\n0.5,0.5,no\n")
    network = Recorder(4)
    try:
        reason = recorded(path, network=network)[2]["reason"]
    except DpflError as error:
        reason = str(error)
    assert place in reason and "rank " in reason and "what it says may quote records, and is in the log of" in reason
    assert SECRET in capsys.readouterr().err, "in the silo rank's own log"
    kept = [file.read_bytes() for file in (tmp_path / "runs").rglob("*") if file.is_file()]
    assert SECRET not in json.dumps(network.said()) + reason and SECRET.encode() not in b"".join(kept)


def telling_loader(source: Any, *, classes: str, schema: str) -> Dataset:
    """One that says much of records; ``classes``: the column they are in; ``schema``: of its database."""
    x = np.linspace(0, 1, 40, dtype=np.float32).reshape(20, 2)
    named = {"class_names": (SECRET, "none"), "columns": (f"name={SECRET}", "age")}
    return Dataset(x, np.arange(20) % 2, 2, np.arange(20) // 5, caveats=(f"{SECRET} is left out",), **named)


def test_what_somebodys_own_data_set_says_of_records_stays_at_the_silos(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever its options are called."""
    changes = loaded_by("telling_loader")
    changes["data"]["dataset"] |= {"classes": "diagnosis", "schema": "public.visits"}
    network, _, result = recorded(configured(tmp_path, early_stopping=None, personalise=None, **changes))
    assert (result["inputs"]["classes"], result["inputs"]["columns"]) == ([], [])
    assert f"{SECRET} is left out" in capsys.readouterr().err, "in the silo rank's own log"
    kept = [file.read_bytes() for file in (tmp_path / "runs").rglob("*") if file.is_file()]
    assert SECRET not in json.dumps(network.said()) and SECRET.encode() not in b"".join(kept)


class Lazy:
    """A module that imports what it is asked for, as those of six do."""

    def __getattr__(self, name: str) -> Any:
        raise ImportError(name)


def test_an_error_is_placed_beside_modules_that_cannot_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lazy", Lazy())  # type: ignore[arg-type]
    kind = type("Lost", (ValueError,), {"__module__": "lazy"})
    with pytest.raises(ValueError) as raised:  # noqa: PT011
        raise kind
    assert kind_and_place(raised.value, ()).startswith("ValueError (test_server_view.py, line ")


def test_rank_0_is_told_which_file_is_missing_as_the_configuration_names_it_and_no_path_of_a_silos_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPFL_DATA", str(tmp_path / "wards"))
    path = configured(tmp_path, early_stopping=None, personalise=None)
    path.write_text(path.read_text().replace("silo-*.csv", "sil-2.csv"))
    network = Recorder(4)
    with pytest.raises(DataError) as found:
        recorded(path, network=network)
    said = "files='sil-2.csv': there is no such file beside the configuration, nor in the folder that DPFL_DATA names"
    assert said in str(found.value)
    assert str(tmp_path) not in json.dumps(network.said("error")) and "wards" not in str(found.value)


def test_dissimilarity_is_refused_where_rank_0_may_not_have_gradients(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"evaluation\.dissimilarity=true: .* evaluation\.reveal: server"):
        recorded(configured(tmp_path, evaluation={"dissimilarity": True}))


def test_a_run_that_is_resumed_knows_its_records_again_and_refuses_others(tmp_path: Path) -> None:
    path = configured(tmp_path, checkpoint={"every": 1})
    _, _, result = recorded(path)
    key = RunFolder(Path(result["folder"])).silo_ranks / "key"
    assert recorded(path)[2]["finished"] == result["finished"], "shown, not run again"
    (tmp_path / "silo-2.csv").write_text((tmp_path / "silo-2.csv").read_text() + "\n0.0,0.0,no")
    with pytest.raises(DataError, match="other records"):
        recorded(path)
    assert key.stat().st_mode & 0o777 == 0o600


class Stateful(FedAvg):
    """A stranger's algorithm at silo level: it sends what was released, and keeps what was not."""

    def init_silos(self, model: Tensor, num_silos: int) -> Vectors:
        return {"raw": model.new_zeros(num_silos, model.numel())}


def test_states_that_may_be_no_releases_do_not_come_to_rank_0(tmp_path: Path) -> None:
    algorithm = {"module": "tests.mpi.test_server_view:Stateful", "name": None}
    with pytest.raises(UnsupportedError, match="states_are_released"):
        recorded(configured(tmp_path, **{**OPTIONS["silo"], "algorithm": algorithm}))


def test_rank_0_tells_callbacks_what_it_has_and_silo_ranks_call_none(tmp_path: Path) -> None:
    """No loss and no accuracy, which rank 0 must not have, unless it was given them."""
    spy, revealed = Curious(), Curious()
    _, _, result = recorded(write(tmp_path, {"rounds": 3}), callbacks=[spy])
    assert spy.events == ["begin 0", "round 1", "round 2", "round 3", "end done"]
    assert all(not info.metrics and not info.silos and info.epsilon for info in spy.rounds)
    log = RunFolder(Path(result["folder"])).log.read_text()
    assert log.count("callbacks and trackers get epsilon alone") == 1
    recorded(write(tmp_path, {"rounds": 3, "evaluation": {"reveal": "server"}, "seed": 4}), callbacks=[revealed])
    assert all(info.metrics and info.silos for info in revealed.rounds)
