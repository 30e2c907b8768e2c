"""What tests of the command line share."""

from __future__ import annotations

import pytest


@pytest.fixture
def pictures() -> None:
    """For tests that want curves drawn."""


@pytest.fixture(autouse=True)
def no_pictures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A picture takes longer than a small run: drawn for those tests only that ask for `pictures`."""
    if "pictures" not in request.fixturenames:
        monkeypatch.setattr("dpfl_plugin.cli.run.curves", lambda *args: None)
