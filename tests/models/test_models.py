"""Models: shapes, reproducible starts, and refusal of what would break per-example privacy."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dpfl_plugin
from dpfl_plugin.errors import ConfigError, DpflError, PluginError, UnsupportedError
from dpfl_plugin.models.build import build_model, check_model
from dpfl_plugin.models.cnn import cnn
from dpfl_plugin.models.linear import logistic, softmax
from dpfl_plugin.models.mlp import mlp

OURS = {
    "softmax": "dpfl_plugin.models.linear:softmax",
    "logistic": "dpfl_plugin.models.linear:logistic",
    "mlp": "dpfl_plugin.models.mlp:mlp",
    "cnn": "dpfl_plugin.models.cnn:cnn",
}


def user(name: str, shape: tuple[int, ...] = (6,), num_classes: int = 3, **options: Any) -> nn.Module:
    """The model of one of the factories in this file."""
    return build_model({"module": f"{__name__}:{name}", **options}, shape, num_classes, seed=1)


def number_of_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


# --- the built-in models ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(6,), (1, 4, 5)])
def test_softmax_starts_at_zero_and_loss_log_classes(shape: tuple[int, ...]) -> None:
    model, d = softmax(shape, 10), math.prod(shape)
    assert number_of_parameters(model) == 10 * d + 10
    assert number_of_parameters(softmax(shape, 10, bias=False)) == 10 * d
    scores = model(torch.randn(8, *shape))
    assert scores.shape == (8, 10)
    loss = nn.functional.cross_entropy(scores, torch.arange(8))
    assert loss.item() == pytest.approx(math.log(10))


def test_logistic_has_one_output_and_needs_two_classes() -> None:
    model = logistic((6,), 2)
    assert model(torch.randn(8, 6)).shape == (8, 1)
    assert not model(torch.randn(8, 6)).any()
    with pytest.raises(ConfigError, match=r"model\.name='logistic' is for 2 classes and the data has 3"):
        build_model({"module": OURS["logistic"]}, (6,), 3, seed=0)


def test_mlp_is_the_network_of_the_paper() -> None:
    """[N] App. D.1: 60-200-10."""
    model = mlp((60,), 10, hidden=(200,))
    assert number_of_parameters(model) == 60 * 200 + 200 + 200 * 10 + 10
    assert mlp((1, 8, 8), 5, hidden=(7, 9), activation="tanh")(torch.randn(2, 1, 8, 8)).shape == (2, 5)
    with pytest.raises(ConfigError, match=r"model\.hidden="):
        build_model({"module": OURS["mlp"], "hidden": []}, (6,), 3, seed=0)
    with pytest.raises(ConfigError, match=r"model\.activation='gelu'"):
        build_model({"module": OURS["mlp"], "activation": "gelu"}, (6,), 3, seed=0)


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (1, 5, 7)])
def test_cnn_takes_images(shape: tuple[int, ...]) -> None:
    model = cnn(shape, 10)
    assert model(torch.randn(2, *shape)).shape == (2, 10)
    assert any(isinstance(layer, nn.GroupNorm) for layer in model.modules())


def test_cnn_refuses_flat_features_and_bad_groups() -> None:
    with pytest.raises(ConfigError, match="flatten: false"):
        cnn((784,), 10)
    with pytest.raises(ConfigError, match=r"^groups=5 must divide"):
        cnn((1, 28, 28), 10, groups=5)


# --- build_model ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [OURS["mlp"], OURS["softmax"], OURS["cnn"]])
def test_parameters_depend_on_the_seed_only_and_the_global_generator_is_left_alone(path: str) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    one = build_model({"module": path}, (1, 8, 8), 10, seed=1)
    assert torch.equal(torch.rand(3), expected)
    torch.manual_seed(77)
    again = build_model({"module": path}, (1, 8, 8), 10, seed=1)
    other = build_model({"module": path}, (1, 8, 8), 10, seed=2)
    pairs = list(zip(one.parameters(), again.parameters(), other.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b, _ in pairs)
    assert path == OURS["softmax"] or not any(torch.equal(a, c) for a, _, c in pairs if a.dim() > 1)
    assert all(parameter.dtype == torch.float32 for parameter in one.parameters())


def test_blocks_must_name_one_model() -> None:
    for block in ({}, {"name": "mlp", "module": OURS["mlp"]}):
        with pytest.raises(ConfigError, match=r"either name .* or module"):
            build_model(block, (6,), 3, seed=0)
    with pytest.raises(PluginError, match="no model 'mpl'"):
        build_model({"name": "mpl"}, (6,), 3, seed=0)
    with pytest.raises(PluginError, match=r"package\.module:name"):
        build_model({"module": "somewhere"}, (6,), 3, seed=0)
    with pytest.raises(ConfigError, match=r"model\.width is not a known option"):
        build_model({"module": OURS["mlp"], "width": 3}, (6,), 3, seed=0)


@pytest.mark.parametrize("name", OURS)
def test_built_in_models_go_by_name(name: str) -> None:
    model = build_model({"name": name}, (1, 8, 8), 2, seed=0)
    assert model(torch.zeros(3, 1, 8, 8)).shape == (3, 1 if name == "logistic" else 2)


Shape = tuple[int, ...]


def plain(shape: Shape, num_classes: int, *, width: int = 4) -> nn.Module:
    return nn.Sequential(nn.Linear(shape[0], width), nn.ReLU(), nn.Linear(width, num_classes))


def batch_norm(shape: Shape, num_classes: int) -> nn.Module:
    return nn.Sequential(nn.Linear(shape[0], 4), nn.BatchNorm1d(4), nn.Linear(4, num_classes))


def batch_norm_without_statistics(shape: Shape, num_classes: int) -> nn.Module:
    norm = nn.BatchNorm1d(4, track_running_stats=False)
    return nn.Sequential(nn.Linear(shape[0], 4), norm, nn.Linear(4, num_classes))


def instance_norm(shape: Shape, num_classes: int) -> nn.Module:
    norm = nn.InstanceNorm1d(1, track_running_stats=True)
    return nn.Sequential(nn.Unflatten(1, (1, shape[0])), norm, nn.Flatten(), nn.Linear(shape[0], num_classes))


def dropout(shape: Shape, num_classes: int, *, rate: float = 0.5) -> nn.Module:
    return nn.Sequential(nn.Linear(shape[0], 4), nn.Dropout(rate), nn.Linear(4, num_classes))


def recurrent_dropout(shape: Shape, num_classes: int) -> nn.Module:
    return nn.Sequential(nn.LSTM(shape[0], 4, 2, dropout=0.5), nn.Linear(4, num_classes))


class FunctionalBatchNorm(nn.Module):
    def __init__(self, shape: Shape, num_classes: int) -> None:
        super().__init__()
        self.out = nn.Linear(shape[0], num_classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(x - x.mean(dim=0))
        return out


class FunctionalDropout(FunctionalBatchNorm):
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(nn.functional.dropout(x, 0.5))
        return out


def tied(shape: Shape, num_classes: int) -> nn.Module:
    first, second = nn.Linear(6, 6), nn.Linear(6, 6)
    second.weight = first.weight
    return nn.Sequential(first, second, nn.Linear(6, num_classes))


def reused(shape: Shape, num_classes: int) -> nn.Module:
    layer = nn.Linear(6, 6)
    return nn.Sequential(layer, nn.ReLU(), layer, nn.Linear(6, num_classes))


def double(shape: Shape, num_classes: int) -> nn.Module:
    class Doubled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(shape[0], num_classes).double()

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.out(x.double())
            return out

    return Doubled()


def frozen(shape: Shape, num_classes: int) -> nn.Module:
    return nn.Linear(shape[0], num_classes).requires_grad_(False)


def wrong_outputs(shape: Shape, num_classes: int) -> nn.Module:
    return nn.Linear(shape[0], num_classes + 1)


def wrong_inputs(shape: Shape, num_classes: int) -> nn.Module:
    return nn.Linear(shape[0] + 1, num_classes)


def infinite(shape: Shape, num_classes: int) -> nn.Module:
    layer = nn.Linear(shape[0], num_classes)
    nn.init.constant_(layer.weight, math.inf)
    return layer


def no_module(shape: Shape, num_classes: int) -> Any:
    return lambda x: x


def fails(shape: Shape, num_classes: int) -> nn.Module:
    raise RuntimeError("no such luck")


def frozen_batch_norm(shape: Shape, num_classes: int) -> nn.Module:
    norm = nn.BatchNorm1d(4).eval().requires_grad_(False)
    return nn.Sequential(nn.Linear(shape[0], 4), norm, nn.Linear(4, num_classes))


class Words(nn.Module):
    """An Embedding of what ``convert`` makes of the features."""

    def __init__(self, shape: Shape, num_classes: int, *, convert: str = "long") -> None:
        super().__init__()
        self.words, self.head, self.convert = nn.Embedding(50, 4), nn.Linear(4, num_classes), convert

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.words(getattr(x, self.convert)()).mean(1))
        return out


class DropoutInTraining(nn.Linear):
    def __init__(self, shape: Shape, num_classes: int) -> None:
        super().__init__(shape[0], num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(nn.functional.dropout(x, 0.5, training=self.training))


def test_models_are_tried_in_eval_mode_in_which_they_are_trained() -> None:
    """So a function of dropout that asks for the mode is off in both."""
    model = user("DropoutInTraining")
    x = torch.ones(2, 6)
    assert not model.training and torch.equal(model(x), model(x))


@pytest.mark.parametrize("convert", ["long", "float"])
def test_a_model_of_words_is_told_what_gives_it_words(convert: str) -> None:
    with pytest.raises(PluginError, match="standard normal numbers") as refused:
        user("Words", convert=convert)
    (wrap,) = re.findall(r"dpfl\.models\.FieldsModel.*positional=True\)", str(refused.value))
    assert "below=50" in wrap
    wrapped = eval(wrap, {"dpfl": dpfl_plugin, "model": Words((6,), 3)})
    check_model(wrapped, (6,))


def test_a_users_factory_is_taken_with_its_options() -> None:
    assert number_of_parameters(user("plain", width=9)) == 6 * 9 + 9 + 9 * 3 + 3
    assert number_of_parameters(user("frozen_batch_norm")) == 6 * 4 + 4 + 2 * 4 + 4 * 3 + 3
    assert number_of_parameters(user("dropout", rate=0.0)) > 0  # without effect, and so allowed


@pytest.mark.parametrize(
    ("factory", "error", "message"),
    [
        ("batch_norm", UnsupportedError, r"layer 1 \(BatchNorm1d\).*Use GroupNorm: nn\.GroupNorm"),
        ("batch_norm_without_statistics", UnsupportedError, r"layer 1 \(BatchNorm1d\).*Use GroupNorm"),
        ("instance_norm", UnsupportedError, r"layer 1 \(InstanceNorm1d\).*GroupNorm"),
        ("dropout", UnsupportedError, r"layer 1 \(Dropout\): dropout draws"),
        ("recurrent_dropout", UnsupportedError, r"layer 0 \(LSTM\): dropout"),
        ("FunctionalBatchNorm", UnsupportedError, "depends on the other records of the batch"),
        ("FunctionalDropout", UnsupportedError, "other outputs the second time"),
        ("tied", UnsupportedError, r"0\.weight and 1\.weight are the same parameter"),
        ("reused", UnsupportedError, r"0\.weight and 2\.weight are the same parameter"),
        ("double", UnsupportedError, "Use float32"),
        ("frozen", PluginError, "no trainable parameters"),
        ("wrong_outputs", PluginError, r"to \(3, 4\); for 3 classes it must be \(3, 3\)"),
        ("wrong_inputs", PluginError, r"fails on features of shape \(3, 6\)"),
        ("infinite", PluginError, "not finite"),
        ("no_module", PluginError, "returned a function, not a torch.nn.Module"),
        ("fails", PluginError, "failed: RuntimeError: no such luck"),
    ],
)
def test_unsound_models_are_refused(factory: str, error: type[DpflError], message: str) -> None:
    with pytest.raises(error, match=message):
        user(factory)
