"""A silo's privacy statement on disk, `privacy.md` and `ledger.json`: never behind its ledger.

What is about to be charged is counted in the statement first, and charged when that is on disk. So whenever the process
is killed, the statement counts every charge of the ledger, and at most some that never were made. What a round is to
charge is known before the silo trains: its statement is written while it does, and waited for before the charge.

The two files may be published. The checksum of the ledger's last line may not, and is in `details.json`: it follows
from the lines before, of which the first has the digest of the silo's records: it would confirm a guess of these.

A statement takes longer the more rounds it counts. So from the 17th round on it counts some ahead, a 16th of those that
were made, as if they were like the next; as long as charges are among these, it holds as it is. All statements of N
rounds then take as long as some 16 of N rounds. Where somebody settles it in the end (`adapters.held`), it may count
one ahead from the first on. Of releases, some are a post-processing of all: what the statement says is an upper bound,
and it says so.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from threading import Thread
from typing import Any, Final

from dpfl_plugin.algorithms.base import RoundPlan
from dpfl_plugin.config.schema import Config
from dpfl_plugin.errors import ConfigError
from dpfl_plugin.privacy.account import PrivacyAccount
from dpfl_plugin.privacy.events import Charge, SampledGaussian
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.statement_pages import privacy_page
from dpfl_plugin.runs.folder import RunFolder, to_json, write_atomic
from dpfl_plugin.runs.statement import DETAILS_SCHEMA

AHEAD: Final = 16  # one round ahead for so many that were made
_Releases = Counter[tuple[tuple[float, float], SampledGaussian]]

Further = Callable[[int], Sequence[Sequence[Charge]]]
Stated = Callable[[PrivacyAccount, int], dict[str, Any]]
"""(an account, how many of its rounds are counted ahead) -> what `ledger.json` is to say of it."""


class Standing:
    """The statement of a silo's folder, in which it writes within a ``with`` block only.

    Args:
        ledger: of the silo; account: its account, with a budget if there is one.
        budget: epsilon, or None.
        stated: makes a statement.

    Attributes:
        least_ahead: rounds that it counts ahead at least; whoever sets it settles the statement in the end.
    """

    def __init__(
        self, files: RunFolder, ledger: Ledger, account: PrivacyAccount, budget: float | None, stated: Stated
    ) -> None:
        self.least_ahead = 0
        self._files, self._ledger, self._account, self._budget, self._stated = files, ledger, account, budget, stated
        self._writing: _Writing | None = None
        self._made = _releases_in(ledger)
        self._covered = _covered(files, ledger)
        if len(ledger) and not self._made <= self._covered:  # written by a version that did so now and then
            self.renew()

    def __enter__(self) -> Standing:
        return self

    def __exit__(self, *error: object) -> None:
        self.wait()  # before the folder is another's

    def begin(self, charges: Sequence[Charge], further: Further) -> None:
        """Have a statement written that counts ``charges``, which are expected: `cover` waits for it.

        Args:
            further: see `cover`.
        """
        self.wait()
        if not self._counts(self._made + _releases(charges)):
            self._writing = _Writing(self._writer(self._said_ahead(charges, further)))

    def cover(self, charges: Sequence[Charge], further: Further) -> None:
        """See to it that the statement on disk counts ``charges`` before they are made.

        Args:
            further: what rounds to come would charge, if they were like this one; given the most that are asked for,
                and fewer where fewer may come.
        """
        self.wait()
        self._made += _releases(charges)
        if not self._counts(self._made):
            self._write(self._said_ahead(charges, further))

    def wait(self) -> None:
        """Till nothing is being written.

        Raises:
            OSError: what was to be written could not be.
        """
        if self._writing is not None:
            self._writing.join()  # where that is interrupted, it is still being written
            writing, self._writing = self._writing, None
            self._covered = Counter()  # where that failed it is not known what is on disk
            self._covered = writing.result()

    def renew(self) -> None:
        """Write what the ledger proves, and nothing more."""
        self._write(self._said((), ()))

    def settle(self) -> None:
        """As `renew`, where the statement on disk counts more than was made."""
        self.wait()
        if self._covered != self._made:
            self.renew()

    def _said_ahead(self, charges: Sequence[Charge], further: Further) -> dict[str, Any]:
        made = len({entry.round for entry in self._ledger.tally.entries()})
        ahead = further(max(self.least_ahead, made // AHEAD))
        while not self._within_budget(said := self._said(charges, ahead)) and ahead:
            ahead = ahead[: len(ahead) // 2]  # what is beyond the budget never comes
        return said

    def _counts(self, made: _Releases) -> bool:
        """Whether the statement on disk does."""
        return made <= self._covered

    def _within_budget(self, said: Mapping[str, Any]) -> bool:
        epsilon = said["views"]["server"]["epsilon"]
        return self._budget is None or (epsilon is not None and epsilon <= self._budget)

    def _said(self, charges: Iterable[Charge], ahead: Sequence[Sequence[Charge]]) -> dict[str, Any]:
        counted = self._ledger.in_memory()
        counted.append([*charges, *itertools.chain(*ahead)])
        said = self._stated(self._account.holding(counted), len(ahead))
        releases = [
            {"share": list(share), "release": asdict(release), "count": count}
            for (share, release), count in _releases_in(counted).items()
        ]
        counts = {"in_ledger": len(self._ledger), "rounds_ahead": len(ahead), "releases": releases}
        return {**{key: value for key, value in said.items() if key != "head"}, "counted": counts}

    def _write(self, said: dict[str, Any]) -> None:
        self.wait()
        self._covered = Counter()
        self._covered = self._writer(said)()

    def _writer(self, said: dict[str, Any]) -> Callable[[], _Releases]:
        """What writes a statement, and then knows what is covered; of the ledger as it is now."""
        page = privacy_page(said)
        said["counted"]["page"] = _digest(page)
        statement = to_json(said)
        # The ledger as it is: by this it is seen later whether its end is missing.
        kept = {"num_charges": len(self._ledger), "head": self._ledger.head, "statement": _digest(statement)}
        details = to_json({"schema": DETAILS_SCHEMA, "not_to_be_published": True, **kept})

        def write() -> _Releases:
            # What a power cut took of it, or of the others, shows: then the statement is written anew.
            write_atomic(self._files.details, details, outlasts_power=False)
            # Last what tells what is covered: what people read may say more than that, and never less.
            self._files.write_together({self._files.privacy.name: page, self._files.statement.name: statement})
            return _read(said)

        return write


class _Writing:
    """A statement that is being written by a thread of its own, which does nothing but wait for the disk."""

    def __init__(self, write: Callable[[], _Releases]) -> None:
        self._write, self._covered = write, Counter[tuple[tuple[float, float], SampledGaussian]]()
        self._error: BaseException | None = None
        self._thread = Thread(target=self._run, name="dpfl-statement")
        self._thread.start()

    def _run(self) -> None:
        try:
            self._covered = self._write()
        except BaseException as error:  # whoever waits for it has it
            self._error = error

    def join(self) -> None:
        self._thread.join()

    def result(self) -> _Releases:
        """What the statement covers, which is on disk after `join`; raises what kept it from there."""
        if self._error is not None:
            raise self._error
        return self._covered


def _digest(page: str) -> str:
    return hashlib.sha256(page.encode()).hexdigest()


def _releases(charges: Iterable[Charge]) -> _Releases:
    found: _Releases = Counter()
    for charge in charges:
        found[charge.share, charge.release] += charge.count
    return found


def _releases_in(ledger: Ledger) -> _Releases:
    """`_releases` of a whole ledger, which may be long."""
    found: _Releases = Counter()
    for (_, kind), count in ledger.tally.totals().items():
        found[ledger.tally.names.kinds[kind]] += count
    return found


def _read(said: Mapping[str, Any]) -> _Releases:
    return Counter(
        {
            ((float(one["share"][0]), float(one["share"][1])), SampledGaussian(**one["release"])): int(one["count"])
            for one in said["counted"]["releases"]
        }
    )


def _covered(files: RunFolder, ledger: Ledger) -> _Releases:
    """What the statement on disk counts; nothing if there is none, it is not of this ledger, or its files were not
    written together: a power cut may have kept some of them only."""
    try:
        statement, details = files.statement.read_text(), json.loads(files.details.read_text())
        said = json.loads(statement)
        of_one_writing = said["counted"]["page"] == _digest(files.privacy.read_text())
        of_one_writing = of_one_writing and details["statement"] == _digest(statement)
        return _read(said) if of_one_writing and ledger.holds(details["head"]) else Counter()
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return Counter()


def further(
    config: Config, account: PrivacyAccount, ledger: Ledger, round: int, plan: RoundPlan, most: int
) -> list[list[Charge]]:
    """What up to ``most`` rounds after this one would charge, were they like it; those that may come."""
    if config.rounds is not None:
        most = min(most, config.rounds - round - 1)
    if config.max_participations is not None:
        made = {(entry.round, entry.noise) for entry in ledger.tally.entries()}
        most = min(most, config.max_participations - 1 - len(made))
    found: list[list[Charge]] = []
    with contextlib.suppress(ConfigError):  # noise so far ahead has no number
        for later in range(round + 1, round + 1 + most):
            found.append(account.charges(later, plan, "ahead"))
    return found
