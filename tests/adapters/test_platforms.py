"""What the adapters of platforms share."""

from pathlib import Path

import pytest

from dpfl_plugin.adapters.platforms import check_version, folder_from, nested
from dpfl_plugin.errors import ConfigError, UnsupportedError


def test_flat_keys_become_a_block_again():
    flat = {
        "dpfl.rounds": 3,
        "dpfl.privacy.delta": 1e-5,
        "dpfl.privacy.clip.name": "flat",
        "lr": 1.0,
        "dpfl": 0,
        "dp.x": 1,
    }
    assert nested(flat, "dpfl") == {"rounds": 3, "privacy": {"delta": 1e-5, "clip": {"name": "flat"}}}


def test_folders_do_not_depend_on_where_a_platform_starts_a_process():
    assert folder_from("~/silos", "folder", "") == Path.home() / "silos"
    assert folder_from(None, "folder", "/srv/silos") == Path("/srv/silos")
    for value in ("silos", "./silos", "", None):
        with pytest.raises(ConfigError, match="must be an absolute path"):
            folder_from(value, "folder", "")


def test_versions_that_were_not_tested_are_refused():
    check_version("pytest", ("0.1", "8", "9"))
    with pytest.raises(UnsupportedError, match=r"pytest .* is not known here: this adapter was tested with 1\.0, 99"):
        check_version("pytest", ("1.0", "99"))
    with pytest.raises(UnsupportedError, match="no-such-package is not installed"):
        check_version("no-such-package", ("1",))
