"""What the documentation says is what the code does."""

import importlib.util
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

import dpfl_plugin
from dpfl_plugin.config.load import load, read_yaml
from dpfl_plugin.config.sweep import expand
from dpfl_plugin.config.tune import has_tune, read_tune
from dpfl_plugin.testing import AlgorithmContract
from tests.cli.command import run, write

ROOT = Path(__file__).resolve().parents[1]


def _generator():
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_configuration_reference_is_current():
    """Else: python docs/generate.py"""
    generator = _generator()
    assert generator.page() == generator.PAGE.read_text()


def test_the_pages_of_platforms_show_the_lines_of_their_examples():
    """Else: python docs/generate.py"""
    generator = _generator()
    for platform in generator.PLATFORMS:
        assert generator.with_changes(platform) == (ROOT / "docs" / f"{platform}.md").read_text()


# What a page leaves to its reader is undefined in it.
OF_A_PAGE = (
    '# mypy: disable-error-code="name-defined", allow-subclassing-any\n'
    "# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-any-generics\n"
)


def test_type_checkers_accept_the_python_of_every_page(tmp_path):
    """With the options of the package, whose cache makes it quick."""
    pages = []
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *ROOT.glob("examples/*/*.md")]:
        if blocks := re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
            pages.append(tmp_path / f"page_{len(pages)}_{page.stem}.py")
            pages[-1].write_text(OF_A_PAGE + "\n".join(blocks))
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *pages],
        cwd=ROOT,
        env={**os.environ, "MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


CONFIGS = sorted([*(ROOT / "configs").rglob("*.yaml"), *(ROOT / "papers" / "configs").rglob("*.yaml")])


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_configuration_loads(path):
    if has_tune(path):
        assert read_tune(path).candidates
    else:
        assert expand(path).rows if "sweep" in read_yaml(path) else load(path).variants


def test_the_sweeps_of_the_page_expand(tmp_path):
    texts = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "slurm.md").read_text(), re.DOTALL)
    base = read_yaml(ROOT / "configs" / "sweep.yaml")
    rows = []
    for text in texts:
        (tmp_path / "page.yaml").write_text(yaml.safe_dump({**base, **yaml.safe_load(text)}))
        rows.append(expand(tmp_path / "page.yaml").rows)
    # fedavg: 2 steps x 2 epsilons; scaffold: 3 x 2, with 2 options; 3 seeds
    # and last fedavg, scaffold, and fedprox with 2 options
    assert [len(found) for found in rows] == [(4 + 12) * 3, 2, 4]
    assert [row.slurm for row in rows[1]] == [{}, {"mem": "8G", "time": "04:00:00"}]


def test_the_readmes_configuration_loads(tmp_path):
    (text,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (tmp_path / "my-run.yaml").write_text(text)
    (variant,) = load(tmp_path / "my-run.yaml").variants
    assert variant.config.name == "my-run"
    assert yaml.safe_load(text)["rounds"] == variant.config.rounds


def test_links_in_the_documents_lead_somewhere():
    for page in [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "SECURITY.md",
        *(ROOT / "docs").rglob("*.md"),
        *ROOT.glob("examples/*/*.md"),
    ]:
        for target in re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_algorithm_of_the_page_keeps_the_contract_and_is_scaffold(tmp_path, monkeypatch):
    """And the page names the checks and declarations that there are."""
    page = (ROOT / "docs" / "plugins.md").read_text()
    code, test = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "damped.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    names = {}
    exec(test, names)
    contract = names["TestDampedScaffold"]()
    checks = [name for name in vars(AlgorithmContract) if name.startswith("test_")]
    for check in [*checks[:-1], "test_beta_1_is_scaffold"]:  # the last starts MPI
        getattr(contract, check)()
    monkeypatch.delitem(sys.modules, "damped")
    assert re.findall(r"^test_\w+$", page, re.MULTILINE) == checks
    declared = set(re.findall(r"`(\w+) = False`", page))
    assert declared == {name for name, value in vars(AlgorithmContract).items() if value is True}
    (text,) = re.findall(r"`algorithm: (\{module: .*?\})`", page)
    assert yaml.safe_load(text)["module"] == contract.algorithm["module"]


def test_the_callback_of_the_page_is_called(tmp_path, monkeypatch):
    page = (ROOT / "docs" / "callbacks.md").read_text()
    code, limit, _ = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    trackers = yaml.safe_load(re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)[-1])
    (tmp_path / "curve.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    result = run(write(tmp_path, {**trackers, "rounds": 2}))
    monkeypatch.delitem(sys.modules, "curve")
    last = (tmp_path / "my-curve.csv").read_text().splitlines()[-1].split(",")
    assert last[0] == "2" and float(last[1]) == result["test_accuracy"]["last"]
    assert float(last[2]) == result["epsilon"]["server"]["epsilon"]
    names = {}
    exec(limit, names)
    stopped = dpfl_plugin.load(write(tmp_path, {"rounds": 9})).run(callbacks=[names["Limit"](minutes=0.0)])
    assert stopped.status == "done" and "more than 0 minutes" in stopped.result["reason"]
    for *before, last, reason in ([1.0, math.nan, "NaN"], [1.0, 2.0, 3.0, 4.0, "rises"]):
        callback = names["Limit"]()
        for loss in before:
            callback.on_round(SimpleNamespace(seconds=1.0, metrics={"train_loss": loss}))
        with pytest.raises(dpfl_plugin.Stop, match=reason):
            callback.on_round(SimpleNamespace(seconds=1.0, metrics={"train_loss": last}))


def test_the_study_of_the_page_stays_within_its_budget(tmp_path, monkeypatch, capsys):
    """It prunes by released scores, what decides is covered by the total of the ledger, and the ledger ends it."""
    optuna = pytest.importorskip("optuna")
    page = (ROOT / "docs" / "callbacks.md").read_text()
    code = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[-1]
    write(tmp_path, {"seed": None, "privacy": {"noise_multiplier": None, "epsilon": 4.0, "delta": 1e-3}}, "my-run.yaml")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(optuna.trial.Trial, "should_prune", lambda trial: trial.number == 1)

    class Early(dpfl_plugin.Callback):
        sees = "released"

        def __init__(self, trial):
            self.trial = trial

        def on_round(self, round):
            if self.trial.number == 2:  # before its first score
                raise dpfl_plugin.Stop

    names = {"Early": Early}
    code = code.replace('"ledger_epsilon": 4', '"ledger_epsilon": 2.5')
    exec(code.replace("[Pruning(trial)]", "[Pruning(trial), Early(trial)]"), names)
    trials = names["study"].trials
    assert [trial.state.name for trial in trials] == ["COMPLETE", "PRUNED", "PRUNED", "COMPLETE", "PRUNED"]
    found = [dpfl_plugin.Run.open(path.parent) for path in tmp_path.glob("study/*/*/result.json")]
    scores = {score for done in found for _, score in done.result["private_evaluation"]["scores"][-1:]}
    assert len(found) == 4 and {trial.value for trial in trials if trial.state.name == "COMPLETE"} < scores
    for done in found:
        assert done.epsilon == pytest.approx(1, abs=0.01) and done.result["adaptive_total"]["epsilon"] == 2.5
        assert "saw measurements of raw records stopped the run" not in done.statement
    assert "the limit with which the ledger was begun" in " ".join(capsys.readouterr().out.split())
