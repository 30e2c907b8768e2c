"""What the documentation says is what the code does."""

import importlib.util
import re
from pathlib import Path

import pytest
import yaml

from dpfl_plugin.config.load import load

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
