"""No step waits for the device: after the first, sums, their rounding and the noise stay there."""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

from dpfl_plugin.oracle import Draw
from dpfl_plugin.privacy.schedules import Geometric
from tests.on_device import Place, noise_drawn_on
from tests.quadratics import rules
from tests.recording import WAIT, Operations
from tests.test_lockstep import CLIPPINGS, MODELS, SAMPLERS, C, oracle, start

CUDA = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")]
METHODS = ("item", "tolist", "cpu", "numpy", "nonzero", "__bool__", "__float__", "__int__", "__array__")


@contextlib.contextmanager
def waits() -> Iterator[list[str]]:
    """What this thread asks of tensors that a device would be waited for; on CUDA torch raises an error besides."""
    asked: list[str] = []
    here = threading.get_ident()

    def noted(name: str) -> Callable[..., Any]:
        original = getattr(Tensor, name)

        def method(self: Tensor, *args: Any, **kwargs: Any) -> Any:
            asked.extend([name] * (threading.get_ident() == here))
            return original(self, *args, **kwargs)

        return method

    with contextlib.ExitStack() as stack:
        for name in METHODS:
            stack.enter_context(mock.patch.object(Tensor, name, noted(name)))
        operations = stack.enter_context(Operations())
        if torch.cuda.is_available():
            stack.callback(torch.cuda.set_sync_debug_mode, "default")
            torch.cuda.set_sync_debug_mode("error")
        yield asked
    asked += [func.overloadpacket.__name__ for func, *_ in operations.calls if func.overloadpacket.__name__ in WAIT]


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=CUDA)])
@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("clipping", [name for name, clipping in CLIPPINGS.items() if not clipping.adapts])
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("kind", MODELS)
def test_a_step_waits_for_nothing(kind: str, sampler: str, clipping: str, fresh: bool, device: str) -> None:
    schedule = Geometric(beta=0.8, by="step")
    made_by = rules(1.5, C, SAMPLERS[sampler], clipping=CLIPPINGS[clipping], fresh=fresh, schedule=schedule)
    asked, y = oracle(kind, made_by, lockstep=True, device=device), start(kind).to(device)
    with noise_drawn_on("device"):
        y = y - asked.gradient(y)
        with waits() as found:
            for _ in range(2):
                y = y - asked.gradient(y)
    assert not found


def test_a_wait_would_be_noticed() -> None:
    asks: list[Callable[[Tensor], Any]] = [
        *(lambda value, name=name: getattr(value, name)() for name in METHODS),
        lambda value: value.masked_select(value > 0),
        lambda value: torch.equal(value, value),
    ]
    for ask in asks:
        with waits() as found:
            ask(torch.ones(1))
        assert found


@pytest.mark.parametrize("place", ["host", "device"])
@pytest.mark.parametrize("fresh", [False, True])
def test_a_rounds_noise_and_its_key_are_gone_with_the_round(fresh: bool, place: Place) -> None:
    """Not when Python next looks for cycles: a device's memory is planned for one round."""
    gc.disable()
    try:
        with noise_drawn_on(place):
            asked = oracle("dense", rules(1.5, C, fresh=fresh), lockstep=True)
            asked.gradient(start("dense"))
        gone = weakref.ref(asked), weakref.ref(asked._noise)
        del asked
        assert [ref() for ref in gone] == [None, None]
    finally:
        gc.enable()


def test_a_step_without_noise_does_not_follow_from_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the noise on the device cannot begin, the step that is asked again has the host's."""
    monkeypatch.setattr("dpfl_plugin.oracle.RECORDS_AHEAD", 1)
    y, draw = start("dense"), Draw(1, 2)
    plain = oracle("dense", rules(0.0, C), lockstep=False, draw=draw).gradient(y)
    asked = oracle("dense", rules(1.5, C), lockstep=False, draw=draw)
    broken = mock.patch("dpfl_plugin.privacy.noise.DeviceNoise", side_effect=RuntimeError("no thread"))
    with noise_drawn_on("device"), broken, pytest.raises(RuntimeError, match="no thread"):
        asked.gradient(y)
    with noise_drawn_on("device"):
        assert (asked.gradient(y) - plain).abs().max() > 0.1
