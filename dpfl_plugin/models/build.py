"""Models from a configuration block, refused where per-example privacy would not hold."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from dpfl_plugin import registry
from dpfl_plugin.core.outcomes import CLASSES, Outcome
from dpfl_plugin.core.streams import stream_key
from dpfl_plugin.errors import ConfigError, PluginError, UnsupportedError, told
from dpfl_plugin.models.fields import fields_of
from dpfl_plugin.models.fixed import FREEZE, frozen_norm
from dpfl_plugin.models.score_heads import Thresholds

TRIAL_RECORDS = 3
WRAP = (
    "A record is one row of numbers, and so is what the model makes of it: a model that takes several inputs, or "
    "returns a mapping, a tuple or an object, is wrapped by dpfl_plugin.FieldsModel(model, fields, output='logits') "
    "(docs/models.md)."
)


def build_model(
    block: Mapping[str, Any], feature_shape: tuple[int, ...], num_classes: int, seed: int, outcome: Outcome = CLASSES
) -> nn.Module:
    """The model of ``{name: ..., options}`` (a plugin) or ``{module: "package.module:factory", options}``.

    A factory is called as ``factory(feature_shape, num_classes, **options)``. Initial parameters depend on the seed
    only; torch's global generator is left as it was. The model is tried on made-up records, never on private ones.
    For an ``outcome`` without classes num_classes is the number of outputs; of ordinal labels the factory is asked for
    one output, behind which `Thresholds` are put.

    Raises:
        ConfigError: the block, or an option, is wrong; PluginError: the factory is unknown, fails, or makes no model;
        UnsupportedError: the model mixes records, is random, or shares parameters.
    """
    factory, name, options = _factory(block)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int.from_bytes(stream_key(seed, "model")[:8], "little"))
        try:
            num_outputs = 1 if outcome.kind == "ordinal" else num_classes
            model = registry.build(factory, options, feature_shape, num_outputs, where="model")
        except ConfigError:
            raise
        except Exception as error:  # a stranger's code may fail in any way
            raise PluginError(f"model {name!r} failed to build: {told(error)}.") from error
        if not isinstance(model, nn.Module):
            raise PluginError(f"model {name!r}: the factory returned a {type(model).__name__}, not a torch.nn.Module.")
        check_layers(model, name)
        model.eval()  # as it is trained and used: functions of dropout that ask self.training are off
        _check_trial(model, name, feature_shape, num_outputs, outcome=outcome)
        if outcome.kind == "ordinal":
            model = nn.Sequential(model, Thresholds(num_classes))
    assert isinstance(model, nn.Module)
    _check_parameters(model, name)
    return model


def check_model(model: nn.Module, feature_shape: tuple[int, ...], *, words: bool = False) -> None:
    """Refuse a model that somebody else built, as `build_model` refuses its own.

    Args:
        model: in eval mode, on the CPU or wherever its parameters are; float32 or float64.
        words: features are int64, as for an Embedding.

    Raises:
        UnsupportedError: it mixes records, is random, or shares parameters.
        PluginError: it fails on made-up records, or has no trainable parameters.
    """
    name = type(model).__name__
    check_layers(model, name)
    _check_trial(model, name, feature_shape, None, words)
    _check_parameters(model, name, (torch.float32, torch.float64))


def _factory(block: Mapping[str, Any]) -> tuple[Any, str, dict[str, Any]]:
    given = [key for key in ("name", "module") if block.get(key) is not None]
    if len(given) != 1:
        raise ConfigError(f"model must have either name (one of {', '.join(registry.names('models'))}) or module.")
    name = str(block[given[0]])
    factory = registry.load("models", name) if given == ["name"] else registry.load_object(name, "model.module")
    return factory, name, {key: value for key, value in block.items() if key not in ("name", "module")}


def check_layers(model: nn.Module, name: str) -> None:
    """Refuse layers that no record has a gradient of its own with; what `check_model` sees without trying the model.

    Raises:
        UnsupportedError: one mixes the records of a batch, or draws at random; the message names it.
    """
    for path, layer in model.named_modules():
        place = f"model {name!r}, layer {path or 'itself'} ({type(layer).__name__})"
        if frozen_norm(layer):
            continue
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) or getattr(layer, "track_running_stats", False):
            raise UnsupportedError(
                f"{place}: batch statistics mix records, and then no gradient belongs to one record. "
                "Use GroupNorm: nn.GroupNorm(num_groups, num_channels), where num_groups divides num_channels; "
                "opacus.validators.ModuleValidator.fix(model) replaces all of them. A pretrained BatchNorm may stay "
                f"if it is frozen: {FREEZE}."
            )
        rate = layer.p if isinstance(layer, nn.modules.dropout._DropoutNd) else getattr(layer, "dropout", 0.0)
        if isinstance(rate, float) and rate > 0:
            raise UnsupportedError(
                f"{place}: dropout draws from a generator that belongs to no silo, so that no run could be repeated. "
                "Remove it or set it to 0; clipping and noise regularise already."
            )


def _check_trial(
    model: nn.Module,
    name: str,
    feature_shape: tuple[int, ...],
    num_classes: int | None,
    words: bool = False,
    outcome: Outcome = CLASSES,
) -> None:
    # Random numbers, not zeros: with equal records one would not see that the model mixes them.
    rng, shape = torch.Generator().manual_seed(0), (TRIAL_RECORDS, *feature_shape)
    x = torch.randint(0, 2, shape, generator=rng) if words else torch.randn(shape, generator=rng)
    if num_classes is None:
        like = next(model.parameters(), x)
        x = x.to(like.device, x.dtype if words else like.dtype)
    fields = fields_of(model)
    if fields is not None and (wrong := fields.wrong_width(math.prod(feature_shape))):
        raise PluginError(f"model {name!r}: {wrong}")
    try:
        with torch.no_grad():
            first, again, alone = model(x), model(x), model(x[:1])
    except Exception as error:
        _check_words(model, name, torch.zeros_like(x))  # which names the field, where one alone is why
        tried = "zeros and ones" if words else "standard normal numbers"
        raise PluginError(
            f"model {name!r} fails on features of shape {tuple(x.shape)}, made-up {tried}: {told(error)}."
            f"{'' if words or fields is not None else _how_to_wrap(model, feature_shape, error)}"
        ) from error
    if not isinstance(first, Tensor):
        raise PluginError(f"model {name!r} maps features {tuple(x.shape)} to a {type(first).__name__}. {WRAP}")
    allowed: list[tuple[int, ...]] = [(TRIAL_RECORDS, num_classes or 0)]
    if outcome.kind == "classes" and num_classes == 2:
        allowed += [(TRIAL_RECORDS, 1), (TRIAL_RECORDS,)]
    elif outcome.kind != "classes" and num_classes == 1:
        allowed.append((TRIAL_RECORDS,))
    found = tuple(first.shape)
    if num_classes is None:
        if first.dim() not in (1, 2) or first.shape[0] != TRIAL_RECORDS:
            raise PluginError(
                f"model {name!r} maps features {tuple(x.shape)} to {found}; it must be one row of outputs, or one "
                "number, for each record."
            )
    elif found not in allowed:
        raise PluginError(
            f"model {name!r} maps features {tuple(x.shape)} to {found}; "
            f"for {num_classes} {'classes' if outcome.kind == 'classes' else f'outputs of {outcome.kind}'} it must be "
            f"{' or '.join(map(str, allowed))}."
        )
    if not bool(torch.isfinite(first).all()):
        raise PluginError(f"model {name!r} gives outputs that are not finite on standard normal features.")
    if not torch.equal(first, again):
        raise UnsupportedError(
            f"model {name!r} gives other outputs the second time, in eval mode, in which models are trained here: it "
            "is random, or changes itself in forward. Remove that; dropout as a function needs training=self.training."
        )
    if not torch.allclose(first[:1], alone, rtol=1e-3, atol=1e-4):
        raise UnsupportedError(
            f"model {name!r}: the output for a record depends on the other records of the batch, and then no gradient "
            "belongs to one record. Normalise each record by itself, e.g. with nn.GroupNorm."
        )
    _check_words(model, name, x)


def _check_words(model: nn.Module, name: str, x: Tensor) -> None:
    """Refuse a model that knows fewer words or categories than its fields have: both are public, and whether it would
    fail in a round, once that is charged, depends on the records. Says nothing where it fails on ``x`` itself.
    """
    fields = fields_of(model)
    if fields is None or _failure(model, x) is not None:
        return
    for field, value, rows in fields.at_ends(x):
        if (failure := _failure(model, rows)) is not None:
            below = fields.fields[field].below
            raise PluginError(
                f"model {name!r} fails on a made-up record with {value} in {field}, a number that records may have "
                f"there as the Field has below={below}: {failure}. Give the model that many words or categories, e.g. "
                f"nn.Embedding({below}, ...), or the Field a smaller below."
            )


def _failure(model: nn.Module, rows: Tensor) -> str | None:
    """What a model raises for rows; None where it raises nothing."""
    try:
        with torch.no_grad():
            found = model(rows)
            if isinstance(found, Tensor):
                found.cpu()  # a GPU says only then that an index was out of range
    except Exception as error:  # a stranger's model may fail in any way
        return told(error)
    return None


def _how_to_wrap(model: nn.Module, feature_shape: tuple[int, ...], error: Exception) -> str:
    """What to do about a model that normal numbers are nothing for; empty where that is not known."""
    looked_up = [layer.num_embeddings for layer in model.modules() if isinstance(layer, nn.Embedding | nn.EmbeddingBag)]
    if isinstance(error, TypeError | AttributeError | ValueError):
        return f" {WRAP}"
    if not looked_up and not isinstance(error, IndexError):
        return ""
    below = max(looked_up, default=1000)
    return (
        " A model of words or categories gets whole numbers in their range by dpfl.models.FieldsModel(model, "
        f"dpfl.models.Fields(x=dpfl.models.Field({feature_shape}, below={below})), positional=True) (docs/models.md)."
    )


def _check_parameters(model: nn.Module, name: str, dtypes: tuple[torch.dtype, ...] = (torch.float32,)) -> None:
    # Opacus' recurrent layers have each parameter under two names, torch's and that of the part which uses it.
    twofold = [f"{path}." if path else "" for path, layer in model.named_modules() if _is_recurrent_of_opacus(layer)]
    places: dict[int, dict[str, str]] = defaultdict(dict)
    for path, parameter in model.named_parameters(remove_duplicate=False):
        owner = next((prefix for prefix in twofold if path.startswith(prefix)), path)
        places[parameter.data_ptr() if parameter.numel() else id(parameter)].setdefault(owner, path)
        if parameter.dtype not in dtypes:
            raise UnsupportedError(f"model {name!r}: {path} is {parameter.dtype}. Use float32: call .float() on it.")
    shared = next((paths for paths in places.values() if len(paths) > 1), None)
    if shared:
        raise UnsupportedError(
            f"model {name!r}: {' and '.join(shared.values())} are the same parameter. Shared parameters are not "
            "supported: give each layer its own; or, for one layer that is used in several places, keep it under one "
            "name and call it several times in forward."
        )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise PluginError(f"model {name!r} has no trainable parameters.")


def _is_recurrent_of_opacus(layer: nn.Module) -> bool:
    """Without importing opacus, which takes seconds."""
    return any(f"{kind.__module__}.{kind.__name__}" == "opacus.layers.dp_rnn.DPRNNBase" for kind in type(layer).__mro__)
