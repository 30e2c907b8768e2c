"""What every adapter must fulfil: a server and its silos over a platform, whatever it loses, repeats or damages.

The platform decides nothing, so that over it a run is that of a plain loop over `Server` and `Silo`: the same rounds
and charges, and in a simulation, whose noise is seeded, the same model to the bit; and where an upload is lost or
spoiled, those of a loop that never got it.
"""

from __future__ import annotations

import contextlib
import functools
import json
import tempfile
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol

import torch
import yaml
from torch import Tensor, nn

from dpfl_plugin.adapters import Agreement, Message, Server, Silo, agree
from dpfl_plugin.adapters.replies import refusal
from dpfl_plugin.errors import LimitError, MessageError
from dpfl_plugin.oracle import Draw
from dpfl_plugin.owners.limits import Limits
from dpfl_plugin.privacy.events import Charge
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.testing.wire_faults import FaultChecks, against
from dpfl_plugin.testing.wire_faults import check as _check

__tracebackhide__ = True  # pytest shows what is wrong
NUM_SILOS: Final = 3
PUBLIC: Final[dict[str, Any]] = {"min_records": 20, "num_classes": 3}  # what owners say of these records
GENEROUS: Final = 1000.0  # epsilon of an owner who allows all that is asked
MOST_ROUNDS: Final = 20  # that a platform carries, of which some may not count
SETTINGS: Final[dict[str, Any]] = {
    "rounds": 3,
    "algorithm": {"name": "scaffold", "local_steps": 2, "local_lr": 0.5},
    "privacy": {"noise_multiplier": 4.0, "delta": 1e-5, "record_rate": 0.25},
}

Carry = Callable[[int, bytes], list[bytes]]
"""(silo, what it sent in this round) -> what the platform delivers as that silo's: nothing, something else, twice."""


def faithful(silo: int, data: bytes) -> list[bytes]:
    """What a platform does that nothing happens to."""
    return [data]


@dataclass(frozen=True)
class Parties:
    """A small federation, for the platform to carry.

    Attributes:
        folder: of everything that lasts.
        limits: of the owners of single silos' records; the others are simulated.
    """

    folder: Path
    agreement: Agreement
    limits: Mapping[int, Limits] = field(default_factory=dict)

    def model(self) -> nn.Module:
        """As it begins; a new one each time, as each process builds its own."""
        return _model()

    def records(self, silo: int) -> tuple[Tensor, Tensor]:
        rng = torch.Generator().manual_seed(silo)
        size = 20 + 4 * silo
        return torch.randn(size, 4, generator=rng).double() + silo, (torch.arange(size) + silo) % 3

    @property
    def server_folder(self) -> Path:
        return self.folder / "server"

    def silo_options(self, silo: int) -> dict[str, Any]:
        """What `Silo` is given besides agreement, id, model and records: limits, or the draw of a simulation."""
        if silo in self.limits:
            return {"folder": None, "limits": self.limits[silo]}
        draw = functools.partial(Draw, 5)
        return {"draw": draw, "folder": self.folder / f"silo-{silo}", "surroundings": "simulation"}

    def limits_file(self, silo: int) -> Path:
        """The file of the limits that the owner of a silo's records has set."""
        limits, path = self.limits[silo], self.folder / f"limits-{silo}.yaml"
        values = {"folder": str(limits.folder), "epsilon": limits.epsilon, "delta": limits.delta, **PUBLIC}
        path.write_text(yaml.safe_dump(values))
        path.chmod(0o600)
        return path

    def folders(self, silo: int) -> tuple[Path, Path]:
        """Where what a silo keeps is: as a simulation, or in its owner's folder."""
        return self.folder / f"silo-{silo}", self.folder / f"owner-{silo}"

    def statement(self, silo: int) -> Path:
        """The folder that has a silo's ledger and its statement."""
        (found,) = [path.parent for folder in self.folders(silo) for path in folder.rglob("ledger.jsonl")]
        return found

    def server(self) -> Server:
        """Opened: made at first, and then gone on with."""
        return Server(self.agreement, self.model(), self.server_folder)

    def silo(self, silo: int) -> Silo:
        """Opened, likewise.

        Raises:
            LimitError: the owner does not allow it.
        """
        return Silo(self.agreement, silo, self.model(), self.records(silo), **self.silo_options(silo))

    def charges(self, silo: int) -> set[Charge]:
        """What a silo's ledger holds; nothing before it has one."""
        found: set[Charge] = set()
        for path in self.folders(silo):
            for ledger in path.rglob("ledger.jsonl"):
                found |= set(Ledger.open(ledger, append=False))
        return found


class Federation(Protocol):
    """Server and silos over a platform, each opened as a process of its own would.

    Attributes:
        server: as it is now.
    """

    server: Server

    def round(self, carry: Carry) -> bool:
        """Carry one round, from the request to `Server.end`; False where the run is over.

        What every silo sends goes through ``carry``. A silo of which nothing good comes is given up after some time,
        as the platform does it.
        """


class WireContract(FaultChecks):
    """The contract of an adapter: derive a class whose name begins with Test, and pytest runs each check.

        class TestMine(WireContract):
            def federation(self, parties):
                return my_federation(parties)

    Attributes:
        settings: other ones than `SETTINGS`, if the adapter needs them.
        simulated: whether silos may be a simulation's, which begin without limits and draw seeded noise, so that models
            are compared to the bit. Else each silo has limits (`Parties.limits_file`) and fresh noise, and rounds and
            charges are compared.
    """

    settings: ClassVar[Mapping[str, Any]] = SETTINGS
    simulated: ClassVar[bool] = True

    @abstractmethod
    def federation(self, parties: Parties) -> contextlib.AbstractContextManager[Federation]:
        """Begin, or go on with, what is in the folders of ``parties``; at its end all processes end."""

    @against("none: bits, charges and model are those of `dpfl run`")
    def test_bits_and_charges_are_those_of_a_plain_loop(self) -> None:
        self._compare(faithful, set())

    @against("server and silos that are started again before every round")
    def test_processes_that_are_started_again_before_every_round_go_on(self) -> None:
        """To the same bits, and with no charge more."""
        self._compare(faithful, set(), restart=True)

    @against("a lost upload")
    def test_a_lost_upload_is_charged_and_changes_no_other(self) -> None:
        """And the silo goes on as if it had not taken part: its control variate is that of what counted."""
        self._compare(lambda silo, data: [] if silo == 1 else [data], self._missed({(0, 1)}), until=1)

    @against("an upload that comes twice")
    def test_what_is_delivered_twice_counts_once(self) -> None:
        self._compare(lambda silo, data: [data, data], set())

    @against("half an upload, none of it, a pickle, zeros; with checksums, a flipped bit")
    def test_damaged_uploads_do_not_count(self) -> None:
        """Half of one, one with another bit, none at all; a pickle, zeros. Each is one round's."""
        damages: list[Callable[[bytes], bytes]] = [
            lambda data: data[: len(data) // 2],
            lambda data: _flipped(data) if self.checks_bytes else b"{}",
            lambda data: b"",
            lambda data: b"\x80\x04K\x01.",
            lambda data: bytes(len(data)),
        ]
        for some in (damages[:3], damages[3:]):
            rounds = iter(some)

            def spoil(silo: int, data: bytes, rounds: Iterator[Callable[[bytes], bytes]] = rounds) -> list[bytes]:
                return [next(rounds)(data)] if silo == 2 else [data]

            self._compare(spoil, self._missed({(round, 2) for round in range(len(some))}), until=len(some))

    @against("an upload of an earlier round: late, or a replay")
    def test_an_upload_of_an_earlier_round_does_not_count(self) -> None:
        kept: dict[int, bytes] = {}

        def replay(silo: int, data: bytes) -> list[bytes]:
            first = kept.setdefault(silo, data)
            return [first] if silo == 0 else [data]

        self._compare(replay, self._missed({(1, 0)}), until=2)

    @against("another silo's upload in the place of a silo's own")
    def test_a_silo_cannot_answer_for_another(self) -> None:
        sent: dict[int, bytes] = {}

        def stolen(silo: int, data: bytes) -> list[bytes]:
            sent[silo] = data
            return [sent[0]] if silo == 1 else [data]

        self._compare(stolen, self._missed({(0, 1)}), until=1)

    @against("an upload that is too large")
    def test_what_is_too_large_does_not_count(self) -> None:
        """A platform must not read what a stranger's message asks for: `Server.max_bytes` is the most."""
        self._compare(lambda silo, data: [data + bytes(2**21)] if silo == 2 else [data], {(0, 2)}, until=1)

    @against("more than an owner allows: one, and all")
    def test_what_an_owner_does_not_allow_is_refused_and_said_to_the_server(self) -> None:
        """Of one silo: the others go on without it, and nothing of it is charged. Of all: the run ends as refused."""
        with tempfile.TemporaryDirectory() as found, tempfile.TemporaryDirectory() as expected:
            here, there = self._parties(Path(found), {1}), self._parties(Path(expected), {1})
            with self.federation(here) as over, _plain(there) as plain:
                told: list[str] = []
                while over.round(faithful):
                    told += over.server.summary()["silos"]
                while plain.round(faithful):
                    pass
                self._check_model(over.server.model, plain.server.model)
                _check("1" not in told, "the server has an upload of a silo whose owner refuses")
            _check(not here.charges(1), "a silo whose owner refuses was charged")
        with tempfile.TemporaryDirectory() as found:
            parties = self._parties(Path(found), set(range(NUM_SILOS)))
            with self.federation(parties) as over:
                _check(over.round(faithful) and not over.round(faithful), "a run that all owners refuse goes on")
                status, reason = over.server.status, over.server.reason
                _check(
                    status == "refused" and reason.endswith("not within this owner's limits"),
                    f"the server was told {status!r}: {reason!r}",
                )
            _check(not any(map(parties.charges, range(NUM_SILOS))), "a silo whose owner refuses was charged")

    @against("statements behind the ledger, or with more in them")
    def test_every_statement_covers_what_was_charged(self) -> None:
        """And what is meant to be published tells nothing of records."""
        with tempfile.TemporaryDirectory() as found:
            parties = self._parties(Path(found))
            with self.federation(parties) as over:
                while over.round(faithful):
                    for silo in range(NUM_SILOS):
                        folder = parties.statement(silo)
                        said = json.loads((folder / "ledger.json").read_text())
                        counted = sum(one["count"] for one in said["counted"]["releases"])
                        charged = sum(charge.count for charge in parties.charges(silo))
                        _check(0 < charged <= counted, f"silo {silo}: {charged} are charged, and {counted} stated")
                        facts = Ledger.open(folder / "ledger.jsonl", append=False).facts
                        published = (folder / "ledger.json").read_text() + (folder / "privacy.md").read_text()
                        _check(facts["records_sha256"] not in published, "a statement has the digest of records")

    def _parties(self, folder: Path, limited: Set[int] = frozenset(), epsilon: float = 1e-6) -> Parties:
        """``limited`` silos may spend ``epsilon``; the others have no limits, or in a deployment generous ones."""
        agreement = agree(self.settings, num_silos=NUM_SILOS, model=_model(), source="contract")
        allowed = {} if self.simulated else dict.fromkeys(range(NUM_SILOS), GENEROUS)
        limits = {
            silo: Limits(folder=folder / f"owner-{silo}", epsilon=allows, delta=1e-3, source="limits.yaml", **PUBLIC)
            for silo, allows in {**allowed, **dict.fromkeys(limited, epsilon)}.items()
        }
        return Parties(folder, agreement, limits)

    def _check_model(self, found: Tensor, right: Tensor) -> None:
        _check(not self.simulated or torch.equal(found, right), "another model than a plain loop's")

    def _missed(self, uploads: set[tuple[int, int]]) -> set[tuple[int, int]]:
        """Those of uploads that never came which a run goes on without."""
        return set() if self.waits_for_all else uploads

    @contextlib.contextmanager
    def _generous(self) -> Iterator[tuple[Parties, Federation]]:
        """A federation whose owners allow all that is agreed on."""
        with tempfile.TemporaryDirectory() as found:
            parties = self._parties(Path(found), set(range(NUM_SILOS)), GENEROUS)
            with self.federation(parties) as over:
                yield parties, over

    def _compare(
        self,
        carry: Carry,
        lost: Set[tuple[int, int]],
        *,
        until: int = 0,
        restart: bool = False,
        breaks: bool = False,
        uncharged: Set[tuple[int, int]] = frozenset(),
        during: Callable[[Parties], contextlib.AbstractContextManager[Any]] | None = None,
        then: Callable[[Parties, Server], None] | None = None,
    ) -> None:
        """Run over the platform, and by a loop that loses uploads (round, silo) and nothing else.

        Args:
            until: in how many rounds ``carry`` is the platform's, and ``during`` lasts; afterwards it is faithful. 0:
                all of them.
            restart: end and begin all processes before every round.
            breaks: these rounds may end in an error, after which all processes are started again.
            uncharged: what of the loop's charges (round, silo) must not be there.
            during: what goes on meanwhile. then: is asked in the end.
        """
        with tempfile.TemporaryDirectory() as found:
            here = self._parties(Path(found))
            right = self._expected(frozenset(lost))
            with contextlib.ExitStack() as stack, contextlib.ExitStack() as faults:
                over = stack.enter_context(self.federation(here))
                if during is not None:
                    faults.enter_context(during(here))
                made, more = 0, True
                while more:
                    spoilt = not until or made < until
                    try:
                        more = over.round(carry if spoilt else faithful)
                    except Exception:
                        if not (breaks and spoilt):
                            raise
                    made += more
                    _check(made <= MOST_ROUNDS, "the run does not come to its end")
                    if until and made >= until:
                        faults.close()
                    if more and (restart or (breaks and spoilt)):
                        stack.close()
                        over = stack.enter_context(self.federation(here))
                _check(
                    over.server.rounds == right.rounds, f"{over.server.rounds} rounds, where {right.rounds} are right"
                )
                self._check_model(over.server.model, right.model)
                if then is not None:
                    then(here, over.server)
            for silo in range(NUM_SILOS):
                charges = {charge for charge in right.charges[silo] if (charge.round, silo) not in uncharged}
                _check(_nameless(here.charges(silo)) == _nameless(charges), f"silo {silo} has other charges")

    def _expected(self, lost: frozenset[tuple[int, int]]) -> Expected:
        """What a plain loop comes to that loses these uploads; once for all checks that lose the same."""
        with tempfile.TemporaryDirectory() as folder:
            parties = self._parties(Path(folder))
            key = (parties.agreement.run, self.simulated, lost)
            if key not in _EXPECTED:
                with _plain(parties) as plain:
                    while plain.round(lambda silo, data: [] if (plain.server.rounds, silo) in lost else [data]):
                        pass
                    model, rounds = plain.server.model.clone(), plain.server.rounds
                charges = [parties.charges(silo) for silo in range(NUM_SILOS)]
                _EXPECTED[key] = Expected(model, rounds, charges)
            return _EXPECTED[key]


@dataclass(frozen=True)
class Expected:
    """What a run over any platform has to come to.

    Attributes:
        model: (d,). charges: by silo.
    """

    model: Tensor
    rounds: int
    charges: list[set[Charge]]


_EXPECTED: Final[dict[tuple[str, bool, frozenset[tuple[int, int]]], Expected]] = {}  # by run and what of it is lost


def _nameless(charges: Set[Charge]) -> Counter[Charge]:
    """How often each is charged: fresh noise has another name each time."""
    return Counter(replace(charge, noise_id="") for charge in charges)


class PlainLoop:
    """The plainest of all platforms, a loop: what the others are compared with."""

    def __init__(self, parties: Parties) -> None:
        self._parties = parties
        self.server = parties.server()

    def round(self, carry: Carry) -> bool:
        """See `Federation`."""
        message = self.server.begin()
        if message is None:
            return False
        for silo in self.server.asked:
            for data in carry(silo, self._answer(silo, message).to_bytes()):
                try:
                    self.server.receive(silo, Message.from_bytes(data, self.server.max_bytes))
                except MessageError as error:
                    self.server.receive(silo, error)
        self.server.end()
        return True

    def _answer(self, silo: int, message: Message) -> Message:
        try:
            with self._parties.silo(silo) as opened:
                return opened.answer(message)
        except LimitError as error:
            return refusal(self._parties.agreement, silo, message, error)


@contextlib.contextmanager
def _plain(parties: Parties) -> Iterator[PlainLoop]:
    made = PlainLoop(parties)
    try:
        yield made
    finally:
        made.server.close()


def _model() -> nn.Module:
    made = nn.Linear(4, 3).double()
    with torch.no_grad():
        made.weight.copy_(torch.linspace(-0.5, 0.5, 12).reshape(3, 4))
        made.bias.zero_()
    return made


def _flipped(data: bytes) -> bytes:
    """With one bit changed in a number of a vector: those are in the middle, between the format's header and ours."""
    place = len(data) // 2
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
