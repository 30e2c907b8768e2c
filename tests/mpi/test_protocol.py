"""Rank 0 and the silo ranks in one thread, in every order: the same bits, and nothing leaves before it is charged."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfl_plugin.algorithms.fedavg import FedAvg
from dpfl_plugin.algorithms.scaffold import Scaffold
from dpfl_plugin.config.schema import Config
from dpfl_plugin.core.stopwatch import Stopwatch
from dpfl_plugin.core.vectors import Vectors
from dpfl_plugin.errors import DpflError, LedgerError, SiloError, TrainingError, UnsupportedError
from dpfl_plugin.federation.runtime import SilosLost
from dpfl_plugin.federation.silo_group import SiloGroup
from dpfl_plugin.oracle import Draw
from dpfl_plugin.privacy.events import Charge, SampledGaussian
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.samplers import FixedSize
from dpfl_plugin.runtimes.mpi import wire
from dpfl_plugin.runtimes.mpi.link import Patience
from dpfl_plugin.runtimes.mpi.listener import ServerLostError
from dpfl_plugin.runtimes.mpi.ranks import Ranks, SiloLostError
from dpfl_plugin.runtimes.mpi.silos import owner
from dpfl_plugin.runtimes.mpi.wire import encode
from tests.cli.command import BASE
from tests.mpi.network import Loopback, Network, loopback
from tests.quadratics import Lab, rules, silo


@pytest.fixture(autouse=True, scope="module")
def impatient() -> Iterator[None]:
    """Nobody sleeps: whoever looks moves the others on."""
    with mock.patch.object(Patience, "wait", return_value=None):
        yield


SILOS = [silo([1.0 + i, 0.3], [2.0 - i, 0.1 * i], copies=4 + i) for i in range(7)]


class Sink:
    """A ledger that tells the network when it was synced."""

    def __init__(self, network: Network, fails: bool = False) -> None:
        self.network, self.fails, self.batches, self.synced = network, fails, [], 0

    def append(self, charges: Sequence[Charge]) -> None:
        self.batches.append([charge.silo for charge in charges])

    def sync(self) -> None:
        if self.fails:
            raise LedgerError("disk full")
        self.synced = sum(map(len, self.batches))
        self.network.log.append(("synced", 0, self.synced))


def lab(algorithm: object = None, **options: object) -> Lab:
    made = algorithm or Scaffold(local_steps=2, local_lr=0.1)
    return Lab(made, SILOS, rules(1.0, 1.0, FixedSize(0.5)), [1.0, 2.0], **options)


def hosts(size: int, **options: object) -> list[SiloGroup]:
    """A host for each silo rank, with its silos and no others."""
    found = []
    for rank in range(1, size):
        whole = lab(**options).host
        mine = [i for i in range(len(SILOS)) if owner(i, range(1, size)) == rank]
        part = whole.planted(
            whole.engine, {i: whole.train[i] for i in mine}, {k: v[mine] for k, v in whole.states.items()}
        )
        part.ids, part._row = mine, {silo: row for row, silo in enumerate(mine)}
        part._test = {i: whole._test[i] for i in mine}
        found.append(part)
    return found


def rounds(made: Lab, participants: Sequence[Sequence[int]]) -> list[Vectors]:
    """The server's states after each round."""
    states = []
    for chosen in participants:
        made.step(chosen)
        states.append({name: value.clone() for name, value in made.server.items()})
    return states


def equal(one: Vectors, other: Vectors) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_times_of_all_ranks_are_taken_and_change_nothing() -> None:
    here, there, parts = lab(), lab(), hosts(4)
    for part in parts:
        part.clock = Stopwatch()
    mine = Stopwatch()
    there.runtime = loopback(parts, Ledger(), stopwatch=mine)
    assert all(equal(*pair) for pair in zip(rounds(here, WHO), rounds(there, WHO), strict=True))
    found = there.runtime.profiles()
    assert list(found) == [1, 2, 3]
    work = {"sampling", "gather", "forward/backward", "noise", "drift", "communication"}
    assert all(set(seconds) == work and min(seconds.values()) > 0 for seconds in found.values())
    assert set(mine.seconds) == {"communication", "I/O"}


WHO = [range(7), [0, 2, 3, 6], [1], [1, 3, 5], range(7)]


@settings(max_examples=12, deadline=None)
@given(size=st.integers(2, 9), stack=st.integers(1, 4), seed=st.integers(0, 2**32))
def test_any_ranks_stacks_and_order_of_messages_give_the_bits_of_one_process(size: int, stack: int, seed: int) -> None:
    here, there = lab(stack=stack), lab(stack=stack)
    network, ledger = Network(size, random.Random(seed)), Ledger()
    uploads: list[Vectors] = []
    there.runtime = loopback(
        hosts(size), ledger, network=network, stack_size=stack, observers=[lambda round, ids, up: uploads.append(up)]
    )
    assert all(equal(*pair) for pair in zip(rounds(here, WHO), rounds(there, WHO), strict=True))
    assert equal(here.runtime.states(), there.runtime.states())
    assert list(here.ledger) == list(ledger)
    assert all(equal(*pair) for pair in zip(here.uploads, uploads, strict=True))
    for dissimilarity in (False, True):
        one, other = (made.runtime.evaluate(here.server["model"], dissimilarity) for made in (here, there))
        assert list(one) == list(other)
        for mine, theirs in zip(one.values(), other.values(), strict=True):
            assert (mine.train_loss, mine.test_score) == (theirs.train_loss, theirs.test_score)
            assert (mine.gradient is None) == (theirs.gradient is None) == (not dissimilarity)
            assert mine.gradient is None or torch.equal(mine.gradient, theirs.gradient)
    assert not any(network.headers.values()) and not any(network.vectors.values()), "something was sent for nothing"


@settings(max_examples=12, deadline=None)
@given(size=st.integers(2, 5), stack=st.integers(1, 4), seed=st.integers(0, 2**32))
@pytest.mark.parametrize("aggregation", ["gather", "reduce"])
def test_no_upload_leaves_its_rank_before_its_charge_is_on_disk(
    aggregation: str, size: int, stack: int, seed: int
) -> None:
    network = Network(size, random.Random(seed))
    sink, made = Sink(network), lab()
    made.runtime = loopback(hosts(size), sink, network=network, stack_size=stack, aggregation=aggregation)
    made.step()
    assert sink.batches == [list(range(7)[first : first + stack]) for first in range(0, 7, stack)], "as in one process"
    synced = sent = 0
    for what, source, value in network.log:
        if what == "synced":
            synced = value
        elif what == "vector" and source > 0:
            sent += 1
            assert (sent + 1) // 2 <= synced, "an upload has two vectors: model and control"
        elif what == "sum":
            sent += 1
            assert synced == 7
    assert sent == (14 if aggregation == "gather" else 2 * size)


def test_a_sync_that_fails_keeps_everything_in() -> None:
    network = Network(4)
    made = lab()
    made.runtime = loopback(hosts(4), Sink(network, fails=True), network=network)
    with pytest.raises(LedgerError, match="disk full"):
        made.step()
    assert not [entry for entry in network.log if entry[0] in ("vector", "sum") and entry[1] > 0]


@pytest.mark.parametrize("size", [2, 3, 5, 9])
def test_reduce_gives_the_same_sum_up_to_rounding(size: int) -> None:
    here, there = lab(), lab()
    there.runtime = loopback(hosts(size), Ledger(), aggregation="reduce")
    for one, other in zip(rounds(here, WHO), rounds(there, WHO), strict=True):
        assert all(torch.allclose(one[name], other[name], rtol=1e-12, atol=1e-14) for name in one)
    assert all(torch.allclose(v, there.runtime.states()[k], rtol=1e-12) for k, v in here.runtime.states().items())


def test_reduce_has_no_single_uploads_to_show() -> None:
    with pytest.raises(UnsupportedError, match="gather"):
        loopback(hosts(3), Ledger(), aggregation="reduce", observers=[lambda *seen: None])


class Failing(FedAvg):
    """Fails in its fifth call: at some silo of some rank."""

    def local_update(self, down, silos, oracle, plan):  # type: ignore[no-untyped-def]
        CALLS[0] += 1
        if CALLS[0] == 5:
            raise ZeroDivisionError("by a stranger")
        return super().local_update(down, silos, oracle, plan)


CALLS = [0]


@settings(max_examples=8, deadline=None)
@given(size=st.integers(2, 5), seed=st.integers(0, 2**32))
def test_an_error_at_a_silo_names_rank_and_place_and_the_ranks_go_on(size: int, seed: int) -> None:
    algorithm = Failing(local_steps=2, local_lr=0.1)
    network, made = Network(size, random.Random(seed)), lab(algorithm)
    CALLS[0] = 0
    made.runtime = loopback(hosts(size, algorithm=algorithm), Ledger(), network=network)
    with pytest.raises(SiloError, match=r"rank \d on .*: ZeroDivisionError \(test_protocol\.py, line \d+\)"):
        made.step()
    made.step()
    whole = lab(FedAvg(local_steps=2, local_lr=0.1))
    whole.step()
    assert equal(whole.server, made.server) and equal(whole.runtime.states(), made.runtime.states())
    assert not any(network.headers.values()) and not any(network.vectors.values())


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise ValueError("it has no text")


def test_an_error_whose_text_cannot_be_had_is_told_by_its_place() -> None:
    class Raising(FedAvg):
        def local_update(self, down, silos, oracle, plan):  # type: ignore[no-untyped-def]
            raise UnprintableError

    made, algorithm = lab(), Raising(local_steps=2, local_lr=0.1)
    made.runtime = loopback(hosts(2, algorithm=algorithm), Ledger())
    with pytest.raises(SiloError, match=r"rank 1 on .*: UnprintableError \(test_protocol\.py, line \d+\)"):
        made.step()


@pytest.mark.parametrize(
    ("kind", "raised"),
    [("TrainingError", TrainingError), ("Error", SiloError), ("Worded", SiloError), ("FULL", SiloError)],
)
def test_an_error_has_its_kind_where_that_is_one_of_ours(kind: str, raised: type[DpflError]) -> None:
    """A plugin may call its own class as it likes."""
    network = Network(2)
    network.stuck.add(1)
    said = {"say": "error", "number": 0, "kind": kind, "text": "what it says", "host": "here"}
    network.headers[0].append((1, encode(said)))
    with pytest.raises(DpflError, match="rank 1 on here: what it says") as found:
        Ranks(Loopback(network, 0)).poll()
    assert type(found.value) is raised


@pytest.mark.parametrize(("kind", "lost"), [("DeviceError", True), (None, True), ("TrainingError", False)])
def test_a_rank_whose_gpu_fails_is_lost_as_one_whose_code_does(kind: str | None, lost: bool) -> None:
    """Where the others go on; an error that is the same everywhere ends the run."""
    network = Network(2)
    network.stuck.add(1)
    network.headers[0].append((1, encode({"say": "error", "number": 0, "kind": kind, "text": "why", "host": "here"})))
    ranks = Ranks(Loopback(network, 0))
    ranks.retries_on_loss = True
    if lost:
        assert ranks.poll() is None and ranks.lost == {1: "rank 1 on here failed: why"}
    else:
        with pytest.raises(TrainingError):
            ranks.poll()


@pytest.mark.parametrize("stuck", [1, 2, 3])
def test_a_rank_that_does_not_answer_is_named_with_its_silo(stuck: int) -> None:
    network, made, now = Network(4), lab(), [0.0]

    def clock() -> float:
        now[0] += 0.5
        return now[0]

    made.runtime = loopback(hosts(4), Ledger(), network=network, timeout=20.0, clock=clock)
    made.step()
    network.stuck.add(stuck)
    with pytest.raises(
        SiloLostError, match=rf"silo rank {stuck} \(round 2, silo {stuck - 1}\) did not answer for 20 s"
    ):
        made.step()
    with pytest.raises(SiloLostError, match=f"silo rank {stuck} \\(sending its states\\)"):
        made.runtime.states()


def test_a_rank_that_waits_for_others_is_not_given_up() -> None:
    """Rank 2 begins late and then sends what it owes; rank 1, which hangs by then, is the only one to blame."""
    network, made, now = Network(3), lab(), [0.0]

    def clock() -> float:
        now[0] += 1.0
        network.stuck = {2} if now[0] < 15 else {1}
        return now[0]

    made.runtime = loopback(hosts(3), Ledger(), network=network, timeout=20.0, clock=clock)
    network.stuck = {2}
    with pytest.raises(SiloLostError, match=r"silo rank 1 \(round 1, silo 2\) did not answer"):
        made.step()
    assert now[0] > 15 + 20


def test_states_of_a_checkpoint_go_to_their_silos() -> None:
    made = lab()
    made.runtime = loopback(hosts(4), Ledger())
    states = {"control": torch.arange(14, dtype=torch.float64).reshape(7, 2)}
    made.runtime.load_states(states)
    assert equal(made.runtime.states(), states)


def test_charges_plans_and_draws_come_through_as_they_are() -> None:
    release = SampledGaussian(noise_multiplier=0.1 + 0.2, sampler="fixed", rate=1 / 3, neighbouring="replace_one")
    charge = Charge(round=3, silo=2, release=release, count=7, share=(0.1, 1 / 3), noise_id="x.0", kind="score")
    (found,) = wire.read_charges(wire.decode(wire.encode({"c": wire.charges_header([charge])}))["c"])
    assert (found, found.kind) == (charge, "score")
    plan = lab().plan([0, 4])
    header = wire.decode(wire.encode(wire.plan_header(plan, Draw(2**62, 3, "run"))))
    assert wire.read_plan(header) == (plan, Draw(2**62, 3, "run"))
    for value in (math.inf, -math.inf, 5e-324, 0.1):
        assert wire.decode(wire.encode({"value": value}))["value"] == value


# Ranks that outlive each other


def outlived(made: Lab, plans: Sequence[tuple[Sequence[int], str]]) -> list[Vectors]:
    """The server's states after rounds of (participants, noise_id)."""
    states = []
    for participants, noise_id in plans:
        advance(made, participants, noise_id)
        states.append(made.server)
    return states


def advance(made: Lab, participants: Sequence[int], noise_id: str) -> None:
    plan = made.plan(participants)
    draw = Draw(made.seed, made.round, noise_id)
    mean_up = made.runtime.run_round(made.algorithm.download(made.server), plan, draw)
    made.server = made.algorithm.aggregate(made.server, mean_up, plan)
    made.runtime.commit()
    made.round += 1


class FailingNetwork(Network):
    """A rank fails when the network has moved so often: it dies, or it hangs for a while."""

    def __init__(self, size: int, rng: random.Random, rank: int, at: int, wakes: int | None) -> None:
        super().__init__(size, rng)
        self.rank, self.at, self.wakes, self.moves = rank, at, wakes, 0

    def step(self) -> None:
        self.moves += 1
        if self.moves == self.at:
            (self.dead if self.wakes is None else self.stuck).add(self.rank)
        if self.wakes is not None and self.moves == self.at + self.wakes:
            self.stuck.clear()
        super().step()


@settings(max_examples=16, deadline=None)
@given(
    rank=st.integers(1, 3),
    at=st.integers(1, 250),
    wakes=st.one_of(st.none(), st.sampled_from([250, 400])),  # None: it is dead; else it is given up before
    seed=st.integers(0, 2**32),
)
def test_a_rank_that_dies_or_hangs_at_any_time_is_left_out_of_what_follows(
    rank: int, at: int, wakes: int | None, seed: int
) -> None:
    """What it says when it wakes up changes nothing, nor does what others had sent for a round that did not count."""
    network, now = FailingNetwork(4, random.Random(seed), rank, at, wakes), [0.0]

    def clock() -> float:
        now[0] += 1.0
        return now[0]

    made, sink = lab(stack=2), Ledger()
    made.runtime = loopback(hosts(4), sink, network=network, stack_size=2, timeout=100.0, clock=clock, enduring=True)
    alive, losses, plans, states = list(range(7)), 0, [], []

    def lose(lost: SilosLost) -> None:
        nonlocal alive, losses
        assert set(lost.why) == {silo for silo in range(7) if owner(silo, (1, 2, 3)) == rank}
        alive, losses = [silo for silo in alive if silo not in lost.why], losses + 1

    while made.round < 4:
        try:
            before = list(alive), f"run.{losses}"
            advance(made, *before)
            plans.append(before)
            states.append(made.server)
            found = made.runtime.evaluate(made.server["model"], True)
            assert [silo for silo in found if silo in alive] == alive
            assert torch.isfinite(made.runtime.states()["control"][alive]).all()
        except SilosLost as lost:
            lose(lost)
    assert losses <= 1, "it failed once"
    here = lab(stack=2)
    assert all(equal(*pair) for pair in zip(outlived(here, plans), states, strict=True))
    expected = here.runtime.states()["control"][alive]
    while True:
        try:
            assert torch.equal(made.runtime.states()["control"][alive], expected)
            break
        except SilosLost as lost:  # only now
            lose(lost)
            expected = here.runtime.states()["control"][alive]
    charged = {(charge.round, charge.silo, charge.noise_id) for charge in sink}
    for round, (participants, noise_id) in enumerate(plans):
        assert {(round, silo, noise_id) for silo in participants} <= charged
    living = {1, 2, 3} - {rank}
    assert not any(network.vectors[one, 0] or network.pulls[one, 0] for one in living), "sent, and not taken"


@pytest.mark.parametrize("what", ["raise", "exit"])
def test_a_silo_that_raises_is_left_out_and_the_others_go_on(what: str) -> None:
    error = ZeroDivisionError("by a stranger") if what == "raise" else SystemExit(3)

    class Raising(FedAvg):
        def local_update(self, down, silos, oracle, plan):  # type: ignore[no-untyped-def]
            if oracle._ids == (4,):
                raise error
            return super().local_update(down, silos, oracle, plan)

    algorithm = Raising(local_steps=2, local_lr=0.1)
    made, network = lab(algorithm), Network(4)
    made.runtime = loopback(hosts(4, algorithm=algorithm), Ledger(), network=network, enduring=True)
    with pytest.raises(SilosLost, match=rf"rank 2 on .* failed: {type(error).__name__} \(") as met:
        made.step()
    assert list(met.value.why) == [1, 4]
    left = [0, 2, 3, 5, 6]
    whole = lab(FedAvg(local_steps=2, local_lr=0.1))
    for _ in range(2):
        advance(made, left, "run.1")
        advance(whole, left, "run.1")
    assert equal(whole.server, made.server)
    assert list(made.runtime.evaluate(made.server["model"], False)) == left
    assert made.runtime._ranks.part(60.0), "it listens for the end"


def test_errors_of_ours_end_a_run_that_goes_on_without_silos() -> None:
    """They are the configuration's or the algorithm's, and the same at every silo."""

    class Greedy(FedAvg):
        def local_update(self, down, silos, oracle, plan):  # type: ignore[no-untyped-def]
            for _ in range(10):
                oracle.gradient(down["model"].expand(oracle.num_silos, -1))

    algorithm = Greedy(local_steps=2, local_lr=0.1)
    made = lab(algorithm)
    made.runtime = loopback(hosts(3, algorithm=algorithm), Ledger(), enduring=True)
    with pytest.raises(TrainingError, match="more than the 2 gradients"):
        made.step()


def test_a_server_that_gives_no_sign_is_given_up_and_one_that_does_is_not() -> None:
    now, network = [0.0], Network(3)
    made = lab()
    made.runtime = loopback(hosts(3), Ledger(), network=network)
    silos = network.silo_ranks[0]
    config = Config.model_validate({**BASE, "runtime": {"server_timeout": 20.0}})
    silos._config, silos._clock = config, lambda: now[0]

    def idle(seconds: int, look: bool) -> None:
        for _ in range(seconds):
            now[0] += 1.0
            while silos.step():
                pass
            silos._wait(Patience())
            if look and now[0] % 4 == 0:
                made.runtime._ranks.hear()

    idle(60, look=True)  # three times as long, with a sign every now and then
    made.step()
    with pytest.raises(ServerLostError, match="rank 0, the server, did not answer for 20 s"):
        idle(40, look=False)
    silos._heard = now[0]
    network.dead.add(0)
    with pytest.raises(ServerLostError, match="was killed"):
        silos._wait(Patience())
