"""The keys of `privacy` in Python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pydantic

from dpfl_plugin.config.load import refusal
from dpfl_plugin.config.privacy import PrivacyConfig


class Privacy(PrivacyConfig):
    """How releases are made private, and how much may be spent: what `privacy` is in a file, key by key.

    Raises:
        ConfigError: a key is unknown, or a value out of range; the message names both.
    """

    if not TYPE_CHECKING:  # whose signature is that of the keys

        def __init__(self, **keys: Any) -> None:
            try:
                super().__init__(**keys)
            except pydantic.ValidationError as error:
                raise refusal(error, "Privacy", ("privacy",)) from None  # what pydantic says is in it, in our words

    def given(self) -> dict[str, Any]:
        """The keys that were given, as a file would hold them."""
        return self.model_dump(mode="python", exclude_unset=True)
