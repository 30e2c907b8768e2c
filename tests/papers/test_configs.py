"""Numbers in configurations of published figures are those of the papers' formulas, or of the accountant."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from dpfl_plugin.config.load import load, merged, read_yaml
from dpfl_plugin.config.sweep import expand
from dpfl_plugin.privacy.accountants import PLD
from dpfl_plugin.privacy.events import SampledGaussian, Term
from dpfl_plugin.runs.build import build
from papers import chang2022, scaffnew
from papers.chang_theory import Scheme
from papers.items import FOLDER
from papers.optimum import optimum
from papers.plans.chang import terms
from papers.plans.li import noise_scale

CONFIGS = FOLDER / "configs"


def variants(config: str) -> dict[str, dict[str, Any]]:
    """{label: the whole configuration} of a file."""
    whole = read_yaml(CONFIGS / config)
    changes = whole.pop("variants")
    return {label: merged(whole, change) for label, change in changes.items()}


@pytest.mark.parametrize(("name", "num_records"), [("mnist", 600), ("adult", 325)])
def test_noise_of_li_et_al_is_equation_20(name: str, num_records: int) -> None:
    """Relative to the proven sensitivity 2 Q G eta, to four digits; lines are named by epsilon, or by Q at 0.5."""
    by_epsilon = {f"eq. 20, {epsilon:g} a round": (5, epsilon) for epsilon in (2.0, 1.0, 0.5)}
    most = num_records // 20  # Q b / n = 1/2
    by_steps = {f"Q = {Q}": (Q, 0.5) for Q in (1, 5, 10, most)}
    assert list(variants(f"li2025/{name}.yaml")) == ["no noise", *by_epsilon]
    for config, lines in ((f"li2025/{name}.yaml", by_epsilon), (f"li2025/{name}_steps.yaml", by_steps)):
        found = variants(config)
        assert set(lines) == set(found) - {"no noise"}
        for label, (Q, epsilon) in lines.items():
            values = found[label]
            assert values["algorithm"]["local_steps"] == Q and values["privacy"]["batch_size"] == 10
            assert values["privacy"]["clip_norm"] == values["algorithm"]["gradient_clip"]
            scale = noise_scale(local_steps=Q, batch_size=10, num_records=num_records, epsilon=epsilon, delta=1e-5)
            assert values["privacy"]["noise_multiplier"] == pytest.approx(scale / (2 * Q), rel=5e-4)


@pytest.mark.slow
def test_lines_of_chang_et_al_have_one_epsilon() -> None:
    """Of a silo in every round: rounds of falling noise, and noise of the controls, are the solved ones."""
    accountant, found = PLD(), variants("chang2022/mnist.yaml")

    def epsilon(values: dict[str, Any]) -> float:
        privacy, tau = values["privacy"], values["algorithm"]["local_steps"]
        release = SampledGaussian(
            noise_multiplier=privacy["noise_multiplier"],
            sampler="fixed",
            rate=privacy["record_rate"],
            neighbouring="replace_one",
        )
        schedule = privacy.get("schedule")
        if schedule is None:
            return accountant.epsilon([Term(release=release, count=tau, rounds=values["rounds"])], privacy["delta"])
        scheme: Scheme = 1 if schedule["by"] == "round" else 2
        spent = terms(scheme, values["rounds"], release, schedule["beta"], schedule["threshold"], tau)
        return accountant.epsilon(spent, privacy["delta"])

    each = {label: epsilon(values) for label, values in found.items()}
    assert each.keys() == {"scheme 0", *chang2022.SCHEMES, *chang2022.CONTROLS}
    assert all(0.99 * each["scheme 0"] <= one <= 1.0005 * each["scheme 0"] for one in each.values()), each
    for scheme, control in zip(chang2022.SCHEMES, chang2022.CONTROLS, strict=True):
        assert found[scheme]["rounds"] == found[control]["rounds"]


def test_bounds_of_chang_et_al_are_least_for_constant_noise_of_the_same_budget() -> None:
    header, rows = chang2022.bounds()
    bounds = {row[0]: dict(zip(header[1:], row[1:], strict=True)) for row in rows}
    at_200 = {bounds[f"scheme {scheme}"]["200"] for scheme in (0, 1, 2)}
    assert len(at_200) == 1  # up to R_th all have the same noise
    controls = [row for row in rows if row[0].startswith("constant")]
    for scheme, control in zip((1, 2), controls, strict=True):
        (end,) = [column for column, value in zip(header[1:], control[1:], strict=True) if value]
        least = float(bounds[control[0]][end])
        assert least < float(bounds[f"scheme {scheme}"][end]) < float(bounds["scheme 0"][end])


def test_iterations_of_scaffnew_are_the_same_at_all_numbers_of_local_steps() -> None:
    def iterations(config: str, settings: tuple[str, ...]) -> set[int]:
        rows = expand(CONFIGS / config, settings).rows
        assert rows
        return {row.changes["rounds"] * row.changes["algorithm"]["local_steps"] for row in rows}

    for part in scaffnew.FIGURE_2.parts:
        assert iterations(part.config, part.settings) == {10_000}
        assert iterations(part.config, (*part.settings, *(part.quick or ()))) == {200}
    (part,) = scaffnew.FIGURE_12.parts
    assert iterations(part.config, part.settings) == {300}


@pytest.mark.slow
def test_rounds_of_dp_scaffnew_are_corollary_1_of_its_records(
    data_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """psi_0 by the minimum of the mushrooms' loss; the rounds are the root of the bound's derivative in T."""
    monkeypatch.setenv("DPFL_DATA", str(data_folder))
    if not (data_folder / "mushrooms").is_dir():
        pytest.skip(f"{data_folder} has no mushrooms")
    path = CONFIGS / "scaffnew" / "mushrooms.yaml"
    config = load(path, ["seed=0", "runtime.dtype=float64"]).variants[0].config
    parts = build(config, path.parent)
    mu, L = config.l2, 0.5 + config.l2  # records of norm 1 with an intercept: 1/4 ||(x, 1)||^2
    assert config.algorithm.options["local_lr"] == pytest.approx(1 / L, rel=1e-2)
    psi_0 = optimum(parts, config.l2).psi_0(parts.setting.num_silos, mu, L)
    assert psi_0 == pytest.approx(scaffnew.PSI_0, rel=1e-3)
    C, N, d, decay = 3.0, parts.setting.num_silos, parts.model.numel(), -math.log1p(-mu / L)
    for epsilon in scaffnew.EPSILONS:
        noise = 8 * C**2 * N * d * math.log(1 / config.privacy.delta) / epsilon**2
        iterations = max(1.0, math.log(psi_0 * decay / noise) / decay)
        rounds = scaffnew.predicted_rounds()[f"epsilon {epsilon:g}"]
        assert rounds == pytest.approx(max(1.0, iterations / 10), abs=0.6)
