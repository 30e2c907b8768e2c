"""Where the time of our round goes, by wrapping the callables it goes through.

A wrapper counts the time of its callable without that of wrapped callables inside it, so that the parts add up to the
round. Wrappers cost time themselves: `measure` also gives the time of the same rounds without them.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final
from unittest import mock

from benchmarks import contenders
from benchmarks.contenders import OURS, Ours
from benchmarks.workloads import Workload
from dpfl_plugin.algorithms.scaffold import Scaffold
from dpfl_plugin.core.average import WeightedSum
from dpfl_plugin.core.streams import Stream
from dpfl_plugin.gradients.base import Records
from dpfl_plugin.gradients.bookkeeping import BookKeeping
from dpfl_plugin.gradients.closed_form import ClosedForm
from dpfl_plugin.gradients.dense import Dense
from dpfl_plugin.gradients.shares import Part
from dpfl_plugin.oracle import Draw, PrivateOracle
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.mechanisms import Gaussian
from dpfl_plugin.privacy.samplers import FixedSize

ENGINE: Final = "clipped sum (engine)"
PARTS: Final[dict[str, list[tuple[type, str]]]] = {
    ENGINE: [(ClosedForm, "clipped_sum"), (Dense, "clipped_sum"), (BookKeeping, "clipped_sum")],
    "gather the batch": [(Part, "batch"), (Records, "select")],
    "draw the batch": [(FixedSize, "draw"), (FixedSize, "divisor")],
    "noise": [(Gaussian, "__call__")],
    "start streams": [(Draw, "key"), (Stream, "seek")],
    "drift step": [(Scaffold, "local_update")],
    "oracle's book-keeping": [(PrivateOracle, "gradient")],
    "ledger": [(PrivateOracle, "charges"), (Ledger, "append"), (Ledger, "sync")],
    "server": [(WeightedSum, "add"), (Scaffold, "aggregate")],
}
REST: Final = "runtime and host"


@dataclass(frozen=True, slots=True)
class Profile:
    """Seconds of a round: in each part (median, wrapped), in all of it with and without wrappers (medians)."""

    parts: dict[str, float]
    wrapped: float
    plain: float


def measure(load: Workload, rounds: int) -> Profile:
    """Wrapped and plain rounds in turn."""
    kind = next(iter(contenders.ours(load).values()))
    ours = Ours(OURS, kind, load, load.silos())
    ours.round(load.plan(0), load.draw(0))
    plain, wrapped, parts = [], [], defaultdict[str, list[float]](list)
    for number in range(1, 2 * rounds + 1):
        plan, draw = load.plan(number), load.draw(number)
        began = time.perf_counter()
        if number % 2:
            ours.round(plan, draw)
            plain.append(time.perf_counter() - began)
            continue
        with _wrapped() as seconds:
            began = time.perf_counter()
            ours.round(plan, draw)
            wrapped.append(time.perf_counter() - began)
        for part in PARTS:
            parts[part].append(seconds[part])
        parts[REST].append(wrapped[-1] - sum(seconds.values()))
    return Profile({part: _median(values) for part, values in parts.items()}, _median(wrapped), _median(plain))


@contextmanager
def _wrapped() -> Iterator[dict[str, float]]:
    """While it lasts, the callables of PARTS add their time to what it yields."""
    seconds: dict[str, float] = defaultdict(float)
    inside = [0.0]  # of each wrapped call under way: the time of the wrapped calls inside it
    with ExitStack() as stack:
        for part, callables in PARTS.items():
            for owner, name in callables:
                stack.enter_context(mock.patch.object(owner, name, _timed(getattr(owner, name), part, seconds, inside)))
        yield seconds


def _timed(
    function: Callable[..., Any], part: str, seconds: dict[str, float], inside: list[float]
) -> Callable[..., Any]:
    clock = time.perf_counter

    def timed(*args: Any, **options: Any) -> Any:
        inside.append(0.0)
        began = clock()
        try:
            return function(*args, **options)
        finally:
            elapsed = clock() - began
            seconds[part] += elapsed - inside.pop()
            inside[-1] += elapsed

    return timed


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]
