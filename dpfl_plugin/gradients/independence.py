"""Whether what a record adds is its own: the same alone, and beside whatever other records, on made-up ones.

A model makes outputs of features, and a loss makes values of outputs and labels, so each is tried by itself: the
model's outputs and their derivatives by its parameters, the loss's values and their derivatives by outputs. Both at
the model's own parameters and at random ones, since at the former records may be alike: a softmax model that starts at
0 gives every record the same loss, whatever its label.

A trial finds what depends on other records for such numbers as it tries; no trial finds what does so for others alone.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from dpfl_plugin.core.streams import stream
from dpfl_plugin.errors import UnsupportedError, told
from dpfl_plugin.gradients.base import Loss
from dpfl_plugin.gradients.outcome_losses import examples_of
from dpfl_plugin.gradients.precision import passes

RECORDS: Final = 8  # of a trial
ALONE: Final = 3  # of them, those whose derivatives by the parameters are taken
SPREADS: Final = (0.0, 2.0)  # how far from the model's own parameters, in 1 / sqrt(inputs of a layer)
MOST_CLASSES: Final = 2 * RECORDS
MOST_IN_A_BATCH: Final = 512
MOST_FEATURES: Final = 2**18  # of a usual batch on which a model is tried: beyond that it would take seconds
VALUES: Final = 1e-4  # relative: rounding is far below it, mixing of the order of 1
# A unit that is at 0 but for rounding has one slope or the other, which float64 makes as good as impossible.
SLOPES: Final = {torch.float64: 1e-4, torch.float32: 1e-2}
PERIOD: Final = 65_521  # random numbers that are drawn, then repeated; a prime, so that rows of a matrix differ

MODEL_MIXES: Final = (
    "the model mixes the records of a batch: its output for a record depends on the other records, so no example has a "
    "gradient of its own. Normalise each record by itself, e.g. with nn.GroupNorm or nn.LayerNorm."
)
LOSS_MIXES: Final = (
    "a record's loss depends on the other records of its batch, so no example has a gradient of its own. The loss must "
    "be one of each record by itself (reduction='none'), with no weight, rank, mean or count taken over the batch."
)


def check(model: nn.Module, loss: Loss, features: Tensor, batch_size: int) -> Tensor:
    """Refuse a model or a loss that mixes records.

    Args:
        features: made up, (n, *feature_shape) with n = `RECORDS`, no two alike, on the model's device.
        batch_size: of a usual batch; the loss is tried on one of that size, too (`MOST_IN_A_BATCH` at most), and so is
            the model (as far as `MOST_FEATURES` go).

    Returns:
        Labels that the loss takes: classes (c,) int64, all that the outputs have room for, `MOST_CLASSES` at most; or
        the made-up ones (c, ...) of a loss of another outcome.

    Raises:
        UnsupportedError: records are mixed, or an output, a loss or a derivative is not finite, or something fails.
    """
    own = next(p.dtype for p in model.parameters() if p.requires_grad)
    for dtype in dict.fromkeys((torch.float64, own)):
        try:
            with torch.enable_grad(), passes("float32", features.device):
                return _check(model, loss, features, batch_size, dtype)
        except UnsupportedError:
            raise
        except Exception as error:  # a stranger's code may fail in any way, and need not know of float64
            if dtype == own:
                raise UnsupportedError(f"the model or its loss fails on made-up records: {told(error)}.") from error
    raise AssertionError("the model's own number format is tried last")


def check_outputs(model: nn.Module, features: Tensor) -> None:
    """Refuse a frozen model that mixes records: its outputs at its own parameters, and no derivatives.

    Args:
        features: as for `check`.

    Raises:
        UnsupportedError: records are mixed, an output is not finite, or the model fails.
    """
    own = next((p.dtype for p in model.parameters()), torch.float32)
    for dtype in dict.fromkeys((torch.float64, own)):
        try:
            with passes("float32", features.device):
                x = features.to(dtype) if features.is_floating_point() else features
                if _check_model(model, x, 0.0, dtype) is None:
                    raise UnsupportedError("the model's outputs are not finite on made-up records.")
                _check_scales(model, x, dtype)
                return
        except UnsupportedError:
            raise
        except Exception as error:  # a stranger's code may fail in any way, and need not know of float64
            if dtype == own:
                raise UnsupportedError(f"the model fails on made-up records: {told(error)}.") from error


def _check(model: nn.Module, loss: Loss, features: Tensor, batch_size: int, dtype: torch.dtype) -> Tensor:
    x = features.to(dtype) if features.is_floating_point() else features
    outputs = []
    usual = min(batch_size, MOST_IN_A_BATCH, MOST_FEATURES // max(1, x[0].numel()))
    for spread in SPREADS:
        found = _check_model(model, x, spread, dtype, usual)
        if found is None and spread > 0:
            found = _check_model(model, x, spread / 64, dtype, usual)
        if found is None:
            where = "at" if spread == 0 else "near"
            raise UnsupportedError(
                f"the model's outputs, or their derivatives, are not finite on made-up records, {where} the parameters "
                "that it starts with."
            )
        outputs.append(found)
    _check_scales(model, x, dtype)
    _check_layers(model, x, dtype)
    return _LossTrial(loss, outputs, batch_size).check()


def _check_model(model: nn.Module, x: Tensor, spread: float, dtype: torch.dtype, usual: int = 0) -> Tensor | None:
    """(n, ...) the outputs for ``x`` (n, ...) at parameters ``spread`` away; None if something there is not finite.

    usual: records of a batch as large as the model will get, which are ``x`` repeated.
    """
    values = _values(model, spread, dtype)
    run: Callable[[Tensor], Tensor] = functools.partial(_run, model, values, dtype)
    with torch.no_grad():
        expected = torch.cat([run(x[row : row + 1]) for row in range(ALONE)])
        # Among more records, and each of them at another place.
        outputs = run(x.flip(0)).flip(0)
        if not (math.isfinite(float(expected.sum())) and math.isfinite(float(outputs.sum()))):
            return None
        batches = [x[:ALONE]]
        if spread and usual > len(x):  # at its own parameters a model's outputs may be alike whatever it does
            batches.append(x.repeat(-(-usual // len(x)), *[1] * (x.dim() - 1))[:usual])
        for found in (outputs[:ALONE], *(run(batch)[:ALONE] for batch in batches)):
            if not _rows_alike(found, expected, VALUES):
                raise UnsupportedError(MODEL_MIXES)
    if spread and not _check_slopes(run, x, [value for value in values.values() if value.requires_grad], expected):
        return None
    return outputs


def _check_scales(model: nn.Module, x: Tensor, dtype: torch.dtype) -> None:
    """The same beside records of other scales: a layer that looks whether there are pixels up to 255 looks at all."""
    if not x.is_floating_point() or torch.equal(x, x.round()):  # words have no scale
        return
    within = x.sigmoid()
    several = [within, x, 255.0 * within, 100.0 * x]
    rows = [several[row % len(several)][row] for row in range(len(x))]
    for spread in (0.0, SPREADS[-1]):
        try:
            _check_model(model, torch.stack(rows), spread, dtype)
        except UnsupportedError:
            raise
        except Exception:  # what is made for records of one scale may fail at another
            return


def _check_layers(model: nn.Module, x: Tensor, dtype: torch.dtype) -> None:
    """The same of torch's own layers, each by itself on numbers of its own: those before may keep from it, of made-up
    records, what they let pass of others."""
    with torch.no_grad():
        few, many = (_seen(model, x[:count], dtype) for count in (ALONE, len(x)))
        for layer, shape in many.items():
            of_records = shape[:1] == x.shape[:1] and few.get(layer) == (ALONE, *shape[1:])
            if of_records and _mixes(layer, shape, x.device):
                raise UnsupportedError(f"{MODEL_MIXES} Here it is {type(layer).__name__} that mixes them.")


def _seen(model: nn.Module, x: Tensor, dtype: torch.dtype) -> dict[nn.Module, torch.Size]:
    """Layers of torch's that are given one tensor of numbers, and the shape of the last that they were given."""
    found: dict[nn.Module, torch.Size] = {}

    def see(layer: nn.Module, given: tuple[object, ...]) -> None:
        if len(given) == 1 and isinstance(given[0], Tensor) and given[0].is_floating_point():
            found[layer] = given[0].shape

    kinds = [(one, type(one).__module__) for one in model.modules()]
    own = [one for one, of in kinds if of.startswith("torch.nn.modules.") and not of.endswith(".container")]
    handles = [layer.register_forward_pre_hook(see) for layer in own]
    try:
        _run(model, _values(model, 0.0, dtype), dtype, x)
    finally:
        for handle in handles:
            handle.remove()
    return found


def _mixes(layer: nn.Module, shape: torch.Size, device: torch.device) -> bool:
    """Whether what it makes of a row of normals (n, ...) depends on the other rows; False where it cannot be told."""
    own = next((value.dtype for value in (*layer.parameters(), *layer.buffers())), torch.float64)
    given = _normals(tuple(shape), 0).to(device, own if own.is_floating_point else torch.float64)
    try:
        together = layer(given)
        alone = torch.cat([layer(given[row : row + 1]) for row in range(ALONE)])
        found = together[:ALONE]
        finite = bool(torch.isfinite(alone).all()) and bool(torch.isfinite(found).all())
        return finite and not _rows_alike(found, alone, VALUES)
    except Exception:  # it may take other numbers only, or give no tensor
        return False


def _check_slopes(run: Callable[[Tensor], Tensor], x: Tensor, trained: list[Tensor], expected: Tensor) -> bool:
    """Whether derivatives are finite; where outputs have the values ``expected`` when records are alone."""
    weights = _normals(tuple(expected.shape), 0).to(expected)
    found = _derivatives(weights * run(x[:ALONE]), trained)
    size = 0.0
    for row in range(ALONE):
        slopes = _derivatives(weights[row] * run(x[row : row + 1]), trained)
        size += sum(float(slope.norm()) for slope in slopes)
        for total, slope in zip(found, slopes, strict=True):
            total -= slope
    if not math.isfinite(size):
        return False
    if not sum(float(rest.norm()) for rest in found) <= SLOPES[expected.dtype] * size:
        raise UnsupportedError(MODEL_MIXES)
    return True


def _run(model: nn.Module, values: dict[str, Tensor], dtype: torch.dtype, x: Tensor) -> Tensor:
    outputs: Tensor = functional_call(model, values, (x,))
    return outputs.to(dtype)


def _values(model: nn.Module, spread: float, dtype: torch.dtype) -> dict[str, Tensor]:
    """The model's buffers, and its parameters plus normals of deviation ``spread`` / sqrt(inputs of a layer)."""
    values = {name: value.detach() for name, value in (*model.named_buffers(), *model.named_parameters())}
    values = {name: value.to(dtype) if value.is_floating_point() else value for name, value in values.items()}
    for index, (name, parameter) in enumerate(model.named_parameters()):
        if parameter.requires_grad and parameter.numel():
            inputs = parameter.numel() / (len(parameter) if parameter.dim() > 1 else 1)
            moved = values[name].clone()
            if spread:
                moved += spread / math.sqrt(inputs) * _normals(moved.shape, 1 + index).to(moved)
            values[name] = moved.requires_grad_()
    return values


def _normals(shape: tuple[int, ...], step: int) -> Tensor:
    """Standard normals of a stream of their own, repeated after `PERIOD`."""
    count = math.prod(shape)
    drawn = stream(0, "trial", step=step).standard_normal(min(count, PERIOD))
    return torch.from_numpy(np.resize(drawn, count).reshape(shape))


def _derivatives(values: Tensor, by: list[Tensor]) -> list[Tensor]:
    if not values.requires_grad:
        return [torch.zeros_like(one) for one in by]
    found = torch.autograd.grad(values.sum(), by, allow_unused=True)
    return [torch.zeros_like(one) if slope is None else slope for slope, one in zip(found, by, strict=True)]


class _LossTrial:
    """A loss, on outputs that the model gives."""

    def __init__(self, loss: Loss, outputs: list[Tensor], batch_size: int) -> None:
        """
        Args:
            outputs: (n, ...) at the model's own parameters, and at others.
        """
        first, *others = (one.detach() for one in outputs)
        self._loss, self._batch_size = loss, batch_size
        # At the model's own parameters they may all be alike.
        self._outputs, self._at_start = torch.cat([first[:ALONE], *others]), ALONE
        self._alone: dict[tuple[int, int], tuple[Tensor, Tensor] | None] = {}
        self._taken = self._labels()

    def check(self) -> Tensor:
        # Labels are called by their places among those that the loss takes.
        classes, count = range(len(self._taken)), len(self._outputs)
        every = list(range(count))
        # Neighbours differ in their class; or nearly all are of one class, the first or the last.
        mixed = [(row, classes[row % len(classes)]) for row in every]
        first = [(row, classes[0 if row % 5 else -1]) for row in every]
        last = [(row, classes[-1 if row % 5 else 0]) for row in every]
        pairs = list(dict.fromkeys(mixed + first + last))
        finite = [pair for pair in pairs if self._is_finite(pair)]
        if len(finite) < len(pairs) // 2:
            raise self._not_finite()
        mixed, first, last = ([one for one in batch if one in finite] for batch in (mixed, first, last))
        size = max(2 * len(finite), min(self._batch_size, MOST_IN_A_BATCH))
        usual = [finite[index % len(finite)] for index in range(size)]
        equal = [one for one in first if one[1] == classes[0]]
        for batch in (mixed, mixed[::-1][:RECORDS], mixed[1:4], mixed[-3:], first, last, first[4:7], equal, usual):
            self._check_batch(batch)
        return self._taken

    def _labels(self) -> Tensor:
        """Labels (c, ...) that the loss takes."""
        outputs = self._outputs
        made_up = examples_of(self._loss, outputs.shape[1] if outputs.dim() > 1 else 1)
        return torch.tensor(self._classes(), device=outputs.device) if made_up is None else made_up.to(outputs.device)

    def _classes(self) -> list[int]:
        """Classes that the outputs have room for, and that the loss takes; the first and last of them, if many."""
        outputs = self._outputs
        room = outputs.shape[1] if outputs.dim() > 1 and outputs.shape[1] > 1 else 2
        some = [*range(MOST_CLASSES - 1), room - 1] if room > MOST_CLASSES else list(range(room))
        taken = [0]  # without which nothing can be tried: what it raises is told
        for label in some[1:]:
            try:
                self._loss(outputs[:1], torch.full((1,), label, device=outputs.device))
            except Exception:  # a stranger's loss may take fewer classes, and refuse others in any way
                continue
            taken.append(label)
        return taken

    def _is_finite(self, pair: tuple[int, int]) -> bool:
        """
        Raises:
            UnsupportedError: it is not, and the outputs are those at the model's own parameters.
        """
        value, slope = self._values([pair], torch.ones(1).to(self._outputs))
        finite = bool(torch.isfinite(value).all()) and bool(torch.isfinite(slope).all())
        if not finite and pair[0] < self._at_start:
            raise self._not_finite(float(value[0]))
        self._alone[pair] = (value, slope) if finite else None
        return finite

    @staticmethod
    def _not_finite(value: float = math.nan) -> UnsupportedError:
        what = "its derivative by the model's outputs" if math.isfinite(value) else f"it is {value}"
        return UnsupportedError(
            f"the loss is not finite on made-up records ({what}). Keep logarithms, roots and quotients away from 0, "
            "e.g. by functions of torch.nn.functional that take outputs before softmax or sigmoid."
        )

    def _check_batch(self, batch: list[tuple[int, int]]) -> None:
        known = [self._alone[pair] for pair in batch]
        values, slopes = (torch.cat(parts) for parts in zip(*(one for one in known if one is not None), strict=True))
        weights = 1 + _normals((len(batch),), 0).to(values)
        found, derivatives = self._values(batch, weights)
        expected = weights.view(-1, *[1] * (slopes.dim() - 1)) * slopes
        tolerance = SLOPES[values.dtype]
        if not (_rows_alike(found, values, VALUES) and _rows_alike(derivatives, expected, tolerance)):
            raise UnsupportedError(LOSS_MIXES)

    def _values(self, batch: list[tuple[int, int]], weights: Tensor) -> tuple[Tensor, Tensor]:
        """Losses (b,) of (row, label) pairs, and the derivatives of their weighted sum by the outputs (b, ...)."""
        outputs = self._outputs[[row for row, _ in batch]].requires_grad_()
        labels = self._taken[[label for _, label in batch]]
        values = self._loss(outputs, labels)
        if values.numel() != len(batch):
            raise UnsupportedError(
                f"the loss must give one value for each record, ({len(batch)},); it gives {tuple(values.shape)}. "
                "Use reduction='none'."
            )
        values = values.reshape(len(batch)).to(outputs)
        (slopes,) = _derivatives(weights * values, [outputs])
        return values.detach(), slopes


def _rows_alike(a: Tensor, b: Tensor, tolerance: float) -> bool:
    """Whether each row is, against its own size and the typical one: a record may have a loss of nearly 0."""
    if a.shape != b.shape:
        return False
    a, b = a.reshape(len(a), -1), b.reshape(len(b), -1)
    sizes: Tensor = torch.linalg.vector_norm(b, dim=1)
    return bool((torch.linalg.vector_norm(a - b, dim=1) <= tolerance * (sizes + sizes.mean())).all())
