"""What is compared: the same round of SCAFFOLD, with the gradients computed in different ways.

All draw the same batches from the same streams. With sigma_g = 0 all that clip give the same model, up to rounding;
with C = inf the one that does not clip gives it too (`tests/benchmarks` holds them to that).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.workloads import Workload
from dpfl_plugin import registry
from dpfl_plugin.algorithms.base import RoundPlan, Setting
from dpfl_plugin.core import draws
from dpfl_plugin.core.streams import Stream
from dpfl_plugin.core.vectors import Layout, Vectors
from dpfl_plugin.federation.silo_group import SiloGroup
from dpfl_plugin.gradients.base import Engine, Loss, Records
from dpfl_plugin.gradients.losses import cross_entropy
from dpfl_plugin.gradients.replay import Record
from dpfl_plugin.oracle import Draw
from dpfl_plugin.privacy.clipping import Clipping, Flat
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.mechanisms import Gaussian
from dpfl_plugin.privacy.rules import PrivacyRules
from dpfl_plugin.runtimes.in_process import InProcess

# As in a run that lasts: the rounds of a benchmark are too few for it.
draws.kernels = draws.Kernels(worth=1)
# As in a run that has enough memory.
CHUNK_BYTES = 256 * 2**20
OURS, VMAP = "dpfl", "dpfl vmap"  # what `engine: auto` chooses, and the general engine
ENGINES: Final = ("closed_form", "dense", "bookkeeping", "vmap")


EngineType = Callable[[nn.Module, Loss, int], Engine]


class Contender(Protocol):
    """Trains a federation, a round at a time."""

    name: str

    def round(self, plan: RoundPlan, draw: Draw) -> None:
        """One round, the server's step included."""
        ...

    def model(self) -> Tensor:
        """The server's model (d,)."""
        ...


class Ours:
    """The package's own path: silo host, in-process runtime, private oracle, ledger in memory."""

    def __init__(
        self,
        name: str,
        engine: EngineType,
        load: Workload,
        silos: Sequence[Records],
        *,
        fresh: bool = False,
        clipping: Clipping | None = None,
        stack: int = 1,
        lockstep: bool = False,
        record: Record | None = None,
    ) -> None:
        self.name = name
        module = load.module()
        x = Layout.of(module).flatten(dict(module.named_parameters()))
        sampler, self._algorithm = load.sampler, load.algorithm
        setting = Setting(
            num_silos=load.num_silos,
            num_participants=load.num_participants,
            silo_rate=load.num_participants / load.num_silos,
            record_rate=None,
        )
        rules = PrivacyRules(
            unit="record",
            neighbouring=sampler.neighbouring,
            clip_norm=load.clip_norm,
            clipping=clipping or Flat(),
            mechanism=Gaussian(load.noise_multiplier),
            sampler=sampler,
            fresh=fresh,
        )
        self.engine: Engine = engine(module, cross_entropy, CHUNK_BYTES)
        host = SiloGroup(
            model=module,
            loss=cross_entropy,
            algorithm=self._algorithm,
            rules=rules,
            engine=self.engine,
            train=dict(enumerate(silos)),
            test=dict(enumerate(silos)),
            states=self._algorithm.init_silos(x, load.num_silos),
            lockstep=lockstep,
            record=record,
        )
        self._runtime = InProcess(host, Ledger(), stack_size=stack)
        self._server: Vectors = self._algorithm.init_server(x, setting)

    def round(self, plan: RoundPlan, draw: Draw) -> None:
        mean_up = self._runtime.run_round(self._algorithm.download(self._server), plan, draw)
        self._server = self._algorithm.aggregate(self._server, mean_up, plan)
        self._runtime.commit()

    def model(self) -> Tensor:
        return self._server["model"]


class _Autograd:
    """SCAFFOLD (option II) written around a torch module, a list of tensors for each vector.

    As lean as we could make it: in place, no optimizer's step, no copies but those that the algorithm needs.
    """

    name: str

    def __init__(self, load: Workload, silos: Sequence[Records]) -> None:
        self._silos, self._sampler, self._stream = silos, load.sampler, Stream()
        self._module: nn.Module = load.module()
        self._y = list(self._module.parameters())
        self._x = [p.detach().clone() for p in self._y]
        self._c = [torch.zeros_like(p) for p in self._x]
        self._controls = [[torch.zeros_like(p) for p in self._x] for _ in silos]

    def gradient(self, batch: Records) -> Sequence[Tensor]:
        """The mean gradient of a batch at the module's parameters; may be overwritten by the caller."""
        raise NotImplementedError

    def round(self, plan: RoundPlan, draw: Draw) -> None:
        dx, dc = [torch.zeros_like(x) for x in self._x], [torch.zeros_like(x) for x in self._x]
        new = {}
        for silo, weight in zip(plan.participants, plan.weights, strict=True):
            c_new = self._local_update(silo, plan, draw)
            with torch.no_grad():
                for part, (y, x, c_i) in enumerate(zip(self._y, self._x, self._controls[silo], strict=True)):
                    dx[part].add_(y - x, alpha=weight)
                    dc[part].add_(c_new[part] - c_i, alpha=weight)
            new[silo] = c_new
        for part in range(len(self._x)):
            self._x[part].add_(dx[part])
            self._c[part].add_(dc[part], alpha=plan.silo_share)
        for silo, c_new in new.items():
            self._controls[silo] = c_new

    def _local_update(self, silo: int, plan: RoundPlan, draw: Draw) -> list[Tensor]:
        """Leaves y in the module; returns the silo's next control variate."""
        records, eta_l, K = self._silos[silo], plan.local_lr, plan.local_steps
        corrections = [c - c_i for c, c_i in zip(self._c, self._controls[silo], strict=True)]
        with torch.no_grad():
            for y, x in zip(self._y, self._x, strict=True):
                y.copy_(x)
        for step in range(K):
            rng = self._stream.seek(draw.key("batch", silo, step))
            index = self._sampler.draw(len(records), rng)
            assert index is not None
            gradient = self.gradient(records.select(torch.from_numpy(index).to(records.features.device)))
            with torch.no_grad():
                for y, g, correction in zip(self._y, gradient, corrections, strict=True):
                    y.add_(g.add_(correction), alpha=-eta_l)
        with torch.no_grad():
            parts = zip(self._x, self._y, corrections, strict=True)
            return [(x - y).div_(K * eta_l).sub_(correction) for x, y, correction in parts]

    def model(self) -> Tensor:
        return torch.cat([x.reshape(-1) for x in self._x])


class PlainSGD(_Autograd):
    """Neither clips nor adds noise: what the same round costs without privacy."""

    name = "plain SGD (not private)"

    def gradient(self, batch: Records) -> Sequence[Tensor]:
        loss = functional.cross_entropy(self._module(batch.features), batch.labels)
        return torch.autograd.grad(loss, self._y)


class OpacusHooks(_Autograd):
    """Per-example gradients by Opacus' hooks, clipped and noised by its DPOptimizer.

    Opacus counts noise in units of C, the sensitivity of adding or removing a record; ours is 2C (replacing one), so
    that its noise_multiplier is twice ours for the same noise.
    """

    name = "Opacus hooks"

    def __init__(self, load: Workload, silos: Sequence[Records]) -> None:
        from opacus import GradSampleModule
        from opacus.optimizers import DPOptimizer

        super().__init__(load, silos)
        self._module = GradSampleModule(self._module.train())
        self._optimizer = DPOptimizer(
            torch.optim.SGD(self._y, lr=load.local_lr),
            noise_multiplier=load.sampler.sensitivity * load.noise_multiplier,
            max_grad_norm=load.clip_norm,
            expected_batch_size=load.batch_size,
            generator=torch.Generator(load.device).manual_seed(load.seed),
        )

    def round(self, plan: RoundPlan, draw: Draw) -> None:
        with warnings.catch_warnings():
            # torch says so wherever, as here, the first layer has hooks; it does not change the result.
            warnings.filterwarnings("ignore", message="Full backward hook is firing when gradients are computed")
            super().round(plan, draw)

    def gradient(self, batch: Records) -> Sequence[Tensor]:
        self._optimizer.zero_grad(set_to_none=True)
        functional.cross_entropy(self._module(batch.features), batch.labels).backward()
        self._optimizer.pre_step()
        return [y.grad for y in self._y if y.grad is not None]


class OpacusGhost(_Autograd):
    """Opacus' ghost clipping: norms without gradients of single examples, and a second backward pass for the sum."""

    name = "Opacus ghost"

    def __init__(self, load: Workload, silos: Sequence[Records]) -> None:
        from opacus.grad_sample import GradSampleModuleFastGradientClipping
        from opacus.optimizers import DPOptimizerFastGradientClipping
        from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

        super().__init__(load, silos)
        module: Any = GradSampleModuleFastGradientClipping(
            self._module.train(), max_grad_norm=load.clip_norm, use_ghost_clipping=True
        )
        self._module = module
        self._optimizer = DPOptimizerFastGradientClipping(
            torch.optim.SGD(self._y, lr=load.local_lr),
            noise_multiplier=load.sampler.sensitivity * load.noise_multiplier,  # as of the hooks
            max_grad_norm=load.clip_norm,
            expected_batch_size=load.batch_size,
            generator=torch.Generator(load.device).manual_seed(load.seed),
        )
        self._loss = DPLossFastGradientClipping(module, self._optimizer, nn.CrossEntropyLoss())

    def round(self, plan: RoundPlan, draw: Draw) -> None:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Full backward hook is firing when gradients are computed")
            super().round(plan, draw)

    def gradient(self, batch: Records) -> Sequence[Tensor]:
        self._optimizer.zero_grad(set_to_none=True)
        self._loss(self._module(batch.features), batch.labels).backward()
        self._optimizer.pre_step()
        return [y.grad for y in self._y if y.grad is not None]


def ours(load: Workload) -> dict[str, EngineType]:
    """Our engines that support a workload's model, fastest first: the first is what `engine: auto` chooses."""
    found: dict[str, EngineType] = {}
    for name in ENGINES:
        kind = registry.load("engines", name)
        if kind.unsupported(load.module(), cross_entropy) is None:  # type: ignore[attr-defined]
            found[name] = kind  # type: ignore[assignment]
    return found


def contenders(load: Workload, silos: Sequence[Records], *, every: bool = True) -> list[Contender]:
    """All that are compared, ours first; without ``every`` those that are fast enough for whole rounds."""
    engines = ours(load)
    found: list[Contender] = [Ours(OURS, next(iter(engines.values())), load, silos)]
    if every:
        found += [Ours(f"dpfl {name}", kind, load, silos) for name, kind in engines.items()][1:]
        found.append(OpacusHooks(load, silos))
    return [*found, OpacusGhost(load, silos), PlainSGD(load, silos)]
