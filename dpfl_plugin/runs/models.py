"""What a run trains: the model, its loss, and the records as tensors that fit them."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from dpfl_plugin.config.schema import Config
from dpfl_plugin.core.outcome_counts import num_codes
from dpfl_plugin.core.outcomes import Outcome
from dpfl_plugin.core.validation_scores import ValidationScore
from dpfl_plugin.core.vectors import Layout
from dpfl_plugin.data.base import Holding, Survey
from dpfl_plugin.data.labels import Labels
from dpfl_plugin.data.names import called
from dpfl_plugin.errors import ConfigError, DataError, PluginError, UnsupportedError, nearest, told
from dpfl_plugin.gradients import base as engines
from dpfl_plugin.gradients import losses
from dpfl_plugin.gradients.base import Records
from dpfl_plugin.gradients.outcome_losses import labels_like
from dpfl_plugin.gradients.persons import MeanLoss, Persons
from dpfl_plugin.models.build import build_model, check_model
from dpfl_plugin.models.fields import fields_of
from dpfl_plugin.models.linear import predicting
from dpfl_plugin.runs.plugins import model_block
from dpfl_plugin.runs.privacy_rules import views_of

PROBABILISTIC: Final = ("auto", "cross_entropy", "logistic")
"""Losses of classes by which a model's outputs are log-odds."""


def model_and_loss(
    config: Config,
    holding: Holding,
    module: torch.nn.Module | None = None,
    loss: engines.Loss | None = None,
) -> tuple[torch.nn.Module, engines.Loss, torch.Tensor]:
    """(model, loss, two records of zeros for them), those given or those of the configuration.

    Raises:
        UnsupportedError: records are to have views, and are no images.
        DataError: a record is none of the model's fields.
    """
    known, words = holding.survey, any(silo.train_x.dtype.kind == "i" for silo in holding.silos.values())
    if (augmentation := views_of(config)) is not None:
        augmentation.check(known.feature_shape, real=not words)
    dtype, device = getattr(torch, config.runtime.dtype), usable_device(holding.device or config.runtime.device)
    if module is None:
        module = build_model(
            model_block(config.model), known.feature_shape, known.num_classes, config.public_seed, known.outcome
        )
    else:
        module = module.eval()
        check_model(module, known.feature_shape, words=words)
    check_fields(module, holding)
    trial = torch.zeros(2, *known.feature_shape, dtype=torch.int64 if words else dtype, device=device)
    module = module.to(device=device, dtype=dtype)
    chosen = _loss(config.loss if loss is None else loss, module, trial, known)
    weights = _class_weights(config, holding)
    if weights is not None:
        chosen = losses.Weighted(chosen, weights.to(device), balanced=config.class_weights == "balanced")
    return module, chosen, trial


def _class_weights(config: Config, holding: Holding) -> torch.Tensor | None:
    """(K,) float64 of each class; None without any. Those that follow from releases are 1 up to these.

    Raises:
        ConfigError: there is no such class. UnsupportedError: the outcome has none.
    """
    weights, known = config.class_weights, holding.survey
    if weights is None:
        return None
    if not known.outcome.has_classes:
        raise UnsupportedError(
            f"class_weights: an outcome of {known.outcome.kind} has no classes. Leave class_weights out."
        )
    numbers = [str(number) for number in range(known.num_classes)]
    names = list(known.inputs.classes) if known.inputs is not None and known.inputs.classes else numbers
    of = {} if isinstance(weights, str) else weights
    wrong = [name for name in of if name not in names]
    if wrong and holding.silos:  # whoever holds no records may not know names
        raise ConfigError(
            f"class_weights.{wrong[0]} is no class{nearest(wrong[0], names)}. Classes: {', '.join(names)}."
        )
    return torch.tensor([of.get(name, 1.0) for name in names], dtype=torch.float64)


def validation_score(
    config: Config, outcome: Outcome, num_classes: int, key: str | None = None
) -> ValidationScore | None:
    """What the validation scores of a run are the mean of; None where it has none.

    Args:
        key: which asks for them; None: that of the configuration.

    Raises:
        UnsupportedError: the outcome, or the loss, has no such measure.
    """
    scoring = config.scoring
    if scoring is None:
        return None
    try:
        score = ValidationScore.of(outcome, num_classes, scoring.measure, scoring.bound, scoring.bins)
    except ValueError as error:
        raise UnsupportedError(f"{key or scoring.key}.{error}") from error
    if score.measure == "log_loss" and config.loss not in PROBABILISTIC:
        raise UnsupportedError(
            f"{key or scoring.key}.measure='log_loss': outputs are log-odds by loss: {' or '.join(PROBABILISTIC)} "
            f"only, and loss is {config.loss!r}. Use measure: accuracy, or another loss."
        )
    return score


def check_begins(config: Config, module: torch.nn.Module, outcome: Outcome, num_classes: int) -> None:
    """Raise UnsupportedError where the model cannot begin with what counts of labels predict, and is to."""
    if config.private_statistics is not None and config.private_statistics.outcome:
        codes = num_codes(outcome, num_classes)
        predicting(module, outcome, [1 / codes] * codes)


def examples(
    config: Config, module: torch.nn.Module, loss: engines.Loss, shape: tuple[int, ...]
) -> tuple[torch.nn.Module, engines.Loss, tuple[int, ...]]:
    """(model, loss, shape of features) of what a gradient is clipped of: of records as they are, of their views, or of
    persons."""
    most = config.privacy.max_records_per_person if config.privacy.unit == "person" else None
    if config.augmentation is not None:
        most = config.augmentation.views
    if most is None:
        return module, loss, shape
    return Persons(module), MeanLoss(loss), (most, *shape)


def flat_model(module: torch.nn.Module) -> torch.Tensor:
    """The model (d,) that a run begins with."""
    return Layout.of(module).flatten(dict(module.named_parameters()))


def records_of(holding: Holding, like: torch.Tensor) -> tuple[dict[int, Records], dict[int, Records]]:
    """Training and test records by silo id, in the number format and on the device of ``like``; of test records those
    that can be used."""
    dtype, device = like.dtype, like.device
    train = {i: _records(s.train_x, s.train_y, s.usable, dtype, device) for i, s in holding.silos.items()}
    test = {i: _records(s.test_x, s.test_y, s.test_usable, dtype, device) for i, s in holding.silos.items()}
    return train, {i: records.only_usable() for i, records in test.items()}


def check_fields(module: torch.nn.Module, holding: Holding) -> None:
    """Raise DataError where a record has a word, or a category, that the model's fields do not have."""
    fields = fields_of(module)
    if fields is None:
        return
    alone = len(holding.survey.feature_shape) + 1
    for silo, records in holding.silos.items():
        for x, of in ((records.train_x, "trains on"), (records.test_x, "tests with")):
            problem = fields.wrong(torch.from_numpy(x).flatten(0, x.ndim - alone))  # with persons, those of each
            if problem is not None:
                what = f"record {problem[0]}" if x.ndim == alone else f"person {problem[0] // x.shape[1]}"
                where = f"{called(silo, holding.names)}, {what} (from 0) of those that it {of}"
                raise DataError(f"{where}: {problem[1]}")


def _loss(named: str | engines.Loss, module: torch.nn.Module, trial: torch.Tensor, known: Survey) -> engines.Loss:
    """The loss that a configuration names, for the outputs that the model has; or the one that is given."""
    with torch.no_grad():
        outputs = module.eval()(trial)
    num_outputs = 1 if outputs.dim() == 1 else int(outputs.shape[1])
    if isinstance(named, str):
        loss = losses.find(named, num_outputs, known.outcome, known.num_classes)
    else:
        loss = losses.given(named, known.outcome, known.num_classes)
    _check_loss(named if isinstance(named, str) else getattr(named, "__name__", repr(named)), loss, outputs)
    return loss


def _records(
    x: NDArray[np.float32], y: Labels, usable: NDArray[np.bool_] | None, dtype: torch.dtype, device: torch.device
) -> Records:
    features, labels = torch.from_numpy(x).to(device=device, dtype=dtype), torch.from_numpy(y).to(device)
    return Records(features, labels, usable=None if usable is None else torch.from_numpy(usable).to(device))


def _check_loss(name: str, loss: engines.Loss, outputs: torch.Tensor) -> None:
    labels = labels_like(loss, outputs)
    try:
        with torch.enable_grad():
            values = loss(outputs.detach().requires_grad_(), labels)
        shape, learns = tuple(values.shape), values.requires_grad
    except Exception as error:  # a stranger's code may fail in any way
        raise PluginError(f"loss={name!r} fails on made-up records: {told(error)}.") from error
    if shape != (len(outputs),):
        mend = " Use reduction='none'." if shape == () else ""
        raise PluginError(
            f"loss={name!r} must give one value for each record, ({len(outputs)},); it gives {shape}.{mend}"
        )
    if not learns:
        raise PluginError(
            f"loss={name!r} does not depend on the model's outputs as far as torch sees, so that nothing is learned by "
            "it. Compute it from them by functions of torch, without detach() or .item()."
        )


def usable_device(name: str) -> torch.device:
    """
    Raises:
        ConfigError: there is no such device here.
    """
    try:
        device = torch.device(name)
    except RuntimeError as error:  # whose message lists all that any torch knows
        raise ConfigError(f"runtime.device={name!r} is not a valid device; use cpu, cuda or cuda:N.") from error
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        count = torch.cuda.device_count()  # 0 without a driver, too
        there = f" Of GPUs torch sees {', '.join(f'cuda:{i}' for i in range(count))}." if count else ""
        message = str(error).splitlines()[0].removesuffix(".")
        raise ConfigError(f"runtime.device={name!r} cannot be used here: {message}.{there}") from error
    try:
        torch.empty(1, dtype=torch.float64, device=device)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(
            f"runtime.device={name!r} has no float64, in which sums and noise are computed; use cpu or cuda."
        ) from error
    return device
