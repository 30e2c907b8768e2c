"""`python -m benchmarks.audit`: what `dpfl audit` finds in correct code and in broken code; writes docs/privacy.md.

Every mutant is a defect that private learning code has had, applied to the running code and taken off again.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from unittest import mock

from torch import Tensor

from benchmarks.pages import ROOT, put
from benchmarks.table import table
from dpfl_plugin.algorithms.scaffold import Scaffold
from dpfl_plugin.config.load import load
from dpfl_plugin.evidence.audit import Options, audit
from dpfl_plugin.evidence.audit_report import Report
from dpfl_plugin.federation.runtime import ChargeSink, Observer
from dpfl_plugin.federation.silo_group import SiloGroup
from dpfl_plugin.gradients import blocks, fused
from dpfl_plugin.gradients.closed_form import ClosedForm
from dpfl_plugin.oracle import Draw, PrivateOracle
from dpfl_plugin.privacy.mechanisms import Gaussian
from dpfl_plugin.privacy.noise import SiloNoise
from dpfl_plugin.privacy.rules import PrivacyRules
from dpfl_plugin.runtimes.in_process import InProcess

QUICKSTART: Final = ROOT / "configs" / "quickstart.yaml"
# The quickstart's noise without its budget: a sampler or an algorithm that costs more runs just as long.
PLAIN: Final = ("privacy.epsilon=null",)
POISSON: Final = ("privacy.sampler=poisson",)
FULL: Final = ("privacy.sampler=full", "privacy.record_rate=null", "privacy.noise_multiplier=30")
WARM: Final = ("algorithm={name: scaffold_warm}",)
MANY: Final = (
    "data={dataset: {name: synthetic, num_features: 4, num_classes: 3, records_per_silo: 20000}, num_silos: 2}",
    *FULL,
)
LOCKSTEP: Final = ("runtime.lockstep=true",)

CORRECT: Final[dict[str, tuple[str, ...]]] = {
    "DP-SCAFFOLD": (),
    "DP-FedAvg": ("algorithm={name: fedavg}",),
    "DP-SCAFFOLD, Poisson batches": POISSON,
    "DP-SCAFFOLD, full batches": FULL,
    "DP-SCAFFOLD-warm, 3 of 5 silos": (*WARM, "silo_rate=0.6"),
    "DP-FedAvg, server Adam": ("algorithm={name: fedavg, server_optimizer: adam, server_lr: 0.05}",),
    "DP-SCAFFOLD, clip: adaptive": ("privacy.clip=adaptive",),
    "DP-FedAvg on an MLP, clip: per_layer": (
        "algorithm={name: fedavg}",
        "model={name: mlp, hidden: [8]}",
        "privacy.clip=per_layer",
    ),
    "DP-FedAvg, unit: silo": ("algorithm={name: fedavg}", "privacy.unit=silo"),
    "DP-SCAFFOLD in lockstep, Poisson batches": (*POISSON, *LOCKSTEP),
    "DP-SCAFFOLD in lockstep by 2, clip: adaptive": (*POISSON, *LOCKSTEP, "runtime.stack=2", "privacy.clip=adaptive"),
    "DP-FedAvg on an MLP in lockstep, clip: per_layer": (
        "algorithm={name: fedavg}",
        "model={name: mlp, hidden: [8]}",
        "privacy.clip=per_layer",
        *LOCKSTEP,
    ),
}


@dataclass(frozen=True)
class Mutant:
    """A defect.

    Attributes:
        patches: what is replaced: (object, attribute, replacement made from the original).
        settings: of the configuration that shows it.
        reason: what the audit is expected to say, in part; empty: it cannot see the defect.
    """

    patches: tuple[tuple[Any, str, Callable[[Any], Any]], ...]
    settings: tuple[str, ...] = ()
    reason: str = "times what independent claimed noise"

    @contextmanager
    def applied(self) -> Iterator[None]:
        with ExitStack() as stack:
            for owner, name, make in self.patches:
                stack.enter_context(mock.patch.object(owner, name, make(getattr(owner, name))))
            yield


def _louder(factor: float) -> Callable[[Any], Any]:
    """The mechanism with other noise than it says."""
    return lambda call: (
        lambda self, total, sensitivity, rng, out, scale=1.0: call(self, total, factor * sensitivity, rng, out, scale)
    )


def _silent(call: Any) -> Any:
    return lambda self, total, sensitivity, rng, out, factor=1.0: out.copy_(total)


def _same(purpose: str, **fixed: Any) -> Callable[[Any], Any]:
    """Streams of a purpose that do not tell rounds, silos or steps apart."""

    def make(key: Any) -> Any:
        def changed(self: Draw, wanted: str, silo: int, step: int) -> Any:
            if wanted != purpose:
                return key(self, wanted, silo, step)
            draw = dataclasses.replace(self, round=fixed.get("round", self.round))
            return key(draw, wanted, fixed.get("silo", silo), fixed.get("step", step))

        return changed

    return make


def _one_block(count: int) -> blocks.Blocks:
    return blocks.Blocks(max(1, count), int(count > 0), 0)


class _Engine:
    """Clips as ``change`` says instead of as asked."""

    def __init__(self, engine: Any, change: Callable[[Any, Tensor, Any, float, Tensor], Any]) -> None:
        self._engine, self._change = engine, change
        self.name = engine.name

    def clipped_sum(self, y: Tensor, batch: Any, clip_norm: float, out: Tensor) -> Any:
        return self._change(self._engine, y, batch, clip_norm, out)


def _clipping(change: Callable[[Any, Tensor, Any, float, Tensor], Any]) -> tuple[Any, str, Callable[[Any], Any]]:
    def make(init: Any) -> Any:
        def changed(self: PrivateOracle, rules: Any, engine: Any, *args: Any, **options: Any) -> None:
            init(self, rules, _Engine(engine, change), *args, **options)

        return changed

    return (PrivateOracle, "__init__", make)


def _twice(engine: Any, y: Tensor, batch: Any, clip_norm: float, out: Tensor) -> Any:
    return engine.clipped_sum(y, batch, 2 * clip_norm, out)


def _mean_only(engine: Any, y: Tensor, batch: Any, clip_norm: float, out: Tensor) -> Any:
    norms = engine.clipped_sum(y, batch, 1e9, out)
    most = clip_norm * max(1, len(batch))
    out.mul_(min(1.0, most / max(float(out.norm()), 1e-30)))
    return norms


def _but_one(add: Any) -> Any:
    """All silos that are answered together get their noise, but the second."""

    def changed(self: SiloNoise, totals: Tensor, *args: Any) -> None:
        add(self, totals, *args)
        args[-1][1] = totals[1]

    return changed


def _shared_row(add: Any) -> Any:
    """All silos that are answered together get the noise of the first."""

    def changed(self: SiloNoise, totals: Tensor, *args: Any) -> None:
        add(self, totals, *args)
        out = args[-1]
        out[1:] = totals[1:] + (out[0] - totals[0])

    return changed


def _loose_row(sums: Any) -> Any:
    """Of silos that are answered together, the first is clipped to 3C, in larger batches than those that are tried
    when an engine is chosen."""

    def changed(self: Any, y: Tensor, batches: Any, clip_norms: Any, out: Tensor, *how: Any) -> Any:
        if clip_norms is None or batches.longest <= 3:
            return sums(self, y, batches, clip_norms, out, *how)
        loose = clip_norms * clip_norms.new_tensor([3.0, *[1.0] * (len(y) - 1)])[:, None]
        return sums(self, y, batches, loose, out, *how)

    return changed


def _free_warm_up(charges: Any) -> Any:
    return lambda self: [] if self._draw.round == 0 else charges(self)


def _half_rate(release: Any) -> Any:
    return lambda self, rate, factor=1.0: release(self, rate / 2 if rate < 1 else rate, factor)


def _half_divisor(one: Any) -> Any:
    def changed(self: PrivateOracle, *args: Any) -> None:
        one(self, *args)
        args[-1].mul_(2.0)

    return changed


def _clip_after_noise(one: Any) -> Any:
    def changed(self: PrivateOracle, *args: Any) -> None:
        one(self, *args)
        out = args[-1]
        out.mul_(min(1.0, self._rules.clip_norm / float(out.norm())))

    return changed


def _flipped(update: Any) -> Any:
    """SCAFFOLD with the signs of c and c_i changed in its steps: it drifts twice as fast."""

    def changed(self: Scaffold, down: Any, silos: Any, oracle: Any, plan: Any) -> Any:
        x, K, eta = down["model"], plan.local_steps, plan.local_lr
        y = x.expand_as(silos["control"])
        for _ in range(K):
            y = y - eta * (oracle.gradient(y) - down["control"] + silos["control"])
        c_new = silos["control"] - down["control"] + (x - y) / (K * eta)
        return {"model": y - x, "control": c_new - silos["control"]}, {"control": c_new}

    return changed


MUTANTS: Final[dict[str, Mutant]] = {
    "noise halved": Mutant(((Gaussian, "__call__", _louder(0.5)),)),
    "noise 10 % too small": Mutant(((Gaussian, "__call__", _louder(0.9)),)),
    "no noise": Mutant(((Gaussian, "__call__", _silent),)),
    "same noise at every step": Mutant(((Draw, "key", _same("noise", step=0)),)),
    "same noise in every round": Mutant(((Draw, "key", _same("noise", round=0)),), reason="two rounds"),
    "same noise at all silos": Mutant(((Draw, "key", _same("noise", silo=0)),), reason="two silos"),
    "batch drawn once for all": Mutant(((Draw, "key", _same("batch", round=0, step=0)),), reason="fresh batches"),
    "sums in float32, record by record": Mutant(
        (
            *((module, "blocks_of", lambda of: _one_block) for module in (blocks, fused)),
            (blocks, "slack", lambda slack: lambda *args, **options: 0.0),
        ),
        MANY,
        reason="by rounding",
    ),
    "clipped to 2C": Mutant((_clipping(_twice),), reason="as far apart"),
    "the batch's mean clipped, not examples": Mutant((_clipping(_mean_only),), reason="as far apart"),
    "clipped after the noise": Mutant(((PrivateOracle, "_one_gradient", _clip_after_noise),)),
    "divided by half the batch": Mutant(((PrivateOracle, "_one_gradient", _half_divisor),)),
    "half the sampling rate charged": Mutant(((PrivacyRules, "release", _half_rate),), reason="not as what they were"),
    "warm-up not charged": Mutant(((PrivateOracle, "charges", _free_warm_up),), WARM, reason="not in the ledger"),
    "batch drawn once a round": Mutant(((Draw, "key", _same("batch", step=0)),), reason=""),
    "same batch at all silos": Mutant(((Draw, "key", _same("batch", silo=0)),), reason=""),
    "signs of control variates changed": Mutant(((Scaffold, "local_update", _flipped),), reason=""),
    "lockstep: no noise at one silo": Mutant(((SiloNoise, "add", _but_one),), LOCKSTEP),
    "lockstep: one silo's noise at all": Mutant(((SiloNoise, "add", _shared_row),), LOCKSTEP, reason="two silos"),
    "lockstep: one silo's records clipped to 3C": Mutant(
        ((ClosedForm, "clipped_sums", _loose_row),), LOCKSTEP, reason="clipping norms"
    ),
    "twice the noise": Mutant(((Gaussian, "__call__", _louder(2.0)),)),
}


def report(settings: tuple[str, ...], options: Options, config: Path = QUICKSTART) -> Report:
    """An audit of the first run of a file, changed."""
    chosen = load(config, [*PLAIN, *settings]).variants[0].config
    return audit(chosen, config.parent, options, in_process)


def in_process(host: SiloGroup, stack: int, charges: ChargeSink, observer: Observer) -> InProcess:
    """As `dpfl audit` runs it."""
    return InProcess(host, charges, stack_size=stack, observers=[observer])


def row(name: str, found: Report) -> list[str]:
    """What an audit found, in a line."""
    gaussian = "none" if found.gaussian is None else _number(found.gaussian.estimate)
    claimed = "none" if found.epsilon is None else _number(found.epsilon)
    noise = "none" if found.noise is None else f"{found.noise.estimate:.3f}"
    spread = "none" if found.spread is None else f"{found.spread.estimate:.2f}"
    most = max(found.between_silos.largest, found.between_rounds.largest)
    verdict = "consistent" if found.consistent else "**contradicted**"
    return [
        name,
        f"{found.epsilon_bound:.2f}",
        gaussian,
        claimed,
        noise,
        spread,
        f"{most:.2f}",
        verdict,
        f"{found.seconds:.1f}",
    ]


def _number(value: float) -> str:
    return "inf" if math.isinf(value) else f"{value:.2f}"


HEADER: Final = ("code", "proven", "if Gaussian", "accountant", "noise", "spread", "corr.", "verdict", "s")


def main() -> None:
    options = Options()
    rows = [row(name, report(settings, options)) for name, settings in CORRECT.items()]
    for name, mutant in MUTANTS.items():
        with mutant.applied():
            rows.append(row(name, report(mutant.settings, options)))
    text = table(HEADER, rows)
    print(text)
    put("docs/privacy.md", "audits", text)


if __name__ == "__main__":
    main()
