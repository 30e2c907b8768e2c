"""An engine for a model that its owner may change from one call to the next: an attribute, an activation, a layer.

Some engines call the model that they are given (`Engine.on`), and so compute with what it is at that moment. Others
call a copy of it, or nothing: they know its layers. So the model is compared at each call with what it was when its
engine was made: its modules, by identity; and, unless the engine calls the model itself, the classes and attributes of
all modules, and whether the engine still supports the model. If anything differs, an engine is chosen and tried anew.
"""

from __future__ import annotations

import contextlib
import copy
import operator
from collections.abc import Callable, Iterator

from torch import nn

from dpfl_plugin.gradients.base import Engine, Loss, Records, in_place
from dpfl_plugin.gradients.fixed_state import FixedState
from dpfl_plugin.models.fixed import attributes


class LiveModel:
    """A model of somebody else's with its engine and the records that this one prepared.

    Args:
        engine: chosen for a copy of the model.
        choose: (a copy of the model, whether the engine has to call the model) -> an engine that was tried on it.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        records: Records,
        engine: Engine,
        choose: Callable[[nn.Module, bool], Engine],
    ) -> None:
        self._model, self._loss, self._records, self._choose = model, loss, records, choose
        self._take(engine)

    @contextlib.contextmanager
    def step(self) -> Iterator[tuple[Engine, Records]]:
        """The engine for the model as it is now, and the records for it; the model is in eval mode meanwhile.

        Raises:
            UnsupportedError: the model was changed into one that mixes records, or that no engine supports.
            ChangedError: in the end: modes, buffers or frozen parameters changed.
        """
        if not self._is_as_before():
            self._take(self._choose(copy.deepcopy(self._model), False))
        with evaluating(self._model):
            yield self._engine, self._prepared
            self._fixed_state.check()

    def _is_as_before(self) -> bool:
        modules = list(self._model.modules())
        if len(modules) != len(self._modules) or not all(map(operator.is_, modules, self._modules)):
            return False
        if self._calls_model:
            return True
        with evaluating(self._model):
            supported = type(self._engine).unsupported(self._model, self._loss) is None
        return supported and attributes(self._model) == self._attributes

    def _take(self, engine: Engine) -> None:
        found = in_place(engine, self._model)
        self._attributes = None if found is not None else attributes(self._model)
        if found is None and self._attributes is None:  # then nothing would tell that it changed
            found = in_place(self._choose(copy.deepcopy(self._model), True), self._model)
        self._calls_model, self._engine = found is not None, engine if found is None else found
        self._modules = list(self._model.modules())
        self._prepared = self._engine.prepare(self._records)
        with evaluating(self._model):
            self._fixed_state = FixedState(self._model, self._loss, getattr(self._engine, "runs", None))


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Have all layers in eval mode, as models are trained here; and then in the modes that they were in."""
    training = [vars(module) for module in model.modules() if module.training]
    for attributes_of in training:
        attributes_of["training"] = False
    try:
        yield
    finally:
        for attributes_of in training:
            attributes_of["training"] = True
