"""From a checked configuration to the parts of a run; every option of every plugin is checked here, before work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from dpfl_plugin.algorithms.base import Algorithm, Setting
from dpfl_plugin.config.schema import Config
from dpfl_plugin.core.streams import stream
from dpfl_plugin.core.vectors import Layout
from dpfl_plugin.data import base as base_data
from dpfl_plugin.data.base import Holding
from dpfl_plugin.errors import UnsupportedError
from dpfl_plugin.gradients import base as engines
from dpfl_plugin.gradients import smoothing
from dpfl_plugin.gradients.base import Records
from dpfl_plugin.gradients.replay import cuda_graph
from dpfl_plugin.models.attributes import Attributes, describe
from dpfl_plugin.oracle import check_released
from dpfl_plugin.privacy.accountants import Accountant
from dpfl_plugin.privacy.beside import Beside
from dpfl_plugin.privacy.costs import RoundCost
from dpfl_plugin.privacy.prior import NO_PRIOR, Prior
from dpfl_plugin.privacy.rules import PrivacyRules
from dpfl_plugin.training.beside import beside
from dpfl_plugin.training.engines import (
    check_engine,
    choose_engine,
    graphs_of,
    lockstep_of,
    may_be_together,
    plan_memory,
    stack_of,
)
from dpfl_plugin.training.host import SiloHost
from dpfl_plugin.training.memory import Memory
from dpfl_plugin.training.models import flat_model, model_and_loss, records_of
from dpfl_plugin.training.planning import rehearse
from dpfl_plugin.training.plugins import is_ours, make_accountant, make_algorithm
from dpfl_plugin.training.prospect import Prospect
from dpfl_plugin.training.rules import no_guarantee, privacy_rules, weak_claims
from dpfl_plugin.training.setting import check_records, hold_all, make_setting

Hold = Callable[[Config, Path], Holding]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a run is made of.

    Attributes:
        noise_multiplier: what the mechanism was made with: given, or solved for.
        model: the initial global model (d,).
        num_records, num_test_records: training and test records of each silo.
        engine_reason: why this engine.
        memory: what this process may use.
        data_sha256: by what all records are known again, when a run is resumed or shares a ledger: see `Survey`.
        beside: what silos release beside the algorithm's rounds.
        module, loss, engine: the model and its per-example gradients.
        planned: what all rounds cost, how many of each, where noise was solved for them; else None.
        train, test: records by silo id, of the silos that this process holds: in process all of them.
        machines: what computes at silos elsewhere.
        attributes: what decides what model and loss compute besides parameters and buffers, as they were made.
        stack: silos advanced together; lockstep: whether they are answered together, too.
        notes: what the owner of the records should look at before training; names: of silos, by id, where the data have
            any. Neither is to be published.
        inputs: what a record is before preprocessing, where that is known.
    """

    host: SiloHost
    algorithm: Algorithm
    setting: Setting
    rules: PrivacyRules
    noise_multiplier: float
    planned: Counter[RoundCost] | None
    accountant: Accountant
    model: torch.Tensor
    num_records: tuple[int, ...]
    num_test_records: tuple[int, ...]
    caveats: tuple[str, ...]
    engine_reason: str
    memory: Memory
    data_sha256: str
    beside: Beside
    module: torch.nn.Module
    loss: engines.Loss
    engine: engines.Engine
    train: dict[int, Records]
    test: dict[int, Records]
    machines: tuple[Mapping[str, Any], ...]
    attributes: Attributes
    stack: int
    lockstep: bool
    notes: tuple[str, ...] = ()
    names: Mapping[int, str] = field(default_factory=dict)
    inputs: base_data.Inputs | None = None

    @property
    def layout(self) -> Layout:
        return Layout.of(self.module)

    @property
    def plugins(self) -> tuple[object, ...]:
        """What computes the releases; if their code changes, so may the bits."""
        rules, modules = self.rules, self.module.modules()
        made_by = (rules.mechanism, rules.clipping, rules.schedule, rules.sampler)
        return (self.algorithm, *made_by, self.engine, self.module, *modules, self.loss, *self.attributes.code)

    @property
    def options(self) -> Attributes:
        """What users' own algorithm, mechanism and so on hold; of ours the configuration tells all."""
        rules = self.rules
        made_by = {"mechanism": rules.mechanism, "clipping": rules.clipping, "schedule": rules.schedule}
        all_of_them = {"algorithm": self.algorithm, **made_by, "sampler": rules.sampler}
        return describe({f"the {name}": one for name, one in all_of_them.items() if not is_ours(one)})


def build(
    config: Config,
    base: Path,
    noise_multiplier: float | None = None,
    prior: Callable[[str, int, PrivacyRules], Prior] = lambda data_sha256, num_silos, rules: NO_PRIOR,
    hold: Hold = hold_all,
    chunk_bytes: int | None = None,
    module: torch.nn.Module | None = None,
    loss: engines.Loss | None = None,
) -> Parts:
    """All parts of a run; ``base`` is the folder from which a configuration's relative paths start.

    Args:
        noise_multiplier: what was solved for when the run began; None to solve now, if the configuration asks for it.
        prior: what earlier runs released, for silos with these records: noise is solved for what they left.
        hold: loads the records of this process.
        chunk_bytes: for the gradients of single examples at a time; None to decide by the memory that there is.
        module, loss: a model and its loss where somebody else made them; None for what the configuration names.

    Raises:
        ConfigError, DataError: something in the configuration or in the data files is wrong.
    """
    # Cheap parts first, so that a misspelt option is found before data are loaded.
    algorithm, accountant, rules = make_algorithm(config), make_accountant(config), privacy_rules(config)
    holding = hold(config, base)
    known, num_records = holding.survey, holding.survey.num_records
    module, loss, trial = model_and_loss(config, holding, module, loss)
    attributes = describe({"the model": module, "the loss": loss})  # before engines are tried: here one, there all
    check_records(config, rules, num_records, holding.names)
    setting = make_setting(config, num_records)
    model = flat_model(module)
    train, test = records_of(holding, trial)
    stack = stack_of(config, may_be_together(config, rules, module, loss))
    room = plan_memory(config, algorithm, setting, rules, model, train, test, stack, chunk_bytes)
    engine, reason = choose_engine(config, rules, module, loss, known, trial, room)
    releases_beside = beside(config, accountant)
    noise, planned = config.privacy.noise_multiplier, None
    if noise is None:
        noise = noise_multiplier
    if noise is None:
        before = prior(known.data_sha256, setting.num_silos, rules)
        noise, planned = Prospect(config, algorithm, accountant, setting, num_records, privacy_rules, before).solved()
    rules = privacy_rules(config, noise)
    check_engine(engine, rules, Layout.of(module), model, trial)
    lockstep = lockstep_of(config, engine, rules)
    graphs = graphs_of(config, engine, rules, lockstep=lockstep, num_here=len(train), device=model.device)
    _check_first_round(config, algorithm, setting, rules, module, loss, model)
    host = SiloHost(
        model=module,
        loss=loss,
        algorithm=algorithm,
        rules=rules,
        engine=engine,
        train=train,
        test=test,
        states=algorithm.init_silos(model, len(train)),
        scores=releases_beside.scores,
        chunk_bytes=room.chunk,
        lockstep=lockstep,
        record=cuda_graph if graphs else None,
        digests=holding.training,
    )
    return Parts(
        host=host,
        algorithm=algorithm,
        setting=setting,
        rules=rules,
        noise_multiplier=noise,
        planned=planned,
        accountant=accountant,
        model=model,
        num_records=num_records,
        num_test_records=known.num_test_records,
        caveats=(*known.caveats, *weak_claims(config, rules, num_records), *no_guarantee(rules)),
        engine_reason=reason,
        memory=room,
        data_sha256=known.data_sha256,
        beside=releases_beside,
        module=module,
        loss=loss,
        engine=engine,
        train=train,
        test=test,
        machines=holding.machines,
        attributes=attributes,
        stack=stack_of(config, lockstep),
        lockstep=lockstep,
        notes=holding.notes,
        names=holding.names,
        inputs=known.inputs,
    )


def _check_first_round(
    config: Config,
    algorithm: Algorithm,
    setting: Setting,
    rules: PrivacyRules,
    module: torch.nn.Module,
    loss: engines.Loss,
    model: torch.Tensor,
) -> None:
    """Raise what the first round would, before anything is on disk."""
    server = algorithm.init_server(model, setting)
    first = algorithm.round_plan(server, 0, setting, stream(config.seed, "plan"))
    for round in {0, (setting.rounds or 1) - 1}:
        rules.factors(round, first.num_gradients)
    if first.smoothing is not None:
        if config.runtime.precision != "float32":
            raise UnsupportedError(
                f"runtime.precision={config.runtime.precision!r}: gradients of smoothed losses are taken in full "
                "precision only. Use float32."
            )
        for key in ("lockstep", "graphs"):
            if getattr(config.runtime, key):
                raise UnsupportedError(
                    f"runtime.{key}=true: gradients of smoothed losses are taken silo by silo. Leave {key} out."
                )
        smoothing.engine(first.smoothing, module, loss)
    if rules.unit == "silo":
        up, rehearsal = rehearse(algorithm, server, first)
        check_released(up, rehearsal.released)
