"""`dpfl list` and `dpfl schema`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dpfl_plugin import registry
from dpfl_plugin.config.load import load, read_yaml
from dpfl_plugin.config.sweep import expand
from tests.cli.command import dpfl, one_message

CONFIGS = Path(__file__).parents[2] / "configs"
FILES = sorted(CONFIGS.glob("**/*.yaml"))


def test_list() -> None:
    found = dpfl("list", "--json").json
    assert list(found) == list(registry.GROUPS)
    assert [plugin["name"] for plugin in found["algorithms"]] == registry.names("algorithms")
    (scaffold,) = (plugin for plugin in found["algorithms"] if plugin["name"] == "scaffold")
    assert "local_steps" in scaffold["options"] and "option='II'" in scaffold["options"]
    done = dpfl("list", "engines")
    assert done.code == 0 and "closed_form" in done.out and "scaffold" not in done.out


def test_list_nonsense() -> None:
    one_message(dpfl("list", "nonsense"), "'nonsense'", "Known: algorithms")
    one_message(dpfl("list", "algorithm"), "did you mean 'algorithms'")


def test_a_broken_plugin_is_listed_as_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    real = registry.load

    def load_plugin(group: str, name: str) -> object:
        if name == "vmap":
            raise registry.PluginError("it burns")
        return real(group, name)

    monkeypatch.setattr(registry, "load", load_plugin)
    done = dpfl("list", "engines")
    assert done.code == 0 and "BROKEN: it burns" in " ".join(done.out.split()) and "closed_form" in done.out


def test_the_committed_schema_is_current() -> None:
    """If not: dpfl schema > configs/schema.json"""
    assert dpfl("schema").out == (CONFIGS / "schema.json").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(CONFIGS)))
def test_every_configuration_is_valid(path: Path) -> None:
    assert expand(path).rows if "sweep" in read_yaml(path) else load(path).variants
    try:
        import jsonschema
    except ImportError:
        return
    import yaml

    values = json.loads(json.dumps(yaml.safe_load(path.read_text(encoding="utf-8"))))
    jsonschema.validate(values, json.loads((CONFIGS / "schema.json").read_text(encoding="utf-8")))


def test_help_and_version() -> None:
    assert "account" in dpfl("--help").out and dpfl("--version").out.startswith("dpfl ")
    for words in (["run"], ["nonsense"], ["run", "--nonsense"]):
        done = dpfl(*words)
        assert done.code == 2 and "Traceback" not in done.err
