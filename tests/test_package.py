"""The package as installed: its version, types, entry points and start-up."""

from __future__ import annotations

import tomllib
import types
import typing
from importlib import metadata, resources
from pathlib import Path

import pytest
import yaml

import dpfl_plugin
from dpfl_plugin import registry
from dpfl_plugin.cli import folder_commands
from dpfl_plugin.cli import main as main_module
from dpfl_plugin.cli.project_commands import START

DISTRIBUTION = "dpfl-plugin"
PYPROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
PLUGINS = [
    (point.group.removeprefix("dpfl_plugin."), point.name)
    for point in metadata.distribution(DISTRIBUTION).entry_points
    if point.group.startswith("dpfl_plugin.")
]


def test_every_public_name_can_be_loaded() -> None:
    for name in dpfl_plugin.__all__:
        assert getattr(dpfl_plugin, name) is not None
    assert dir(dpfl_plugin) == sorted(dpfl_plugin.__all__) and len(dir(dpfl_plugin)) <= 40
    for name, message in {
        "epsylon": r"has no attribute 'epsylon'$",
        "Scaffold": r"it is dpfl\.algorithms\.Scaffold now$",
        "write_report": r"it is dpfl\.report now$",
    }.items():
        with pytest.raises(AttributeError, match=message):
            getattr(dpfl_plugin, name)


def test_the_help_is_in_groups_and_begins_where_a_newcomer_does() -> None:
    """A command without a group would stand before all of them."""
    shown = [command for command in main_module.app.registered_commands if not command.hidden]
    panels = [command.rich_help_panel for command in shown]
    assert all(isinstance(panel, str) for panel in panels), [command.name or command.callback for command in shown]
    assert list(dict.fromkeys(panels)) == [
        START,
        main_module.TRAIN,
        main_module.PRIVACY,
        main_module.TOOLS,
        folder_commands.DEPLOY,
    ]


def test_dpfl_is_a_command() -> None:
    (script,) = metadata.entry_points(group="console_scripts", name="dpfl")
    assert callable(script.load())


def test_version_is_the_same_everywhere() -> None:
    assert dpfl_plugin.__version__ == PYPROJECT["project"]["version"] == metadata.version(DISTRIBUTION)


def test_the_citation_names_this_version_and_licence() -> None:
    cited = yaml.safe_load((Path(__file__).parents[1] / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited["version"] == dpfl_plugin.__version__ and cited["license"] in PYPROJECT["project"]["license"]
    assert cited["cff-version"] == "1.2.0" and cited["authors"] and cited["title"] and cited["message"]


def test_windows_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main_module, "os", types.SimpleNamespace(name="nt"))
    with pytest.raises(SystemExit, match=r"^dpfl: Windows is not supported: .*WSL 2"):
        main_module.main()


def test_types_are_shipped() -> None:
    assert resources.files(dpfl_plugin).joinpath("py.typed").is_file()
    assert "py.typed" in PYPROJECT["tool"]["setuptools"]["package-data"]["dpfl_plugin"]


def test_the_installed_entry_points_are_those_declared() -> None:
    declared = PYPROJECT["project"]["entry-points"]
    assert set(declared) <= {f"dpfl_plugin.{group}" for group in registry.GROUPS}
    assert sorted(PLUGINS) == sorted((group.split(".")[1], name) for group in declared for name in declared[group]), (
        "pyproject.toml has changed since the last install: run launchers/env"
    )


@pytest.mark.parametrize("group", registry.GROUPS)
def test_plugins_load_and_every_option_has_a_type(group: str) -> None:
    """A configuration is checked against these types: an option without one would accept anything."""
    untyped = []
    for name in [name for its, name in PLUGINS if its == group]:
        plugin = registry.load(group, name)
        assert callable(plugin)
        hints = typing.get_type_hints(registry._annotated(plugin))  # where `registry.build` reads them
        untyped += [
            (name, option) for option in registry.options(plugin) if hints.get(option, typing.Any) is typing.Any
        ]
    assert not untyped
