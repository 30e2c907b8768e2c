"""The step `backbone`: instead of each record what a frozen torch module makes of it, computed once before training.

A function that was fixed before any record was read, applied to each record by itself, is part of how records are
written down: it costs no epsilon. Both conditions are enforced as far as code can: the module is in eval mode and never
changes, and one that mixes records, draws at random or remembers what it saw is refused. That it was made without
these records, e.g. trained on public data, cannot be checked: the privacy statement names its digest and says that
this is assumed.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dpfl_plugin import registry
from dpfl_plugin.core import threads as core_threads
from dpfl_plugin.data.base import Features, Federation
from dpfl_plugin.data.feature_cache import FeatureCache
from dpfl_plugin.data.preprocess import Step
from dpfl_plugin.errors import ConfigError, DataError, PluginError, UnsupportedError, require, told
from dpfl_plugin.gradients import independence
from dpfl_plugin.gradients.choice import made_up
from dpfl_plugin.models.fixed import fixed_digest, frozen_norm, structure
from dpfl_plugin.models.object_digest import object_digest

NAME: Final = "backbone"
PUBLIC: Final = (
    "backbone: each record was replaced by what a frozen module makes of it by itself ({factory}; sha256 {digest}, of "
    "its parameters, buffers, structure and code). This costs no epsilon if the module was made without these records, "
    "e.g. trained on public data: that is assumed, and cannot be checked here"
)
KEPT: Final = (
    "backbone: the features are kept in {folder}: they tell as much as the records. Remove it after the last run"
)


@dataclass(frozen=True, slots=True)
class Backbone:
    """A frozen module that makes features.

    Attributes:
        module: in eval mode, nothing of it trains; records [n, *feature_shape] in, features [n, *shape] out.
        digest: sha256 of its parameters, buffers, structure and code.
        known: whether the digest shows all of that; else features are not kept for a later run.
    """

    module: nn.Module
    digest: str
    known: bool

    @classmethod
    def made(
        cls,
        factory: str,
        options: Mapping[str, Any],
        feature_shape: tuple[int, ...],
        batch_size: int = independence.RECORDS,
    ) -> Backbone:
        """What ``factory`` (package.module:name) makes of the records' shape and ``options``; ``batch_size``: see `of`.

        It is called with torch's generator at seed 0, so that features of random weights are the same everywhere.

        Raises:
            PluginError: the factory cannot be loaded, fails, or makes no module.
            ConfigError: an option is wrong. UnsupportedError: the module mixes records, or is random.
        """
        call = registry.load_object(factory, "backbone.factory")
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            module = registry.build(call, options, feature_shape, where="options")
        if not isinstance(module, nn.Module):
            raise PluginError(f"backbone {factory!r}: it returned a {type(module).__name__}, not a torch.nn.Module.")
        return cls.of(module, feature_shape, batch_size)

    @classmethod
    def of(cls, module: nn.Module, feature_shape: tuple[int, ...], batch_size: int = independence.RECORDS) -> Backbone:
        """``module``, which is frozen from now on.

        Args:
            batch_size: of the batches that it will be given: it is tried on one of that size, too.

        Raises:
            UnsupportedError: it mixes records, or is random.
        """
        module = module.cpu().eval().requires_grad_(False)
        _check_layers(module)
        _check_trial(module, feature_shape, batch_size)
        return cls(module, *_digest(module))

    def features(self, x: Features, batch_size: int, device: torch.device) -> Features:
        """What the module makes of records [n, *feature_shape]: float32 [n, *shape].

        All batches have ``batch_size`` rows, the last one filled up with zeros: no product of matrices has a shape that
        depends on how many records there are.

        Raises:
            DataError: a feature is not finite. PluginError: the module fails.
        """
        made: list[NDArray[np.float32]] = []
        empty: Features = np.zeros((batch_size, *x.shape[1:]), x.dtype)
        for first in range(0, max(1, len(x)), batch_size):
            rows = x[first : first + batch_size]
            batch = empty.copy()
            batch[: len(rows)] = rows
            try:
                with torch.no_grad():
                    outputs = self.module(torch.from_numpy(batch).to(device))
            except Exception as error:  # a stranger's code may fail in any way
                raise PluginError(f"the backbone fails on records of shape {x.shape[1:]}: {told(error)}.") from error
            made.append(_rows(outputs, len(batch))[: len(rows)].float().cpu().numpy())
        features: Features = np.concatenate(made)
        bad = np.unique(np.argwhere(~np.isfinite(features))[:, 0])
        if bad.size:
            raise DataError(
                f"the backbone's features of record {int(bad[0])} are not finite. Scale records, or mend it."
            )
        return features


def backbone(
    federation: Federation,
    base: Path,
    *,
    factory: str,
    options: dict[str, Any] | None = None,
    batch_size: int = 64,
    cache: str | None = None,
    sha256: str | None = None,
    threads: int = 1,
    device: str = "cpu",
) -> list[str]:
    """Replace each record by what a frozen module makes of it alone; features become the module's outputs.

    factory: package.module:name, called as factory(feature_shape, **options); batch_size: records at a time; cache:
    folder where features are kept for the next run, relative to the configuration file's; sha256: the module's digest,
    if nothing else shall do; threads, device: of torch, while features are computed.

    Raises:
        ConfigError, PluginError, UnsupportedError: as `Backbone.made`; or the digest is another one.
        DataError: a feature is not finite.
    """
    for key, value in {"batch_size": batch_size, "threads": threads}.items():
        require(value >= 1, key, value, "be 1 or more")
    try:
        made = Backbone.made(factory, options or {}, federation.feature_shape, batch_size)
    except UnsupportedError as error:
        raise UnsupportedError(f"factory={factory!r}: {error}") from error
    if sha256 is not None and sha256 != made.digest:
        raise ConfigError(
            f"sha256={sha256!r}: the module that {factory} makes here has {made.digest}. Use the weights and the code "
            "that were agreed on, or correct sha256."
        )
    place, kept = _device(device), _cache(federation, made, base, cache, [batch_size, threads, device])
    made.module.to(place)
    with core_threads.threads(threads):
        for silo in federation.silos:
            for key in ("train_x", "test_x"):
                x = np.ascontiguousarray(getattr(silo, key))
                make = functools.partial(_computed, made, factory, x, batch_size, place)
                setattr(silo, key, make() if kept is None else kept.get(x, make))
    federation.columns = ()
    if federation.inputs is not None:
        federation.inputs = replace(federation.inputs, backbones=(*federation.inputs.backbones, made.digest))
    return [PUBLIC.format(factory=factory, digest=made.digest)]


def _computed(made: Backbone, factory: str, x: Features, batch_size: int, place: torch.device) -> Features:
    """`Backbone.features` of a module that is then what it was before; else they are not kept, so that no later run
    finds them.

    Raises:
        UnsupportedError: it changed.
    """
    features = made.features(x, batch_size, place)
    if _digest(made.module.cpu())[0] != made.digest:
        raise UnsupportedError(
            f"factory={factory!r}: the backbone changed while it computed features, so that those of a record depend "
            "on records before it. Its forward must not write to parameters, buffers or attributes."
        )
    made.module.to(place)
    return features


MORE_STEPS: Final[dict[str, Step]] = {NAME: backbone}
"""Steps of preprocessing that need models."""


def factories(steps: Sequence[Mapping[str, Any]]) -> list[str]:
    """Where the modules of all steps of this kind come from, as package.module:name."""
    return [str(step["factory"]) for step in steps if step.get("name") == NAME and "factory" in step]


def without_cache(steps: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The same steps, which leave no features on disk: for records that a finished model is asked about."""
    return [{key: step[key] for key in step if step.get("name") != NAME or key != "cache"} for step in steps]


def _digest(module: nn.Module) -> tuple[str, bool]:
    """(sha256 of what a frozen module on the CPU computes by, whether that is all)."""
    whole = object_digest(module)
    facts = [fixed_digest(module), structure(module), whole]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest(), whole is not None


def _check_layers(module: nn.Module) -> None:
    for path, layer in module.named_modules():
        place = f"layer {path or 'itself'} ({type(layer).__name__})"
        if layer.training:
            raise UnsupportedError(
                f"{place}: it stays in training mode after eval(), where layers mix records or draw at random. Let "
                "train(False) reach it."
            )
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and not frozen_norm(layer):
            raise UnsupportedError(
                f"{place}: it has no running statistics, so it normalises by the batch and mixes records. Use a "
                "pretrained one with track_running_stats=True, or nn.GroupNorm."
            )


def _check_trial(module: nn.Module, feature_shape: tuple[int, ...], batch_size: int) -> None:
    """Try it on made-up records, never on private ones.

    Raises:
        UnsupportedError: it fails, mixes records, is random, or makes no tensor of features.
    """
    like = torch.zeros((), dtype=torch.float32)
    x = made_up(module, feature_shape, like, max(independence.RECORDS, batch_size))
    before = fixed_digest(module)
    with torch.no_grad():
        first, again = (_rows(module(x), len(x)) for _ in range(2))
    if not bool(torch.isfinite(first).all()):
        raise UnsupportedError("the backbone's features are not finite on made-up records.")
    if not torch.equal(first, again) or fixed_digest(module) != before:
        raise UnsupportedError("the backbone gives other features the second time: it is random, or changes itself.")
    independence.check_outputs(module, x)


def _rows(outputs: Any, count: int) -> Tensor:
    """Features (n, *shape) of what a module returned."""
    if not isinstance(outputs, Tensor) or outputs.dim() < 1 or len(outputs) != count or not outputs.is_floating_point():
        what = (
            f"{outputs.dtype} {tuple(outputs.shape)}" if isinstance(outputs, Tensor) else f"a {type(outputs).__name__}"
        )
        raise UnsupportedError(
            f"the backbone must return one row of floats for each of {count} records, and returned {what}. Return one "
            "tensor, e.g. by dpfl_plugin.FieldsModel(module, fields, output='last_hidden_state') (docs/models.md)."
        )
    return outputs.reshape(count, 1) if outputs.dim() == 1 else outputs


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"device={name!r} cannot be used here: {str(error).splitlines()[0]}") from error
    return device


def _cache(
    federation: Federation, made: Backbone, base: Path, folder: str | None, how: list[Any]
) -> FeatureCache | None:
    if folder is None:
        return None
    if not made.known:
        federation.notes.append(
            "backbone: features are computed again each time, because no digest shows all that they depend on"
        )
        return None
    path = base / Path(folder).expanduser()
    federation.notes.append(KEPT.format(folder=path.absolute()))
    return FeatureCache(path, [made.digest, torch.__version__, *how])
