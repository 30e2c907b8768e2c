"""Trials of engines that passed: what is the same for the next silo of a process is not tried again."""

from __future__ import annotations

import json
import math
import threading
from collections import deque
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

from dpfl_plugin.core.requests import request_digest
from dpfl_plugin.gradients.base import Loss
from dpfl_plugin.gradients.precision import Precision
from dpfl_plugin.models.attributes import describe

MOST: Final = 32  # trials that are remembered


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """On what terms an engine is chosen.

    Attributes:
        chunk_bytes: for the gradients of single examples at a time; most_bytes: what there is for one example.
        batch_size: of a usual batch.
        precision: of forward and backward passes.
        lockstep: whether silos are answered together, where an engine can do that.
        normalised: whether gradients are scaled to C instead of clipped.
    """

    chunk_bytes: int
    most_bytes: float = math.inf
    batch_size: int = 64
    precision: Precision = "float32"
    lockstep: bool = False
    normalised: bool = False


@dataclass(frozen=True, slots=True)
class Subject:
    """All that decides how a trial ends, but for the engine, the versions of what is installed and torch's settings.

    Attributes:
        facts: what decides what model and loss compute (`models.attributes`), every parameter and buffer, which of them
            train, and whether layers are in training mode; the made-up features; the terms, but for the memory that is
            left, which is looked at each time.
        code: the functions and classes of model and loss, which are compared by their identity.
    """

    facts: str
    code: tuple[Any, ...]

    @classmethod
    def of(cls, model: nn.Module, loss: Loss, features: Tensor, terms: Terms) -> Subject | None:
        """None where something cannot be described: that is tried each time."""
        found = describe({"the model": model, "the loss": loss})
        tensors = {name: value.detach() for name, value in (*model.named_parameters(), *model.named_buffers())}
        plain = (value.layout == torch.strided and not value.is_quantized for value in (*tensors.values(), features))
        if found.doubts or not all(plain):
            return None
        facts = [
            found.facts,
            request_digest(tensors).hex(),
            sorted(name for name, parameter in model.named_parameters() if parameter.requires_grad),
            [layer.training for layer in model.modules()],
            request_digest({"": features}).hex(),
            [str(value.device) for value in (*tensors.values(), features)],
            [terms.chunk_bytes, terms.batch_size, terms.precision, terms.lockstep, terms.normalised],
            [str(torch.get_default_dtype()), torch.get_num_threads()],
        ]
        return cls(json.dumps(facts), (loss, *found.code))

    def same(self, other: Subject) -> bool:
        """Whether a trial of both ends alike."""
        return (
            self.facts == other.facts
            and len(self.code) == len(other.code)
            and all(one is another for one, another in zip(self.code, other.code, strict=True))
        )


class Trials:
    """The trials that passed in one process, the last `MOST` of them. Safe for threads."""

    def __init__(self) -> None:
        self._passed: deque[tuple[Subject, type, Tensor]] = deque(maxlen=MOST)
        self._lock = threading.Lock()

    def of(self, subject: Subject) -> list[tuple[type, Tensor]]:
        """(kind of engine, the labels that it was tried with) of each that passed on this subject."""
        with self._lock:
            return [(kind, labels) for known, kind, labels in self._passed if known.same(subject)]

    def add(self, subject: Subject, kind: type, labels: Tensor) -> None:
        """This kind of engine passed."""
        with self._lock:
            self._passed.append((subject, kind, labels.clone()))

    def __len__(self) -> int:
        return len(self._passed)
