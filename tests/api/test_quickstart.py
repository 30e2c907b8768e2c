"""The quickstart's numbers: measured on records that no run trained on, and said as they are."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks import quickstart as table
from dpfl_plugin.api import quickstart
from dpfl_plugin.api.quickstart import Part, Row, auc, difference, figure, measured, rows
from dpfl_plugin.config.load import load
from dpfl_plugin.runs.records import federate

CONFIG = """
name: small
rounds: 2
silo_weights: records
data:
  dataset: {name: heart_disease, missing: drop, held_out: 0.34}
  partition: natural
  test: own
algorithm: {name: mb_sgd, lr: 1.0}
privacy: {noise_multiplier: 5, clip_norm: 0.5, sampler: full, delta: 1.0e-4}
evaluation: {every: 100}
variants:
  together: {}
  Cleveland: {data: {dataset: {hospitals: [cleveland]}}}
compare:
  - [together, Cleveland]
"""


class _Ranks(nn.Module):
    """Outputs that rank records by one feature."""

    def __init__(self, sign: float) -> None:
        super().__init__()
        self.sign = nn.Parameter(torch.tensor(sign))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([torch.zeros(len(x)), self.sign * x[:, 0]], dim=1)


def test_auc_by_hand():
    """Pairs that are in order, of 2 x 3, and half of the one that is tied."""
    z = np.array([[0, 3.0], [0, 1.0], [0, 2.0], [0, 1.0], [0, 0.0]])
    assert auc(z, np.array([1, 1, 0, 0, 0])) == pytest.approx((3 + 1 + 0.5) / 6)


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ([0.5, 0.6, 0.7], [0.4, 0.5, 0.6], "+10.0 ± 0.0 points, better"),
        ([0.4, 0.5, 0.6], [0.5, 0.6, 0.7], "-10.0 ± 0.0 points, worse"),
        # 1 and 3 points: mean 2, t(0.975, 1) = 12.706, standard error 1
        ([0.51, 0.63], [0.50, 0.60], "+2.0 ± 12.7 points, not told apart"),
        ([0.51], [0.50], "+1.0 points with one seed, which shows no difference"),
    ],
)
def test_differences_are_paired(first, second, said):
    assert difference(first, second) == said


def test_models_are_measured_on_the_test_records_of_all_silos(tmp_path, monkeypatch):
    """By a model whose ranking is known: the same records for a run of one silo as for a run of all."""
    path = tmp_path / "small.yaml"
    path.write_text(CONFIG)
    monkeypatch.setattr(quickstart.Run, "model", property(lambda run: _Ranks(1.0)))
    part = measured(path, [3, 4], [f"out={tmp_path / 'runs'}"], tell=lambda text: None)
    assert part.counts == (4, 606, 314) and set(part.rows) == {"together", "Cleveland"}
    for place, seed in enumerate((3, 4)):
        silos = federate(load(path, [f"seed={seed}"]).variants[0].config, tmp_path).silos
        x, y = (np.concatenate([silo.usable_test[part] for silo in silos]) for part in (0, 1))
        order = x[:, 0][y == 1][:, None] - x[:, 0][y == 0][None]
        expected = ((order > 0) + 0.5 * (order == 0)).mean()
        for row in part.rows.values():
            assert row.auc[place] == pytest.approx(expected)
            assert row.accuracy[place] == pytest.approx(((x[:, 0] > 0) == y).mean())
    assert not part.rows["together"].own
    first, labels = silos[0].usable_test
    own = [auc(np.stack([0 * first[:, 0], first[:, 0]], axis=1), labels)]
    assert part.rows["Cleveland"].own[1] == pytest.approx((own[0], own[0]))
    assert part.rows["together"].epsilon == pytest.approx(part.rows["Cleveland"].epsilon)
    assert part.differences() == ["together against Cleveland: +0.0 ± 0.0 points, not told apart"]


def test_a_part_as_a_table_and_as_a_picture():
    private, none = Row([0.7, 0.9], [0.8, 0.9], [], 1.0, 1e-4), Row([0.5, 0.5], [0.6, 0.6], [(0.6, 0.8)], None, 1e-4)
    part = Part("hospitals", "title", {"private": private, "open": none}, (("private", "open"),), (4, 606, 314))
    header, first, second, *published = rows(part)
    assert header == ("run", "AUC", "own (shared)", "accuracy", "epsilon")
    assert first == ("private", "0.850 ± 0.071", "", "0.800 ± 0.141", "1.00")
    assert second == ("open", "0.600 ± 0.000", "0.60 (0.80)", "0.500 ± 0.000", "none")
    assert len(published) == 3 and all(len(row) == 5 and row[-1] == "none" for row in published)
    (axis,) = figure([part]).axes
    assert [bar.get_x() + bar.get_width() for bar in axis.patches] == pytest.approx([0.85, 0.6])
    texts = {text.get_text() for text in axis.texts}
    assert texts == {"0.850   epsilon 1", "0.600   no privacy"}


def test_what_was_interrupted_goes_on(tmp_path):
    path = Path(tmp_path / "small.yaml")
    path.write_text(CONFIG)
    told: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        measured(path, [0], [f"out={tmp_path / 'runs'}"], tell=told.append, stop=lambda: True)
    part = measured(path, [0], [f"out={tmp_path / 'runs'}"], tell=told.append)
    assert [len(row.accuracy) for row in part.rows.values()] == [1, 1]


def test_the_seeds_that_the_footer_speaks_of_are_those_of_the_pages_tables() -> None:
    assert {name: len(seeds) for name, seeds in table.SEEDS.items()} == quickstart.TABLE_SEEDS
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    assert f"over {quickstart.TABLE_SEEDS[quickstart.HOSPITALS]} seeds" in readme
