"""Rounds and runs in which a stack's sums are replayed are those in which they are computed: by the recorder of
`tests.recording` on the CPU, and by CUDA graphs where there is CUDA."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from dpfl_plugin import oracle as oracles
from dpfl_plugin.config.load import load
from dpfl_plugin.core.vectors import Layout
from dpfl_plugin.errors import UnsupportedError
from dpfl_plugin.federation.silo_group import SiloGroup
from dpfl_plugin.gradients import losses
from dpfl_plugin.gradients.base import Records, layers
from dpfl_plugin.gradients.replay import Record, Replayed, cuda_graph
from dpfl_plugin.gradients.stacked import Pool
from dpfl_plugin.gradients.vmap import Vmap
from dpfl_plugin.oracle import Draw, PrivateOracle, sums_of
from dpfl_plugin.privacy.clipping import Adaptive
from dpfl_plugin.privacy.rules import PrivacyRules
from dpfl_plugin.privacy.samplers import FixedSize, FullBatch, Poisson, Sampler, usual_most
from dpfl_plugin.privacy.schedules import Geometric
from dpfl_plugin.runs import build
from dpfl_plugin.runs.engines import graphs_of
from tests.cli.command import charges, dpfl, one_message, run, write
from tests.on_device import noise_drawn_on
from tests.quadratics import rules
from tests.recording import Recorder
from tests.test_lockstep import CLIPPINGS, IDS, MODELS, SIZES, C, records, start, walk

CUDA = (pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"))
DEVICES = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=CUDA)])
SAMPLERS: dict[str, Sampler] = {"fixed": FixedSize(0.25), "poisson": Poisson(0.2), "full": FullBatch()}


def record_on(device: str) -> Record:
    return Recorder() if device == "cpu" else cuda_graph


@dataclass
class Lab:
    """The silos of `tests.test_lockstep` in one place, to be asked in several rounds."""

    kind: str
    device: str = "cpu"
    dtype: torch.dtype = torch.float64

    def __post_init__(self) -> None:
        make, model = MODELS[self.kind]
        self.engine: Any = make(copy.deepcopy(model).to(self.dtype), losses.cross_entropy, 2**20)  # type: ignore[call-arg]
        there = [Records(one.features.to(self.device, self.dtype), one.labels.to(self.device)) for one in records()]
        self.pool = Pool({silo: self.engine.prepare(one) for silo, one in zip(IDS, there, strict=True)})

    def replayed(self, made_by: PrivacyRules, record: Record) -> Replayed:
        return Replayed(sums_of(self.engine, self.pool, made_by), record)

    def asked(
        self, made_by: PrivacyRules, round: int = 0, ids: Sequence[int] = IDS, *, steps: int = 3, **more: Any
    ) -> PrivateOracle:
        options = {"max_gradients": steps, "layers": layers(Layout.of(MODELS[self.kind][1])), "pool": self.pool, **more}
        return PrivateOracle(
            made_by, self.engine, [self.pool.records[silo] for silo in ids], ids, Draw(1, round), **options
        )


@DEVICES
@pytest.mark.parametrize("noise", ["host", "device"])
@pytest.mark.parametrize("clipping", CLIPPINGS)
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("kind", MODELS)
def test_rounds_with_one_recording_are_those_without(
    kind: str, sampler: str, clipping: str, noise: Any, device: str
) -> None:
    """Three rounds of three steps, in all of which parameters, batches, noise, the schedule's factor and, where they
    adapt, clipping norms change: the same bits where batches have one length, else up to rounding."""
    made_by = rules(1.5, C, SAMPLERS[sampler], clipping=CLIPPINGS[clipping], schedule=Geometric(beta=0.8, by="step"))
    clip_norms = [0.1, 0.4, 1.6, 6.4] if CLIPPINGS[clipping].adapts else [C] * 4
    lab, record, seen = Lab(kind, device), record_on(device), []
    replayed = lab.replayed(made_by, record)
    for round in range(3):
        plain = lab.asked(made_by, round, clip_norms=clip_norms)
        other = lab.asked(made_by, round, clip_norms=clip_norms, replayed=replayed)
        y = start(kind).to(device)
        with noise_drawn_on(noise):
            found, expected = walk(other, y), walk(plain, y)
        for one, sought in zip(found, expected, strict=True):
            if sampler == "poisson":
                torch.testing.assert_close(one, sought, rtol=1e-9, atol=1e-11)
            else:
                assert torch.equal(one, sought)
        assert other.clip_norms == plain.clip_norms and other.charges() == plain.charges()
        clip_norms = plain.clip_norms
        seen += found
    assert len(replayed._known) == 1
    assert device != "cpu" or record.replays == 9  # type: ignore[attr-defined]
    assert min(float((a - b).abs().max()) for i, a in enumerate(seen) for b in seen[:i]) > 1e-9


@pytest.mark.parametrize("kind", MODELS)
def test_a_batch_that_is_longer_than_what_was_recorded_is_computed_whole(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oracles, "usual_most", lambda sampler, size: 9)
    made_by = rules(1.5, C, Poisson(0.3))
    lab, record = Lab(kind), Recorder()
    plain, other = lab.asked(made_by, steps=40), lab.asked(made_by, steps=40, replayed=lab.replayed(made_by, record))
    for found, expected in zip(walk(other, start(kind), 40), walk(plain, start(kind), 40), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)
    assert other.charges() == plain.charges()
    assert 0 < record.replays < 40, "some batches are longer, some are not"


def test_what_is_recorded_fits_all_silos_of_the_pool_whoever_takes_part() -> None:
    lab, record, made_by = Lab("dense"), Recorder(), rules(1.0, C, FixedSize(0.25))
    replayed = lab.replayed(made_by, record)
    for some in ((5, 2), (9, 4), (2, 4)):
        lab.asked(made_by, ids=some, replayed=replayed).gradient(start("dense")[:2])
    (shapes,) = replayed._known
    assert shapes[1][0] == (2, FixedSize(0.25).divisor(max(SIZES))) and record.replays == 3  # type: ignore[index]


@DEVICES
@pytest.mark.parametrize("kind", MODELS)
def test_a_single_silo_is_replayed_too(kind: str, device: str) -> None:
    made_by, ids = rules(1.5, C, Poisson(0.3)), IDS[2:3]
    lab, record = Lab(kind, device), record_on(device)
    plain, other = lab.asked(made_by, ids=ids), lab.asked(made_by, ids=ids, replayed=lab.replayed(made_by, record))
    y = start(kind)[:1].to(device)
    for found, expected in zip(walk(other, y), walk(plain, y), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)
    assert other.charges() == plain.charges() and (device != "cpu" or record.replays == 3)  # type: ignore[attr-defined]


def test_long_batches() -> None:
    assert usual_most(FixedSize(0.25), 30) == 7 and usual_most(FullBatch(), 30) == 30
    assert usual_most(Poisson(0.2), 1000) == 200 + 85 and usual_most(Poisson(0.9), 30) == 30


# Runs


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"privacy": {"clip": "adaptive"}, "silo_rate": 0.5},
        {"privacy": {"clip": "per_layer"}, "model": {"name": "mlp", "hidden": [3]}},
        {"privacy": {"sampler": "poisson"}},
        {"algorithm": {"name": "fedavg"}},
        {"runtime": {"stack": 3}},
        {"runtime": {"lockstep": None}, "engine": "bookkeeping", "model": {"name": "mlp", "hidden": [3]}},
        {"runtime": {"lockstep": None}, "engine": "vmap", "privacy": {"clip": "per_layer"}},
        {
            "privacy": {"record_rate": 0.3},
            "algorithm": {"name": "localized_mb_sgd", "phase_rounds": [4, 2], "lr": 0.1, "regularisation": 0.1}
            | {"local_steps": None, "local_lr": None},
        },
    ],
    ids=[
        "scaffold",
        "adaptive",
        "per layer",
        "poisson",
        "device noise",
        "stack",
        "in turn",
        "in turn, per layer",
        "shares",
    ],
)
def test_a_whole_run_is_that_without(tmp_path: Path, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the same configuration, so with the same noise: the same model to the bit, Poisson batches up to rounding, and
    the same charges."""
    record, results = Recorder(), []
    for name in ("plain", "replayed"):
        (tmp_path / name).mkdir()
        runtime = {"lockstep": True, "dtype": "float64", **changes.get("runtime", {})}
        results.append(run(write(tmp_path / name, {**changes, "runtime": runtime})))
        monkeypatch.setattr(build, "graphs_of", lambda *given, **more: True)
        monkeypatch.setattr(build, "cuda_graph", record)
    assert record.replays > 0 and len(record.recorded) < record.replays
    plain, replayed = results
    if changes.get("privacy", {}).get("sampler") == "poisson":
        models = [load_file(Path(result["folder"]) / "model.safetensors") for result in results]
        for name, value in models[0].items():
            torch.testing.assert_close(value, models[1][name], rtol=1e-9, atol=1e-12)
    else:
        assert replayed["model_sha256"] == plain["model_sha256"]
    assert charges(replayed["folder"]) == charges(plain["folder"])


@pytest.mark.parametrize("device", [pytest.param("cuda", marks=CUDA)])
@pytest.mark.parametrize("clip", ["flat", "adaptive"])
def test_a_run_by_its_configuration(tmp_path: Path, device: str, clip: str) -> None:
    """Full batches, and no noise for flat clipping: runs of other names then compute the same."""
    noise = {"noise_multiplier": 0} if clip == "flat" else {}
    made = {}
    for graphs in (False, True):
        (tmp_path / str(graphs)).mkdir()
        changes = {
            "runtime": {"device": device, "graphs": graphs, "dtype": "float64"},
            "privacy": {"clip": clip, "sampler": "full", "record_rate": None, **noise},
        }
        made[graphs] = run(write(tmp_path / str(graphs), changes))
    found = [Counter((c.round, c.silo, c.release, c.count) for c in charges(one["folder"])) for one in made.values()]
    assert found[0] == found[1]
    if noise:
        assert made[True]["model_sha256"] == made[False]["model_sha256"]


# What is refused


def refused(tmp_path: Path, engine: Any, made_by: PrivacyRules | None = None) -> str:
    config = load(write(tmp_path, {"runtime": {"device": "cuda", "graphs": True}})).variants[0].config
    with pytest.raises(UnsupportedError) as error:
        graphs_of(config, engine, made_by or rules(1.0, C))
    return str(error.value)


def test_graphs_are_refused_where_they_cannot_be(tmp_path: Path) -> None:
    made, _ = MODELS["dense"]
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    engine = made(model, losses.cross_entropy, 2**20)  # type: ignore[call-arg]

    class Strange(made):  # type: ignore[misc, valid-type]
        capturable = False

    strange = Strange(model, losses.cross_entropy, 2**20)
    by_one = Vmap(model, losses.cross_entropy, 2**20)
    assert "does not say that a graph may replay" in refused(tmp_path, strange)
    for changing in (rules(1.0, C, clipping=Adaptive()), rules(0.0), rules(1.0, C, unit="silo")):
        assert "no function that a graph could repeat" in refused(tmp_path, by_one, changing)
    config = load(write(tmp_path, {"runtime": {"device": "cuda", "graphs": True}})).variants[0].config
    for answers in (engine, by_one):
        assert graphs_of(config, answers, rules(1.0, C))
    off = load(write(tmp_path)).variants[0].config
    assert not graphs_of(off, by_one, rules(1.0, C))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is CUDA")
def test_without_cuda_a_run_with_graphs_says_so(tmp_path: Path) -> None:
    done = dpfl("run", write(tmp_path, {"runtime": {"device": "cuda", "graphs": True}}), "--out", tmp_path / "runs")
    one_message(done, "runtime.device='cuda' cannot be used here")


def test_an_audit_replays_nothing() -> None:
    """What its canaries add depends on the batch."""
    lab, train = Lab("dense"), dict(zip(IDS, records(), strict=True))
    host = SiloGroup(
        model=MODELS["dense"][1],
        loss=losses.cross_entropy,
        algorithm=None,  # type: ignore[arg-type]
        rules=rules(1.0, C),
        engine=lab.engine,
        train=train,
        test={},
        states={},
        lockstep=True,
        record=Recorder(),
    )
    assert host._replayed is not None and host.planted(lab.engine, train, {})._replayed is None
