"""What a run trains: the model, its loss, and the records as tensors that fit them."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from dpfl_plugin.config.schema import Config
from dpfl_plugin.core.vectors import Layout
from dpfl_plugin.data.base import Holding
from dpfl_plugin.errors import ConfigError, PluginError, told
from dpfl_plugin.gradients import base as engines
from dpfl_plugin.gradients import losses
from dpfl_plugin.gradients.base import Records
from dpfl_plugin.models.build import build_model, check_model
from dpfl_plugin.training.plugins import model_block


def model_and_loss(
    config: Config,
    holding: Holding,
    module: torch.nn.Module | None = None,
    loss: engines.Loss | None = None,
) -> tuple[torch.nn.Module, engines.Loss, torch.Tensor]:
    """(model, loss, two records of zeros for them), those given or those of the configuration."""
    known, words = holding.survey, any(silo.train_x.dtype.kind == "i" for silo in holding.silos.values())
    dtype, device = getattr(torch, config.runtime.dtype), _device(holding.device or config.runtime.device)
    if module is None:
        module = build_model(model_block(config.model), known.feature_shape, known.num_classes, config.seed)
    else:
        module = module.eval()
        check_model(module, known.feature_shape, words=words)
    trial = torch.zeros(2, *known.feature_shape, dtype=torch.int64 if words else dtype, device=device)
    module = module.to(device=device, dtype=dtype)
    return module, _loss(config.loss if loss is None else loss, module, trial), trial


def flat_model(module: torch.nn.Module) -> torch.Tensor:
    """The model (d,) that a run begins with."""
    return Layout.of(module).flatten(dict(module.named_parameters()))


def records_of(holding: Holding, like: torch.Tensor) -> tuple[dict[int, Records], dict[int, Records]]:
    """Training and test records by silo id, in the number format and on the device of ``like``."""
    dtype, device = like.dtype, like.device
    train = {i: _records(s.train_x, s.train_y, dtype, device) for i, s in holding.silos.items()}
    return train, {i: _records(s.test_x, s.test_y, dtype, device) for i, s in holding.silos.items()}


def _loss(named: str | engines.Loss, module: torch.nn.Module, trial: torch.Tensor) -> engines.Loss:
    """The loss that a configuration names, for the outputs that the model has; or the one that is given."""
    with torch.no_grad():
        outputs = module.eval()(trial)
    loss = losses.find(named, 1 if outputs.dim() == 1 else int(outputs.shape[1])) if isinstance(named, str) else named
    _check_loss(named if isinstance(named, str) else getattr(named, "__name__", repr(named)), loss, outputs)
    return loss


def _records(x: NDArray[np.float32], y: NDArray[np.int64], dtype: torch.dtype, device: torch.device) -> Records:
    return Records(torch.from_numpy(x).to(device=device, dtype=dtype), torch.from_numpy(y).to(device))


def _check_loss(name: str, loss: engines.Loss, outputs: torch.Tensor) -> None:
    labels = torch.zeros(len(outputs), dtype=torch.int64, device=outputs.device)
    try:
        with torch.enable_grad():
            values = loss(outputs.detach().requires_grad_(), labels)
        shape, learns = tuple(values.shape), values.requires_grad
    except Exception as error:  # a stranger's code may fail in any way
        raise PluginError(f"loss={name!r} fails on made-up records: {told(error)}.") from error
    if shape != (len(outputs),):
        raise PluginError(f"loss={name!r} must give one value for each record, ({len(outputs)},); it gives {shape}.")
    if not learns:
        raise PluginError(
            f"loss={name!r} does not depend on the model's outputs as far as torch sees, so that nothing is learned by "
            "it. Compute it from them by functions of torch, without detach() or .item()."
        )


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError as error:  # whose message lists all that any torch knows
        raise ConfigError(f"runtime.device={name!r} is not a valid device; use cpu, cuda or cuda:N.") from error
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"runtime.device={name!r} cannot be used here: {str(error).splitlines()[0]}") from error
    return device
