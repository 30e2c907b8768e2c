"""`dpfl tune`: one budget for all candidates, whatever ends it on its way."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant

import dpfl_plugin as dpfl_python
from dpfl_plugin.errors import ConfigError
from dpfl_plugin.experiments.reports.runs import read as read_run
from dpfl_plugin.experiments.tuning import successive_halving
from dpfl_plugin.experiments.tuning.statement import apart
from dpfl_plugin.privacy.events import Charge
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.runs import checkpoint as checkpoints
from dpfl_plugin.runs.folder import RunFolder
from dpfl_plugin.runtimes.in_process import InProcess
from tests.cli.command import dpfl, one_message, write

DELTA, EPSILON = 1e-3, 3.0
TUNE: dict[str, Any] = {
    "rounds": 5,
    "privacy": {
        "noise_multiplier": None,
        "epsilon": EPSILON,
        "delta": DELTA,
        "sampler": "poisson",
        "record_rate": 0.5,
    },
    "tune": {"grid": {"algorithm.local_lr": [0.01, 0.1, 0.3, 1.0]}, "rungs": [1, 3], "eta": 2, "share": 0.25},
}
# Candidates before each rung, and at last: the winner alone.
LEFT, ENDS = (4, 2, 1), (1, 3, 5)


def config_of(folder: Path, **changes: Any) -> Path:
    """`TUNE` with keys changed."""
    return write(folder, {**TUNE, **changes})


def tune(config: Path, *args: object, code: int = 0) -> dict[str, Any]:
    done = dpfl("tune", config, "--out", config.parent / "out", "--json", *args)
    assert done.code == code and "nothing to go on from" not in done.err, done.err
    found: dict[str, Any] = done.json
    return found


def held(path: Path) -> set[Charge]:
    assert path.exists()
    return set(Ledger.open(path, append=False))


def test_candidates_without_a_seed_share_one_that_is_drawn(tmp_path: Path) -> None:
    tune(config_of(tmp_path, seed=None))
    results = [json.loads(path.read_text()) for path in (tmp_path / "out").rglob("result.json")]
    seeds = {result["seed"] for result in results if "seed" in result}
    assert len(results) >= 4 and len(seeds) == 1


def named(path: Path) -> set[Charge]:
    """`held`, without the marks of records in the names of noise: each ledger has a key of its own."""
    return {replace(one, noise_id=re.sub(r"-[0-9a-f]{12}\.", ".", one.noise_id)) for one in held(path)}


def test_a_secure_tuning_that_nothing_disturbs_repeats_nothing(tmp_path: Path) -> None:
    """Candidates go on after each rung, with noise of another name; what they released before is not made again."""
    config = config_of(tmp_path, privacy={**TUNE["privacy"], "randomness": "fresh"})
    result = tune(config)
    for one in result["ranking"]:
        assert not Ledger.open(Path(one["folder"]) / "ledger.jsonl", append=False).notes
    refused = dpfl("statement", config.parent / "out")
    one_message(refused, "Give that of the winner, whose statement", f"dpfl statement {result['winner']['folder']}")
    signed = dpfl("statement", result["winner"]["folder"])
    assert signed.code == 0 and "one of 4 candidates of a tuning" in signed.out, signed.err
    moved = (config.parent / "out").rename(tmp_path / "moved")
    one_message(dpfl("statement", moved), f"dpfl statement {moved}/")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A tuning that nothing disturbed: (its folder, its result)."""
    config = config_of(tmp_path_factory.mktemp("whole"))
    return config.parent / "out", tune(config)


def test_the_ledger_holds_the_plan_and_its_epsilon_is_that_of_another_library(
    whole: tuple[Path, dict[str, Any]],
) -> None:
    out, result = whole
    # Counted from the words of the plan: candidates, rounds and scores of a silo; 2 steps a round.
    rounds = sum(left * (end - first) for left, first, end in zip(LEFT, (0, *ENDS), ENDS, strict=False))
    made: defaultdict[int, Counter[tuple[str, float, float]]] = defaultdict(Counter)
    for charge in held(out / "ledger.jsonl"):
        made[charge.silo][str(charge.kind), charge.release.noise_multiplier, charge.release.rate] += charge.count
    noise, score_noise = result["noise_multiplier"], result["score_noise"]
    assert set(made) == {0, 1, 2, 3}
    for counts in made.values():
        assert counts == {("round", noise, 0.5): 2 * rounds, ("score", score_noise, 1.0): sum(LEFT)}
    accountant = PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    step = dp_accounting.PoissonSampledDpEvent(0.5, dp_accounting.GaussianDpEvent(noise))
    accountant.compose(step, 2 * rounds)
    scores = PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    scores.compose(dp_accounting.GaussianDpEvent(score_noise), sum(LEFT))
    # Rounds and scores read disjoint records: the dearer counts. Both are solved for the same budget.
    for known in (accountant, scores):
        assert known.get_epsilon(DELTA) == pytest.approx(EPSILON, rel=2e-3)
    assert result["epsilon"] <= EPSILON and result["guarantee"]["in_ledger"] <= EPSILON
    assert result["guarantee"]["in_ledger"] == pytest.approx(result["epsilon"], rel=1e-6)
    assert result["guarantee"]["epsilon"] == EPSILON


def test_losers_are_charged_and_the_winner_never_states_its_own_epsilon_as_its_guarantee(
    whole: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    out, result = whole
    shared, own = held(out / "ledger.jsonl"), set[Charge]()
    for one in result["ranking"]:
        own |= held(Path(one["folder"]) / "ledger.jsonl")
        statement = (Path(one["folder"]) / "privacy.md").read_text()
        assert f"a factor of at most e^{EPSILON:g} " in statement and "one of 4 candidates of a tuning" in statement
        said = json.loads((Path(one["folder"]) / "ledger.json").read_text())
        assert said["tuning"]["epsilon"] == EPSILON and said["guarantee"].endswith("as stated in tuning")
    assert own == shared and len(result["ranking"]) == 4
    winner = dpfl_python.Run.open(result["winner"]["folder"])
    alone = winner.result["epsilon"]["server"]["epsilon"]
    assert winner.epsilon == EPSILON > alone
    text = (out / "tuning.md").read_text()
    assert f"e^{EPSILON:g}" in text and f"{alone:.3g}" not in text
    assert f"epsilon of a third party: {EPSILON:.3f}" in str(winner)
    assert dpfl_python.compare([winner]).rows[0]["third party"] == EPSILON
    # Nor do account and report.
    first, *rest = dpfl_python.account(winner).rows
    assert first.view == "guarantee, of the tuning" and first.epsilon == EPSILON
    assert all("guarantee nothing" in row.note for row in rest) and rest[0].epsilon == pytest.approx(alone)
    assert "guarantee nothing" in re.sub(r"\s+", " ", dpfl("account", winner.folder).out)
    reported = read_run(winner.folder)
    assert reported.guarantee is not None and reported.guarantee.server == EPSILON == reported.guarantee.third_party
    np.savez(tmp_path / "new.npz", x=np.zeros((2, 4)))
    predicted = dpfl("predict", winner.folder, tmp_path / "new.npz").err
    assert f"trained at epsilon {EPSILON:g} (server)" in predicted and "all candidates of its tuning" in predicted
    assert np.isnan(reported.curve["epsilon"]).all() and np.isnan(reported.curve["epsilon_third_party"]).all()


def test_a_candidate_is_no_run_to_go_on_with(whole: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    """Its tuning says that nothing else was looked at; what guards the winner is said of it wherever it is shown."""
    folder, result = whole[0], whole[1]
    winner = Path(result["winner"]["folder"])
    (loser,) = (path for path in winner.parent.iterdir() if path != winner and path.name == _last_of(folder, winner))
    before = (folder / "ledger.jsonl").read_bytes()
    for words in (("--resume",), ("--resume", "--ledger", folder / "ledger.jsonl")):
        one_message(dpfl("run", loser / "config.yaml", *words), "is a candidate of the tuning in", "dpfl tune")
    with pytest.raises(ConfigError, match="is a candidate of the tuning in"):
        dpfl_python.resume(loser)
    copied = shutil.copytree(loser, tmp_path / "copied" / loser.parent.name / loser.name)
    elsewhere = ("run", copied / "config.yaml", "--set", f"out={tmp_path / 'copied'}", "--resume")
    for words in ((), ("--ledger", folder / "ledger.jsonl")):
        one_message(dpfl(*elsewhere, *words), "is a copy of a candidate of a tuning", "Go on with the tuning")
    one_message(dpfl("predict", loser, "synthetic"), "a candidate that its tuning left behind")
    assert (folder / "ledger.jsonl").read_bytes() == before
    found = {one["folder"]: one for one in dpfl("status", folder, "--json").json["runs"]}
    assert {one["status"] for one in found.values()} == {"done"} and len(found) == 4
    assert found[str(winner)]["epsilon"] == json.loads((winner / "result.json").read_text())["tuning"]["epsilon"]
    assert found[str(winner)]["epsilon"] >= result["epsilon"]
    assert found[str(loser)]["reason"] == "left behind by its tuning" and not found[str(loser)]["next"]
    assert dpfl("report", folder, "--out", tmp_path / "report").code == 0


def _last_of(folder: Path, winner: Path) -> str:
    return sorted(path.name for path in winner.parent.iterdir() if path != winner and path.is_dir())[-1]


def test_candidates_go_on_by_their_scores_alone(whole: tuple[Path, dict[str, Any]]) -> None:
    _, result = whole
    scores = [dict(map(tuple, one["scores"])) for one in result["ranking"]]
    assert [sorted(one) for one in scores] == [[1, 3, 5], [1, 3], [1], [1]]
    assert min(scores[0][1], scores[1][1]) >= max(scores[2][1], scores[3][1])
    assert scores[0][3] >= scores[1][3] and scores[2][1] >= scores[3][1]
    for one in result["ranking"][1:]:  # nothing was measured without noise
        folder = RunFolder(Path(one["folder"]))
        assert not folder.read_metrics()
        found = json.loads(folder.result.read_text())
        assert found["test_accuracy"]["last"] is None and found["silos"] is None and found["measures"] is None
    # And of the winner not before it had won.
    assert all(line["round"] > ENDS[1] for line in RunFolder(Path(result["winner"]["folder"])).read_metrics())


def test_how_exact_scores_are_is_said_before_and_after(whole: tuple[Path, dict[str, Any]]) -> None:
    out, result = whole
    assert result["score_std"] == pytest.approx(result["ranking"][0]["noise_std"], rel=1e-12)
    text = (out / "tuning.md").read_text()
    assert f"± {result['score_std']:.3f} by its noise alone" in text and apart(result) in text


def test_a_silo_that_drowns_the_scores_of_all_is_named_before_anything_is_released() -> None:
    """Of three hospitals one has 16 records to score: counted like the others, its noise is nearly all there is."""
    path = Path(__file__).resolve().parents[2] / "configs" / "tuning.yaml"
    said = {weights: dpfl("plan", path, "--set", f"silo_weights={weights}").out for weights in ("equal", "records")}
    assert "is of silo 1 alone, which has 16 records to score" in said["equal"] and "is of silo" not in said["records"]
    found = dpfl("plan", path, "--set", "silo_weights=equal", "--json").json
    alone = found["score_noise"] * found["noisiest"]["share"] ** -0.5 / 3 / found["noisiest"]["records"]
    assert found["score_std"] == pytest.approx(alone, rel=1e-12) and 0.5 < found["noisiest"]["share"] < 1


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ([(1, 0.5), (3, 0.9), (5, 0.2)], [(1, 0.9), (3, 0.6)], ("After round 3", "0.300 more", ": more than")),
        ([(1, 0.5), (3, 0.88), (5, 0.9)], [(1, 0.1), (3, 0.6)], ("After round 3", "0.280 more", "not told apart")),
        ([(1, 0.5)], [], ()),
    ],
)
def test_the_winner_is_told_apart_by_the_noise_of_a_difference(
    first: list[tuple[int, float]], second: list[tuple[int, float]], said: tuple[str, ...]
) -> None:
    """Of two scores with noise 0.1 each: 2 sqrt(2) 0.1 = 0.283, at the last round that both were scored after."""
    ranking = [{"label": "a", "scores": first, "noise_std": 0.1}, {"label": "b", "scores": second, "noise_std": 0.1}]
    found = apart({"ranking": ranking, "measure": "accuracy", "bound": 1.0})
    assert bool(found) == bool(said) and all(words in found for words in said)


class Crash(BaseException):
    """Ends a tuning as nothing in the package expects."""


def crashed(config: Path, after: int) -> bool:
    """Whether a tuning ended by a crash, at the ``after``-th of the moments at which one is told from another.

    Rounds and scores that were charged, before anything is made of them; checkpoints and results, before and after
    they are on disk.
    """
    moments = 0

    def moment() -> None:
        nonlocal moments
        moments += 1
        if moments == after:
            raise Crash

    def around(real: Any, before: bool = True) -> Any:
        def called(*args: Any, **options: Any) -> Any:
            if before:
                moment()
            found = real(*args, **options)
            moment()
            return found

        return called

    with (
        mock.patch.object(InProcess, "run_round", around(InProcess.run_round, before=False)),
        mock.patch.object(checkpoints, "save", around(checkpoints.save)),
        mock.patch.object(successive_halving, "run_config", around(successive_halving.run_config)),
    ):
        try:
            assert dpfl("tune", config, "--out", config.parent / "out", "--json").code == 0
        except Crash:
            return True
    return False


@pytest.mark.parametrize("first", [3, pytest.param(4, marks=pytest.mark.slow)])
def test_after_any_crash_it_goes_on_and_nothing_is_charged_twice(
    tmp_path: Path, whole: tuple[Path, dict[str, Any]], first: int
) -> None:
    config, crashes = config_of(tmp_path), 0
    while crashed(config, first + 2 * crashes):  # later each time, so that all kinds of moments have their turn
        crashes += 1
    assert crashes > 3
    again = tune(config)
    assert named(tmp_path / "out" / "ledger.jsonl") == named(whole[0] / "ledger.jsonl")
    same = [{key: value for key, value in one.items() if key != "folder"} for one in whole[1]["ranking"]]
    assert [{key: value for key, value in one.items() if key != "folder"} for one in again["ranking"]] == same


def test_what_cannot_be_repeated_is_charged_again_within_the_budget(tmp_path: Path) -> None:
    """With noise that no seed can bring back, rounds that a crash lost are other releases: the end pays for them."""
    secure = {**TUNE["privacy"], "randomness": "fresh"}
    config, crashes = config_of(tmp_path, privacy=secure), 0
    while crashes < 6 and crashed(config, 5):
        crashes += 1
    result = tune(config)
    ledger = held(tmp_path / "out" / "ledger.jsonl")
    planned = sum(left * (end - first) for left, first, end in zip(LEFT, (0, *ENDS), ENDS, strict=False))
    names = {(charge.round, charge.noise_id) for charge in ledger if charge.kind == "round"}
    of_winner = dpfl_python.Run.open(result["winner"]["folder"])
    assert result["guarantee"]["in_ledger"] <= EPSILON == of_winner.epsilon
    assert crashes == 6 and len(names) <= planned  # no more rounds than there is noise for
    assert of_winner.result["rounds"] < 5 and of_winner.status == "budget_exhausted"


def test_a_plan_says_the_price_and_trains_nothing(tmp_path: Path, whole: tuple[Path, dict[str, Any]]) -> None:
    config = config_of(tmp_path)
    said = dpfl("tune", config, "--plan", "--out", tmp_path / "out", "--json").json
    for key in ("noise_multiplier", "score_noise", "epsilon", "of_tuning", "of_rest", "without", "places"):
        assert said[key] == whole[1][key]
    assert not (tmp_path / "out").exists() and said["noise_multiplier"] > said["without"]
    assert dpfl("plan", config).out == dpfl("tune", config, "--plan").out
    one_message(dpfl("plan", config, "--solve", "rounds"), "--solve", "tune", "--set")
    one_message(dpfl("run", config), "tune", "dpfl tune")


def test_check_leaves_tune_out_and_says_so(tmp_path: Path) -> None:
    """Records are checked before a tuning is charged; an account is of one run."""
    config = config_of(tmp_path)
    said = dpfl("check", config)
    assert "note: tune was left out" in said.out and f"dpfl plan {config}" in said.out, said.err
    assert "tune was left out" not in dpfl("check", config, "--set", "tune=null").out
    one_message(dpfl("account", config), f"dpfl plan {config}", "tune=null")


def test_python_has_the_same(tmp_path: Path, whole: tuple[Path, dict[str, Any]]) -> None:
    plain = write(tmp_path, {key: value for key, value in TUNE.items() if key != "tune"})
    found = dpfl_python.tune(plain, out=tmp_path / "out", **TUNE["tune"])
    assert found.epsilon == EPSILON and found.delta == DELTA and len(found) == 4
    assert (
        found.winner.result["model_sha256"] == dpfl_python.Run.open(whole[1]["winner"]["folder"]).result["model_sha256"]
    )
    assert "guarantee of the winner" in found.statement and found.winner.status == "done"


def test_a_tuning_says_what_differs_and_the_winners_score_and_no_note_twice(tmp_path: Path, measured: None) -> None:
    uneven = {"data": {"partition": {"name": "quantity_skew", "alpha": 0.5, "min_records": 8}}}
    out = tmp_path / "out"
    config = config_of(tmp_path, **uneven, privacy={**TUNE["privacy"], "sampler": "fixed", "delta": None})
    done = dpfl("tune", config, "--out", out)
    assert done.code == 0, done.err
    assert done.err.count("silos have ") == done.err.count("delta is ") == 1
    result = json.loads((out / "result.json").read_text())
    winner = dpfl_python.Run.open(result["winner"]["folder"])
    assert f"The winner on its test records: accuracy {winner.accuracy:.4f}, AUC " in done.out
    assert "test records:" not in (out / "tuning.md").read_text()
    rows = dpfl("account", out / "ledger.jsonl", "--json").json
    labels = [label for label in rows if not label.startswith("total")]
    assert sorted(label.partition(",")[0] for label in labels) == sorted(one["label"] for one in result["ranking"])
    folder = result["winner"]["folder"]
    one_message(dpfl("predict", out, "new.csv"), f"dpfl predict {folder} new.csv")
    one_message(dpfl("export", out, tmp_path / "made"), f"dpfl export {folder} {tmp_path / 'made'}")


def test_another_tuning_in_the_same_folder_is_refused(whole: tuple[Path, dict[str, Any]]) -> None:
    config = whole[0].parent / "config.yaml"
    done = dpfl("tune", config, "--out", whole[0], "--set", "tune.eta=3")
    one_message(done, "another tuning", "out")


def test_a_tuning_whose_ledger_lost_its_end_is_not_shown_as_cheaper(
    tmp_path: Path, whole: tuple[Path, dict[str, Any]]
) -> None:
    config, out = config_of(tmp_path), tmp_path / "out"
    shutil.copytree(whole[0], out)
    lines = (out / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    (out / "ledger.jsonl").write_bytes(b"".join(lines[: len(lines) // 2]))
    done = dpfl("tune", config, "--out", out)
    assert done.code != 0 and "its end is missing. Restore the file from a copy" in done.err


def test_a_plan_is_what_releases_were_made_by(tmp_path: Path, whole: tuple[Path, dict[str, Any]]) -> None:
    """Neither lost, nor changed, nor that of another tuning that was begun at the same moment."""
    config, out = config_of(tmp_path), tmp_path / "out"
    shutil.copytree(whole[0], out)
    plan, asked = out / "tuning.json", ("tune", config, "--out", out)
    text = plan.read_text()
    plan.write_text(json.dumps({**json.loads(text), "noise_multiplier": 0.5}))
    one_message(dpfl(*asked), "names other runs", "another out")
    plan.unlink()
    one_message(dpfl(*asked), "tuning.json is missing", "ledger.jsonl holds", "another out")
    plan.write_text(text)
    before = held(out / "ledger.jsonl")
    assert dpfl(*asked).code == 0 and held(out / "ledger.jsonl") == before
    real = successive_halving.begin

    def begun(file: Any, base: Path, folder: Path) -> Any:
        found = real(file, base, folder)
        folder.mkdir()
        (folder / "tuning.json").write_text(json.dumps({**json.loads(text), "id": "another"}))
        return found

    with mock.patch.object(successive_halving, "begin", begun):
        one_message(dpfl("tune", config, "--out", tmp_path / "new"), "another tuning", "out")
    assert not (tmp_path / "new" / "ledger.jsonl").exists()


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"rounds": None}, ("rounds is missing",)),
        ({"privacy": {"epsilon": None, "noise_multiplier": 2.0}}, ("privacy.epsilon is missing",)),
        ({"sweep": {"seeds": 2}}, ("sweep", "leave sweep out")),
        ({"variants": {"a": {}}}, ("variants", "leave variants out")),
        ({"tune": {"grid": {"seed": [1, 2]}}}, ("seed", "candidates may differ in")),
        ({"tune": {"grid": {"privacy.epsilon": [1, 2]}}}, ("privacy.epsilon", "candidates may differ in")),
        ({"tune": {"grid": {"algorithm.local_lr": [0.1]}}}, ("1 candidate",)),
        ({"tune": {"grid": {"algorithm.local_lr": []}}}, ("has no values",)),
        ({"tune": {"rungs": [3, 1]}}, ("tune.rungs=[3, 1]", "ascending")),
        ({"tune": {"rungs": [5]}}, ("tune.rungs=[5]", "below rounds=5")),
        ({"tune": {"rungs": [1, 2, 3]}}, ("one candidate is left before round 3",)),
        ({"tune": {"random": {"algorithm.local_lr": [0.1, 1.0]}}}, ("in grid and in random",)),
        ({"tune": {"random": {"l2": [0.1, 0.01]}, "candidates": 4}}, ("low < high",)),
        ({"tune": {"random": {"l2": [0.01, 0.1]}}}, ("tune.candidates is missing",)),
        ({"tune": {"rounds": [1]}}, ("tune.rounds is not a known key",)),
        ({"tune": None}, ("has no tune",)),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else "",
)
def test_what_is_not_supported_is_refused(tmp_path: Path, changes: dict[str, Any], parts: tuple[str, ...]) -> None:
    base = {key: dict(value) if isinstance(value, dict) else value for key, value in TUNE.items()}
    for key, value in changes.items():
        base[key] = {**base[key], **value} if isinstance(value, dict) and isinstance(base.get(key), dict) else value
    config = write(tmp_path, base)
    done = dpfl("tune", config, "--out", tmp_path / "out")
    said = re.sub(r"\s+", " ", done.err).lower()
    assert done.code == 2 and not done.out and "traceback" not in said
    assert str(config).lower() in said
    for part in parts:
        assert part.lower() in said, done.err
    assert not (tmp_path / "out").exists()


def test_candidates_that_release_unlike_are_refused(tmp_path: Path) -> None:
    config = config_of(tmp_path, tune={"grid": {"algorithm.local_steps": [2, 1]}, "rungs": [1]})
    one_message(dpfl("tune", config, "--plan"), "local_steps=1 releases other than", "public data")


def test_random_candidates_are_drawn_within_their_range_and_always_the_same(tmp_path: Path) -> None:
    spec = {"grid": {"l2": [0.0, 0.1]}, "random": {"algorithm.local_lr": [0.01, 1.0]}, "candidates": 12, "rungs": [1]}
    config = config_of(tmp_path, tune=spec)
    from dpfl_plugin.config.tune import read_tune

    found = [candidate.changes for candidate in read_tune(config).candidates]
    steps = sorted(change["algorithm"]["local_lr"] for change in found)
    assert found == [candidate.changes for candidate in read_tune(config).candidates]
    assert len(set(steps)) == 12 and steps[0] >= 0.01 and steps[-1] <= 1.0
    assert steps[3] < 0.1 < steps[8]  # log-uniform: half of it below the geometric mean
    assert {change["l2"] for change in found} == {0.0, 0.1}
