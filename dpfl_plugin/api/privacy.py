"""The keys of `privacy` in Python."""

from __future__ import annotations

from typing import Any, Unpack, cast

import pydantic

from dpfl_plugin.config.keys import PrivacyKeys, shows
from dpfl_plugin.config.load import refusal
from dpfl_plugin.config.privacy import PrivacyConfig


class _Kind(type(PrivacyConfig)):  # type: ignore[misc]  # pydantic's metaclass has no public name
    def __dir__(cls) -> list[str]:
        """What `help` shows: keys, and nothing of pydantic."""
        return ["__init__", *cls.model_fields]


class Privacy(PrivacyConfig, metaclass=_Kind):
    """How releases are made private, and how much may be spent: what `privacy` is in a file, key by key.

    Raises:
        ConfigError: a key is unknown, or a value out of range; the message names both.
    """

    @shows(PrivacyKeys)
    def __init__(self, **keys: Unpack[PrivacyKeys]) -> None:
        try:
            super().__init__(**cast(dict[str, Any], keys))
        except pydantic.ValidationError as error:
            raise refusal(error, "Privacy", ("privacy",)) from None  # what pydantic says is in it, in our words

    def __dir__(self) -> list[str]:
        return list(type(self).model_fields)
