"""`python -m benchmarks.cnn_gradients [--write]`: what clipped gradients of a small CNN could cost; docs/engines.md.

The CNN of `benchmarks.answer_parts`, a batch of 32 records of CIFAR's size. Beside the sum that `bookkeeping` makes are
the pieces that any engine needs or could have instead, each by itself: patches of convolutions or torch's own way,
gradients of records formed or their norms from products of positions (ghost norms), a second, weighted pass instead of
sums by hand, another memory format, other chunks. Processor time, one thread, the least of several takes: what else a
machine does only adds to it.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.grad import conv2d_weight

from benchmarks.answer_parts import LOADS
from benchmarks.machine import facts
from benchmarks.pages import show
from benchmarks.table import table
from dpfl_plugin.core.vectors import Layout
from dpfl_plugin.gradients.base import Records
from dpfl_plugin.gradients.bookkeeping import BookKeeping, Call, _patches
from dpfl_plugin.gradients.losses import cross_entropy

BATCH: Final = 32
TAKES, CALLS = 7, 10
PLAIN: Final = "plain: forward, backward, step"
OWN: Final = "`bookkeeping`: the clipped sum"
UNBOUNDED: Final = "`bookkeeping`: the sum without a bound, as of local steps with `unit: silo`"


def milliseconds(call: Callable[[], object]) -> float:
    call()
    return 1e3 * min(_take(call) for _ in range(TAKES))


def _take(call: Callable[[], object]) -> float:
    began = time.process_time()
    for _ in range(CALLS):
        call()
    return (time.process_time() - began) / CALLS


def measured() -> dict[str, float]:
    """Milliseconds for a batch, by what is done."""
    torch.manual_seed(0)
    (model,) = (load.model() for load in LOADS if load.name == "CNN")
    x, label = torch.randn(BATCH, 3, 32, 32), torch.randint(10, (BATCH,))
    found = {PLAIN: milliseconds(_plain(model, x, label))}
    found |= {name: milliseconds(call) for name, call in _engines(model, x, label).items()}
    for name, calls in _pieces(model, x, label).items():
        found[name] = sum(map(milliseconds, calls))
    wide = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    found[f"{PLAIN}, channels last"] = milliseconds(_plain(wide, x.to(memory_format=torch.channels_last), label))
    return found


def _plain(model: nn.Module, x: Tensor, label: Tensor) -> Callable[[], None]:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(x), label).backward()
        optimizer.step()

    return step


def _engines(model: nn.Module, x: Tensor, label: Tensor) -> dict[str, Callable[[], object]]:
    layout = Layout.of(model)
    y, out = layout.flatten(dict(model.named_parameters())), torch.empty(layout.dimension, dtype=torch.float64)
    records = Records(x, label)

    def of(records_at_once: int, clip_norm: float = 1.0) -> Callable[[], object]:
        size = BookKeeping(model, cross_entropy, 2**28).record_bytes(y, records)
        engine = BookKeeping(model, cross_entropy, records_at_once * size)
        return lambda: engine.clipped_sum(y, records, clip_norm, out)

    return {OWN: of(BATCH), f"{OWN}, 8 records at a time": of(8), UNBOUNDED: of(BATCH, math.inf)}


def _pieces(model: nn.Module, x: Tensor, label: Tensor) -> dict[str, list[Callable[[], object]]]:
    """{what: its calls, of each convolution where it is of convolutions}."""
    calls: list[Call] = []
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            layer.register_forward_hook(lambda _, given, output: calls.append(Call(given[0].detach(), output, 0)))

    def to_outputs() -> tuple[Tensor, ...]:
        calls.clear()
        losses = functional.cross_entropy(model(x), label, reduction="sum")
        return torch.autograd.grad(losses, [call.output for call in calls])

    layers = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d)]
    derivatives = to_outputs()[: len(layers)]
    of_convolutions = [
        _of_convolution(layer, call.input, g) for layer, call, g in zip(layers, calls, derivatives, strict=False)
    ]
    return {"forward, backward to the outputs of layers": [to_outputs]} | {
        name: [one[name] for one in of_convolutions] for name in of_convolutions[0]
    }


def _of_convolution(layer: nn.Conv2d, a: Tensor, g: Tensor) -> dict[str, Callable[[], object]]:
    size, stride = layer.kernel_size[0], layer.stride[0]
    patches, by_position = _patches(layer, a), g.flatten(2)
    factors = torch.rand(len(a), 1, 1, 1)
    joined, shape = a.reshape(1, -1, *a.shape[2:]), layer.weight.shape

    def grouped() -> Tensor:  # a record's gradient is that of its own group of channels
        weights = (len(a) * shape[0], *shape[1:])
        return conv2d_weight(joined, weights, g.reshape(1, -1, *g.shape[2:]), stride=stride, groups=len(a))

    def ghost() -> Tensor:
        return (patches.mT @ patches * (by_position.mT @ by_position)).sum((1, 2))

    return {
        "convolutions: patches, as `bookkeeping` has them": lambda: _patches(layer, a),
        "convolutions: gradients of records, from patches": lambda: by_position @ patches.mT,
        "instead of these patches: torch's `unfold`": lambda: functional.unfold(a, size, stride=stride),
        "instead of patches and gradients: grouped convolutions": grouped,
        "instead of gradients: ghost norms (float32)": ghost,
        "and then the weighted gradient by torch": lambda: conv2d_weight(a, shape, g * factors, stride=stride),
    }


def page() -> str:
    torch.set_num_threads(1)
    found, known = measured(), facts()
    rows = [[name, f"{value:.2f}", f"{value / found[PLAIN]:.2f}"] for name, value in found.items()]
    about = f"{known['date']}, {known['processor']}, one thread, not idle; the least of {TAKES} takes."
    return f"{table([f'a batch of {BATCH} records', 'ms', 'of plain'], rows)}\n\n{about}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="into docs/engines.md")
    arguments = parser.parse_args()
    text = page()
    show("docs/engines.md", "CNN pieces table", text, write=arguments.write)


if __name__ == "__main__":
    main()
