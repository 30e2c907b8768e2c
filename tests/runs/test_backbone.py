"""`backbone`: features of each record alone, by a module that never changes, kept for their owner only."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import nn

from dpfl_plugin.data.base import Federation, Inputs, Silo
from dpfl_plugin.data.preprocess import fitted_on_records, pooled, preprocess
from dpfl_plugin.errors import ConfigError, DataError, DpflError, PluginError, UnsupportedError
from dpfl_plugin.runs.backbone import MORE_STEPS, Backbone, factories, without_cache

HERE = "tests.runs.test_backbone"
SHAPE = (1, 6, 6)


def network(shape: tuple[int, ...], *, width: int = 4) -> nn.Module:
    """As a pretrained one: BatchNorm and dropout, left in training mode, all parameters trainable."""
    norm = nn.BatchNorm2d(width)
    norm.running_mean, norm.running_var = torch.rand(width), torch.rand(width) + 0.5
    return nn.Sequential(nn.Conv2d(shape[0], width, 3), norm, nn.ReLU(), nn.Dropout(0.5), nn.Flatten())


class StaysInTraining(nn.BatchNorm2d):
    def train(self, mode: bool = True) -> StaysInTraining:
        return super().train(True)


class Centred(nn.Module):
    """Subtracts the batch's mean."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1) - x.flatten(1).mean(0)


class Random(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1) + torch.rand(1)


REMEMBERS = """
import torch
from torch import nn


class Remembers(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("most", torch.full((1,), 5000.0))

    def forward(self, x):
        self.most.copy_(torch.maximum(self.most, x.float().max()))
        return x.flatten(1) + self.most.to(x)


def remembers(shape):
    return Remembers()
"""
"""A module of its own: it adds the largest number that it ever saw, which made-up records do not show."""


class Centres64(nn.Module):
    """Subtracts the mean of large batches only."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = x.flatten(1)
        return features - features.mean(0) if len(x) == 64 else features


class Whole(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return {"features": x.flatten(1)}


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.table(x.long())
        return found.mean((1, 2, 3))


def stays_in_training(shape: tuple[int, ...]) -> Any:
    return StaysInTraining(1)


def no_statistics(shape: tuple[int, ...]) -> Any:
    return nn.BatchNorm2d(1, track_running_stats=False)


def centred(shape: tuple[int, ...]) -> Any:
    return Centred()


def random(shape: tuple[int, ...]) -> Any:
    return Random()


def centres_64(shape: tuple[int, ...]) -> Any:
    return Centres64()


def whole(shape: tuple[int, ...]) -> Any:
    return Whole()


def words(shape: tuple[int, ...]) -> Any:
    return Words()


def infinite(shape: tuple[int, ...]) -> Any:
    return nn.Threshold(30.0, float("nan"))  # nan below 30: also for made-up records


def only_large_fail(shape: tuple[int, ...]) -> Any:
    return nn.Sequential(nn.Flatten(), nn.ELU(), Overflow())


class Overflow(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.where(x > 99, torch.inf, x)


def no_module(shape: tuple[int, ...]) -> Any:
    return 3


def images(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random((n, *SHAPE), dtype=np.float32)


def made(x: np.ndarray, factory: str = "network", held_out: int = 2, base: Path = Path(), **options: Any) -> Federation:
    y = np.zeros(len(x), np.int64)
    train = len(x) - held_out
    silo = Silo(x[:train].copy(), y[:train], x[train:].copy(), y[train:])
    federation = Federation([silo], 2, SHAPE, columns=("a",), inputs=Inputs(SHAPE, 2))
    factory = factory if ":" in factory else f"{HERE}:{factory}"
    step = {"name": "backbone", "factory": factory, "batch_size": 4, **options}
    preprocess(federation, [step], base, MORE_STEPS)
    return federation


def test_features_are_the_modules_outputs_in_eval_mode_and_cost_nothing() -> None:
    x = images(11)
    federation = made(x, options={"width": 3})
    torch.manual_seed(7)  # another state of the global generator: the same module
    found = Backbone.made(f"{HERE}:network", {"width": 3}, SHAPE)
    with torch.no_grad():
        expected = found.module(torch.from_numpy(x)).numpy()
    (silo,) = federation.silos
    np.testing.assert_allclose(np.concatenate([silo.train_x, silo.test_x]), expected, rtol=1e-5, atol=1e-6)
    assert silo.train_x.dtype == np.float32 and federation.feature_shape == (3 * 4 * 4,) and federation.columns == ()
    (caveat,) = federation.caveats
    assert found.digest in caveat and "costs no epsilon" in caveat
    assert federation.inputs is not None and federation.inputs.backbones == (found.digest,)
    assert not any(p.requires_grad for p in found.module.parameters()) and not found.module.training
    assert not pooled(["backbone"]) and not fitted_on_records(["backbone"])


@pytest.mark.parametrize("others", [1e6, 0.0, -1.0])
def test_a_record_has_the_same_bits_whoever_else_is_there(others: Any) -> None:
    """Theorem: f(x_1, ..., x_n) = (g(x_1), ..., g(x_n)). A BatchNorm in training mode, or products whose shape depends
    on the number of records, break it."""
    x = images(9)
    changed = np.full_like(x, others)
    changed[4] = x[4]
    first, second = made(x, held_out=0), made(changed, held_out=0)
    fewer = made(x[4:], held_out=0)  # at another place, among fewer: the last batch is filled up
    assert np.array_equal(first.silos[0].train_x[4], second.silos[0].train_x[4])
    assert np.array_equal(first.silos[0].train_x[4], fewer.silos[0].train_x[0])
    assert not np.array_equal(first.silos[0].train_x[3], second.silos[0].train_x[3])


def test_batches_have_one_shape_whatever_the_number_of_records() -> None:
    shapes: set[tuple[int, ...]] = set()
    found = Backbone.made(f"{HERE}:network", {}, SHAPE)
    found.module.register_forward_pre_hook(lambda module, inputs: shapes.add(tuple(inputs[0].shape)))
    for count in (0, 1, 4, 9):
        assert found.features(images(count), 4, torch.device("cpu")).shape == (count, 64)
    assert shapes == {(4, *SHAPE)}


@pytest.mark.parametrize(
    ("factory", "error", "said"),
    [
        ("stays_in_training", UnsupportedError, "training mode after eval"),
        ("no_statistics", UnsupportedError, "no running statistics"),
        ("centred", UnsupportedError, "mixes the records"),
        ("random", UnsupportedError, "second time"),
        ("whole", UnsupportedError, "FieldsModel"),
        ("infinite", UnsupportedError, "not finite"),
        ("no_module", PluginError, "not a torch.nn.Module"),
        ("missing", PluginError, "cannot be loaded"),
    ],
)
def test_what_is_not_a_function_of_each_record_is_refused(factory: Any, error: Any, said: Any) -> None:
    with pytest.raises(error, match=said):
        made(images(5), factory)


def test_a_module_is_tried_on_batches_as_it_gets_them() -> None:
    with pytest.raises(UnsupportedError, match="mixes the records"):
        made(images(5), "centres_64", batch_size=64)
    made(images(5), "centres_64", batch_size=32)


def test_a_module_that_remembers_records_is_refused_after_the_fact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On small made-up records it is a function; on the real ones it changes itself. What it made is not kept: the next
    run would find it, and compute nothing that shows the change."""
    (tmp_path / "remembering.py").write_text(REMEMBERS)
    monkeypatch.syspath_prepend(tmp_path)
    assert Backbone.made("remembering:remembers", {}, SHAPE).known  # it could be kept
    for cache in (None, "kept", "kept"):
        with pytest.raises(UnsupportedError, match="changed while it computed"):
            made(10_000 * images(5), base=tmp_path, cache=cache, factory="remembering:remembers")


def test_features_that_are_not_finite_are_told() -> None:
    x = images(5)
    x[2, 0, 0, 0] = 100
    with pytest.raises(DataError, match="record 2"):
        made(x, "only_large_fail")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"batch_size": 0}, r"data.preprocess\[0\].batch_size=0"),
        ({"sha256": "00"}, r"data.preprocess\[0\].sha256='00'"),
        ({"options": {"depth": 2}}, r"data.preprocess\[0\].options.depth"),
        ({"device": "tpu9"}, r"data.preprocess\[0\].device='tpu9'"),
        ({"width": 3}, r"data.preprocess\[0\].width"),
    ],
)
def test_a_wrong_option_is_named(options: Any, said: Any) -> None:
    with pytest.raises(ConfigError, match=said):
        made(images(5), **options)


def test_words_are_tried_as_words() -> None:
    assert made(np.round(images(5)), "words").feature_shape == (2,)


def test_a_digest_tells_weights_and_options_apart_and_can_be_agreed_on() -> None:
    digests = {Backbone.made(f"{HERE}:network", {"width": width}, SHAPE).digest for width in (3, 4)}
    assert len(digests) == 2
    found = Backbone.made(f"{HERE}:network", {}, SHAPE)
    with torch.no_grad():
        found.module.get_parameter("0.bias")[0] += 1e-6
    changed = Backbone.of(found.module, SHAPE)
    assert changed.digest != found.digest
    assert made(images(5), sha256=found.digest).feature_shape == (64,)


def test_kept_features_are_read_again_and_are_their_owners_alone(tmp_path: Path) -> None:
    os.umask(0o022)
    x, other_x = images(9), images(9, seed=1)
    with mock.patch.object(Backbone, "features", autospec=True, side_effect=Backbone.features) as computed:
        first = made(x, base=tmp_path, cache="kept")
        assert computed.call_count == 2  # training and test records
        again = made(x, base=tmp_path, cache="kept")
        assert computed.call_count == 2
        other = made(other_x, base=tmp_path, cache="kept")
        assert computed.call_count == 4
        made(x, base=tmp_path, cache="kept", options={"width": 3})  # another module
        assert computed.call_count == 6
    for key in ("train_x", "test_x"):
        assert np.array_equal(getattr(first.silos[0], key), getattr(again.silos[0], key))
        assert not np.array_equal(getattr(first.silos[0], key), getattr(other.silos[0], key))
    assert (tmp_path / "kept").stat().st_mode & 0o777 == 0o700
    files = sorted((tmp_path / "kept").iterdir())
    assert len(files) == 12 and {path.stat().st_mode & 0o777 for path in files} == {0o600}
    assert any("Remove it" in note for note in first.notes)
    # A later step may work in place; the file stays as it is.
    again.silos[0].train_x += 1
    third = made(x, base=tmp_path, cache="kept")
    assert np.array_equal(third.silos[0].train_x, first.silos[0].train_x)


@pytest.mark.parametrize("damage", ["flip", "cut", "other facts", "no facts"])
def test_damaged_files_are_made_anew(tmp_path: Path, damage: Any) -> None:
    x = images(9)
    first = made(x, base=tmp_path, cache="kept", held_out=0).silos[0].train_x.copy()
    (array,) = [path for path in (tmp_path / "kept").glob("*.npy") if np.load(path).size]
    facts = array.with_suffix(".json")
    data = bytearray(array.read_bytes())
    if damage == "flip":
        data[-3] ^= 1
        array.write_bytes(data)
    elif damage == "cut":
        array.write_bytes(data[:-8])
    elif damage == "other facts":
        facts.write_text(json.dumps({"sha256": "0", "shape": [9, 64]}))
    else:
        facts.unlink()
    assert np.array_equal(made(x, base=tmp_path, cache="kept", held_out=0).silos[0].train_x, first)
    assert json.loads(facts.read_text())["shape"] == [9, 64]


def test_what_no_digest_shows_is_not_kept(tmp_path: Path) -> None:
    class Hidden(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.names = iter(())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.flatten(1)

    assert not Backbone.of(Hidden(), SHAPE).known
    with mock.patch(f"{HERE}.network", return_value=Hidden()):
        federation = made(images(5), base=tmp_path, cache="kept")
    assert not (tmp_path / "kept").exists() and any("again each time" in note for note in federation.notes)


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("")
    with pytest.raises(ConfigError, match=r"data.preprocess\[0\].cache"):
        made(images(5), base=tmp_path, cache="kept")


def test_steps_are_known_by_their_factories_and_lose_their_cache_where_models_are_asked() -> None:
    steps: list[dict[str, Any]] = [
        {"name": "scale", "factor": 2.0},
        {"name": "backbone", "factory": "a:b", "cache": "kept"},
    ]
    assert factories(steps) == ["a:b"]
    assert without_cache(steps) == [steps[0], {"name": "backbone", "factory": "a:b"}]
    assert issubclass(UnsupportedError, DpflError)
