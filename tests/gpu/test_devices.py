"""On a GPU what holds on the CPU: the same noise and batches, gradients up to rounding, everything stays on the device.

Every test runs on the CPU too, so that it is known to run at all.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from benchmarks import gpu
from benchmarks.workloads import Workload
from dpfl_plugin.core.stopwatch import Stopwatch
from dpfl_plugin.core.vectors import Layout
from dpfl_plugin.gradients.base import Engine, Records
from dpfl_plugin.gradients.bookkeeping import BookKeeping
from dpfl_plugin.gradients.closed_form import ClosedForm
from dpfl_plugin.gradients.dense import Dense
from dpfl_plugin.gradients.losses import cross_entropy
from dpfl_plugin.gradients.vmap import Vmap
from dpfl_plugin.oracle import Draw, PrivateOracle
from dpfl_plugin.privacy.samplers import FixedSize, Poisson
from tests.cli.command import charges, dpfl, one_message, run, write
from tests.on_device import noise_drawn_on
from tests.quadratics import rules

CUDA = torch.cuda.is_available()
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not CUDA, reason="torch sees no CUDA device")]),
]
LOAD = Workload(num_features=7, num_classes=3, num_silos=4, num_records=40, num_participants=4, batch_size=11)
ENGINES: dict[str, tuple[type[Engine], str]] = {
    "closed_form": (ClosedForm, "softmax"),
    "dense": (Dense, "mlp"),
    "bookkeeping": (BookKeeping, "mlp"),
    "vmap": (Vmap, "mlp"),
}


def gradient(device: str, kind: type[Engine], model: str, sigma: float, sampler: object = None) -> Tensor:
    """The private gradients of four silos at the model's parameters, (4, d), on the CPU; all in float64."""
    load = Workload(**{**{key: getattr(LOAD, key) for key in LOAD.__slots__}, "model": model})
    module = load.module().double().to(device)
    engine = kind(module, cross_entropy, 2**20)  # type: ignore[call-arg]
    silos = [engine.prepare(Records(s.features.double().to(device), s.labels.to(device))) for s in load.silos()]
    y = Layout.of(module).flatten(dict(module.named_parameters())).expand(4, -1)
    made_by = rules(sigma, 0.5, sampler or FixedSize(batch_size=11))
    found = PrivateOracle(made_by, engine, silos, range(4), Draw(3, 5), max_gradients=1).gradient(y)
    assert found.device.type == device
    return found.cpu()


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("device", DEVICES)
def test_gradients_are_those_of_vmap_on_the_cpu(device: str, name: str) -> None:
    kind, model = ENGINES[name]
    torch.testing.assert_close(gradient(device, kind, model, 0.0), gradient("cpu", Vmap, model, 0.0))


@pytest.mark.parametrize("device", DEVICES)
def test_an_empty_batch_releases_noise(device: str) -> None:
    found = gradient(device, ClosedForm, "softmax", 1.0, Poisson(1e-9))
    assert (found.std(dim=1) > 0).all()


@pytest.mark.parametrize("place", ["host", "device"])
@pytest.mark.parametrize("device", DEVICES)
def test_seeded_noise_is_the_same_on_any_device(device: str, place: Any) -> None:
    with noise_drawn_on(place):
        noise = gradient(device, ClosedForm, "softmax", 1.0) - gradient(device, ClosedForm, "softmax", 0.0)
        expected = gradient("cpu", ClosedForm, "softmax", 1.0) - gradient("cpu", ClosedForm, "softmax", 0.0)
    torch.testing.assert_close(noise, expected)
    assert torch.corrcoef(noise).fill_diagonal_(0).abs().max() < 0.9, "no two silos share it"


@pytest.mark.parametrize("device", DEVICES)
def test_a_run_gives_the_same_model_for_every_stack(tmp_path: Path, device: str) -> None:
    """To the bit on a CPU; what a GPU computes may round differently each time."""
    found = {}
    for stack in (1, 3):
        (tmp_path / str(stack)).mkdir()
        changes = {"runtime": {"device": device, "stack": stack, "dtype": "float64", "lockstep": False}}
        found[stack] = run(write(tmp_path / str(stack), changes))
    one, other = (load_file(Path(found[stack]["folder"]) / "model.safetensors") for stack in (1, 3))
    close = {"rtol": 0.0, "atol": 0.0} if device == "cpu" else {"rtol": 1e-4, "atol": 1e-6}
    for name, value in one.items():
        torch.testing.assert_close(value, other[name], **close)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("clip", ["flat", "adaptive"])
def test_a_run_in_lockstep_with_noise_of_the_device(tmp_path: Path, device: str, clip: str) -> None:
    """Charged as any other; on CUDA nothing has to be said for silos to be answered together."""
    charged = {}
    for name, runtime in (
        ("plain", {"device": "cpu"}),
        ("lockstep", {"device": device, **({"lockstep": True} if device == "cpu" else {})}),
    ):
        (tmp_path / name).mkdir()
        changes = {"runtime": runtime, "privacy": {"clip": clip}, "model": {"name": "mlp", "hidden": [3]}}
        with noise_drawn_on("device" if name == "lockstep" else "host"):
            made = run(write(tmp_path / name, changes))
        environment = json.loads((Path(made["folder"]) / "environment.json").read_text())
        assert bool(environment["lockstep"]) == (name == "lockstep")
        model = load_file(Path(made["folder"]) / "model.safetensors")
        assert all(torch.isfinite(value).all() for value in model.values())
        found = [(charge.round, charge.silo, charge.release, charge.count) for charge in charges(made["folder"])]
        charged[name] = Counter(found)
    assert charged["lockstep"] == charged["plain"]


@pytest.mark.parametrize(
    ("device", "parts"),
    [
        pytest.param("cuda", ("cannot be used here",), marks=pytest.mark.skipif(CUDA, reason="there is CUDA")),
        ("cuda:9", ("cannot be used here",)),
        ("gpu", ("not a valid device", "use cpu, cuda or cuda:N")),
        ("mps", ("has no float64", "use cpu or cuda")),
    ],
)
def test_a_device_that_cannot_be_used_is_one_message(
    tmp_path: Path, device: str, parts: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = torch.empty

    def without_float64(*size: Any, dtype: torch.dtype | None = None, **given: Any) -> Tensor:
        if str(given.get("device")) == "mps" and dtype is torch.float64:
            raise TypeError(
                "Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64."
            )
        place = {"device": None} if str(given.get("device")) == "mps" else {}
        return empty(*size, dtype=dtype, **{**given, **place})

    monkeypatch.setattr(torch, "empty", without_float64)
    done = dpfl("run", write(tmp_path, {"runtime": {"device": device}}), "--out", tmp_path / "runs")
    one_message(done, f"runtime.device='{device}'", *parts)


@pytest.mark.parametrize("device", DEVICES)
def test_a_stopwatch_waits_for_the_device(device: str) -> None:
    clock = Stopwatch()
    clock.start(torch.device(device))
    torch.ones(64, 64, device=device).mm(torch.ones(64, 64, device=device))
    clock.lap("forward/backward")
    assert clock.seconds["forward/backward"] > 0


@pytest.mark.parametrize("device", DEVICES)
def test_the_benchmark_runs_on_the_device(device: str, capsys: pytest.CaptureFixture[str]) -> None:
    gpu.main(["--device", device, "--quick", "--workload=W3", "--workload=ResNet-18", "--ranks"])
    printed = capsys.readouterr().out
    for name in ("W3: ", "ResNet-18: ", "Opacus ghost", "plain SGD", "one after another", "together"):
        assert name in printed
