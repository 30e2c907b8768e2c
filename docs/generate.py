"""`python docs/generate.py`: writes the reference part of configuration.md from the schema, the table of what does
not go together and the plugins, and what the examples of platforms add to a project.
"""

from __future__ import annotations

import difflib
import inspect
import re
import typing
from pathlib import Path
from typing import Any

import pydantic
from pydantic_core import PydanticUndefined

from dpfl_plugin import registry
from dpfl_plugin.config.blocks import Block
from dpfl_plugin.config.incompatible import INCOMPATIBLE, USES
from dpfl_plugin.config.schema import Config, SweepConfig
from dpfl_plugin.config.tune_keys import TuneConfig

ROOT = Path(__file__).resolve().parents[1]
PAGE = Path(__file__).with_name("configuration.md")
PLATFORMS = ("fedml", "flower", "nvflare")
BEGIN, END = "<!-- reference: begin -->", "<!-- reference: end -->"
SOURCES = """[C] Chang, Seif, Tandon 2022, Differentially Private Federated Learning with Drift Control (CISS).
[L] Li, Wang, Wu 2025, Convergence Analysis for Differentially Private Federated Averaging in Heterogeneous Settings.
[N] Noble, Bellet, Dieuleveut 2022, Differentially Private Federated Learning on Heterogeneous Data (AISTATS).
[P] Liu, Hu, Wu, Smith 2022, On Privacy and Personalization in Cross-Silo Federated Learning (NeurIPS).
[S] Balancing Privacy and Performance for Private Federated Learning Algorithms (no authors named)."""
TITLES = {
    "algorithms": ("algorithm",),
    "datasets": ("data.dataset",),
    "partitioners": ("data.partition",),
    "models": ("model",),
    "engines": ("engine",),
    "mechanisms": ("privacy.mechanism",),
    "clippings": ("privacy.clip",),
    "schedules": ("privacy.schedule",),
    "accountants": ("privacy.accountant",),
    "runtimes": ("runtime.kind",),
    "callbacks": ("trackers",),
}


def keys(model: type[pydantic.BaseModel], prefix: str = "") -> list[str]:
    """Table rows of a model's keys, its nested models' after them."""
    rows, nested = [], []
    for name, field in model.model_fields.items():
        kind = field.annotation
        if inspect.isclass(kind) and issubclass(kind, pydantic.BaseModel) and kind is not Block:
            nested += keys(kind, f"{prefix}{name}.")
            continue
        meaning = (field.description or "").replace("|", "\\|")
        rows.append(f"| `{prefix}{field.alias or name}` | {_type(kind)} | {_default(field)} | {meaning} |")
    return rows + nested


def _summary(plugin: Any) -> str:
    """The first paragraph of a docstring, which may be of several lines."""
    return " ".join((inspect.getdoc(plugin) or "").partition("\n\n")[0].split()).replace("|", "\\|")


def _type(kind: Any) -> str:
    arguments = typing.get_args(kind)
    if kind is Block or Block in arguments:
        return "list of blocks" if typing.get_origin(kind) is list else "block"
    if typing.get_origin(kind) is typing.Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if arguments and type(None) in arguments:
        return " or ".join(_type(argument) for argument in arguments if argument is not type(None))
    if typing.get_origin(kind) is list:
        return "list of blocks" if "Block" in str(kind) else "list"
    return getattr(kind, "__name__", str(kind))


def _default(field: Any) -> str:
    if field.default is PydanticUndefined:
        return "required"
    if isinstance(field.default, Block):
        return f"`{field.default.name}`"
    return "" if field.default in (None, "", []) else f"`{field.default}`"


def plugins(group: str) -> list[str]:
    """Table rows of a group's built-in plugins."""
    rows = []
    for name in registry.names(group):
        if not registry.origin(group, name).startswith("dpfl-plugin "):
            continue
        plugin = registry.load(group, name)
        options = ", ".join(_option(option) for option in registry.options(plugin).values())
        rows.append(f"| `{name}` | {_summary(plugin)} | {options} |")
    return rows


def _option(option: inspect.Parameter) -> str:
    required = option.default is inspect.Parameter.empty
    return f"`{option.name}`" if required else f"`{option.name}={option.default!r}`"


def reference() -> str:
    """The whole part between the marks."""
    lines = [
        "### Keys",
        "",
        "| key | value | default | meaning |",
        "| --- | --- | --- | --- |",
        *keys(Config),
        *keys(SweepConfig, "sweep."),
        *keys(TuneConfig, "tune."),
        "",
        "### What does not go together",
        "",
        "A run with both is refused before anything is loaded. `key!=value` stands for any other value, and `key` for",
        "any that is not the default. Some rows are about what you do with a configuration:",
        "",
        *(f"* `{use}`: {what}" for use, what in USES.items()),
        "",
        "| setting | does not go with | why, and what to do instead |",
        "| --- | --- | --- |",
        *(f"| `{first}` | `{second}` | {why} |" for (first, second), why in INCOMPATIBLE.items()),
    ]
    for group, (key,) in TITLES.items():
        lines += [
            "",
            f"### {group.capitalize()} (`{key}`)",
            "",
            "| name | what it is | options |",
            "| --- | --- | --- |",
        ]
        lines += plugins(group)
    named = [line for line in SOURCES.splitlines() if any(line[:3] in row for row in lines)]
    return "\n".join([*lines, "", "Sources:", "", *(f"* {line}" for line in named)])


def page() -> str:
    """The page as it should be."""
    return re.compile(f"{BEGIN}.*{END}", re.DOTALL).sub(lambda _: f"{BEGIN}\n{reference()}\n{END}", PAGE.read_text())


def changes(example: Path) -> str:
    """What an existing project's files become, as a diff of its folders `plain` and `private`."""
    lines: list[str] = []
    for path in sorted((example / "private").rglob("*")):
        if path.suffix in (".py", ".toml", ".yaml"):
            name = str(path.relative_to(example / "private"))
            before = (example / "plain" / name).read_text().splitlines()
            lines += difflib.unified_diff(
                before, path.read_text().splitlines(), f"plain/{name}", f"private/{name}", "", "", 2, ""
            )
    return "\n".join(["```diff", *(line.rstrip() for line in lines), "```"])


def with_changes(platform: str) -> str:
    """A platform's page as it should be."""
    example, text = ROOT / "examples" / f"{platform}_existing_project", (ROOT / "docs" / f"{platform}.md").read_text()
    begin, end = f"<!-- {platform} diff: begin -->", f"<!-- {platform} diff: end -->"
    return re.compile(f"{begin}.*{end}", re.DOTALL).sub(lambda _: f"{begin}\n{changes(example)}\n{end}", text)


if __name__ == "__main__":
    PAGE.write_text(page())
    for platform in PLATFORMS:
        text = with_changes(platform)
        (ROOT / "docs" / f"{platform}.md").write_text(text)
