"""What the documentation says is what the code does."""

import importlib.util
import re
import tomllib
from pathlib import Path

import pytest
import yaml

from dpfl_plugin import registry
from dpfl_plugin.config.load import load
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


@pytest.mark.parametrize("path", sorted((ROOT / "configs").rglob("*.yaml")), ids=lambda path: path.stem)
def test_every_configuration_loads(path):
    assert load(path).variants


def test_the_readmes_configuration_loads(tmp_path):
    (text,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (tmp_path / "my-run.yaml").write_text(text)
    (variant,) = load(tmp_path / "my-run.yaml").variants
    assert variant.config.name == "my-run"
    assert yaml.safe_load(text)["rounds"] == variant.config.rounds


def test_links_in_the_documents_lead_somewhere():
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_example_of_an_algorithm_of_ones_own_works(tmp_path, monkeypatch):
    """CONTRIBUTING's plugin trains, at both privacy units, under a name that no built-in algorithm has."""
    page = (ROOT / "CONTRIBUTING.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (project,) = (
        tomllib.loads(text) for text in re.findall(r"```toml\n(.*?)```", page, re.DOTALL) if "[project]" in text
    )
    (options,) = (yaml.safe_load(text)["algorithm"] for text in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL))
    ((name, target),) = project["project"]["entry-points"]["dpfl_plugin.algorithms"].items()
    assert name == options.pop("name") and name not in registry.names("algorithms")
    assert f'{{module: "{target}"' in page
    (module,) = project["tool"]["setuptools"]["py-modules"]
    assert target.startswith(f"{module}:")
    (tmp_path / f"{module}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    algorithm = {"name": None, "module": target, **options, "local_steps": 3}
    record = run(write(tmp_path, {"algorithm": algorithm, "rounds": 2}))
    silo_level = {"unit": "silo", "noise_multiplier": 20.0}
    silo = run(write(tmp_path, {"algorithm": algorithm, "rounds": 2, "privacy": silo_level}))
    assert record["epsilon"]["server"]["unit"] == "record" and silo["epsilon"]["server"]["unit"] == "silo"
    plain = {"algorithm": {**algorithm, "beta": 0.0}, "rounds": 2}
    fedavg = {"algorithm": {"name": "fedavg", "local_lr": options["local_lr"], "local_steps": 3}, "rounds": 2}
    assert run(write(tmp_path, plain))["train_loss"] != record["train_loss"]
    quiet = {"privacy": {"noise_multiplier": 0.0, "sampler": "full", "record_rate": None}}
    ends = [run(write(tmp_path, {**changes, **quiet}))["model_sha256"] for changes in (plain, fedavg)]
    assert ends[0] == ends[1]  # no momentum is FedAvg
