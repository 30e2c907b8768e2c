"""Which engine a run uses: the cheapest, by a cost model, of those that compute its model exactly.

The choice depends on the model, the loss, the batch size and the kind of device, never on a clock: a run that is
resumed, or repeated elsewhere, has to make the same one.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, cast

import numpy as np
import torch
from torch import Tensor, nn

from dpfl_plugin import registry
from dpfl_plugin.core import heap
from dpfl_plugin.core.balls import LEAST_CLIP_NORM, MOST_CLIP_NORM, Normalised
from dpfl_plugin.core.vectors import Layout
from dpfl_plugin.errors import UnsupportedError, told
from dpfl_plugin.gradients import costs, independence
from dpfl_plugin.gradients.base import Engine, Loss, Records, in_place, mixing
from dpfl_plugin.gradients.opacus import REPLACEMENTS, replacement
from dpfl_plugin.gradients.persons import MeanLoss, Persons, some_labels
from dpfl_plugin.gradients.precision import Precision, check, passes, unreduced
from dpfl_plugin.gradients.stacked import Pool
from dpfl_plugin.gradients.trace import Trace, trace
from dpfl_plugin.models.fixed import attributes

# Of sums, relative to the norms of what is added up; what an engine is meant to find is of the order of 1.
TRIAL_TOLERANCE: Final[dict[Precision, float]] = {"float32": 1e-3, "tf32": 1e-2, "bf16": 0.1}
GENERAL = "vmap"  # what an engine without a cost model is taken to be no slower than

PassedTrials = dict[Hashable, dict[type, Tensor]]
"""Trials that need not be repeated in a process: {subject: {kind of engine: the labels that it was tried with}}."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """On what terms an engine is chosen.

    Attributes:
        chunk_bytes: for the gradients of single examples at a time; most_bytes: what there is for one example.
        batch_size: of a usual batch.
        precision: of forward and backward passes.
        lockstep: whether silos are answered together, where an engine can do that.
        normalised: whether gradients are scaled to C instead of clipped.
        compiled: whether the run is long enough for loops that take a while to load.
        in_place: whether the engine has to have its like that calls the model itself.
    """

    chunk_bytes: int
    most_bytes: float = math.inf
    batch_size: int = 64
    precision: Precision = "float32"
    lockstep: bool = False
    normalised: bool = False
    compiled: bool = True
    in_place: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """An engine, as `dpfl list engines --for CONFIG` shows it.

    Attributes:
        microseconds: what the cost model says of a clipped sum over a batch; None where it says nothing.
        engine: None where it does not support the model; then ``reason`` says why not.
    """

    name: str
    microseconds: float | None
    engine: Engine | None = None
    reason: str = ""


def made_up(model: nn.Module, feature_shape: tuple[int, ...], like: Tensor, count: int = 3) -> Tensor:
    """Features of ``count`` records that the model can be run on: normal numbers, else 0 and 1 for models of words.

    Raises:
        UnsupportedError: it fails on both.
    """
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(count, *feature_shape, generator=generator).to(like)
    words = torch.randint(0, 2, normal.shape, generator=generator).to(like)
    failures = []
    for features in (normal, words):
        try:
            with torch.no_grad():
                model(features)
        except Exception as error:  # a stranger's model may fail in any way
            failures.append(told(error))
        else:
            return features
    raise UnsupportedError(
        f"the model fails on made-up records of shape {tuple(normal.shape)}: {failures[0]}; and on zeros and ones: "
        f"{failures[1]}."
    )


def choose(
    name: str, model: nn.Module, loss: Loss, terms: Terms, trial: Tensor, passed: PassedTrials | None = None
) -> tuple[Engine, str]:
    """The engine ``name``, or for "auto" the cheapest that supports the model; and the reason in words.

    Args:
        trial: made-up features (n, *feature_shape) on the model's device: what an engine cannot tell from the model's
            layers shows when it runs.
        passed: trials that this process need not repeat.

    Raises:
        UnsupportedError: no engine, or not the one that was named, supports the model.
    """
    expected = _Trial(model, loss, terms, trial, passed)
    if name != "auto":
        engine, reason = _make(name, model, loss, terms, expected)
        if engine is None:
            raise unusable(name, reason)
        return engine, "named in the configuration"
    refused: list[str] = []
    for candidate, microseconds in _by_cost(trace(model, loss, trial), terms.batch_size, trial.device):
        engine, reason = _make(candidate, model, loss, terms, expected)
        if engine is not None:
            return engine, _reason(model, candidate, microseconds, refused, terms.batch_size)
        refused.append(f"{candidate}: {reason}")
    raise none(model, refused)


def none(model: nn.Module, reasons: Sequence[str] = ()) -> UnsupportedError:
    """What is said where no engine supports ``model``: ``reasons``, one a line, and then what to do."""
    layers = [(path, layer) for path, layer in model.named_modules() if type(layer) in REPLACEMENTS]
    mend = " ".join(f"{path or 'the model'}: {replacement(layer)}" for path, layer in layers)
    lines = ["no engine supports this model.", *(f"  {reason}." for reason in reasons)]
    mend = mend or "Rewrite what they name: docs/engines.md says what to use instead."
    return UnsupportedError("\n".join([*lines, mend]))


def unusable(name: str, reason: str) -> UnsupportedError:
    """What is said where the configuration names an engine that does not support the model."""
    return UnsupportedError(f"engine={name!r} cannot be used: {reason}. Use engine: auto.")


def candidates(model: nn.Module, loss: Loss, terms: Terms, trial: Tensor) -> list[Candidate]:
    """All engines, cheapest first, each of them tried."""
    expected, found = _Trial(model, loss, terms, trial), []
    for name, microseconds in _by_cost(trace(model, loss, trial), terms.batch_size, trial.device):
        engine, reason = _make(name, model, loss, terms, expected)
        found.append(Candidate(name=name, microseconds=microseconds, engine=engine, reason=reason))
    return found


def _by_cost(traced: Trace, batch_size: int, device: torch.device) -> list[tuple[str, float | None]]:
    """Engines and what they would take, in microseconds; those without a cost model come before the general one."""
    known = {name: costs.microseconds(name, traced, batch_size, device.type) for name in registry.names("engines")}
    general = known[GENERAL]
    assert general is not None
    return sorted(
        known.items(), key=lambda item: (general if item[1] is None else item[1], item[1] is not None, item[0])
    )


def _reason(model: nn.Module, name: str, estimate: float | None, refused: list[str], batch_size: int) -> str:
    cost = "no estimate" if estimate is None else f"estimated {estimate:,.0f} us for {batch_size} records"
    text = f"{cost}, the least of those that support this model"
    if refused:
        text += f" (not {', '.join(reason.partition(':')[0] for reason in refused)})"
    return "; ".join([text, *faster(model, name)])


def faster(model: nn.Module, name: str) -> list[str]:
    """What to write in a model so that another engine than this one could compute it, in less time."""
    if name != GENERAL:
        return []
    layers = [(path, layer) for path, layer in model.named_modules() if type(layer) in REPLACEMENTS]
    return [f"{path}: {replacement(layer)} Other engines are faster with that" for path, layer in layers]


@dataclass(frozen=True, slots=True)
class _Expected:
    """What autograd says of made-up records, one at a time.

    Attributes:
        y: the model's parameters (d,); rows: gradients (n, d).
    """

    y: Tensor
    features: Tensor
    labels: Tensor
    rows: Tensor

    @classmethod
    def of(cls, model: nn.Module, loss: Loss, features: Tensor, terms: Terms) -> _Expected:
        """
        Raises:
            UnsupportedError: records are mixed, by the model or by the loss, or the precision cannot be had.
        """
        parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        layout, rows = Layout.of(model), []
        y = layout.flatten(parameters)
        check(terms.precision, y)
        if reason := mixing(model):
            raise UnsupportedError(f"{reason}.")
        net, of_one, shape = model, loss, tuple(features.shape[1:])
        if isinstance(model, Persons):  # each record of a person by itself, which is more than is needed
            net, of_one, shape = model.net, cast(MeanLoss, loss).loss, shape[1:]
        several = made_up(net, shape, features, independence.RECORDS)
        classes = independence.check(net, of_one, several, terms.batch_size)
        heap.give_back()
        labels = some_labels(model, features, classes)
        with torch.enable_grad(), passes("float32", features.device):
            for row in range(len(features)):
                value = loss(model(features[row : row + 1]), labels[row : row + 1]).sum()
                gradients = torch.autograd.grad(
                    value, list(parameters.values()), allow_unused=True, materialize_grads=True
                )
                rows.append(layout.flatten(dict(zip(parameters, gradients, strict=True))))
        if not all(math.isfinite(float(row.norm())) for row in rows):
            raise UnsupportedError(
                "a gradient is not finite on made-up records, at the parameters that the model starts with."
            )
        expected = cls(y, features, labels, torch.stack(rows))
        del rows, value, gradients
        heap.give_back()
        return expected

    @property
    def half(self) -> float:
        """Half the length of a gradient: a clipping norm that most of them meet."""
        return min(max(float(self.rows.norm(dim=1).median()) / 2, LEAST_CLIP_NORM), MOST_CLIP_NORM)

    def scaling(self, engine: Engine, terms: Terms) -> tuple[Normalised, ...]:
        """What gradients are scaled to in a trial, where a run does that and the engine says that it can."""
        asked = terms.normalised and getattr(engine, "normalises", False)
        return (Normalised(self.half, self.half),) if asked else ()

    def tolerance(self, clip_norm: float, precision: Precision) -> float:
        """By how much the sum of clipped gradients may differ."""
        lengths = self.rows.norm(dim=1).clamp(max=clip_norm)
        return TRIAL_TOLERANCE[precision] * float(lengths.sum()) + torch.finfo(self.rows.dtype).eps

    def clipped(self, clip_norm: float) -> Tensor:
        """(d,) the sum of clipped gradients."""
        if clip_norm == math.inf:
            return self.rows.sum(dim=0)
        # In float64: torch's norms of millions of float32 numbers are too short to compare anything with. One by one,
        # since torch copies what it sums so.
        lengths = [float(torch.linalg.vector_norm(row, dtype=torch.float64)) for row in self.rows]
        norms = torch.tensor(lengths, dtype=torch.float64, device=self.rows.device)
        scaled = norms + clip_norm.gamma if isinstance(clip_norm, Normalised) else norms.clamp(min=clip_norm)
        scale: Tensor = (clip_norm / scaled).to(self.rows)
        return scale @ self.rows


class _Trial:
    """What an engine is tried on; worked out where it is not known that one passed."""

    def __init__(
        self, model: nn.Module, loss: Loss, terms: Terms, features: Tensor, passed: PassedTrials | None = None
    ) -> None:
        self._model, self._loss, self._terms, self._features = model, loss, terms, features
        subject = None if passed is None else _subject(model, loss, terms, features)
        self._labels: dict[type, Tensor] = {}
        if passed is not None and subject is not None:
            self._labels = passed.setdefault(subject, {})
        if not self._labels:
            self.expected  # noqa: B018, records that are mixed are refused before any engine is made

    @functools.cached_property
    def expected(self) -> _Expected:
        return _Expected.of(self._model, self._loss, self._features, self._terms)

    @property
    def device(self) -> torch.device:
        return self._features.device

    def passed(self, kind: type) -> tuple[Tensor, Records] | None:
        """(y, the records) of a trial that this kind of engine passed before; None where that is not known."""
        if kind not in self._labels:
            return None
        parameters = {name: p.detach() for name, p in self._model.named_parameters() if p.requires_grad}
        return Layout.of(self._model).flatten(parameters), Records(self._features, self._labels[kind])

    def keep(self, kind: type) -> None:
        """This kind of engine passed."""
        self._labels[kind] = self.expected.labels


def _subject(model: nn.Module, loss: Loss, terms: Terms, features: Tensor) -> Hashable | None:
    """What decides how a trial ends, but for the values of tensors; None where that cannot be compared."""
    built = attributes(model)
    if built is None or not isinstance(loss, Hashable):
        return None
    named = {**dict(model.named_parameters()), **dict(model.named_buffers()), "": features}
    tensors = tuple((name, one.shape, one.dtype, one.device, one.requires_grad) for name, one in named.items())
    return loss, built, tensors, replace(terms, most_bytes=math.inf)


def _make(name: str, model: nn.Module, loss: Loss, terms: Terms, trial: _Trial) -> tuple[Engine | None, str]:
    """The engine, or None and why it does not support the model."""
    kind: Any = registry.load("engines", name)
    if isinstance(model, Persons) and not getattr(kind, "persons", False):
        return None, "it has no gradients of persons (privacy.unit: person), or of views of records (augmentation)"
    reason = kind.unsupported(model, loss)
    if reason is not None:
        return None, reason.removesuffix(".")
    reduced = () if terms.precision == "float32" else (terms.precision,)
    if reduced and terms.precision not in getattr(kind, "precisions", ()):
        return None, f"it computes in full precision only, and runtime.precision is {terms.precision}"
    try:
        options = {"compiled": terms.compiled} if getattr(kind, "compiles", False) else {}
        engine: Engine = kind(model, loss, terms.chunk_bytes, *reduced, **options)
        if terms.in_place and in_place(engine, model) is None:
            return None, "it does not call the model itself, and attributes that cannot be pickled cannot be compared"
        with torch.no_grad(), unreduced(trial.device):
            if (known := trial.passed(kind)) is not None:  # but there may be less memory now
                reason = _too_large(engine, terms, *known)
                return (engine, "") if reason is None else (None, reason)
            expected = trial.expected
            reason = (
                _too_large(engine, terms, expected.y, Records(expected.features, expected.labels))
                or _tried(engine, expected, terms)
                or (_tried_together(engine, expected, terms) if terms.lockstep else None)
            )
    except UnsupportedError as error:
        return None, str(error).removesuffix(".")
    except Exception as error:  # an engine of a stranger, or one that meets a stranger's model, may fail in any way
        return None, f"it fails on made-up records: {told(error)}"
    heap.give_back()
    if reason is not None:
        return None, reason
    trial.keep(kind)
    return engine, ""


def _too_large(engine: Engine, terms: Terms, y: Tensor, records: Records) -> str | None:
    tell = getattr(engine, "record_bytes", None)
    needed = 0 if tell is None else tell(y, records)
    if needed <= terms.most_bytes:
        return None
    return (
        f"one record takes {needed / 2**20:,.0f} MiB, where runtime.memory_budget leaves "
        f"{terms.most_bytes / 2**20:,.0f} MiB besides everything else the run has to hold"
    )


def _tried(engine: Engine, expected: _Expected, terms: Terms) -> str | None:
    """None if the engine's sums over made-up records are those of autograd's gradients one by one, else what is not.

    Unclipped, clipped and one at a time: an engine that gives one record's gradient to another, or one that meets a
    layer used in a way which it does not see, may get one of these right.
    """
    y = expected.y
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is a performance drop")  # the cost model has it, for torch's nn.LSTM
        batch = engine.prepare(Records(expected.features, expected.labels))
        found, alone, one = (torch.empty_like(y, dtype=torch.float64) for _ in range(3))
        for bound in (math.inf, expected.half, *expected.scaling(engine, terms)):
            found.fill_(math.nan)
            alone.zero_()
            engine.clipped_sum(y, batch, bound, found)
            for row in range(len(batch)):
                one.fill_(math.nan)
                engine.clipped_sum(y, batch.between(row, row + 1), bound, one)
                alone += one
            sought, tolerance = expected.clipped(bound), expected.tolerance(bound, terms.precision)
            how = "gradients" if bound == math.inf else "clipped gradients"
            # In place: a model may be so large that each further vector counts (memory.TRIAL_VECTORS).
            if not float(found.sub_(sought).norm()) <= tolerance or not float(alone.sub_(sought).norm()) <= tolerance:
                return f"its {how} on made-up records are not autograd's"
            del sought
    return None


def _tried_together(engine: Engine, expected: _Expected, terms: Terms) -> str | None:
    """As `_tried`, for three silos at once: all records, one, and none, each with a clipping norm of its own."""
    answer = getattr(engine, "clipped_sums", None)
    if answer is None:
        return None
    y, c = expected.y, expected.half
    rows = [np.arange(count) for count in (len(expected.rows), 1, 0)]
    batches = Pool({0: engine.prepare(Records(expected.features, expected.labels))}).gather([0, 0, 0], rows)
    for bounds in ((math.inf,) * 3, (c, c / 2, c), *((scaled,) * 3 for scaled in expected.scaling(engine, terms))):
        found = y.new_full((3, len(y)), math.nan, dtype=torch.float64)
        clip_norms = None if bounds[0] == math.inf else torch.tensor(bounds, dtype=torch.float64).to(y.device)
        how = (bounds[0].gamma,) if isinstance(bounds[0], Normalised) else ()
        answer(y.expand(3, -1), batches, None if clip_norms is None else clip_norms.unsqueeze(1), found, *how)
        for index, bound, sums in zip(rows, bounds, found, strict=True):
            part = replace(expected, rows=expected.rows[: len(index)])
            if not float((sums - part.clipped(bound)).norm()) <= part.tolerance(bound, terms.precision):
                return "its gradients of several silos at once, on made-up records, are not autograd's"
    return None
