"""`early_stopping` and `personalise` from the command line: what is charged and claimed, and interruptions."""

from __future__ import annotations

import itertools
import json
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from dpfl_plugin.config.load import load
from dpfl_plugin.core.grid import Grid
from dpfl_plugin.core.rounded_normals import by_numpy
from dpfl_plugin.core.streams import Stream
from dpfl_plugin.federation.planning import Planner
from dpfl_plugin.federation.round_loop import RoundLoop
from dpfl_plugin.federation.silo_group import SiloGroup
from dpfl_plugin.gradients.base import Records
from dpfl_plugin.gradients.shares import part_of
from dpfl_plugin.oracle import Draw
from dpfl_plugin.privacy import shared_ledger
from dpfl_plugin.privacy.account import PrivacyAccount
from dpfl_plugin.privacy.accountants import PLD
from dpfl_plugin.privacy.events import SampledGaussian, Term
from dpfl_plugin.privacy.filters import planned_epsilon
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.shared_ledger import plans_in, runs_in
from dpfl_plugin.runs import checkpoint
from dpfl_plugin.runs.build import build
from dpfl_plugin.runs.extra_plan import extra_plan
from tests.cli.command import charges, dpfl, merged, one_message, run, write

DELTA = 1e-3
STOPS = {  # 12 rounds planned, scores after 2, 4, ..., 12; a gain that no score has, so that the second stops it
    "rounds": 12,
    "silo_rate": 0.5,
    "early_stopping": {"share": 0.25, "every": 2, "patience": 1, "min_gain": 0.99, "noise_multiplier": 2.0},
    "privacy": {"delta": DELTA},
}
WHOLE_RUN = {**STOPS, "early_stopping": {**STOPS["early_stopping"], "patience": 50}}
OWN = {"personalise": {"local_steps": 3, "local_lr": 0.1}}
SCORED, TRAINED = (0.75, 1.0), (0.0, 0.75)


def scores_of(held):
    return {charge for charge in held if charge.share == SCORED}


def by_hand(rounds, releases, noise, rate):
    release = SampledGaussian(noise_multiplier=noise, sampler="fixed", rate=rate, neighbouring="replace_one")
    return PLD().epsilon([Term(release=release, count=releases, rounds=rounds)], DELTA)


def test_a_stopped_run_is_charged_and_claimed_as_the_whole_plan(tmp_path):
    result = run(write(tmp_path, STOPS))
    assert result["rounds"] == 4 and result["early_stopping"]["stopped"] and result["status"] == "done"
    assert "of 12" in result["reason"]
    held = charges(result["folder"])
    assert Counter(charge.round for charge in held if charge.share == TRAINED) == dict.fromkeys(range(12), 2)
    assert Counter((c.silo, c.round) for c in scores_of(held)) == {(s, t): 1 for s in range(4) for t in range(2, 13, 2)}
    assert {c.round for c in held if c.noise_id == "not-run"} == set(range(4, 13))
    server = result["epsilon"]["server"]
    # 24 training records a silo, 18 of them read by gradients, 9 of those in a batch
    rounds, alone = by_hand(12, 2, 4.0, 0.5), PLD().epsilon([gaussian_term(2.0, 6)], DELTA)
    assert server["worst_case_epsilon"] == pytest.approx(max(rounds, alone), rel=1e-9)
    most = max(Counter(c.silo for c in held if c.share == TRAINED).values())
    assert server["epsilon"] == pytest.approx(max(by_hand(most, 2, 4.0, 0.5), alone), rel=1e-9)


def gaussian_term(noise, count):
    release = SampledGaussian(noise_multiplier=noise, sampler="full", rate=1.0, neighbouring="replace_one")
    return Term(release=release, count=1, rounds=count)


def test_a_stopped_run_claims_what_the_run_to_the_end_does(tmp_path):
    stopped, whole = (run(write(tmp_path, changes, f"{n}.yaml")) for n, changes in enumerate((STOPS, WHOLE_RUN)))
    assert whole["rounds"] == 12 and not whole["early_stopping"]["stopped"]
    assert stopped["epsilon"] == whole["epsilon"]
    place = lambda held: {(c.round, c.silo, c.share, c.release, c.count) for c in held}  # noqa: E731
    assert place(charges(stopped["folder"])) == place(charges(whole["folder"]))


def test_what_the_ledger_proves_is_what_the_result_says(tmp_path):
    result = run(write(tmp_path, {**STOPS, **OWN}))
    row = {
        line["view"]: line
        for line in json.loads(dpfl("account", result["folder"], "--json").out)
        if line["accountant"] == "PLD"
    }
    assert row["server"]["epsilon"] == pytest.approx(result["epsilon"]["server"]["epsilon"])
    assert row["third party"]["epsilon"] == pytest.approx(result["epsilon"]["third_party"]["epsilon"])


def test_gradients_and_scores_read_other_records(tmp_path):
    config = load(write(tmp_path, {**STOPS, **OWN}), []).variants[0].config
    parts = build(config, tmp_path)
    records = parts.host.train[0]
    one, other = (part_of(records, share).features for share in (TRAINED, parts.extra_plan.scores.share))
    assert len(one) == 18 and len(other) == 6
    both = torch.cat([one, other])
    assert len(torch.unique(both, dim=0)) == len(records)


def _first_messages(tmp_path, changed=None, noise=0.0, more=None):
    """(score, upload, number of validation records, draw of the score) of silo 1, one of whose labels is changed."""
    parts = build(load(write(tmp_path, merged(STOPS, more or {})), []).variants[0].config, tmp_path)
    planner = Planner(parts.algorithm, parts.setting, parts.setting.weights, 3, parts.extra_plan.training)
    if changed is not None:
        labels = parts.host.train[1].labels
        labels[changed] = (labels[changed] + 1) % 3
    parts.host._scores = replace(parts.extra_plan.scores, noise_multiplier=noise)
    draw, server = Draw(3, 2), parts.algorithm.init_server(parts.model, parts.setting)
    score, _ = parts.host.run([1], {"model": parts.model}, planner.of_all("score"), draw)
    up, _ = parts.host.run([1], parts.algorithm.download(server), planner.plan(server, 0), Draw(3, 0))
    return (
        float(score["score"]),
        up["model"],
        6,
        draw,
    )


def test_a_validation_record_moves_its_score_by_one_and_no_gradient(tmp_path):
    where = {share: part_of(Records(torch.arange(24), torch.arange(24)), share).labels for share in (SCORED, TRAINED)}
    score, up, count, _ = _first_messages(tmp_path)
    moved = set()
    for record in where[SCORED].tolist():
        other, same, _, _ = _first_messages(tmp_path, record)
        moved.add(round(abs(other - score) * count, 6))
        assert torch.equal(up, same)
    assert 1.0 in moved <= {0.0, 1.0}
    for record in where[TRAINED].tolist():
        assert _first_messages(tmp_path, record)[0] == score


def test_the_noise_of_a_score_is_of_no_other_stream(tmp_path):
    exact, _, count, draw = _first_messages(tmp_path)
    noisy, _, _, _ = _first_messages(tmp_path, noise=5.0)
    steps, grid = (noisy - exact) * count, Grid.of(1.0, 1)

    def drawn(purpose):
        words = Stream().seek(draw.key(purpose, 1, 0)).bit_generator.random_raw
        return by_numpy(1, 5.0 * grid.sensitivity / grid.step, words)[0] * grid.step

    assert steps == pytest.approx(drawn("score"))
    assert steps != pytest.approx(drawn("noise"))


def test_secure_scores_are_of_no_seed(tmp_path):
    secure = {"privacy": {"randomness": "fresh"}}
    assert _first_messages(tmp_path, noise=5.0)[0] == _first_messages(tmp_path, noise=5.0)[0]
    assert _first_messages(tmp_path, noise=5.0, more=secure)[0] != _first_messages(tmp_path, noise=5.0, more=secure)[0]


def test_the_best_scored_model_is_kept(tmp_path):
    best = run(write(tmp_path, STOPS, "best.yaml"))
    first = run(
        write(
            tmp_path,
            {"rounds": 12, "silo_rate": 0.5, "early_stopping": STOPS["early_stopping"], "privacy": {"delta": DELTA}},
            "same.yaml",
        ),
        "--set",
        "early_stopping.keep=last",
    )
    assert best["early_stopping"]["kept_round"] == 2 and first["early_stopping"]["kept_round"] == 4
    models = [load_file(Path(r["folder"]) / "model.safetensors") for r in (best, first)]
    assert any(not torch.equal(models[0][name], models[1][name]) for name in models[0])


@pytest.mark.parametrize("view", ["server", "third_party"])
def test_noise_is_solved_so_that_all_of_it_fits(tmp_path, view):
    early = {**STOPS["early_stopping"], "noise_multiplier": None}
    privacy = {"noise_multiplier": None, "epsilon": 5.0, "delta": DELTA, "budget_view": view}
    config = write(tmp_path, {**STOPS, **OWN, "early_stopping": early, "privacy": privacy})
    result = run(config)
    key = "worst_case_epsilon" if view == "server" else "epsilon"
    assert 4.9 < result["epsilon"][view][key] <= 5.0
    assert result["silos"]["personalised_accuracy"]["min"] >= 0
    without = run(write(tmp_path, {**STOPS, "early_stopping": early, "privacy": privacy}, "without.yaml"))
    assert result["noise_multiplier"] > without["noise_multiplier"]  # the last release is paid for by more noise


def test_a_budget_leaves_what_the_last_release_costs(tmp_path):
    changes = {"rounds": None, **OWN, "privacy": {"epsilon": 3.0, "delta": DELTA}}
    result = run(write(tmp_path, changes))
    held = charges(result["folder"])
    last = {charge for charge in held if charge.round == 10**6}
    assert {(charge.silo, charge.count) for charge in last} == {(silo, 3) for silo in range(4)}
    assert result["epsilon"]["server"]["epsilon"] <= 3.0
    assert result["epsilon"]["server"]["epsilon"] == pytest.approx(
        by_hand(1, 2 * result["rounds"] + 3, 4.0, 0.5), rel=1e-9
    )
    one_more = by_hand(1, 2 * (result["rounds"] + 1) + 3, 4.0, 0.5)
    assert one_more > 3.0


def test_silos_own_models_are_private_steps_from_the_last_one(tmp_path):
    kept = {}

    def spy(host, ids, model, plan, draw):
        done = original(host, ids, model, plan, draw)
        kept.update({silo: (model.clone(), host._personal[silo]) for silo in ids})
        return done

    original = SiloGroup._personalise
    with mock.patch.object(SiloGroup, "_personalise", spy):
        result = run(write(tmp_path, OWN))
    final = load_file(Path(result["folder"]) / "model.safetensors")
    flat = torch.cat([final[name].reshape(-1) for name in sorted(final, reverse=True)])  # weights, biases
    for model, own in kept.values():
        assert torch.equal(model, flat) and not torch.equal(own, model)
    assert {c.count for c in charges(result["folder"]) if c.round == 6} == {3}


def test_without_noise_own_models_learn_what_only_their_silo_has(tmp_path):
    """Silos that hold two digits each: a model of its own need not tell the other eight from them."""
    changes = {
        "data": {
            "dataset": {"name": "digits", "num_features": None, "num_classes": None, "records_per_silo": None},
            "partition": {"name": "labels_per_silo", "labels": 2},
            "num_silos": 5,
        },
        "personalise": {"local_steps": 100, "local_lr": 0.5},
        "privacy": {"noise_multiplier": 0.0, "clip_norm": 10.0},
    }
    silos = run(write(tmp_path, changes))["silos"]
    assert silos["personalised_accuracy"]["min"] > 0.95 > silos["test_accuracy"]["mean"]
    assert silos["better_personalised"] >= 4


def test_metrics_of_silos_are_those_of_the_final_model(tmp_path):
    result = run(write(tmp_path))
    rows = [row.split(",") for row in (Path(result["folder"]) / "silos.csv").read_text().splitlines()[1:]]
    accuracies = [float(row[3]) for row in rows]
    assert np.mean(accuracies) == pytest.approx(result["test_accuracy"]["last"])
    assert result["silos"]["test_accuracy"]["min"] == min(accuracies)
    assert {row[4] for row in rows} == {""} and {row[1] for row in rows} == {"24"}


# Interrupted anywhere

KINDS = {
    "stops": {**STOPS, **OWN},
    "whole": {**WHOLE_RUN, **OWN},
    "budget": {"rounds": None, **OWN, "privacy": {"epsilon": 3.0, "delta": DELTA}},
    "capped": {**STOPS, "max_participations": 7, "rounds": 12},
}


class Lost(BaseException):
    """As a killed process: nothing catches it."""


def _run_until(config, place):
    """Run, and end at the ``place``-th time that silos work, charges are synced or a checkpoint is written."""
    calls = iter(range(1, 10**6))

    def dies(original):
        def method(*args, **kwargs):
            if next(calls) == place:
                raise Lost
            return original(*args, **kwargs)

        return method

    with (
        mock.patch.object(SiloGroup, "run", dies(SiloGroup.run)),
        mock.patch.object(PrivacyAccount, "sync", dies(PrivacyAccount.sync)),
        mock.patch.object(checkpoint, "save", dies(checkpoint.save)),
    ):
        run(config)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "step"), list(zip(KINDS, (3, 5, 7, 5), strict=True)))
def test_a_run_that_is_lost_anywhere_ends_the_same(tmp_path, kind, step):
    config = write(tmp_path, {**KINDS[kind], "checkpoint": {"every": 3}})
    undisturbed = run(config)
    expected = charges(undisturbed["folder"])
    for place in itertools.count(1, step):
        shutil.rmtree(tmp_path / "runs")
        try:
            _run_until(config, place)
        except Lost:
            again = run(config, "--resume")
        else:
            break
        assert again["model_sha256"] == undisturbed["model_sha256"], place
        assert charges(again["folder"]) == expected, place
        for key in ("epsilon", "silos", "early_stopping", "rounds", "reason"):
            assert again[key] == undisturbed[key], (place, key)
    assert place > 20


def _lost_when(method, last):
    """A run's process ends before the ``last``-th call of a method."""
    calls, original = iter(range(1, 10**6)), method

    def dies(*args, **kwargs):
        if next(calls) == last:
            raise Lost
        return original(*args, **kwargs)

    return dies


@pytest.mark.parametrize("view", ["server", "third_party"])
def test_a_score_is_saved_as_soon_as_it_is_released(tmp_path, view):
    """The noise is solved for two scores. A run that is lost right after the first has room for the second."""
    early = {**STOPS["early_stopping"], "patience": 5, "noise_multiplier": None}
    privacy = {"randomness": "fresh", "noise_multiplier": 9.0, "epsilon": 2.0, "delta": DELTA, "budget_view": view}
    config = write(tmp_path, {**STOPS, "rounds": 4, "early_stopping": early, "privacy": privacy})
    with mock.patch.object(RoundLoop, "advance", _lost_when(RoundLoop.advance, 3)), pytest.raises(Lost):
        run(config)
    result = run(config, "--resume")
    held = charges(result["folder"])
    assert Counter(charge.silo for charge in scores_of(held)) == dict.fromkeys(range(4), 2)
    assert [at for at, _ in result["early_stopping"]["scores"]] == [2, 4]
    alone = PLD().epsilon([gaussian_term(result["early_stopping"]["noise_multiplier"], 2)], DELTA)
    for key in ("server", "third_party"):
        assert alone <= result["epsilon"][key]["epsilon"] <= 2.0


def test_own_models_that_would_be_made_again_with_fresh_noise_are_within_the_budget_or_left_out(tmp_path):
    privacy = {"randomness": "fresh", "noise_multiplier": None, "epsilon": 2.0, "delta": DELTA}
    config = write(tmp_path, {"rounds": 4, **OWN, "privacy": privacy})
    evaluate = _lost_when(SiloGroup.evaluate, 5)  # the one after the silos' own models
    with mock.patch.object(SiloGroup, "evaluate", evaluate), pytest.raises(Lost):
        run(config)
    result = run(config, "--resume")
    assert {(c.silo, c.count) for c in charges(result["folder"]) if c.round == 4} == {(silo, 3) for silo in range(4)}
    assert any("no silo made a model of its own" in note for note in result["notes"])
    assert result["epsilon"]["server"]["epsilon"] <= 2.0


def test_a_run_that_stopped_and_was_lost_can_be_resumed_where_nothing_repeats(tmp_path):
    """The plan that was charged has a noise_id of no attempt."""
    config = write(tmp_path, {**STOPS, "privacy": {"delta": DELTA, "randomness": "fresh"}})
    with mock.patch.object(RoundLoop, "finish", _lost_when(RoundLoop.finish, 1)), pytest.raises(Lost):
        run(config)
    result = run(config, "--resume")
    assert result["early_stopping"]["stopped"]
    rounds = Counter(charge.round for charge in charges(result["folder"]) if charge.share == TRAINED)
    assert rounds == dict.fromkeys(range(12), 2)


def test_a_score_counts_with_the_noise_that_it_was_charged_with(tmp_path):
    """As where another machine solves for a hair more noise than the run had."""
    result = run(write(tmp_path, STOPS))
    folder = Path(result["folder"])
    text = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(text.replace("noise_multiplier: 2.0", "noise_multiplier: 3.0"))
    rows = json.loads(dpfl("account", folder, "--json").out)
    alone = PLD().epsilon([gaussian_term(2.0, 6)], DELTA)
    assert all(row["epsilon"] >= alone * (1 - 1e-9) for row in rows if row["accountant"] == "PLD")


@pytest.mark.parametrize(("epsilon", "every"), [(1.0, 2), (20.0, 12)])
def test_a_plan_counts_the_noise_of_scores_that_is_solved_for(tmp_path, epsilon, every):
    privacy = {"epsilon": epsilon, "delta": DELTA, "noise_multiplier": None}
    config = write(tmp_path, {"rounds": 12, "early_stopping": {"share": 0.25, "every": every}, "privacy": privacy})
    answer = dpfl("plan", config, "--solve", "noise_multiplier", "--json").json
    noise = extra_plan(load(config).variants[0].config, PLD()).scores.noise_multiplier
    scores = PLD().epsilon([gaussian_term(noise, 12 // every)], DELTA)
    assert 0.99 * epsilon < scores <= answer["epsilon"]["server"] <= epsilon


# What is refused


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({**STOPS, "rounds": None, "privacy": {"epsilon": 3.0}}, "needs rounds"),
        ({**STOPS, "rounds": 1}, "no score"),
        ({"early_stopping": {}, "rounds": 20}, "noise_multiplier is missing"),
        ({**STOPS, "privacy": {"epsilon": 0.5, "delta": DELTA}}, "scores alone come to"),
        ({"early_stopping": {**STOPS["early_stopping"], "share": 0.999}}, "leaves none"),
        ({"early_stopping": {**STOPS["early_stopping"], "share": 0.001}}, "leaves none"),
        ({"personalise": {"local_steps": 0, "local_lr": 1.0}}, "local_steps"),
        ({"personalise": {"local_steps": 1}}, "local_lr"),
    ],
)
def test_what_cannot_be_is_said(tmp_path, changes, says):
    one_message(dpfl("run", write(tmp_path, changes), "--out", tmp_path / "runs"), says)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("changes", [STOPS, OWN])
def test_what_is_released_beside_the_rounds_is_registered_in_a_shared_ledger(tmp_path, changes):
    config, ledger = write(tmp_path, merged(changes, {"privacy": {"randomness": "fresh"}})), tmp_path / "all.jsonl"
    run(config, "--ledger", ledger)
    held = Ledger.open(ledger, append=False)
    (plan,) = plans_in(held)  # no release is beyond it
    assert len({one.kind for one in held}) == 2
    made = Counter((one.silo, one.release, one.share) for one in held for _ in range(one.count))
    slots = Counter({(silo, one.release, one.share): one.count for silo in plan.silos for one in plan.silos[silo]})
    assert made <= slots  # of drawn silos some are left
    again = run(config, "--ledger", ledger, "--set", "algorithm.local_lr=0.01")
    held = Ledger.open(ledger, append=False)
    one, two = runs_in(held)
    assert not shared_ledger.planned_total(held, DELTA) and not any(run.more for run in (one, two))
    assert set(held.tally_of_run(two.name)) == charges(again["folder"])  # what was not run is each run's own


def evaluated(**changes):
    return {**{k: v for k, v in STOPS.items() if k != "early_stopping"}, "private_evaluation": changes}


def test_a_private_evaluation_is_charged_as_scores_are_and_ends_nothing(tmp_path):
    plan = evaluated(share=0.25, every=2, noise_multiplier=2.0)
    result, like = run(write(tmp_path, plan, "a.yaml")), run(write(tmp_path, WHOLE_RUN, "b.yaml"))
    assert result["rounds"] == 12 and result["early_stopping"] is None
    assert result["epsilon"] == like["epsilon"]
    place = lambda held: {(c.round, c.silo, c.share, c.release, c.count, c.kind) for c in held}  # noqa: E731
    assert place(charges(result["folder"])) == place(charges(like["folder"]))
    found = result["private_evaluation"]
    assert [after for after, _ in found["scores"]] == [2, 4, 6, 8, 10, 12]
    assert found["noise_std"] == pytest.approx(2.0 / 6 / 2)  # of the mean of 4 silos' counts over 6 records each
    shown = dpfl("run", tmp_path / "a.yaml", "--out", Path(result["folder"]).parents[1])
    assert "private accuracy after round 12: " in shown.out and "noise of standard deviation 0.1667" in shown.out


def test_one_private_evaluation_is_of_the_last_model(tmp_path):
    """Without noise on the counts it is the share of the records set apart that the result predicts correctly."""
    config = write(tmp_path, evaluated(share=0.25, noise_multiplier=0))
    result = run(config)
    ((after, score),) = result["private_evaluation"]["scores"]
    parts = build(load(config, []).variants[0].config, tmp_path)
    parts.module.load_state_dict(load_file(Path(result["folder"]) / "model.safetensors"))
    apart = [part_of(parts.train[silo], SCORED) for silo in range(4)]
    right = [float((parts.module(one.features).argmax(1) == one.labels).double().mean()) for one in apart]
    assert after == 12 and {len(one.labels) for one in apart} == {6}
    assert score == pytest.approx(sum(right) / 4)


def test_other_noise_of_scores_is_drawn_anew(tmp_path):
    """Of one draw times two numbers the counts could be computed."""
    names = [
        {charge.noise_id for charge in charges(run(write(tmp_path, plan, f"{number}.yaml"))["folder"])}
        for number, plan in enumerate(evaluated(share=0.25, every=6, noise_multiplier=noise) for noise in (2.0, 3.0))
    ]
    assert names[0] and not names[0] & names[1]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"rounds": None, "privacy": {"epsilon": 3.0}}, "private_evaluation needs rounds"),
        ({"rounds": 1}, "private_evaluation.every=2 is more than rounds=1"),
        ({"private_evaluation": {"noise_multiplier": None}}, "private_evaluation.noise_multiplier is missing"),
        ({"private_evaluation": {"share": 0.01}}, "private_evaluation.share=0.01"),
        (
            {"private_evaluation": {"noise_multiplier": 0.1}, "privacy": {"epsilon": 1.0}},
            "scores alone come to epsilon",
        ),
    ],
)
def test_what_a_private_evaluation_does_not_go_with(tmp_path, changes, says):
    plan = merged(evaluated(share=0.25, every=2, noise_multiplier=2.0), changes)
    plan |= {key: None for key, value in changes.items() if value is None}
    one_message(dpfl("run", write(tmp_path, plan), "--out", tmp_path / "out"), says)
    assert not (tmp_path / "out").exists()


def test_a_shared_ledger_composes_scores_of_all_runs(tmp_path):
    config, ledger = write(tmp_path, evaluated(share=0.25, noise_multiplier=2.0)), tmp_path / "all.jsonl"
    keys = [("--set", f"algorithm.local_lr={step}") for step in (0.5, 0.25)]  # the same records at the same silos
    fresh = ("--ledger", ledger, "--set", "privacy.randomness=fresh")
    totals = [run(config, *fresh, *key)["adaptive_total"]["epsilon"] for key in keys]
    held = Ledger.open(ledger, append=False)
    found = {
        (silo, kind): PLD().epsilon(
            [
                Term(release=one.release, count=one.count, rounds=1)
                for one in held
                if (one.silo, one.kind) == (silo, kind)
            ],
            DELTA,
        )
        for silo in range(4)
        for kind in ("round", "score")
    }
    assert {one.share for one in held if one.kind == "score"} == {SCORED}
    plans = plans_in(held)
    assert planned_epsilon(plans, DELTA) >= max(found.values())
    assert totals[1] > totals[0] and totals[1] > max(found.values())
    solved = ("--set", "private_evaluation.noise_multiplier=null", "--set", "privacy.epsilon=5")
    assert run(config, *fresh, *solved)["epsilon"]["server"]["epsilon"] <= 5
