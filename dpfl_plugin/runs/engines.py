"""The engine of a run, and how many silos it answers together in what memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch

from dpfl_plugin import registry
from dpfl_plugin.algorithms.base import Algorithm, Setting
from dpfl_plugin.config.schema import ALL_SILOS, Config
from dpfl_plugin.core.vectors import Layout
from dpfl_plugin.data.base import Survey
from dpfl_plugin.errors import PluginError, UnsupportedError, told
from dpfl_plugin.federation import memory
from dpfl_plugin.federation.memory import Memory
from dpfl_plugin.gradients import base as engines
from dpfl_plugin.gradients import choice
from dpfl_plugin.gradients.base import Records, layers
from dpfl_plugin.gradients.choice import PassedTrials, Terms
from dpfl_plugin.gradients.persons import no_labels
from dpfl_plugin.oracle import replayable, together
from dpfl_plugin.privacy.noise import drawn_on_device
from dpfl_plugin.privacy.rules import PrivacyRules
from dpfl_plugin.runs.algorithm_setting import make_setting
from dpfl_plugin.runs.models import examples, flat_model, model_and_loss, records_of
from dpfl_plugin.runs.plugins import make_algorithm
from dpfl_plugin.runs.privacy_rules import privacy_rules, usual_batch
from dpfl_plugin.runs.records import hold_all

STEPS_TO_COMPILE: Final = 1_000
"""Local steps of all silos and rounds of a run from which on compiled loops are used."""


@dataclass(frozen=True, slots=True)
class Engines:
    """The engines for a configuration, cheapest first; ``chosen`` of them is the one that a run would use.

    Attributes:
        batch: made-up records, as many as a usual batch has; parameters: (d,).
        refusal: what a run would end with, where none is chosen.
    """

    candidates: list[choice.Candidate]
    chosen: str | None
    parameters: torch.Tensor
    batch: Records
    num_silos: int
    refusal: UnsupportedError | None


def engines_for(config: Config, base: Path) -> Engines:
    """What `dpfl list engines --for` shows.

    Raises:
        ConfigError, DataError: as `build`.
    """
    if config.engine != "auto":
        registry.load("engines", config.engine)  # a misspelt name is found before data are loaded
    holding = hold_all(config, base)
    known, rules, algorithm = holding.survey, privacy_rules(config), make_algorithm(config)
    module, loss, trial = model_and_loss(config, holding)
    model = flat_model(module)
    setting = make_setting(config, known.num_records, holding.names)
    stack = stack_of(config, may_be_together(config, rules, module, loss))
    room = plan_memory(config, algorithm, setting, rules, model, *records_of(holding, trial), stack, None)
    terms = _terms(config, rules, known.num_records, room, compiled(algorithm, setting))
    seen, loss_of_one, shape = examples(config, module, loss, known.feature_shape)
    found = choice.candidates(seen, loss_of_one, terms, choice.made_up(seen, shape, trial))
    fitting = [one.name for one in found if one.engine is not None and config.engine in ("auto", one.name)]
    features = choice.made_up(seen, shape, trial, terms.batch_size)
    batch = Records(features, no_labels(seen, features, loss_of_one))
    refusal = None
    if not fitting:
        reasons = {one.name: one.reason for one in found}
        named = config.engine
        refusal = choice.none(module) if named == "auto" else choice.unusable(named, reasons[named])
    return Engines(found, fitting[0] if fitting else None, model, batch, setting.num_participants, refusal)


def plan_memory(
    config: Config,
    algorithm: Algorithm,
    setting: Setting,
    rules: PrivacyRules,
    model: torch.Tensor,
    train: Mapping[int, Records],
    test: Mapping[int, Records],
    stack: int,
    chunk_bytes: int | None,
) -> Memory:
    """What this process may use: at its silos, or as a server without any.

    Raises:
        ConfigError: it is too little.
    """
    mine = list(train.values())
    batch = max((usual_batch(rules, [len(records)]) for records in mine), default=0)
    needs = memory.fixed_needs(algorithm, setting, model, mine, stack=stack, batch_size=batch)
    if config.runtime.graphs or (config.runtime.in_lockstep and stack > 1):
        together = memory.of_lockstep(setting, mine, stack=stack, batch_size=batch)
        needs += together
        if config.runtime.graphs:
            needs.append(("a graph", memory.of_graph(setting, model, together, len(mine), stack=stack)))
    if rules.noise_multiplier and drawn_on_device(model.device):
        needs.append(("noise", memory.of_device_noise(setting, model, len(mine), stack=stack)))
    if rules.augmentation is not None and mine:
        features = mine[0].features
        each = rules.augmentation.bytes_of(tuple(features.shape[1:]), features.element_size())
        needs.append(("views of a batch", batch * each))
    needs.append(("test records", sum(map(memory.bytes_of, test.values()))))
    held = sum(map(memory.bytes_of, [*mine, *test.values()]))
    at_once = min(stack, setting.num_participants)
    return memory.plan(config.runtime.memory_budget, model.device, held, needs, chunk_bytes, at_once)


def may_be_together(config: Config, rules: PrivacyRules, module: torch.nn.Module, loss: engines.Loss) -> bool:
    """Whether an engine that may be chosen answers silos together."""
    if not config.runtime.in_lockstep:
        return False
    names = registry.names("engines") if config.engine == "auto" else [config.engine]
    kinds: list[Any] = [registry.load("engines", name) for name in names]
    return any(together(kind, rules) and kind.unsupported(module, loss) is None for kind in kinds)


def stack_of(config: Config, lockstep: bool) -> int:
    return config.runtime.stack or (ALL_SILOS if lockstep else 1)


def lockstep_of(config: Config, engine: engines.Engine, rules: PrivacyRules) -> bool:
    """Whether silos of a stack are answered together.

    Raises:
        UnsupportedError: the configuration says so, and they cannot be.
    """
    if not config.runtime.in_lockstep:
        return False
    if config.runtime.lockstep and not together(engine, rules):
        raise UnsupportedError(
            f"runtime.lockstep=true: engine {engine.name} with privacy.unit={rules.unit!r} and this privacy.clip "
            "answers silos one after another. Leave lockstep out; at record level closed_form and dense answer "
            "them together."
        )
    return together(engine, rules)


def graphs_of(config: Config, engine: engines.Engine, rules: PrivacyRules) -> bool:
    """Whether sums are recorded as CUDA graphs.

    Raises:
        UnsupportedError: the configuration says so, and they cannot be.
    """
    if not config.runtime.graphs:
        return False
    if not getattr(engine, "capturable", False):
        raise UnsupportedError(
            f"runtime.graphs=true: engine {engine.name} does not say that a graph may replay what it does (capturable, "
            "see Engine in dpfl_plugin/gradients/base.py). Leave graphs out, or use another engine."
        )
    if not replayable(engine, rules):
        raise UnsupportedError(
            f"runtime.graphs=true: with privacy.unit={rules.unit!r}, this privacy.clip and this clip_norm, sums of "
            f"engine {engine.name} are no function that a graph could repeat. Leave graphs out."
        )
    return True


def choose_engine(
    config: Config,
    rules: PrivacyRules,
    module: torch.nn.Module,
    loss: engines.Loss,
    known: Survey,
    trial: torch.Tensor,
    room: Memory,
    passed: PassedTrials | None = None,
    *,
    in_place: bool = False,
    compiled: bool = True,
) -> tuple[engines.Engine, str]:
    """The engine that a run uses, tried on made-up records, or persons; and why it is that one.

    Args:
        in_place, compiled: see `Terms`.
    """
    seen, loss_of_one, shape = examples(config, module, loss, known.feature_shape)
    made_up, terms = choice.made_up(seen, shape, trial), _terms(config, rules, known.num_records, room, compiled)
    terms = replace(terms, in_place=in_place)
    return choice.choose(config.engine, seen, loss_of_one, terms, made_up, passed)


def compiled(algorithm: Algorithm, setting: Setting) -> bool:
    """Whether a run has so many steps that compiled loops save more time than they take to load.

    docs/engines.md has the measurement. They round differently, so the answer depends on the configuration alone and is
    the same for all silos and processes of a run.
    """
    local_steps = getattr(algorithm, "local_steps", None)
    if setting.rounds is None or local_steps is None:
        return True
    return bool(setting.rounds * setting.num_participants * local_steps >= STEPS_TO_COMPILE)


def _terms(config: Config, rules: PrivacyRules, num_records: Sequence[int], room: Memory, compiled: bool) -> Terms:
    return Terms(
        chunk_bytes=room.chunk,
        most_bytes=room.left,
        batch_size=usual_batch(rules, num_records),
        precision=config.runtime.precision,
        lockstep=config.runtime.in_lockstep,
        normalised=rules.clipping.normalises,
        compiled=compiled,
    )


def check_engine(
    engine: engines.Engine,
    rules: PrivacyRules,
    module: torch.nn.Module,
    loss: engines.Loss,
    model: torch.Tensor,
    trial: torch.Tensor,
) -> None:
    """Raise unless the clipping fits the model, and the engine does what it asks, on made-up records."""
    bounds = rules.bounds(layers(Layout.of(module)))
    if rules.clipping.normalises and not getattr(engine, "normalises", False):
        raise UnsupportedError(
            f"engine: {engine.name} only clips (it has no class attribute normalises, see Engine in "
            "dpfl_plugin/gradients/base.py), and this privacy.clip scales gradients. Use engine: auto, or clip: flat."
        )
    if rules.unit == "silo" or not (rules.clipping.adapts or rules.clipping.measures or isinstance(bounds, tuple)):
        return
    labels = no_labels(module, trial, loss)  # of records
    made_up = Records(trial, labels)
    if rules.unit == "person" or rules.augmentation is not None:  # of one record, or view, each
        made_up = Records(trial.unsqueeze(1), labels.unsqueeze(1))
    batch = engine.prepare(made_up)
    bounds = bounds if isinstance(bounds, tuple) else 1.0
    try:
        with torch.no_grad():
            engines.clipped_sum_and_norms(engine, model, batch, bounds, torch.empty_like(model, dtype=torch.float64))
    except PluginError:
        raise
    except Exception as error:  # a stranger's code may fail in any way
        raise PluginError(
            f"engine: {engine.name} fails with this privacy.clip on made-up records: {told(error)}."
        ) from error
