"""The benchmark compares like with like: what is timed computes the same model."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks import clipping, engines, gpu, pfl_round, profile, report, rounds, scale, startup
from benchmarks.contenders import OURS, PlainSGD, contenders
from benchmarks.workloads import WORKLOADS, Workload
from dpfl_plugin import registry
from dpfl_plugin.config.schema import Config
from dpfl_plugin.federation.silo_group import SiloGroup
from dpfl_plugin.gradients.closed_form import ClosedForm

PLAIN = PlainSGD.name
TINY = Workload(
    num_features=7,
    num_classes=3,
    num_silos=5,
    num_records=40,
    num_participants=3,
    batch_size=11,
    local_steps=4,
    local_lr=0.5,
    clip_norm=0.8,
    noise_multiplier=0.0,
)


def models(load: Workload, num_rounds: int = 3) -> dict[str, Tensor]:
    """Each contender's model after some rounds: silos come back, so control variates matter too."""
    silos = load.silos()
    found = {}
    for entrant in contenders(load, silos):
        for number in range(num_rounds):
            entrant.round(load.plan(number), load.draw(number))
        found[entrant.name] = entrant.model()
    return found


MODELS = {
    "softmax": (TINY, 6),  # closed form, dense, book-keeping, vmap; Opacus' hooks and ghost clipping
    "mlp": (replace(TINY, model="mlp"), 5),
    "cnn": (replace(TINY, model="cnn", image=(1, 8, 8), num_records=20, local_lr=0.1, clip_norm=0.2), 4),
}


@pytest.fixture(autouse=True)
def the_same_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all contenders, although their control variates differ in the last bits."""
    monkeypatch.setattr(SiloGroup, "_own", lambda self, ids: {})


@pytest.mark.parametrize("model", MODELS)
def test_all_that_clip_train_the_same_model(model: str) -> None:
    load, count = MODELS[model]
    found = models(load)
    plain = found.pop(PLAIN)
    assert len(found) == count and found[OURS].norm() > 0.1
    for name, model in found.items():
        torch.testing.assert_close(model, found[OURS], atol=1e-5, rtol=0, msg=lambda text, name=name: f"{name}: {text}")
    assert (plain - found[OURS]).abs().max() > 1e-2, "clipping has to matter, or nothing was compared"


def test_plain_sgd_trains_the_same_model_without_clipping() -> None:
    load = replace(TINY, clip_norm=math.inf)
    silos = load.silos()
    ours, plain = (next(e for e in contenders(load, silos) if e.name == name) for name in (OURS, PLAIN))
    for number in range(3):
        for entrant in (ours, plain):
            entrant.round(load.plan(number), load.draw(number))
    torch.testing.assert_close(plain.model(), ours.model(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("sigma_g", [1.0, 2.0])
def test_the_noise_has_the_same_size(sigma_g: float) -> None:
    """A factor of 2 (C or 2C) would show: the deviation of 600 normals is good to 3 %, and 20 % is allowed."""
    quiet = replace(TINY, num_features=199, local_steps=1, num_records=11, num_participants=5)
    noisy = replace(quiet, noise_multiplier=sigma_g)
    without, with_noise = models(quiet, num_rounds=1), models(noisy, num_rounds=1)
    deviation = {name: float((with_noise[name] - without[name]).std()) for name in without}
    assert deviation.pop(PLAIN) == 0.0
    expected = noisy.local_lr * sigma_g * 2 * noisy.clip_norm / noisy.batch_size / math.sqrt(noisy.num_participants)
    for name, found in deviation.items():
        assert found == pytest.approx(expected, rel=0.2), name


def test_tables_and_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(WORKLOADS, "W1", replace(TINY, noise_multiplier=1.0))
    rounds.main(["--workload", "W1", "--rounds", "2", "--json"])
    seconds = json.loads(capsys.readouterr().out)["W1"]
    assert set(seconds) == {OURS, "Opacus ghost", PLAIN}
    assert all(value > 0 for value in seconds.values())
    rounds.main(["--workload", "W1", "--rounds", "2"])
    assert OURS in capsys.readouterr().out


def test_every_way_to_clip_is_timed_against_flat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WORKLOADS, "W1", replace(TINY, noise_multiplier=1.0))
    found = clipping.ratios(ClosedForm, rounds=1)
    assert set(found) == set(registry.names("clippings")) and found["flat"] == 1.0


def test_the_parts_of_a_round_add_up_to_it() -> None:
    found = profile.measure(replace(TINY, noise_multiplier=1.0), rounds=1)
    assert set(found.parts) == {*profile.PARTS, profile.REST}
    assert all(seconds > 0 for seconds in found.parts.values())
    assert sum(found.parts.values()) == pytest.approx(found.wrapped, rel=1e-9)


def test_a_step_by_every_engine_as_json_and_as_tables(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(WORKLOADS, "W1", replace(TINY, noise_multiplier=1.0))
    monkeypatch.setattr(engines, "ROOFLINE", 8)
    engines.main(["--workload", "W1", "--turns", "1", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"W1"} and {OURS, "Opacus hooks", "Opacus ghost", PLAIN} < set(found["W1"])
    assert all(value > 0 for value in found["W1"].values())
    engines.main(["--workload", "W1", "--turns", "1"])
    out = capsys.readouterr().out
    assert all(f"W1 against {name}" in out for name in engines.TARGETS)


def test_ratios_are_of_the_same_turn() -> None:
    found = engines.Steps({OURS: [1.0, 2.0], PLAIN: [4.0, 2.0]}, [0.5, 0.5])
    assert found.ratios(PLAIN) == [1.0, 4.0] and found.gaps() == [2.0, 4.0]
    assert found.medians() == {OURS: 1.5e6, PLAIN: 3e6}


def test_the_arithmetic_of_a_linear_model_is_that_of_its_two_products() -> None:
    assert engines.arithmetic(TINY) == 2 * (2 * TINY.batch_size * TINY.num_features * TINY.num_classes)


def test_a_device_is_measured_like_any_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(WORKLOADS, "W1", replace(TINY, noise_multiplier=1.0))
    monkeypatch.setitem(gpu.ROOFLINE, "cpu", 8)
    arguments = ["--device", "cpu", "--workload", "W1", "--turns", "1", "--packed", "1", "3"]
    gpu.main([*arguments, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert set(found["silo_steps_per_second"]["W1"]) == {"1", "3"} and OURS in found["microseconds"]["W1"]
    gpu.main(arguments)
    assert "silos packed" in capsys.readouterr().out


def test_without_a_gpu_nothing_is_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="nothing was measured"):
        gpu.main([])


def test_without_pfl_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pfl_round, "HOME", tmp_path / "none")
    with pytest.raises(SystemExit, match="benchmarks/pfl_env"):
        pfl_round.main(["--rounds", "1"])


@pytest.mark.parametrize("axis", scale.AXES)
def test_every_axis_of_scale_is_a_configuration_of_its_size(axis: str) -> None:
    sizes = scale.AXES[axis].sizes
    made = [Config.model_validate(scale.config(axis, size)) for size in sizes]
    found = {
        "M": [one.data.num_silos for one in made],
        "K": [one.algorithm.options["local_steps"] for one in made],
        "R": [one.data.dataset.options["records_per_silo"] for one in made],
        "T": [one.rounds for one in made],
        "d": [(one.data.dataset.options["num_features"] + 1) * 100 for one in made],
    }
    assert found[axis] == list(sizes)


def test_exponents_and_their_tables() -> None:
    points = {n: {"setup": 1.0, "round": 3.0 * n, "evaluation": n**2.0, "mib": 5.0} for n in (10, 100)}
    assert scale.exponent(points, "round") == pytest.approx(1) and scale.exponent(points, "evaluation") == 2
    (grown,) = (line for line in scale.axis_table(scale.AXES["K"], points).splitlines() if "exponent" in line)
    assert [cell.strip() for cell in grown.split("|")[2:6]] == ["0.00", "1.00", "2.00", "0.00"]


@pytest.mark.slow
def test_a_point_of_scale_is_a_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(scale, "ROOT", tmp_path)
    (tmp_path / "build").mkdir()
    found = scale.one("M", 40, full=False)
    assert set(found) == {"setup", "round", "evaluation", "mib"} and min(found.values()) > 0


def test_the_page_holds_every_section(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(WORKLOADS):
        monkeypatch.delitem(WORKLOADS, name)
    monkeypatch.setitem(WORKLOADS, "W1", replace(TINY, noise_multiplier=1.0))
    monkeypatch.setattr(engines, "ROOFLINE", 8)
    monkeypatch.setattr(engines, "peaks", lambda workload, names: dict.fromkeys(names, 1.0))
    monkeypatch.setattr(pfl_round, "HOME", tmp_path / "none")
    monkeypatch.setattr(startup, "measure", lambda starts: {"dpfl --help": [0.1]})
    for name in ("TURNS", "ROUNDS", "PROFILED_ROUNDS"):
        monkeypatch.setattr(report, name, 1)
    report.main(["--out", str(tmp_path / "page.md")])
    text = (tmp_path / "page.md").read_text()
    assert text.count("| plain SGD (not private)") == 2 and "engines.md#a-gpu-measured" in text
    assert "W1 against Opacus ghost" in text and "times the arithmetic" in text
    assert scale.BEGIN in text and scale.END in text and "benchmarks/pfl_env" in text
