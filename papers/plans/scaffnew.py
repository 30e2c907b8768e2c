"""Corollary 1 of "Balancing Privacy and Performance for Private Federated Learning Algorithms" ([S])."""

from __future__ import annotations

import math
from collections.abc import Iterator

from papers.plans.bounds import REPLACE_A_SILO, ScaffNewProblem, curvature, psi_0_bound, public_curvature
from dpfl_plugin.errors import ArgumentError, require_argument
from papers.optimum import optimum
from dpfl_plugin.runs.build import build
from papers.plans.base import NORM_1, Case, Constant, Prescription, Run, Value, linear, number

NOT_PRIVATE = (
    "computed from the records, NOT PRIVATE: what is published of this plan spends privacy that nothing counts"
)
EXACT = (  # the losses in double precision, whatever algorithm and noise
    "runtime.dtype=float64",
    "rounds=1",
    "privacy.epsilon=null",
    "privacy.noise_multiplier=1",
    "algorithm.name=scaffnew",
    "algorithm.local_lr=1",
    "algorithm.p=1",
    "algorithm.local_steps=null",
)
NOT_CHECKED = (
    "Not checked, since it depends on the records or on a constant that the paper does not give: that no update "
    "reaches clip_norm, and epsilon <= u p T (Lemma 1). v of Lemma 1 is taken as that of zCDP."
)


def prescribe(case: Case) -> Prescription:
    """eta*, p* and T*, with the noise of Lemma 1 and with the least that is proven.

    Raises:
        ConfigError: a constant is not known, or the losses are not strongly convex.
    """
    privacy, epsilon = case.config.privacy, case.needed_epsilon()
    replace_one = privacy.neighbouring != "add_or_remove"
    sensitivity = 2.0 if replace_one else 1.0
    mu, L, psi_0 = constants = _constants(case)
    problem = ScaffNewProblem(
        mu=mu.value,
        L=L.value,
        psi_0=psi_0.value,
        clip_norm=privacy.clip_norm,
        num_silos=len(case.num_records),
        dimension=case.dimension,
        epsilon=epsilon,
        delta=privacy.delta,
        v=REPLACE_A_SILO * sensitivity**2 / 4,
    )
    local_lr, p, T = number(problem.local_lr, down=True), number(problem.p), problem.iterations
    rounds = max(1, round(p * T))
    lemma_1 = math.sqrt(problem.v * rounds * math.log(1 / privacy.delta)) / (sensitivity * epsilon)
    step = ["algorithm.name=scaffnew", f"algorithm.local_lr={local_lr}", f"algorithm.p={p}"]
    settings = (*step, "algorithm.local_steps=null", f"rounds={rounds}")
    open_ended = (*settings, f"privacy.epsilon={epsilon}", "privacy.noise_multiplier=null")
    paper = (*settings, "privacy.epsilon=null", f"privacy.noise_multiplier={number(lemma_1)}")
    runs = [Run(name="noise of Lemma 1", settings=paper, claimed=epsilon)] if privacy.unit == "silo" else []
    return Prescription(
        theorem="Corollary 1 of the paper of DP-ScaffNew",
        values=(
            Value("local_lr", local_lr, "step size eta* = 1/L"),
            Value("p", p, f"probability of communicating after an iteration, sqrt(mu/L): {1 / p:.4g} steps a round"),
            Value("T", number(T), f"iterations, the least of the bound; p T = {p * T:.4g} rounds, run as {rounds}"),
            Value("bound", number(problem.bound(problem.local_lr, problem.p, T)), "E psi_T is at most that (eq. 2)"),
        ),
        constants=(
            *constants,
            Constant("C", privacy.clip_norm, "privacy.clip_norm"),
            Constant("N", problem.num_silos, "silos of the data"),
            Constant("d", problem.dimension, "parameters of the model"),
        ),
        fails=tuple(_fails(case, T)),
        notes=(NOT_CHECKED,),
        runs=(*runs, Run(name="proven noise", settings=open_ended)),
        advised=T > 1,
    )


def _constants(case: Case) -> tuple[Constant, Constant, Constant]:
    """mu, L and psi_0."""
    given, config, known = case.given, case.config, linear(case)
    if given.from_records and known is None:
        raise ArgumentError(f"{{from_records}} is for model: logistic or softmax with {NORM_1} and their own loss.")
    mu, L = convexity(case, "Theorem 1")
    if given.psi0 is not None:
        return mu, L, Constant("psi_0", given.psi0, "--psi0")
    if given.from_records:
        parts = build(case.changed(EXACT), case.question.base)
        found = optimum(parts, config.l2).psi_0(parts.model.numpy(), len(case.num_records), mu.value, L.value)
        return mu, L, Constant("psi_0", found, NOT_PRIVATE, from_records=True)
    _need(known is not None, "psi0", "psi_0")
    assert known is not None
    bound = psi_0_bound(math.log(known.num_classes), mu.value, len(case.num_records))
    source = f"at most 2 N F(x_0) / mu, where F(0) = ln {known.num_classes}: known without a record"
    return mu, L, Constant("psi_0", bound, source)


def convexity(case: Case, theorem: str) -> tuple[Constant, Constant]:
    """mu and L, given or known without records. Raises ConfigError if neither, or the losses are not convex enough."""
    given, config, known = case.given, case.config, linear(case)
    if given.strong_convexity is not None:
        mu = Constant("mu", given.strong_convexity, "--strong-convexity")
    else:
        _need(known is not None, "strong_convexity", "mu")
        must = f"be above 0: {theorem} is for strongly convex losses, and without l2 nothing is known to be"
        if not config.l2 > 0:
            raise ArgumentError(f"l2={config.l2!r} must {must}. Use --set l2=0.005, or give {{strong_convexity}}.")
        mu = Constant("mu", config.l2, "l2 of the configuration")
    L = _smoothness(case)
    require_argument(mu.value <= L.value, "strong_convexity", mu.value, f"be at most L = {L.value:.6g}")
    return mu, L


def _smoothness(case: Case) -> Constant:
    given, config, known = case.given, case.config, linear(case)
    if given.smoothness is not None:
        return Constant("L", given.smoothness, "--smoothness")
    _need(known is not None, "smoothness", "L")
    assert known is not None
    if given.from_records:
        silos = (silo.usable_train_x for silo in case.federation.silos)
        largest = max(curvature(x, config.l2, model=known.model, bias=known.bias)[1] for x in silos)
        return Constant("L", largest, NOT_PRIVATE, from_records=True)
    _, L = public_curvature(1.0, config.l2, model=known.model, bias=known.bias)
    factor = "1/4" if known.model == "logistic" else "1/2"
    return Constant("L", L, f"{factor} ||(x{', 1' * known.bias})||^2 + l2 of {NORM_1}")


def _need(known: bool, argument: str, name: str) -> None:
    if not known:
        raise ArgumentError(
            f"{{{argument}}} is missing: {name} is known without looking at records for model: logistic or softmax "
            f"with their own loss and {NORM_1}, as the last step of data.preprocess. Give {{{argument}}}."
        )


def _fails(case: Case, T: float) -> Iterator[str]:
    config, privacy = case.config, case.config.privacy
    if linear(case) is None:
        yield f"whether the losses of model {config.model.name or config.model.module} are convex is not known"
    if privacy.unit != "silo":
        yield "it has noise on the update, not on gradients (--set privacy.unit=silo)"
    if privacy.sampler != "full":
        yield "it has gradients of all records (--set privacy.sampler=full)"
    if config.silo_weights != "equal":
        yield "it has the plain mean of the silos (--set silo_weights=equal)"
    if T == 1:
        yield "T* is below 1: the bound grows from the first iteration on, so that no training pays at this epsilon"
