"""From a checked configuration to the parts of a run; every option of every plugin is checked here, before work."""

from __future__ import annotations

import inspect
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dpfl_plugin import registry
from dpfl_plugin.algorithms.base import Algorithm, Setting
from dpfl_plugin.config.schema import ALL_SILOS, Block, Config
from dpfl_plugin.core.exact import floor_share
from dpfl_plugin.core.streams import stream
from dpfl_plugin.core.vectors import Layout
from dpfl_plugin.data import base as base_data
from dpfl_plugin.data.base import Federation, Holding, Ownership, Survey, survey
from dpfl_plugin.data.federation import build_federation
from dpfl_plugin.data.names import called
from dpfl_plugin.errors import ConfigError, PluginError, UnsupportedError, require, told
from dpfl_plugin.gradients import base as engines
from dpfl_plugin.gradients import choice, losses, smoothing
from dpfl_plugin.gradients.base import Records, layers
from dpfl_plugin.gradients.replay import cuda_graph
from dpfl_plugin.models.attributes import Attributes, describe
from dpfl_plugin.models.build import build_model, check_model
from dpfl_plugin.oracle import PrivacyRules, check_released, together
from dpfl_plugin.privacy import samplers
from dpfl_plugin.privacy.accountants import Accountant
from dpfl_plugin.privacy.clipping import Adaptive, Clipping
from dpfl_plugin.privacy.prior import Prior
from dpfl_plugin.privacy.schedules import Constant, Geometric, Schedule
from dpfl_plugin.training import memory
from dpfl_plugin.training.accounting import NO_PRIOR, RoundCost
from dpfl_plugin.training.beside import SHARED, Beside, beside, check_beside, refuse_beside, training_records
from dpfl_plugin.training.host import SiloHost
from dpfl_plugin.training.marks import MarkKey
from dpfl_plugin.training.memory import Memory
from dpfl_plugin.training.planning import rehearse
from dpfl_plugin.training.prospect import Prospect

VAST_EPSILON = 20.0
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
        return describe({f"the {name}": one for name, one in all_of_them.items() if not _is_ours(one)})


def hold_all(config: Config, base: Path) -> Holding:
    """The whole federation in this process."""
    return base_data.hold(federate(config, base))


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
    algorithm, accountant, rules = _algorithm(config), _accountant(config), privacy_rules(config)
    holding = hold(config, base)
    known, num_records = holding.survey, holding.survey.num_records
    module, loss, trial = _model_and_loss(config, holding, module, loss)
    attributes = describe({"the model": module, "the loss": loss})  # before engines are tried: here one, there all
    _check_records(config, rules, num_records, holding.names)
    setting = make_setting(config, num_records)
    model = _start(module)
    train, test = _records_of(holding, trial)
    stack = _stack(config, _may_be_together(config, rules, module, loss))
    room = _memory(config, algorithm, setting, rules, model, train, test, stack, chunk_bytes)
    engine, reason = _engine(config, rules, module, loss, known, trial, room)
    releases_beside = beside(config, accountant)
    noise, planned = config.privacy.noise_multiplier, None
    if noise is None:
        noise = noise_multiplier
    if noise is None:
        before = prior(known.data_sha256, setting.num_silos, rules)
        noise, planned = Prospect(config, algorithm, accountant, setting, num_records, privacy_rules, before).solved()
    rules = privacy_rules(config, noise)
    _check_engine(engine, rules, Layout.of(module), model, trial)
    lockstep = _lockstep(config, engine, rules)
    graphs = _graphs(config, engine, rules, lockstep=lockstep, num_here=len(train), device=model.device)
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
        caveats=(*known.caveats, *weak_claims(config, rules, num_records), *_no_guarantee(rules)),
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
        stack=_stack(config, lockstep),
        lockstep=lockstep,
        notes=holding.notes,
        names=holding.names,
        inputs=known.inputs,
    )


def _is_ours(plugin: object) -> bool:
    made = plugin if inspect.isroutine(plugin) else type(plugin)
    return plugin is None or str(getattr(made, "__module__", "")).partition(".")[0] == "dpfl_plugin"


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
    known, rules, algorithm = holding.survey, privacy_rules(config), _algorithm(config)
    module, loss, trial = _model_and_loss(config, holding)
    model = _start(module)
    setting = make_setting(config, known.num_records)
    stack = _stack(config, _may_be_together(config, rules, module, loss))
    room = _memory(config, algorithm, setting, rules, model, *_records_of(holding, trial), stack, None)
    terms = _terms(config, rules, known.num_records, room)
    found = choice.candidates(module, loss, terms, choice.made_up(module, known.feature_shape, trial))
    fitting = [one.name for one in found if one.engine is not None and config.engine in ("auto", one.name)]
    features = choice.made_up(module, known.feature_shape, trial, terms.batch_size)
    batch = Records(features, torch.zeros(len(features), dtype=torch.int64, device=features.device))
    refusal = None
    if not fitting:
        reasons = {one.name: one.reason for one in found}
        named = config.engine
        refusal = choice.none(module) if named == "auto" else choice.unusable(named, reasons[named])
    return Engines(found, fitting[0] if fitting else None, model, batch, setting.num_participants, refusal)


def _model_and_loss(
    config: Config,
    holding: Holding,
    module: torch.nn.Module | None = None,
    loss: engines.Loss | None = None,
) -> tuple[torch.nn.Module, engines.Loss, torch.Tensor]:
    """(model, loss, two records of zeros for them), those given or those of the configuration."""
    known, words = holding.survey, any(silo.train_x.dtype.kind == "i" for silo in holding.silos.values())
    dtype, device = getattr(torch, config.runtime.dtype), _device(holding.device or config.runtime.device)
    if module is None:
        module = build_model(model_block(config.model), known.feature_shape, known.num_classes, config.seed)
    else:
        module = module.eval()
        check_model(module, known.feature_shape, words=words)
    trial = torch.zeros(2, *known.feature_shape, dtype=torch.int64 if words else dtype, device=device)
    module = module.to(device=device, dtype=dtype)
    return module, _loss(config.loss if loss is None else loss, module, trial), trial


def _start(module: torch.nn.Module) -> torch.Tensor:
    """The model (d,) that a run begins with."""
    return Layout.of(module).flatten(dict(module.named_parameters()))


def _records_of(holding: Holding, like: torch.Tensor) -> tuple[dict[int, Records], dict[int, Records]]:
    """Training and test records by silo id, in the number format and on the device of ``like``."""
    dtype, device = like.dtype, like.device
    train = {i: _records(s.train_x, s.train_y, dtype, device) for i, s in holding.silos.items()}
    return train, {i: _records(s.test_x, s.test_y, dtype, device) for i, s in holding.silos.items()}


def _loss(named: str | engines.Loss, module: torch.nn.Module, trial: torch.Tensor) -> engines.Loss:
    """The loss that a configuration names, for the outputs that the model has; or the one that is given."""
    with torch.no_grad():
        outputs = module.eval()(trial)
    loss = losses.find(named, 1 if outputs.dim() == 1 else int(outputs.shape[1])) if isinstance(named, str) else named
    _check_loss(named if isinstance(named, str) else getattr(named, "__name__", repr(named)), loss, outputs)
    return loss


def _memory(
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
    if config.runtime.in_lockstep and stack > 1:
        together = memory.of_lockstep(setting, mine, stack=stack, batch_size=batch)
        needs += together
        if config.runtime.graphs:
            needs.append(("a graph", memory.of_graph(setting, model, together, len(mine), stack=stack)))
    if rules.noise == "device":
        needs.append(("noise", memory.of_device_noise(setting, model, len(mine), stack=stack)))
    needs.append(("test records", sum(map(memory.bytes_of, test.values()))))
    held = sum(map(memory.bytes_of, [*mine, *test.values()]))
    at_once = min(stack, setting.num_participants)
    return memory.plan(config.runtime.memory_budget, model.device, held, needs, chunk_bytes, at_once)


def _may_be_together(config: Config, rules: PrivacyRules, module: torch.nn.Module, loss: engines.Loss) -> bool:
    """Whether an engine that may be chosen answers silos together."""
    if not config.runtime.in_lockstep:
        return False
    names = registry.names("engines") if config.engine == "auto" else [config.engine]
    kinds: list[Any] = [registry.load("engines", name) for name in names]
    return any(together(kind, rules) and kind.unsupported(module, loss) is None for kind in kinds)


def _stack(config: Config, lockstep: bool) -> int:
    return config.runtime.stack or (ALL_SILOS if lockstep else 1)


def _lockstep(config: Config, engine: engines.Engine, rules: PrivacyRules) -> bool:
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


def _graphs(
    config: Config,
    engine: engines.Engine,
    rules: PrivacyRules,
    *,
    lockstep: bool,
    num_here: int,
    device: torch.device,
) -> bool:
    """Whether a stack's sums are recorded as CUDA graphs.

    Raises:
        UnsupportedError: the configuration says so, and they cannot be.
    """
    if not config.runtime.graphs:
        return False
    if not lockstep:
        raise UnsupportedError(
            f"runtime.graphs=true: engine {engine.name} with privacy.unit={rules.unit!r} and this privacy.clip answers "
            "silos one after another, and a graph is of a whole stack's sums. Leave graphs out; at record level "
            "closed_form and dense answer silos together."
        )
    if not getattr(engine, "capturable", False):
        raise UnsupportedError(
            f"runtime.graphs=true: engine {engine.name} does not say that a graph may replay what it does (capturable, "
            "see Together in dpfl_plugin/gradients/stacked.py). Leave graphs out, or use closed_form or dense."
        )
    if device.type != "cuda":
        raise UnsupportedError(
            f"runtime.graphs=true: this process computes on {device.type}, and graphs are CUDA's. Leave graphs out."
        )
    if num_here == 1:
        raise UnsupportedError(
            "runtime.graphs=true: this process has one silo, and a graph is of a whole stack's sums. Leave graphs out, "
            "or use fewer processes."
        )
    return True


def _engine(
    config: Config,
    rules: PrivacyRules,
    module: torch.nn.Module,
    loss: engines.Loss,
    known: Survey,
    trial: torch.Tensor,
    room: Memory,
) -> tuple[engines.Engine, str]:
    """The engine that a run uses, tried on made-up records; and why it is that one."""
    made_up = choice.made_up(module, known.feature_shape, trial)
    return choice.choose(config.engine, module, loss, _terms(config, rules, known.num_records, room), made_up)


def _terms(config: Config, rules: PrivacyRules, num_records: Sequence[int], room: Memory) -> choice.Terms:
    return choice.Terms(
        chunk_bytes=room.chunk,
        most_bytes=room.left,
        batch_size=usual_batch(rules, num_records),
        precision=config.runtime.precision,
        lockstep=config.runtime.in_lockstep,
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


def prospect(
    config: Config,
    base: Path,
    prior: Callable[[str, int, PrivacyRules], Prior] | None = None,
    federation: Federation | None = None,
    key: Path | None = None,
) -> Prospect:
    """What is known of a run before it begins; nothing of its records but their numbers is kept.

    Args:
        prior: as in `build`; None for nothing.
        federation: the silos' records, where they are at hand.
        key: the file of the key by which ``prior`` knows records again (`marks`).

    Raises:
        ConfigError, DataError: as `build`.
    """
    if prior is not None:
        refuse_beside(config, SHARED)
    algorithm, accountant, rules = _algorithm(config), _accountant(config), privacy_rules(config)
    federation = federate(config, base) if federation is None else federation
    num_records = tuple(len(silo.train_y) for silo in federation.silos)
    _check_records(config, rules, num_records, federation.names)
    setting = make_setting(config, num_records)
    known = survey(federation)
    known = known if key is None else MarkKey.at(key).marked(known)
    before = NO_PRIOR if prior is None else prior(known.data_sha256, setting.num_silos, rules)
    return Prospect(config, algorithm, accountant, setting, num_records, privacy_rules, before)


def dimension(config: Config, federation: Federation) -> int:
    """d, the number of the model's parameters."""
    shape, num_classes = federation.feature_shape, federation.num_classes
    return Layout.of(build_model(model_block(config.model), shape, num_classes, config.seed)).dimension


def _algorithm(config: Config) -> Algorithm:
    algorithm: Algorithm = build_plugin("algorithms", config.algorithm, where="algorithm")
    methods = ("init_server", "init_silos", "round_plan", "download", "local_update", "aggregate", "notes")
    missing = [name for name in methods if not callable(getattr(algorithm, name, None))]
    if missing:
        raise PluginError(
            f"algorithm: {type(algorithm).__name__} has no {', '.join(missing)}; see Algorithm in "
            "dpfl_plugin/algorithms/base.py."
        )
    return algorithm


def _accountant(config: Config) -> Accountant:
    accountant: Accountant = build_plugin("accountants", config.privacy.accountant, where="privacy.accountant")
    return accountant


def weak_claims(config: Config, rules: PrivacyRules, num_records: Sequence[int]) -> list[str]:
    """Warnings of a budget that promises little: an epsilon beyond use, or a delta that lets records be published."""
    return [*_vast_epsilon(config.privacy.epsilon), *_large_delta(config, rules, num_records)]


def _vast_epsilon(epsilon: float | None) -> list[str]:
    if epsilon is None or epsilon <= VAST_EPSILON:
        return []
    return [
        f"privacy.epsilon={epsilon:g} promises next to nothing: what is seen may be e^epsilon times likelier with a "
        f"record than without it, and e^{VAST_EPSILON:g} is half a billion. Use a much smaller epsilon."
    ]


def _large_delta(config: Config, rules: PrivacyRules, num_records: Sequence[int]) -> list[str]:
    """Where delta alone would let the records of the smallest silo, or a silo, be published."""
    units = min(num_records) if config.privacy.unit == "record" else len(num_records)
    if rules.noise_multiplier == 0 or config.privacy.delta < 1 / units:
        return []
    what = "the records of the smallest silo" if config.privacy.unit == "record" else "the silos"
    return [
        f"privacy.delta={config.privacy.delta:g} is not below 1/{units}, one over {what}: publishing one of them at "
        "random would satisfy such a guarantee. Use a much smaller delta."
    ]


def _no_guarantee(rules: PrivacyRules) -> list[str]:
    return [f"no privacy guarantee holds: {rules.clipping.statement}."] if rules.clipping.measures else []


def build_plugin(group: str, block: Block, *context: object, where: str):  # type: ignore[no-untyped-def]
    """The plugin that a block names, called with its options."""
    return registry.build(_plugin(group, block, where), block.options, *context, where=where)


def algorithm_options(config: Config) -> list[str]:
    """The options that a configuration's algorithm has."""
    return list(registry.options(_plugin("algorithms", config.algorithm, "algorithm")))


def _plugin(group: str, block: Block, where: str) -> Callable[..., Any]:
    if block.name is None:
        return registry.load_object(str(block.module), where)
    return registry.load(group, block.name)


def privacy_rules(config: Config, noise_multiplier: float = 1.0) -> PrivacyRules:
    """How releases are made; ``noise_multiplier`` is used where the configuration leaves it to be solved for."""
    privacy = config.privacy
    noise = noise_multiplier if privacy.noise_multiplier is None else privacy.noise_multiplier
    sampler = samplers.make(privacy.sampler, privacy.record_rate, privacy.batch_size)
    default = sampler.neighbouring if privacy.unit == "record" else "replace_one"
    return PrivacyRules(
        unit=privacy.unit,
        neighbouring=privacy.neighbouring or default,
        clip_norm=privacy.clip_norm,
        clipping=_clipping(config),
        mechanism=build_plugin("mechanisms", privacy.mechanism, noise, where="privacy.mechanism"),
        sampler=sampler,
        schedule=_schedule(config),
        l2=config.l2,
        secure=privacy.secure,
        noise=config.runtime.noise,
    )


def _clipping(config: Config) -> Clipping:
    clipping = build_plugin("clippings", config.privacy.clip, where="privacy.clip")
    if not isinstance(clipping, Clipping):
        raise PluginError(
            f"privacy.clip: {type(clipping).__name__} must derive from Clipping in dpfl_plugin/privacy/clipping.py."
        )
    if isinstance(clipping, Adaptive) and clipping.bit_noise_multiplier and config.privacy.noise_multiplier is None:
        raise ConfigError(
            "privacy.clip.bit_noise_multiplier needs privacy.noise_multiplier, which it has to exceed: give both, or "
            "leave out both."
        )
    if clipping.measures and config.privacy.epsilon is not None:
        raise ConfigError(
            f"privacy.epsilon={config.privacy.epsilon:g} cannot be kept: {clipping.statement}, so no epsilon holds. "
            "Leave epsilon out, or use clip: adaptive, which does the like with noised counts."
        )
    return clipping


def _schedule(config: Config) -> Schedule:
    schedule: Schedule = build_plugin("schedules", config.privacy.schedule, where="privacy.schedule")
    missing = [name for name in ("factors", "statement") if not hasattr(schedule, name)]
    if missing:
        raise PluginError(
            f"privacy.schedule: {type(schedule).__name__} has no {' and no '.join(missing)}; see Schedule in "
            "dpfl_plugin/privacy/schedules.py."
        )
    if isinstance(schedule, Geometric) and schedule.beta > 1 and config.rounds is None:
        raise ConfigError(
            f"rounds is missing: with privacy.schedule.beta={schedule.beta!r} noise grows, and a budget may last for "
            "ever. Give rounds."
        )
    clip = config.privacy.clip
    if type(schedule) is not Constant and clip.options.get("bit_noise_multiplier") is not None:
        raise ConfigError(
            f"privacy.clip.bit_noise_multiplier={clip.options['bit_noise_multiplier']!r} with privacy.schedule: it has "
            "to exceed the noise of every release, which the schedule changes. Leave bit_noise_multiplier out."
        )
    return schedule


def model_block(block: Block) -> dict[str, Any]:
    """A configuration's model as `build_model` takes it."""
    chosen = {"name": block.name} if block.module is None else {"module": block.module}
    return {**chosen, **block.options}


def make_setting(config: Config, num_records: Sequence[int]) -> Setting:
    """What an algorithm may know of a run; ``num_records`` of each silo."""
    privacy, num_silos = config.privacy, len(num_records)
    participants = floor_share(config.silo_rate, num_silos)
    require(
        participants >= 1,
        "silo_rate",
        config.silo_rate,
        f"give at least one of {num_silos} silos: floor({config.silo_rate} * {num_silos}) is 0",
        f"Use at least {1 / num_silos:.4g}.",
    )
    clipping = _clipping(config)
    changes = clipping.adapts or clipping.measures
    return Setting(
        num_silos=num_silos,
        num_participants=participants,
        silo_rate=config.silo_rate,
        record_rate=1.0 if privacy.sampler == "full" else privacy.record_rate,
        batch_size=privacy.batch_size,
        num_records=training_records(config, min(num_records)),
        rounds=config.rounds,
        clip_norm=privacy.clip_norm if math.isfinite(privacy.clip_norm) and not changes else None,
        epsilon=privacy.epsilon,
        delta=privacy.delta,
        weights=_weights(config, num_records),
    )


def federate(config: Config, base: Path, ownership: Ownership | None = None) -> Federation:
    """The silos' records; with ``ownership`` those of this process."""
    data = config.data
    dataset, partition = _plugin("datasets", data.dataset, "data.dataset"), data.partition
    return build_federation(
        dataset=dataset,
        dataset_options=data.dataset.options,
        partitioner=_plugin("partitioners", partition, "data.partition"),
        partition_options=partition.options,
        num_silos=data.num_silos,
        seed=config.seed,
        test=data.test,
        test_fraction=data.test_fraction,
        preprocess=[{"name": step.name, **step.options} for step in data.preprocess],
        max_records_per_silo=data.max_records_per_silo,
        folder=Path(data.folder) if data.folder else None,
        base=base,
        name=data.dataset.name or str(data.dataset.module),
        ownership=ownership,
        memory_map=base / Path(data.memory_map).expanduser() if data.memory_map else None,
    )


def _check_records(config: Config, rules: PrivacyRules, num_records: Sequence[int], names: Mapping[int, str]) -> None:
    """Raise unless every silo has what a batch needs, and what is set apart."""
    check_beside(config, rules, num_records, names)
    for silo, count in enumerate(num_records):
        _check_batch(rules, called(silo, names), training_records(config, count))


def usual_batch(rules: PrivacyRules, num_records: Sequence[int]) -> int:
    """Records in a batch of the silo in the middle; expected ones, where their number is drawn."""
    return max(1, round(rules.sampler.divisor(sorted(num_records)[len(num_records) // 2])))


def _check_batch(rules: PrivacyRules, silo: str, count: int) -> None:
    try:
        rules.sampler.divisor(count)
    except ConfigError as error:
        raise ConfigError(f"{silo}: {error}") from error


def _records(x: NDArray[np.float32], y: NDArray[np.int64], dtype: torch.dtype, device: torch.device) -> Records:
    return Records(torch.from_numpy(x).to(device=device, dtype=dtype), torch.from_numpy(y).to(device))


def _weights(config: Config, num_records: Sequence[int]) -> tuple[float, ...]:
    if config.silo_weights == "equal":
        return (1 / len(num_records),) * len(num_records)
    return tuple(count / sum(num_records) for count in num_records)


def _check_engine(
    engine: engines.Engine, rules: PrivacyRules, layout: Layout, model: torch.Tensor, trial: torch.Tensor
) -> None:
    """Raise unless the clipping fits the model, and the engine does what it asks, on made-up records."""
    bounds = rules.bounds(layers(layout))
    if rules.unit == "silo" or not (rules.clipping.adapts or rules.clipping.measures or isinstance(bounds, tuple)):
        return
    batch = engine.prepare(Records(trial, torch.zeros(len(trial), dtype=torch.int64, device=trial.device)))
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


def _check_loss(name: str, loss: engines.Loss, outputs: torch.Tensor) -> None:
    labels = torch.zeros(len(outputs), dtype=torch.int64, device=outputs.device)
    try:
        shape = tuple(loss(outputs, labels).shape)
    except Exception as error:  # a stranger's code may fail in any way
        raise PluginError(f"loss={name!r} fails on made-up records: {told(error)}.") from error
    if shape != (len(outputs),):
        raise PluginError(f"loss={name!r} must give one value for each record, ({len(outputs)},); it gives {shape}.")


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError as error:  # whose message lists all that any torch knows
        raise ConfigError(f"runtime.device={name!r} is not a valid device; use cpu, cuda or cuda:N.") from error
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"runtime.device={name!r} cannot be used here: {str(error).splitlines()[0]}") from error
    return device
