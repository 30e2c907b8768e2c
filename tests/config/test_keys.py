"""Keys as keyword arguments: those of the configuration, in signatures and in `help`."""

from __future__ import annotations

import inspect
import pydoc

import pytest

import dpfl_plugin as dpfl
from dpfl_plugin.config.keys import DataKeys, PrivacyKeys, RunKeys
from dpfl_plugin.config.privacy import PrivacyConfig
from dpfl_plugin.config.schema import Config, DataConfig


def test_they_are_those_of_the_configuration() -> None:
    own = {*inspect.signature(dpfl.train).parameters} - {*RunKeys.__annotations__}
    assert [*PrivacyKeys.__annotations__] == [*PrivacyConfig.model_fields]
    assert [*DataKeys.__annotations__] == [key for key in DataConfig.model_fields if key != "dataset"]
    assert {*RunKeys.__annotations__} == {*Config.model_fields} - own - {"data"}


@pytest.mark.parametrize(
    ("what", "keys"),
    [
        (dpfl.Privacy, PrivacyKeys),
        (dpfl.train, RunKeys),
        (dpfl.Federation.experiment, RunKeys),
        (dpfl.Federation.from_arrays, DataKeys),
    ],
)
def test_help_shows_them_and_nothing_of_pydantic(what: object, keys: type) -> None:
    shown = pydoc.render_doc(what, renderer=pydoc.plaintext)
    assert len(shown.splitlines()) < 70 and "model_" not in shown and "FieldInfo" not in shown
    assert all(f"    {key}: " in shown for key in keys.__annotations__)
    assert {*keys.__annotations__} <= {*inspect.signature(what).parameters}  # type: ignore[arg-type]
