"""Noise that is drawn where values are, as on a GPU, on a CPU, too."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Literal
from unittest import mock

from dpfl_plugin.privacy import noise

Place = Literal["host", "device"]


@contextlib.contextmanager
def noise_drawn_on(place: Place) -> Iterator[None]:
    """Whatever the device of the values is."""
    with mock.patch.object(noise, "drawn_on_device", return_value=place == "device"):
        yield
