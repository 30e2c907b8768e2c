"""The schedules of Gao, Lowy, Zhou and Wright, ICML 2024 ([G]), from the functions that the algorithms run by."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import dpfl_plugin as dpfl
from dpfl_plugin.algorithms import isrl_theory as theory
from dpfl_plugin.algorithms.accelerated import lipschitz_constant
from dpfl_plugin.algorithms.isrl import Facts, Stage
from dpfl_plugin.algorithms.localized import Phases
from dpfl_plugin.core.shares import share_bounds
from dpfl_plugin.errors import ConfigError
from papers.plans.base import NORM_1, Case, Constant, Plan, Proof, Value, linear, number

FULL = ("privacy.sampler=full", "privacy.record_rate=null", "privacy.batch_size=null")
# What the theorems decide by themselves, if the configuration leaves it out.
DECIDED = ("phases", "exponent", "regularisation", "eta", "smoothing_radius", "envelope", "stage_rounds")
ALGORITHMS = {
    "localized_mb_sgd": dpfl.algorithms.LocalizedMBSGD,
    "localized_convolution": dpfl.algorithms.LocalizedConvolution,
    "localized_nesterov": dpfl.algorithms.LocalizedNesterov,
    "localized_subgradient": dpfl.algorithms.LocalizedSubgradient,
    "multistage_mb_sgd": dpfl.algorithms.MultistageMBSGD,
}
WITH_THEOREM = (
    "localized_mb_sgd (Theorem C.1), localized_convolution (D.5), localized_nesterov (E.2), localized_subgradient "
    "(G.1) and multistage_mb_sgd (Lemma B.1)"
)


def plan(case: Case) -> Plan:
    """Plan phases, rounds, batches, regularisers and noise, for the configuration's algorithm.

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
    name, values = _values(algorithm, facts)
    return Plan(
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
        proofs=[
            *_papers_noise(case, settings, algorithm, facts),
            case.proven("proven noise", (*settings, "privacy.noise_multiplier=null")),
        ],
    )


def _algorithm(config: Any) -> Any:
    if config.algorithm.name not in ALGORITHMS:
        raise ConfigError(
            f"algorithm.name={config.algorithm.name!r}: no theorem of Gao et al. 2024 has a schedule for it. "
            f"There are schedules for {WITH_THEOREM}. Use --set algorithm.name=..."
        )
    return ALGORITHMS[config.algorithm.name](**config.algorithm.options)


def _with(case: Case, settings: Sequence[str], known: str) -> tuple[Any, Facts]:
    """The algorithm that these settings make, and the public numbers that it goes by."""
    more = [] if known else [f"rounds={case.config.rounds or 1}"]
    changed = Case(experiment=case.changed([*settings, *more]))
    return _algorithm(changed.config), Facts.of(changed.setting, changed.dimension)


def _constants(case: Case, algorithm: Any) -> tuple[list[Constant], list[str]]:
    """The theorem's constants, and the settings that give them to the algorithm."""
    constants, settings, given = [], [], case.constants
    facts = Facts.of(case.setting, case.dimension)
    lipschitz = given.get("lipschitz") or getattr(algorithm, "lipschitz", None)
    L = float(lipschitz_constant(lipschitz, facts))
    source = "--lipschitz" if "lipschitz" in given else "algorithm.lipschitz"
    what = "privacy.clip_norm, which no clipped gradient passes"
    constants.append(Constant("L", L, what if lipschitz is None else source))
    if "lipschitz" in given:
        settings.append(f"algorithm.lipschitz={L!r}")
    if isinstance(algorithm, Phases):
        asked = "distance" in given or algorithm.diameter is None
        why = "D, the diameter of the ball that is searched, is for you to choose."
        D = case.needed("distance", why) if asked else float(algorithm.diameter or 0)
        constants.append(Constant("D", D, "--distance" if asked else "algorithm.diameter"))
        settings.append(f"algorithm.diameter={D!r}")
    if isinstance(algorithm, dpfl.algorithms.LocalizedMBSGD | dpfl.algorithms.MultistageMBSGD):
        beta = _smoothness(case, algorithm)
        constants.append(beta)
        settings.append(f"algorithm.smoothness={number(beta.value)!r}")
    if isinstance(algorithm, dpfl.algorithms.MultistageMBSGD):
        constants.append(Constant("mu", algorithm.strong_convexity, "algorithm.strong_convexity"))
    constants += [
        Constant("n", facts.num_records, "training records of the smallest silo"),
        Constant("M", facts.num_participants, f"silos of a round, of N = {facts.num_silos}"),
        Constant("d", facts.dimension, "parameters of the model"),
    ]
    return constants, settings


def _smoothness(case: Case, algorithm: Any) -> Constant:
    known, why = linear(case), f"beta is known without looking at records for linear models on {NORM_1} alone."
    if "smoothness" in case.constants or (algorithm.smoothness is None and known is None):
        return Constant("beta", case.needed("smoothness", why), "--smoothness")
    if algorithm.smoothness is not None:
        return Constant("beta", algorithm.smoothness, "algorithm.smoothness")
    assert known is not None
    beta = known.smoothness(case.config.l2)
    return Constant("beta", beta, f"{known.model} regression on {NORM_1}, l2 included")


def _left_to_the_theorem(config: Any, algorithm: Any) -> list[str]:
    """Settings that take away what the configuration decides and the theorem has otherwise."""
    options = config.algorithm.options
    gone = [name for name in (*DECIDED, "phase_rounds") if options.get(name) is not None]
    more = []
    if isinstance(algorithm, dpfl.algorithms.LocalizedMBSGD):
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


def _rounds(algorithm: Any, facts: Facts, config: Any) -> list[str]:
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
        if isinstance(algorithm, dpfl.algorithms.LocalizedSubgradient)
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


def _papers_noise(case: Case, settings: Sequence[str], algorithm: Any, facts: Facts) -> list[Proof]:
    """Epsilon of the theorem's sigma_i as the accountant proves it: of the dearest phase, since phases are disjoint."""
    privacy: Any = case.changed([*settings, "privacy.noise_multiplier=null"]).config.privacy
    if privacy.unit != "record":
        return []
    L, sampler = lipschitz_constant(algorithm.lipschitz, facts), privacy.sampler
    longest = (1 if sampler == "poisson" else 2) * privacy.clip_norm
    multipliers, epsilons = [], []
    for _, members in itertools.groupby(algorithm.stages(facts), key=lambda stage: stage.phase):
        stages = list(members)
        R_i = sum(stage.rounds for stage in stages)
        first, last = share_bounds(stages[0].share, facts.num_records)
        n_i, s = last - first, privacy.record_rate
        std = theory.noise_std(L=L, n_i=n_i, R_i=R_i, epsilon=facts.epsilon, delta=facts.delta)
        divisor = n_i if sampler == "full" else s * n_i if sampler == "poisson" else facts.batch(n_i)
        multipliers.append(std * divisor / longest)
        rate = None if sampler == "full" else s or divisor / n_i
        spent = dpfl.epsilon(
            noise_multiplier=multipliers[-1],
            steps=R_i,
            delta=privacy.delta,
            record_rate=rate,
            sampler=sampler,
            accountant=privacy.accountant.name,
        )
        epsilons.append(spent.epsilon)
    return [
        Proof(
            name="noise of the theorem",
            rounds=facts.rounds,
            noise=tuple(number(z) for z in multipliers),
            claimed=facts.epsilon,
            server=max(epsilons),
            third_party=None,
            delta=privacy.delta,
        )
    ]


def _fails(case: Case, facts: Facts) -> list[str]:
    known = linear(case)
    fails = []
    if facts.num_participants != facts.num_silos:
        fails.append("sec. 2 and 3 state their optimal risk for M = N")
    if known is None:
        return [*fails, "whether a record's loss is convex and L-Lipschitz is not known for this model"]
    longest = known.lipschitz
    if case.config.privacy.clip_norm < longest:
        fails.append(
            f"a record's gradient may be {longest:.4g} long, and is clipped to {case.config.privacy.clip_norm:g}: what "
            "is minimised is then no longer the mean loss (--set privacy.clip_norm="
            f"{longest:.4g} clips nothing)"
        )
    return fails
