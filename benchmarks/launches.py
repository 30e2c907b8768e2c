"""How many operations a GPU is asked to start for a step of one silo, from records to clipped sums; docs/engines.md.

    python -m benchmarks.launches [--write]

Counted without a GPU, on torch's device of tensors without numbers: there, as on a GPU, work is cut into large pieces,
and whatever needed a number would raise. Views and memory that is not written to cost nothing and are left out; so are
noise, the division by the batch's size and the algorithm. A CUDA graph starts all of it at once.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final
from unittest import mock

import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.contenders import ENGINES
from benchmarks.pages import show
from benchmarks.table import table
from benchmarks.workloads import RESNET18, WORKLOADS, Workload
from dpfl_plugin import registry
from dpfl_plugin.core.vectors import Layout
from dpfl_plugin.federation.memory import CHUNK
from dpfl_plugin.gradients.base import Records
from dpfl_plugin.gradients.blocks import filled
from dpfl_plugin.gradients.losses import cross_entropy
from dpfl_plugin.gradients.stacked import Pool, Sums

LOADS: Final = {**WORKLOADS, "ResNet-18": RESNET18}
NOWHERE: Final = torch.device("meta")
TOGETHER: Final = 8
IDLE: Final = ("empty", "new_empty", "_unsafe_view", "detach")


class Launches(TorchDispatchMode):
    """Counts operations that compute or copy."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not func.is_view and not func.overloadpacket.__name__.startswith(IDLE)
        return func(*args, **(kwargs or {}))


def launches(work: Callable[[], object]) -> int:
    """Of ``work``, once it has been done before."""
    # torch does not know whether there is autocast on this device.
    with mock.patch.object(torch, "is_autocast_enabled", return_value=False):
        work()
        with Launches() as seen:
            work()
    return seen.count


def of_engine(name: str, load: Workload) -> tuple[int, int | None] | None:
    """(of one silo, of several together where the engine can do that); None where it does not support the model."""
    kind: Any = registry.load("engines", name)
    model, size = load.module().to(NOWHERE), load.batch_size
    if kind.unsupported(model, cross_entropy) is not None:
        return None
    engine, y = kind(model, cross_entropy, CHUNK["cuda"]), Layout.of(model).flatten(dict(model.named_parameters()))
    records = engine.prepare(_records(load))
    index, out = torch.empty(size, dtype=torch.int64, device=NOWHERE), torch.empty_like(y, dtype=torch.float64)
    with torch.no_grad():
        alone = launches(lambda: engine.clipped_sum(y, records.select(index), load.clip_norm, out))
        if not hasattr(engine, "clipped_sums"):
            return alone, None
        sums, ys = Sums(engine, Pool(dict.fromkeys(range(TOGETHER), records))), y.repeat(TOGETHER, 1)
        places = torch.empty(TOGETHER, filled(size), dtype=torch.int64, device=NOWHERE)
        clip_norms = torch.empty(TOGETHER, 1, dtype=torch.float64, device=NOWHERE)
        return alone, launches(lambda: sums(ys, places, clip_norms))


def of_opacus(load: Workload) -> int:
    """Opacus' hooks, as in `contenders.OpacusHooks`."""
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    model, records = GradSampleModule(load.module().to(NOWHERE).train()), _records(load)
    optimizer = DPOptimizer(
        torch.optim.SGD(model.parameters()),
        noise_multiplier=0.0,
        max_grad_norm=load.clip_norm,
        expected_batch_size=load.batch_size,
    )

    def work() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(records.features), records.labels).backward()
        optimizer.clip_and_accumulate()

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Full backward hook is firing when gradients are computed")
        return launches(work)


def of_plain(load: Workload) -> int:
    """Forward and backward."""
    model, records = load.module().to(NOWHERE), _records(load)
    parameters = list(model.parameters())
    return launches(
        lambda: torch.autograd.grad(functional.cross_entropy(model(records.features), records.labels), parameters)
    )


def _records(load: Workload) -> Records:
    some = replace(load, num_records=load.batch_size).silo(0)
    return Records(some.features.to(NOWHERE), some.labels.to(NOWHERE))


def rows() -> Iterator[list[str]]:
    for workload, load in LOADS.items():
        yield [workload, "plain SGD (not private)", str(of_plain(load)), ""]
        yield [workload, "Opacus hooks", str(of_opacus(load)), ""]
        for name in ENGINES:
            found = of_engine(name, load)
            if found is not None:
                alone, together = found
                yield [workload, f"`{name}`", f"{alone:,}", "" if together is None else str(together)]


def page() -> str:
    return table(["", "gradients by", "one silo", f"{TOGETHER} silos together"], list(rows()), ["gradients by"])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.launches", description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="put the table into docs/engines.md")
    show("docs/engines.md", "launches", page(), write=parser.parse_args().write)


if __name__ == "__main__":
    main()
