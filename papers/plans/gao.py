"""The schedules of Gao, Lowy, Zhou and Wright, ICML 2024 ([G]), from the functions that the algorithms run by."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from dpfl_plugin.algorithms import isrl_theory as theory
from dpfl_plugin.algorithms.accelerated import MultistageMBSGD, lipschitz_constant
from dpfl_plugin.algorithms.isrl import Facts, OneGradient, Stage
from dpfl_plugin.algorithms.localized import LocalizedMBSGD, LocalizedSubgradient, Phases
from papers.plans.bounds import public_curvature, public_lipschitz
from dpfl_plugin.config.schema import Config
from dpfl_plugin.core.shares import share_bounds
from dpfl_plugin.errors import ArgumentError, ConfigError
from dpfl_plugin.privacy.accountants import Accountant
from dpfl_plugin.privacy.events import Term
from dpfl_plugin.runs.algorithm_setting import make_setting
from dpfl_plugin.runs.plugins import build_plugin
from dpfl_plugin.runs.rules import privacy_rules
from papers.plans.base import NORM_1, Case, Constant, Prescription, Run, Value, linear, number

FULL = ("privacy.sampler=full", "privacy.record_rate=null", "privacy.batch_size=null")
# What the theorems decide by themselves, if the configuration leaves it out.
DECIDED = ("phases", "exponent", "regularisation", "eta", "smoothing_radius", "envelope", "stage_rounds")
WITH_THEOREM = (
    "localized_mb_sgd (Theorem C.1), localized_convolution (D.5), localized_nesterov (E.2), localized_subgradient "
    "(G.1) and multistage_mb_sgd (Lemma B.1)"
)


def prescribe(case: Case) -> Prescription:
    """Phases, rounds, batches, regularisers and noise, for the configuration's algorithm.

    Raises:
        ConfigError: the paper has no schedule for the algorithm, or a constant is not known.
    """
    case.needed_epsilon()
    algorithm = _algorithm(case.config)
    constants, settings = _constants(case, algorithm)
    settings = [*settings, *_left_to_the_theorem(case.config, algorithm)]
    algorithm, facts = _with(case, settings, "")
    batches: tuple[str, ...] = ()
    if not _batches_do(algorithm, facts):
        batches = FULL
        settings = [*settings, *FULL]
        algorithm, facts = _with(case, settings, "")
    settings += _rounds(algorithm, facts, case.config)
    algorithm, facts = _with(case, settings, "rounds")
    stages = list(algorithm.stages(facts))
    run = Run(name="proven noise", settings=(*settings, "privacy.noise_multiplier=null"))
    name, values = _values(algorithm, facts)
    return Prescription(
        theorem=f"{name} of Gao et al. 2024",
        values=values,
        rows=[_row(stage, k, facts) for k, stage in enumerate(stages, start=1)],
        constants=constants,
        fails=[*algorithm.remarks(facts), *_fails(case, facts)],
        notes=[
            f"Batches of all records, since the configuration's are too small for {name}."
            if batches
            else "Batches are the configuration's.",
            "Rounds are those of the theorem with constants 1 where it says 'of the order of'. The variance V^2 of "
            "Alg. 5 is the configuration's.",
        ],
        proofs=_papers_noise(case, settings, algorithm, facts),
        runs=[run],
    )


def _algorithm(config: Config) -> OneGradient:
    algorithm = build_plugin("algorithms", config.algorithm, where="algorithm")
    if not isinstance(algorithm, Phases | MultistageMBSGD):
        raise ConfigError(
            f"algorithm.name={config.algorithm.name!r}: no theorem of Gao et al. 2024 has a schedule for it. "
            f"There are schedules for {WITH_THEOREM}. Use --set algorithm.name=..."
        )
    return algorithm


def _with(case: Case, settings: Sequence[str], known: str) -> tuple[Any, Facts]:
    """The algorithm that these settings make, and the public numbers that it goes by."""
    config = case.changed([*settings, *([] if known else [f"rounds={case.config.rounds or 1}"])])
    facts = Facts.of(make_setting(config, case.num_records), case.dimension)
    return build_plugin("algorithms", config.algorithm, where="algorithm"), facts


def _constants(case: Case, algorithm: OneGradient) -> tuple[list[Constant], list[str]]:
    """The theorem's constants, and the settings that give them to the algorithm."""
    constants, settings, given = [], [], case.given
    facts = Facts.of(case.setting, case.dimension)
    lipschitz = given.lipschitz if given.lipschitz is not None else getattr(algorithm, "lipschitz", None)
    L = lipschitz_constant(lipschitz, facts)
    source = "--lipschitz" if given.lipschitz is not None else "algorithm.lipschitz"
    what = "privacy.clip_norm, which no clipped gradient passes"
    constants.append(Constant("L", L, what if lipschitz is None else source))
    if given.lipschitz is not None:
        settings.append(f"algorithm.lipschitz={L!r}")
    if isinstance(algorithm, Phases):
        D = given.distance if given.distance is not None else algorithm.diameter
        if D is None:
            raise ArgumentError(
                "{distance} is missing: D, the diameter of the ball that is searched, is for you to choose."
            )
        constants.append(Constant("D", D, "--distance" if given.distance is not None else "algorithm.diameter"))
        settings.append(f"algorithm.diameter={D!r}")
    if isinstance(algorithm, LocalizedMBSGD | MultistageMBSGD):
        beta = _smoothness(case, algorithm)
        constants.append(beta)
        settings.append(f"algorithm.smoothness={number(beta.value)!r}")
    if isinstance(algorithm, MultistageMBSGD):
        constants.append(Constant("mu", algorithm.strong_convexity, "algorithm.strong_convexity"))
    constants += [
        Constant("n", facts.num_records, "training records of the smallest silo"),
        Constant("M", facts.num_participants, f"silos of a round, of N = {facts.num_silos}"),
        Constant("d", facts.dimension, "parameters of the model"),
    ]
    return constants, settings


def _smoothness(case: Case, algorithm: LocalizedMBSGD | MultistageMBSGD) -> Constant:
    if case.given.smoothness is not None:
        return Constant("beta", case.given.smoothness, "--smoothness")
    if algorithm.smoothness is not None:
        return Constant("beta", algorithm.smoothness, "algorithm.smoothness")
    known = linear(case)
    if known is None:
        raise ArgumentError(
            f"{{smoothness}} is missing: beta is known without looking at records for model: logistic or softmax with "
            f"their own loss and {NORM_1}, as the last step of data.preprocess."
        )
    _, beta = public_curvature(1.0, case.config.l2, model=known.model, bias=known.bias)
    return Constant("beta", beta, f"{known.model} regression on {NORM_1}, l2 included")


def _left_to_the_theorem(config: Config, algorithm: OneGradient) -> list[str]:
    """Settings that take away what the configuration decides and the theorem has otherwise."""
    options = config.algorithm.options
    gone = [name for name in (*DECIDED, "phase_rounds") if options.get(name) is not None]
    more = []
    if isinstance(algorithm, LocalizedMBSGD):
        more = ["algorithm.subsolver=multistage"]
        gone += [
            name
            for name in ("lr", "lr_decay", "average", "tail_share", "ema_decay", "v")
            if options.get(name) is not None
        ]
    if options.get("passes", "multi") != "multi":
        more.append("algorithm.passes=multi")
    return [*more, *(f"algorithm.{name}=null" for name in gone)]


def _batches_do(algorithm: Any, facts: Facts) -> bool:
    """Whether every phase can draw batches that are as large as the theorem has them."""
    if not isinstance(algorithm, Phases):
        return True
    sizes = [facts.num_records // 2**i for i in range(1, algorithm.num_phases(facts) + 1)]
    if any(not 1 <= facts.batch(n_i) <= n_i for n_i in sizes):
        return False
    return all(
        facts.batch(n_i) >= theory.least_batch(n_i=n_i, R_i=R_i, epsilon=facts.epsilon, delta=facts.delta)
        for n_i, R_i in zip(sizes, algorithm.theorem_rounds(facts), strict=True)
    )


def _rounds(algorithm: Any, facts: Facts, config: Config) -> list[str]:
    if isinstance(algorithm, Phases):
        R = algorithm.theorem_rounds(facts)
        return [f"algorithm.phase_rounds={R}", f"rounds={sum(R)}"]
    return [f"rounds={algorithm.theorem_rounds(facts)}"]


def _values(algorithm: Any, facts: Facts) -> tuple[str, list[Value]]:
    rounds = Value("R", facts.rounds, "rounds in all, one gradient of every silo each")
    if not isinstance(algorithm, Phases):
        return "Lemma B.1", [rounds]
    known = algorithm.need_theorem(facts, "diameter", algorithm.theorem_name)
    first = (
        Value("eta", number(theory.step_size(**known)), "eta_i = eta / 2^(i p), lambda_i = 1 / (eta_i n_i)")
        if isinstance(algorithm, LocalizedSubgradient)
        else Value("lambda", number(theory.regularisation(**known)), "lambda_i = lambda 2^((i-1) p)")
    )
    smoothing = []
    if algorithm.smoothing:
        meaning = "radius s of the ball" if algorithm.smoothing == "convolution" else "beta of the envelope"
        smoothing = [Value(algorithm.smoothing, number(algorithm.strength(facts)), f"smoothing: {meaning}")]
    risk = "excess risk is O~ of this: constants and logarithms are not stated"
    return algorithm.theorem_name, [
        Value("tau", algorithm.num_phases(facts), "phases, floor(log2 n)"),
        Value("p", number(algorithm.p(facts)), "exponent of lambda_i"),
        first,
        *smoothing,
        rounds,
        Value("risk", number(theory.excess_risk(**known)), risk),
    ]


def _row(stage: Stage, k: int, facts: Facts) -> dict[str, Any]:
    """A stage as it will be run."""
    first, last = share_bounds(stage.share, facts.num_records)
    K_i = facts.batch(last - first)
    row: dict[str, Any] = {"phase": stage.phase, "stage": k, "n_i": last - first, "K_i": K_i, "rounds": stage.rounds}
    if math.isfinite(stage.radius):
        row |= {"lambda_i": number(stage.pull), "D_i": number(stage.radius)}
    return row | ({"v": number(stage.rate)} if stage.rate else {})


def _papers_noise(case: Case, settings: Sequence[str], algorithm: Any, facts: Facts) -> list[dict[str, Any]]:
    """Epsilon of the theorem's sigma_i as the accountant proves it: of the dearest phase, since phases are disjoint."""
    config = case.changed([*settings, "privacy.noise_multiplier=null"])
    if config.privacy.unit != "record":
        return []
    L, rules = lipschitz_constant(algorithm.lipschitz, facts), privacy_rules(config)
    accountant: Accountant = build_plugin("accountants", config.privacy.accountant, where="privacy.accountant")
    longest = (2 if rules.neighbouring == "replace_one" else 1) * config.privacy.clip_norm
    multipliers, epsilons = [], []
    for _, members in itertools.groupby(algorithm.stages(facts), key=lambda stage: stage.phase):
        stages = list(members)
        R_i = sum(stage.rounds for stage in stages)
        first, last = share_bounds(stages[0].share, facts.num_records)
        std = theory.noise_std(L=L, n_i=last - first, R_i=R_i, epsilon=facts.epsilon, delta=facts.delta)
        multipliers.append(std * rules.sampler.divisor(last - first) / longest)
        ((release, count),) = rules.pattern(facts.num_records, stages[0].share, ((multipliers[-1], 1),))
        term = Term(release=release, count=count, rounds=R_i)
        epsilons.append(accountant.epsilon([term], config.privacy.delta))
    return [
        {
            "name": "noise of the theorem",
            "rounds": facts.rounds,
            "noise_multiplier": [number(z) for z in multipliers],
            "claimed_epsilon": facts.epsilon,
            "claimed_view": "server",
            "epsilon": {"server": max(epsilons), "third_party": None},
            "delta": config.privacy.delta,
            "accountant": accountant.name,
        }
    ]


def _fails(case: Case, facts: Facts) -> list[str]:
    known = linear(case)
    fails = []
    if facts.num_participants != facts.num_silos:
        fails.append("sec. 2 and 3 state their optimal risk for M = N")
    if known is None:
        return [*fails, "whether a record's loss is convex and L-Lipschitz is not known for this model"]
    longest = public_lipschitz(1.0, model=known.model, bias=known.bias)
    if case.config.privacy.clip_norm < longest:
        fails.append(
            f"a record's gradient may be {longest:.4g} long, and is clipped to {case.config.privacy.clip_norm:g}: what "
            "is minimised is then no longer the mean loss (--set privacy.clip_norm="
            f"{longest:.4g} clips nothing)"
        )
    return fails
