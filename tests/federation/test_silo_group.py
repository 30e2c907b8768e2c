"""The silos of one process by themselves: whose state changes, and what evaluation tells."""

from __future__ import annotations

import pytest
import torch

from dpfl_plugin.algorithms.scaffold import Scaffold
from dpfl_plugin.core.vectors import Vectors
from dpfl_plugin.federation.silo_group import SiloGroup
from dpfl_plugin.gradients.base import Records
from tests.quadratics import Lab, Quadratic, its_own_loss, rules, silo

CENTRES = (0.0, 1.0, 5.0)


def lab(stack: int = 1) -> Lab:
    silos = [silo([2.0], [centre]) for centre in CENTRES]
    return Lab(Scaffold(local_steps=2, local_lr=0.1), silos, rules(sigma=1.0, clip_norm=1.0), [3.0], stack=stack)


def test_a_silo_that_takes_no_part_keeps_its_state_to_the_bit() -> None:
    here = lab()
    here.step()
    before = here.host.states["control"].clone()
    here.step([0, 2])
    same = (here.host.states["control"] == before).all(dim=1)
    assert same.tolist() == [False, True, False]


def test_a_silos_state_and_release_do_not_depend_on_who_is_advanced_with_it() -> None:
    one, three = lab(stack=1), lab(stack=3)
    for here in (one, three):
        here.step()
        here.step([1, 2])
    assert torch.equal(one.host.states["control"], three.host.states["control"])
    assert torch.equal(one.server["model"], three.server["model"])


def group(here: Lab, model: Quadratic, records: dict[int, Records], states: Vectors) -> SiloGroup:
    """Silos with these records, trained and tested on."""
    return SiloGroup(
        model=model,
        loss=its_own_loss,
        algorithm=here.algorithm,
        rules=here.rules,
        engine=here.host.engine,
        train=records,
        test=records,
        states=states,
    )


def test_rows_of_states_are_in_the_order_of_ids_whatever_the_order_of_the_records() -> None:
    here = lab()
    backwards = {silo: here.silos[silo] for silo in (2, 0, 1)}
    states = {"control": torch.arange(3.0, dtype=torch.float64).unsqueeze(1)}
    host = group(here, Quadratic([3.0]), backwards, states)
    assert host.ids == [0, 1, 2] and torch.equal(host.states["control"], states["control"])
    for number, centre in enumerate(CENTRES):
        assert host.train[number].features[0].tolist() == [2.0, centre]


def test_evaluation_tells_each_silos_own_loss_and_gradient_and_changes_nothing() -> None:
    here, y = lab(), 3.0
    before = here.host.states["control"].clone()
    found = here.runtime.evaluate(torch.tensor([y], dtype=torch.float64), True)
    for number, centre in enumerate(CENTRES):  # of a/2 (y - b)^2, with neither clipping nor noise
        assert found[number].train_loss == pytest.approx(2.0 / 2 * (y - centre) ** 2)
        gradient = found[number].gradient
        assert gradient is not None and gradient.tolist() == pytest.approx([2.0 * (y - centre)])
    assert torch.equal(here.host.states["control"], before) and len(here.ledger) == 0


class Shrinks(Quadratic):
    """Its code writes to its parameters."""

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        next(self.parameters()).data.mul_(0.5)
        return super().forward(features)


def test_what_an_evaluation_writes_to_parameters_changes_neither_the_model_nor_what_the_next_silo_is_told() -> None:
    """Else a model that is released would depend on records of tests, which no release reads."""
    here, model = lab(), torch.tensor([3.0], dtype=torch.float64)
    records = dict(enumerate(here.silos))
    host = group(here, Shrinks([3.0]), records, here.host.states)
    found = host.evaluate(model, False)
    assert model.tolist() == [3.0]
    assert [one.train_loss for one in found.values()] == pytest.approx([(1.5 - centre) ** 2 for centre in CENTRES])
