"""A platform's log gets kind and place of what went wrong at a site, and a file of its owner's has the text."""

import errno
import logging
import os
import traceback

import pytest
import torch

from dpfl_plugin.adapters import agree
from dpfl_plugin.adapters.owner import say_once
from dpfl_plugin.adapters.site_log import SiteLog
from dpfl_plugin.errors import DataError, LimitError
from dpfl_plugin.owners.limits import Limits
from tests.adapters.federation import SimulatedSilo, block

RECORD = "J. Doe, HIV+"
LOG = logging.getLogger("a platform's")


class Quoting(Exception):
    """Its text is made when it is asked for."""

    def __str__(self):
        raise ValueError(RECORD)


def of_a_loader(kind=ValueError):
    """Raised by code that is not this package's."""
    try:
        raise kind(RECORD)
    except Exception as error:
        return error


def said(site_log, error, caplog):
    caplog.clear()
    site_log.tell("site-1 (silo 0)", error)
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    return logging.Formatter().format(record)


@pytest.mark.parametrize("kind", [ValueError, OSError, DataError, LimitError, Quoting])
def test_a_platforms_log_gets_kind_and_place_and_the_file_has_the_text(tmp_path, caplog, kind):
    """Whoever's kind of error it is: of this package's, too, where others raised it."""
    folder = tmp_path / "owner"
    log, error = SiteLog(LOG, "site-1", folder), of_a_loader(kind)
    line = traceback.extract_tb(error.__traceback__)[-1].lineno
    who = "site-1 (silo 0) takes no part" if kind is LimitError else "site-1 (silo 0)"
    place = f"{kind.__name__} (test_site_log.py, line {line})"
    where = f"what else there is to say is in {folder / 'site-1.log'}, for the owner of the records"
    assert [said(log, error, caplog) for _ in range(2)] == [f"dpfl: {who}: {place}; {where}"] * 2
    text = log.path.read_text()
    assert text.count("Traceback (most recent call last)") == 2 and "in of_a_loader" in text
    assert (RECORD in text) == (kind is not Quoting)
    assert [path.stat().st_mode & 0o777 for path in (log.path, folder)] == [0o600, 0o700]


def test_of_an_owners_refusal_a_platforms_log_gets_the_words_that_the_server_gets(tmp_path, caplog):
    limits = Limits(folder=tmp_path, epsilon=1, delta=1e-5, source="/etc/limits.yaml")
    with pytest.raises(LimitError) as refused:
        limits.refuse("the agreement is too much")
    log = SiteLog(LOG, "site-1", tmp_path)
    assert said(log, refused.value, caplog).startswith(
        "dpfl: site-1 (silo 0) takes no part: not within this owner's limits; what else"
    )
    assert "/etc/limits.yaml: the agreement is too much. Nothing was released." in log.path.read_text()


def test_without_a_file_the_platforms_log_gets_all(caplog):
    log = SiteLog(LOG, "site-1", None)
    assert said(log, of_a_loader(), caplog).startswith(f"dpfl: site-1 (silo 0): {RECORD}\nTraceback")
    assert said(log, of_a_loader(DataError), caplog) == f"dpfl: site-1 (silo 0): {RECORD}"
    assert said(log, of_a_loader(LimitError), caplog) == f"dpfl: site-1 (silo 0) takes no part: {RECORD}"


def test_the_file_is_nobody_elses_and_nowhere_else(tmp_path, caplog):
    """One that is a link is not followed, and one that others could read is closed; a site's name is no path."""
    folder, elsewhere = tmp_path / "owner", tmp_path / "elsewhere"
    folder.mkdir(mode=0o700)
    elsewhere.write_text("")
    log = SiteLog(LOG, "../site 1", folder)
    assert log.path == folder / ".._site_1.log"
    log.path.symlink_to(elsewhere)
    line = said(log, of_a_loader(), caplog)
    assert f"could not be written to {log.path} ({os.strerror(errno.ELOOP)})" in line and RECORD not in line
    assert elsewhere.read_text() == ""
    log.path.unlink()
    log.path.write_text("before\n")
    log.path.chmod(0o644)
    assert RECORD not in said(log, of_a_loader(), caplog)
    assert log.path.read_text().startswith("before\n") and log.path.stat().st_mode & 0o777 == 0o600


def test_no_platforms_log_says_how_many_records_a_silo_has(tmp_path):
    seen, handler = [], logging.Handler()
    handler.emit = lambda record: seen.append(record.getMessage())
    logger = logging.getLogger("dpfl_plugin")  # to which a platform's log is joined
    level, model = logger.level, torch.nn.Linear(4, 3)
    records = torch.zeros(37, 4), torch.arange(37) % 3
    say_once.cache_clear()
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        SimulatedSilo(agree(block(), num_silos=1, model=model), 0, model, records, tmp_path / "silo").close()
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    assert "silo 0: noise multiplier 1.5" in seen
    assert not [line for line in seen if "37" in line.replace(str(tmp_path), "")]
