"""Nothing that makes or carries releases is left out of the conformance tests."""

import pkgutil

import pytest
import torch
from torch import nn

import dpfl_plugin.privacy.samplers
import dpfl_plugin.runtimes
from dpfl_plugin import registry
from dpfl_plugin.gradients import losses
from tests.conformance.cases import (
    ALGORITHMS,
    CLIPPING_OPTIONS,
    ENGINES,
    MECHANISM_OPTIONS,
    RUNTIMES,
    SAMPLERS,
    SCHEDULE_OPTIONS,
    cases,
    model,
    of_noise,
)

HERE = "tests/conformance/cases.py"


@pytest.mark.parametrize(
    ("group", "name"),
    [(group, name) for group in ("mechanisms", "clippings", "schedules") for name in registry.names(group)],
)
def test_every_mechanism_clipping_and_schedule_can_be_built(group: str, name: str) -> None:
    options = registry.options(registry.load(group, name))
    needed = {key for key, option in options.items() if option.default is option.empty}
    given = {"mechanisms": MECHANISM_OPTIONS, "clippings": CLIPPING_OPTIONS, "schedules": SCHEDULE_OPTIONS}[group]
    assert needed <= set(given.get(name, ())), f"give {name} its options in {HERE}"


@pytest.mark.parametrize("name", ENGINES)
def test_every_engine_supports_the_model(name: str) -> None:
    reason = registry.load("engines", name).unsupported(model(4), losses.cross_entropy)
    assert reason is None, f"engine {name} has no conformance case ({reason}): give it a model of its own in {HERE}"


def test_every_runtime_sampler_and_algorithm_has_a_case() -> None:
    modules = {module.name for module in pkgutil.iter_modules(dpfl_plugin.runtimes.__path__)} - {"choice"}  # of one
    assert {name.partition(",")[0] for name in RUNTIMES} == modules, f"a runtime has no line in RUNTIMES of {HERE}"
    alone = set(dpfl_plugin.privacy.samplers.SAMPLERS) - {
        "cyclic"
    }  # whose releases are correlated: test_correlation.py
    assert set(SAMPLERS) == alone, f"a sampler is missing in {HERE}"
    assert set(ALGORITHMS) == set(registry.names("algorithms")), f"an algorithm has no line in ALGORITHMS of {HERE}"


def test_every_two_are_combined() -> None:
    seeded = [case for case in cases() if not case.fresh and case.dtype == torch.float64]
    engines, mechanisms = len(ENGINES), len(registry.names("mechanisms"))
    assert len({(c.mechanism, c.engine, c.runtime) for c in seeded}) == mechanisms * engines * len(RUNTIMES)
    assert len({(c.mechanism, c.engine, c.sampler, c.unit) for c in seeded}) == mechanisms * engines * 5
    assert len({(c.mechanism, c.runtime, c.sampler, c.unit) for c in seeded}) == mechanisms * len(RUNTIMES) * 5
    fresh = {(c.mechanism, c.runtime, c.sampler, c.unit) for c in cases() if c.fresh}
    assert {case.engine for case in of_noise()} == set(ENGINES)
    assert {(c.runtime, c.sampler, c.unit, c.fresh) for c in of_noise()} == {
        (c.runtime, c.sampler, c.unit, c.fresh) for c in cases()
    }
    assert len(fresh) == len(registry.names("mechanisms")) * len(RUNTIMES) * 5


def test_a_model_that_an_engine_does_not_support_would_be_noticed() -> None:
    deep = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))
    assert registry.load("engines", "closed_form").unsupported(deep, losses.cross_entropy)
