"""What the adapters of platforms share."""

import contextlib
import io
import logging
from pathlib import Path

import pytest

from dpfl_plugin.adapters.platforms import (
    check_seam,
    check_version,
    folder_from,
    is_over,
    nested,
    over_before,
    ranges,
    round_counted,
    show_log,
)
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


def test_numbers_of_silos_are_said_shortly():
    assert (ranges([3, 4, 9, 0, 5]), ranges([]), ranges([2])) == ("0, 3-5, 9", "", "2")


@pytest.mark.parametrize(
    ("silos", "status", "reason", "said"),
    [
        ({"0": 2.0, "1": 3.0}, "done", "", ("at most 3;", "at most 3", "done after 4 rounds. Nothing", "another run")),
        ({"0": None, "1": 3.0}, "done", "", ("none holds;", "none holds", "done after 4 rounds. Nothing", "another")),
        (
            {},
            "refused",
            "no",
            ("no upload was taken", "none holds", "after 4 rounds (no). Nothing", "owners allow it,"),
        ),
    ],
    ids=["private", "without noise", "refused"],
)
def test_the_end_of_a_run_is_said_with_its_reason_and_what_is_known_of_epsilon(silos, status, reason, said):
    about = {silo: {"epsilon": epsilon} for silo, epsilon in silos.items()}
    summary = {"status": status, "reason": reason, "rounds": 4, "silos": about}
    end, counted, before, again = said
    assert f"Epsilon: {end}" in is_over(Path("/f"), summary)
    assert round_counted(summary, None) == f"dpfl: round 4: epsilon {counted}"
    found = over_before(Path("/f"), summary)
    assert before in found and again in found


def test_a_newer_platform_is_tried_and_warned_of_and_an_older_one_refused(monkeypatch, caplog):
    tried = []

    def at(version, seam=lambda: tried.append(1)):
        monkeypatch.setattr("importlib.metadata.version", lambda package: version)
        check_seam("flwr", "1.38", "1.42", seam)

    for version in ("1.38.0", "1.40.2", "1.42.9"):
        at(version)
    assert not tried and not caplog.text
    at("1.100.0rc1")
    assert tried and "flwr 1.100.0rc1 is newer than 1.42" in caplog.text and "works as it did" in caplog.text
    with pytest.raises(UnsupportedError, match=r"1\.37\.9 is older than 1\.38.*Install 1\.38 to 1\.42"):
        at("1.37.9")
    with pytest.raises(UnsupportedError, match=r"does not do what the adapter relies on \(ZeroDivisionError"):
        at("2.0", lambda: 1 // 0)


def test_what_is_logged_tells_no_terminal_what_to_do_where_a_platform_shows_it(monkeypatch, caplog):
    ours, theirs = logging.getLogger("dpfl_plugin"), logging.getLogger("a.platform")
    monkeypatch.setattr(ours, "handlers", [])
    monkeypatch.setattr(ours, "propagate", True)
    ours_level = ours.level
    show_log(lambda: theirs)
    caplog.set_level(logging.INFO, theirs.name)
    logging.getLogger("dpfl_plugin.server").warning("silo %d\tsays %s, 100%%\nof it", 3, "\x1b]0;owned\x07")
    try:
        raise ValueError("\x1b[2J")
    except ValueError:
        logging.getLogger("dpfl_plugin.server").exception("failed")
    with contextlib.redirect_stderr(io.StringIO()):
        logging.getLogger("dpfl_plugin.server").warning("bad %d", "x")  # ends nothing
    ours.setLevel(ours_level)
    assert caplog.messages == ["silo 3\tsays \ufffd]0;owned\ufffd, 100%\nof it", "failed"]
    assert "ValueError: \ufffd[2J" in caplog.text and "\x1b" not in caplog.text


def test_versions_that_were_not_tested_are_refused():
    check_version("pytest", ("0.1", "8", "9"))
    with pytest.raises(UnsupportedError, match=r"pytest .* is not supported: this adapter was tested with 1\.0, 99"):
        check_version("pytest", ("1.0", "99"))
    with pytest.raises(UnsupportedError, match="no-such-package is not installed"):
        check_version("no-such-package", ("1",))
