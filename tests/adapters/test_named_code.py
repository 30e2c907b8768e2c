"""Settings that travel name registered plugins: code that they name runs where the owner's own file names it, too."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from dpfl_plugin import registry
from dpfl_plugin.adapters import Server, agree
from dpfl_plugin.adapters.replies import refusal
from dpfl_plugin.config.blocks import Block
from dpfl_plugin.config.load import configure
from dpfl_plugin.config.named_code import named_code
from dpfl_plugin.config.schema import Config
from dpfl_plugin.errors import DpflError, LimitError, PluginError
from dpfl_plugin.owners.limits import Limits
from tests.adapters.federation import PUBLIC, block
from tests.adapters.named_code import NAMED, PATH, recorded, settings
from tests.adapters.test_faults import module


def limits_of(folder: Path, *code: str) -> Limits:
    return Limits(folder=folder, epsilon=1e6, delta=0.5, code=frozenset(code), source="limits.yaml", **PUBLIC)


def blocks_in(kind: Any, where: str = "") -> Iterator[str]:
    """The keys of the schema under which there is a plugin's block, or a list of them."""
    if kind is Block:
        yield f"{where}.module"
    elif isinstance(kind, type) and issubclass(kind, BaseModel):
        for name, field in kind.model_fields.items():
            yield from blocks_in(field.annotation, f"{where}.{name}" if where else name)
    else:
        for part in get_args(kind):
            yield from blocks_in(part, f"{where}[0]" if getattr(kind, "__origin__", None) is list else where)


def nested(key: str) -> dict[str, Any]:
    value: Any = PATH
    for part in reversed(key.split(".")):
        value = [{**value}] if part.endswith("[0]") else value
        value = {part.removesuffix("[0]"): value}
    return dict(value)


def test_every_block_of_the_schema_is_looked_at() -> None:
    keys = {*blocks_in(Config)}
    assert {"algorithm.module", "data.preprocess[0].module", "trackers[0].module", "privacy.clip.module"} <= keys
    for key in sorted(keys):
        found = configure({"algorithm": "scaffold", "privacy": {"epsilon": 1}, "rounds": 1}, nested(key), source="test")
        assert named_code(found)[key] == PATH


@pytest.mark.parametrize("step", [{"factory": PATH}, {"options": {"of": [{"anything": PATH}]}}])
def test_options_of_registered_plugins_are_looked_at(step: dict[str, Any]) -> None:
    values = {
        **block(loss="dpfl_plugin.gradients.losses:hinge"),
        "data": {"preprocess": [{"name": "backbone", **step}]},
    }
    found = named_code(configure(values, source="test"))
    assert set(found.values()) == {PATH, "dpfl_plugin.gradients.losses:hinge"}


NOTHING = ("antigravity:0", "antigravity: x", "antigravity:", ":x", "antigravity", "antigravity:x:y", "a b:c", "a/b:c")


@pytest.mark.parametrize("text", NOTHING)
def test_what_is_not_listed_is_not_imported(text: str) -> None:
    assert named_code(configure(block(loss=text), source="test")) == {}
    with pytest.raises(PluginError, match="is not of the form"):
        registry.load_object(text, "loss")
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize("key", NAMED)
def test_a_silo_calls_no_code_that_settings_name_unless_its_owners_file_names_it(tmp_path: Path, key: str) -> None:
    """On the seam that all platforms use; `tests/*/inside.py` has the platforms' own."""
    with recorded() as calls:
        with pytest.raises(LimitError, match=rf"limits\.yaml: .*{key.replace('.', '.')} \(tempfile:mkdtemp\)") as found:
            agree(settings(key), num_silos=1, model=module(), permit=limits_of(tmp_path).check_settings)
        for other in ("tempfile:mkstemp", "tempfile:gettempdir", "os:getcwd"):
            with pytest.raises(LimitError):
                agree(settings(key), num_silos=1, model=module(), permit=limits_of(tmp_path, other).check_settings)
        assert not calls
        message = Server(agree(block(), num_silos=1, model=module()), module()).begin()
        assert message is not None
        answer = refusal(None, 0, message, found.value).header
        assert answer["reason"] == "not within this owner's limits" and answer["run"] == message.header["run"]


@pytest.mark.parametrize("key", [key for key in NAMED if key not in ("loss", "algorithm.of.module")])
def test_it_calls_what_its_owners_file_names(tmp_path: Path, key: str) -> None:
    permit = limits_of(tmp_path, PATH).check_settings
    if key == "privacy.accountant.module":  # by which the owner counts
        with pytest.raises(LimitError, match="is not one of pld"):
            agree(settings(key), num_silos=1, model=module(), permit=permit)
        return
    with recorded() as calls, pytest.raises(DpflError, match="it was called"):
        agree(settings(key), num_silos=1, model=module(), permit=permit)
    assert calls


def test_an_agreement_that_is_kept_is_checked_each_time(tmp_path: Path) -> None:
    from dpfl_plugin.adapters.agreement import Agreements

    kept, values = Agreements(), block(loss="dpfl_plugin.gradients.losses:hinge")
    path = str(values["loss"])
    for _ in range(2):
        kept.agree(values, num_silos=1, model=module(), source="test", permit=limits_of(tmp_path, path).check_settings)
    with pytest.raises(LimitError):
        kept.agree(values, num_silos=1, model=module(), source="test", permit=limits_of(tmp_path).check_settings)
