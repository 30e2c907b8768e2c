"""What the owner of a silo's data has set holds, whatever the server proposes, asks for, or lets happen."""

import contextlib
import json
import shutil
import stat
from pathlib import Path

import pytest
import torch

from dpfl_plugin.adapters import Server, Silo, agree
from dpfl_plugin.adapters import owner as owner_module
from dpfl_plugin.adapters.replies import failure, refusal
from dpfl_plugin.errors import BusyError, ConfigError, LedgerError, LimitError, RecordKindError
from dpfl_plugin.owners import limits as limits_module
from dpfl_plugin.owners.lifetime import Total, read_reservations
from dpfl_plugin.owners.limits import Limits
from dpfl_plugin.privacy.accountants import PLD
from dpfl_plugin.privacy.events import Term
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.views import server_view
from tests.adapters.federation import NOISY, PUBLIC, SCAFFOLD, block, draws, loop, over_the_wire
from tests.adapters.test_faults import begin, module, records, swapped

SOLVED = {"epsilon": 3.0, "delta": 1e-5, "record_rate": 0.25}


@pytest.fixture(autouse=True)
def none_on_this_machine(monkeypatch):
    monkeypatch.setattr(limits_module, "PLACES", ())
    owner_module.say_once.cache_clear()


def limits_of(tmp_path, **more):
    values = {"folder": tmp_path / "owner", "epsilon": 8.0, "delta": 1e-4, "source": "limits.yaml", **PUBLIC}
    return Limits(**{**values, **more})


def agreed(privacy=SOLVED, rounds=4, **more):
    return agree(block(privacy=privacy, rounds=rounds, **more), num_silos=1, model=module())


def silo_of(agreement, limits, data=None, **more):
    return Silo(agreement, 0, module(), records()[0] if data is None else data, limits=limits, **more)


def server_of(agreement):
    return Server(agreement, module())


def rounds_with(silo, server, count):
    """Answers in ``count`` rounds, taken by the server; what the silo said of each."""
    said = []
    for _ in range(count):
        message = server.begin()
        answer = silo.answer(over_the_wire(message))
        said.append(answer.header["status"])
        server.receive(0, answer)
        server.end()
    return said


def total(limits):
    return Total(limits, read_reservations(limits.folder / f"{limits.data}.lifetime.jsonl"))


# Limits, and a server's proposals


def test_a_deployment_without_limits_does_not_begin_and_a_simulation_warns_once(tmp_path, caplog):
    agreement = agreed()
    with pytest.raises(LimitError, match=r"no limits are set .*limits\.yaml, or names it by DPFL_LIMITS"):
        Silo(agreement, 0, module(), records()[0], tmp_path / "silo")
    assert not (tmp_path / "silo").exists()
    for _ in range(2):
        with Silo(agreement, 0, module(), records()[0], tmp_path / "silo", surroundings="simulation") as silo:
            assert "no limits are set, so no lifetime budget is kept" in silo.begins
    assert caplog.text.count("whoever configures this simulation decides") == 1


def test_limits_of_the_environment_count_in_a_simulation_too(tmp_path, monkeypatch):
    path = tmp_path / "limits.yaml"
    path.write_text(f"folder: {tmp_path / 'owner'}\nepsilon: 2\ndelta: 1e-4\n")
    path.chmod(0o600)
    monkeypatch.setenv("DPFL_LIMITS", str(path))
    with pytest.raises(LimitError, match="epsilon 3 is above the owner's limit of 2"):
        Silo(agreed(), 0, module(), records()[0], tmp_path / "silo", surroundings="simulation")
    path.chmod(0o622)
    with pytest.raises(LimitError, match="chmod go-w") as refused:
        Silo(agreed(), 0, module(), records()[0], tmp_path / "silo", surroundings="simulation")
    assert refused.value.public == "the limits on the silo's machine cannot be used; its own log says why"


MORE = {
    "epsilon": ({**SOLVED, "epsilon": 1000.0}, "epsilon 1000 is above the owner's limit of 8"),
    "delta": ({**SOLVED, "delta": 1e-3}, "delta 0.001 is above the owner's limit of 0.0001"),
    "no noise": ({"noise_multiplier": 0, "clip_norm": float("inf")}, "adds no noise"),
    "little noise": ({**NOISY, "noise_multiplier": 0.3}, r"plan comes to epsilon \d+\.\d+ at .* the owner allows 8"),
    "a clipping bound that is read": ({**NOISY, "clip": "median"}, "plan comes to epsilon inf"),
}


@pytest.mark.parametrize(("privacy", "why"), MORE.values(), ids=MORE)
def test_more_than_the_limits_is_refused_before_anything_is_released_and_the_server_is_told(tmp_path, privacy, why):
    agreement, limits = agreed(privacy), limits_of(tmp_path)
    with pytest.raises(LimitError, match=why) as refused:
        silo_of(agreement, limits)
    assert not list(tmp_path.rglob("ledger.jsonl"))
    server = server_of(agreement)
    answer = refusal(agreement, 0, server.begin(), refused.value)
    assert (answer.header["status"], answer.vectors) == ("refused", {})
    assert server.receive(0, answer) is None and server.end() is False
    assert server.status == "refused" and server.reason == "silo 0: not within this owner's limits"


def test_a_run_begins_with_a_line_on_what_is_agreed_where_it_is_kept_and_what_is_left(tmp_path, caplog):
    limits = limits_of(tmp_path)
    with caplog.at_level("INFO"), silo_of(agreed(), limits) as silo:
        folder = limits.folder / f"silo-0-{silo._agreement.run}"
        assert silo.begins == (
            f"silo 0: agreed epsilon 3 at delta 1e-05; folder {folder}; of the lifetime budget of 'data', epsilon 8 at "
            "delta 0.0001, there is left for further agreements: about epsilon 7.21 at delta 0.0001"
        )
        assert silo.begins in caplog.text
        assert (folder / "ledger.jsonl").exists()
    assert stat.S_IMODE(limits.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((limits.folder / "secret").stat().st_mode) == 0o600


def test_a_folder_elsewhere_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"is not in .*owner, which limits\.yaml names"):
        Silo(agreed(), 0, module(), records()[0], tmp_path / "silo", limits=limits_of(tmp_path))
    inside = tmp_path / "owner" / "mine"
    with Silo(agreed(), 0, module(), records()[0], inside, limits=limits_of(tmp_path)):
        assert (inside / "ledger.jsonl").exists()


def test_noise_that_others_can_compute_is_refused(tmp_path):
    with pytest.raises(LimitError, match=r"privacy\.randomness: seeded: the noise would come from a seed"):
        silo_of(agreed(), limits_of(tmp_path), draw=draws(1, "known"))


# The lifetime of the data


def test_agreements_add_up_whatever_their_folders_and_names_and_the_sum_is_bounded(tmp_path):
    limits, spent = limits_of(tmp_path, delta=1e-5), []
    with contextlib.suppress(LimitError):
        for seed in range(1, 9):  # another seed is another agreement
            agreement = agreed(seed=seed)
            with silo_of(agreement, limits) as silo:
                assert rounds_with(silo, server_of(agreement), 1) == ["upload"]
                assert silo.epsilon < 3
            spent.append(total(limits).epsilon)  # of the whole plans, though one round of each was run
    assert spent == sorted(spent) and 2.999 < spent[0] <= 3.0
    assert 3 <= len(spent) <= 5 and spent[-1] <= 8.0 < 3.0 * len(spent)  # epsilons and deltas need not be added up
    with pytest.raises(LimitError, match=r"comes to epsilon 3 at .* limit of epsilon \S+ at .* about \S+ is left"):
        silo_of(agreed(seed=9), limits)
    with silo_of(agreed(seed=1), limits):  # it goes on, and costs no more
        assert total(limits).epsilon == spent[-1]
    with pytest.raises(LimitError, match="about 0 is left"):  # the owner lowered the limit
        silo_of(agreed(seed=1), limits_of(tmp_path, epsilon=0.999 * spent[-1], delta=1e-5))


def test_one_agreement_may_use_up_the_limit(tmp_path):
    limits = limits_of(tmp_path, epsilon=3.0, delta=1e-5)
    silo_of(agreed(), limits).close()
    assert total(limits).left == (0.0, 1e-5)
    with pytest.raises(LimitError, match="about 0 is left"):
        silo_of(agreed({**SOLVED, "epsilon": 0.1}, seed=1), limits)


def test_the_total_bounds_what_all_releases_come_to(tmp_path):
    limits = limits_of(tmp_path)
    for seed, epsilon in ((1, 1.0), (2, 3.0), (3, 2.0)):
        agreement = agreed({**SOLVED, "epsilon": epsilon}, seed=seed)
        with silo_of(agreement, limits) as silo:
            rounds_with(silo, server_of(agreement), 4)
    ledger = Ledger.open(limits.folder / "data.lifetime.jsonl", append=False)
    assert len(list(ledger)) == 12
    assert 2.0 < server_view(ledger, PLD(), 1e-4).epsilon <= total(limits).epsilon < 4.0  # 6 is their sum


def test_data_that_grew_or_have_other_digits_are_the_same_data_unless_they_have_another_name(tmp_path, caplog):
    limits, (x, y) = limits_of(tmp_path, epsilon=3.3, delta=1e-5), records()[0]
    silo_of(agreed(), limits, (x, y)).close()
    for seed, data in ((1, (x[:-1], y[:-1])), (2, (x.float().double(), y)), (3, (x.flip(0), y.flip(0)))):
        caplog.clear()
        with pytest.raises(LimitError, match="is left"):
            silo_of(agreed(seed=seed), limits, data)
    small = {**SOLVED, "epsilon": 0.5}
    silo_of(agreed(small), limits, (x[:-1], y[:-1])).close()
    assert "the records differ from those of the last agreement. They count as the same data, 'data'" in caplog.text
    silo_of(agreed(), limits_of(tmp_path, epsilon=5.0, data="others"), (x, y)).close()
    assert {path.name for path in limits.folder.glob("*.lifetime.jsonl")} == {
        "data.lifetime.jsonl",
        "others.lifetime.jsonl",
    }


EARLIER = Path(__file__).parents[1] / "owners" / "fixtures" / "earlier"


def test_what_an_earlier_version_released_stays_spent(tmp_path):
    """Of its two agreements, each of epsilon 3, one had fresh noise, and one seeded noise, which was charged once."""
    limits = limits_of(tmp_path)
    shutil.copytree(EARLIER, limits.folder)
    limits.folder.chmod(0o700)
    assert total(limits).added == (6.0, pytest.approx(2e-5))
    charged = set(Ledger.open(limits.folder / "data.lifetime.jsonl", append=False))
    epsilons = {}
    for path in limits.folder.glob("silo-0-*/ledger.jsonl"):
        ledger = Ledger.open(path, append=False)
        assert set(ledger) <= charged
        epsilons[len(ledger)] = server_view(ledger, PLD(), 1e-5).epsilon
    assert epsilons == {1: pytest.approx(2.302160898878571), 2: pytest.approx(2.999890944062534)}
    assert total(limits).left == (2.0, pytest.approx(8e-5))
    with pytest.raises(LimitError, match=r"plan comes to epsilon 3 at .* the owner allows 8 .* about 2 is left"):
        silo_of(agreed(seed=3), limits)
    agreement = agreed({**SOLVED, "epsilon": 2.0}, seed=3)
    with silo_of(agreement, limits) as silo:
        rounds_with(silo, server_of(agreement), 1)
    assert 7.5 < total(limits).epsilon <= 8.0
    assert charged < set(Ledger.open(limits.folder / "data.lifetime.jsonl", append=False))


def test_digests_in_the_lifetime_ledger_are_keyed_by_a_secret(tmp_path):
    found = []
    for name in ("a", "b"):
        limits = limits_of(tmp_path / name)
        silo_of(agreed(), limits).close()
        (facts,) = Ledger.open(limits.folder / "data.lifetime.jsonl", append=False).runs
        found.append(facts["records"])
    assert found[0] != found[1]


def test_a_lifetime_ledger_that_is_missing_or_was_set_back_is_refused(tmp_path):
    limits, agreement = limits_of(tmp_path), agreed()
    path, server = limits.folder / "data.lifetime.jsonl", server_of(agreement)
    with silo_of(agreement, limits) as silo:
        rounds_with(silo, server, 1)
        before = path.read_bytes()
        rounds_with(silo, server, 1)
    path.write_bytes(before)
    with pytest.raises(LedgerError, match=r"does not hold the line \w+ that data\.lifetime\.json knows of"):
        silo_of(agreement, limits)
    path.unlink()
    with pytest.raises(
        LedgerError, match=r"data\.lifetime\.jsonl is missing, though data\.lifetime\.json beside it says"
    ):
        silo_of(agreed(seed=5), limits)


def test_two_processes_cannot_spend_the_same_lifetime(tmp_path):
    with silo_of(agreed(), limits_of(tmp_path)), pytest.raises(BusyError, match=r"another process .* these data"):
        silo_of(agreed(seed=1), limits_of(tmp_path))


def test_units_and_neighbouring_relations_are_not_mixed(tmp_path):
    silo_of(agreed(), limits_of(tmp_path)).close()
    with pytest.raises(LimitError, match=r"against add_or_remove of a record, and earlier ones .* against replace_one"):
        silo_of(agreed({**SOLVED, "sampler": "poisson"}), limits_of(tmp_path))
    with pytest.raises(LimitError, match="unit: silo contradicts the lifetime ledger"):
        silo_of(agreed(WHOLE, algorithm={**SCAFFOLD, "name": "fedavg"}), limits_of(tmp_path, unit="silo"))


def test_the_owners_ledger_is_on_disk_before_the_silos_and_that_before_the_upload(tmp_path, monkeypatch):
    order, sync = [], Ledger.sync
    agreement = agreed()
    with silo_of(agreement, limits_of(tmp_path)) as silo:
        monkeypatch.setattr(Ledger, "sync", lambda self: (sync(self), order.append((self.path.name, len(self)))))
        assert silo.answer(server_of(agreement).begin()).header["status"] == "upload"
    assert order[:2] == [("data.lifetime.jsonl", 1), ("ledger.jsonl", 1)]


def test_limits_that_are_lowered_or_taken_away_stop_a_silo_that_stays_open(tmp_path, monkeypatch):
    path = tmp_path / "limits.yaml"
    monkeypatch.setattr(limits_module, "PLACES", (str(path),))

    def limit(epsilon):
        facts = "min_records: 20\nnum_classes: 3\n"
        path.write_text(f"folder: {tmp_path / 'owner'}\nepsilon: {epsilon}\ndelta: 1e-4\n{facts}")
        path.chmod(0o600)

    limit(20)
    agreement = agreed()
    server = server_of(agreement)
    with silo_of(agreement, None) as silo:
        assert rounds_with(silo, server, 1) == ["upload"]
        charged = silo._ledger.head
        limit(0.5)
        with pytest.raises(LimitError, match="has changed the limits since the silo was opened"):
            rounds_with(silo, server, 1)
        path.unlink()
        with pytest.raises(LimitError, match="limits"):
            silo.answer(over_the_wire(server.begin()))
        assert silo._ledger.head == charged
        limit(20)
        assert silo.answer(over_the_wire(server.begin())).header["status"] == "upload"


# Slots


def asking(server, **plan):
    message = server.begin()
    return swapped(plan={**message.header["plan"], **plan}, tag=plan.pop("tag", message.header["tag"]))(message)


def used(silo):
    return sum(charge.count for charge in silo._ledger)


WHOLE = {"unit": "silo", "epsilon": 3.0, "clip_norm": 0.1}
SCHEDULE = {"schedule": {"name": "geometric", "by": "round", "beta": 0.7}}


@pytest.mark.parametrize("limited", [False, True])
def test_what_is_not_in_the_agreed_plan_is_refused_though_the_budget_has_room(tmp_path, limited):
    """Other rates, by shares of the records; other noise, by rounds out of turn; more gradients."""
    batch = {} if limited else {"batch_size": 5, "record_rate": None}  # of a share, whose size is not public then
    agreement = agreed({**SOLVED, **SCHEDULE, **batch})
    limits = limits_of(tmp_path) if limited else None
    with silo_of(agreement, limits, **({} if limited else {"folder": tmp_path / "silo", **SIMULATED})) as silo:
        server = server_of(agreement)
        for plan, why in (
            ({"share": [0.0, 0.5]}, "no release of this kind is in the plan"),
            ({"num_gradients": 4, "local_steps": 4}, "4 releases were asked for, and 3 are left"),
        ):
            answer = silo.answer(asking(server, **plan))
            assert answer.header["status"] == "spent" and why in answer.header["reason"]
        assert used(silo) == 0
        late = swapped(round=3)(server.begin())
        assert silo.answer(late).header["status"] == "upload"
        again = swapped(round=3, tag="f" * 16)(late)
        answer = silo.answer(again)  # of the noise of this round nothing is left, of that of others there is
        assert answer.header["status"] == "spent" and "0 are left" in answer.header["reason"]
        assert used(silo) == 3


SIMULATED = {"surroundings": "simulation"}


def test_an_adaptive_server_gets_no_more_than_the_slots_of_the_full_plan(tmp_path):
    """Whatever it asks for, and in which order: the releases are a part of the plan, whose epsilon is within 3."""
    agreement = agreed({**SOLVED, **SCHEDULE})
    rng = torch.Generator().manual_seed(0)
    with silo_of(agreement, None, folder=tmp_path / "silo", **SIMULATED) as silo:
        server = server_of(agreement)
        for number in range(40):
            round = number // 10
            count = int(torch.randint(1, 4, (1,), generator=rng))
            message = asking(server, num_gradients=count, local_steps=count)
            silo.answer(swapped(round=round, tag=f"{number:016x}")(message))
        by_noise = {}
        for charge in silo._ledger:
            noise = charge.release.noise_multiplier
            by_noise[noise] = by_noise.get(noise, 0) + charge.count
        assert len(by_noise) == 4 and set(by_noise.values()) <= {2, 3}
        assert silo.epsilon <= 3.0


@pytest.mark.parametrize("lost", ["restarted", "folder lost", "folder set back"])
def test_neither_a_restart_nor_a_lost_folder_nor_an_old_copy_gives_a_slot_back(tmp_path, lost):
    limits, agreement = limits_of(tmp_path), agreed()
    folder, server = limits.folder / f"silo-0-{agreement.run}", server_of(agreement)
    with silo_of(agreement, limits) as silo:
        silo.answer(server.begin())
        shutil.copytree(folder, tmp_path / "copy")
        for _ in range(2):
            silo.answer(server.begin())
        assert used(silo) == 9
    if lost != "restarted":
        shutil.rmtree(folder)
    if lost == "folder set back":
        shutil.copytree(tmp_path / "copy", folder)
    with silo_of(agreement, limits) as silo:
        assert used(silo) == 9  # of 12
        assert silo.answer(server.begin()).header["status"] == "upload"
        assert silo.answer(server.begin()).header["status"] == "spent"
    assert len(read_reservations(limits.folder / "data.lifetime.jsonl")) == 1


def test_a_silo_that_dies_between_both_ledgers_has_used_its_slots(tmp_path, monkeypatch):
    limits, agreement = limits_of(tmp_path), agreed()
    with silo_of(agreement, limits) as silo:
        monkeypatch.setattr(silo._account, "append", None)
        with pytest.raises(TypeError):
            silo.answer(server_of(agreement).begin())
    monkeypatch.undo()
    monkeypatch.setattr(limits_module, "PLACES", ())
    with silo_of(agreement, limits) as silo:
        assert used(silo) == 3


def test_rounds_that_are_run_again_have_slots_where_the_budget_has_room_and_a_few_without_a_budget(tmp_path):
    for name, privacy, limits, rounds in (
        ("room", {**NOISY, "noise_multiplier": 3.0, "epsilon": 8.0}, None, 8),
        ("no room", SOLVED, None, 4),
        ("no budget", NOISY, limits_of(tmp_path, epsilon=50.0), 7),
    ):
        agreement = agreed(privacy)
        where = {} if limits else {"folder": tmp_path / name, **SIMULATED}
        with silo_of(agreement, limits, **where) as silo:
            server = server_of(agreement)
            said = [silo.answer(server.begin()).header["status"] for _ in range(10)]
        assert said == ["upload"] * rounds + ["spent"] * (10 - rounds), name


LOCALIZED = {"name": "localized_mb_sgd", "phase_rounds": [3, 2], "lr": 0.1, "regularisation": 0.5}
HONEST = {
    "one more gradient, after a warm-up": {
        "algorithm": {"name": "scaffold_warm", "option": "I", "local_steps": 3, "local_lr": 0.5}
    },
    "lengths that are drawn": {"algorithm": {"name": "scaffnew", "local_lr": 0.1, "p": 0.4}, "rounds": 6},
    "disjoint shares": {"algorithm": LOCALIZED, "rounds": 5, "num_records": 20},
    "another noise each round": {"privacy": {**SOLVED, **SCHEDULE}},
    "whole silos": {"algorithm": {"name": "fedavg", "local_steps": 2, "local_lr": 0.1}, "privacy": WHOLE},
    "a cap": {"max_participations": 3, "rounds": 6, "silo_rate": 0.5},
    "poisson": {"privacy": {**SOLVED, "sampler": "poisson"}},
}


@pytest.mark.parametrize("changes", HONEST.values(), ids=HONEST)
def test_a_server_that_follows_the_protocol_finds_a_slot_for_all_that_it_asks(tmp_path, changes):
    values = block(**{"privacy": SOLVED, **changes})
    with loop(tmp_path, values, module(), records()) as made:
        made.run()
        assert made.server.status in ("done", "budget_exhausted")
        if "max_participations" not in changes:
            assert (made.server.status, made.server.rounds) == ("done", values["rounds"])
        for silo in made.silos.values():
            assert 0 < silo.epsilon <= 3.0
            assert len({charge.round for charge in silo._ledger}) <= values.get("max_participations", 6)


def test_rounds_whose_length_depends_on_draws_are_planned_as_the_longest(tmp_path):
    """A warm-up of 3 gradients a round, and then 4; when it ends, the draws decide. And 3 rounds to spare."""
    warm = {"name": "scaffold_warm", "option": "I", "local_steps": 3, "local_lr": 0.5}
    with silo_of(agreed(NOISY, algorithm=warm), limits_of(tmp_path, epsilon=100.0)) as silo:
        (slots,) = silo._ledger.facts["slots"]
        assert slots["count"] == (4 + 3) * 4


def test_a_run_without_a_number_of_rounds_has_the_slots_that_its_budget_allows(tmp_path):
    agreement = agreed({**NOISY, "noise_multiplier": 2.0, "epsilon": 3.0}, rounds=None)
    with silo_of(agreement, None, folder=tmp_path / "silo", **SIMULATED) as silo:
        server, count = server_of(agreement), 0
        while silo.answer(server.begin()).header["status"] == "upload":
            count += 1
        one = next(iter(silo._ledger)).release
        of = lambda n: PLD().epsilon([Term(release=one, count=1, rounds=3 * n)], 1e-5)  # noqa: E731
        assert of(count) <= 3.0 < of(count + 1)
        assert silo.epsilon == pytest.approx(of(count))


def test_a_ledger_of_a_version_that_kept_no_plan_is_read_and_says_so(tmp_path):
    agreement, folder = agreed(), tmp_path / "silo"
    with silo_of(agreement, None, folder=folder, **SIMULATED) as silo:
        silo.answer(server_of(agreement).begin())
        charges, facts = list(silo._ledger), dict(silo._ledger.facts)
    for key in ("slots", "plan_epsilon"):
        del facts[key]
    (folder / "ledger.jsonl").unlink()
    (folder / "state.safetensors").unlink()
    with Ledger(folder / "ledger.jsonl", facts) as old:
        old.append(charges)
    for _ in range(2):
        with silo_of(agreement, None, folder=folder, **SIMULATED) as silo:
            assert len([note for note in silo._ledger.notes if "kept no plan" in note]) == 1
    with silo_of(agreement, None, folder=folder, **SIMULATED) as silo:
        server = server_of(agreement)
        assert [silo.answer(server.begin()).header["status"] for _ in range(4)] == ["upload"] * 3 + ["spent"]


def test_the_statement_of_a_silo_within_limits_is_of_its_own_releases(tmp_path):
    limits, agreement = limits_of(tmp_path), agreed()
    with silo_of(agreement, limits) as silo:
        rounds_with(silo, server_of(agreement), 2)
        silo.write_statement()
        said = json.loads((silo._files.path / "ledger.json").read_text())
        assert said["views"]["server"]["epsilon"] == pytest.approx(silo.epsilon)


def test_silos_of_a_simulation_with_limits_are_owners_of_their_own(tmp_path):
    limits = limits_of(tmp_path)
    with contextlib.ExitStack() as stack:
        agreement = agree(block(privacy={**SOLVED, "epsilon": 8.0}), num_silos=3, model=module())
        for silo, data in records(3).items():
            stack.enter_context(Silo(agreement, silo, module(), data, limits=limits.of_silo(silo)))
        assert all(6.5 < total(limits.of_silo(silo)).epsilon <= 8.0 for silo in range(3))


@pytest.mark.parametrize("raised", [LimitError, RecordKindError])
def test_what_a_loader_raises_does_not_speak_for_the_owner(tmp_path, raised):
    class Records(torch.utils.data.Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            raise raised("the consent of Jane Doe is missing", "Jane Doe refuses")

    agreement = agreed()
    with pytest.raises(raised) as found:
        silo_of(agreement, limits_of(tmp_path), Records())
    message = server_of(agreement).begin()
    limited = raised is LimitError
    answer = refusal(agreement, 0, message, found.value) if limited else failure(agreement, 0, message)
    assert answer.header["status"] == "failed" and "reason" not in answer.header and "Jane" not in str(answer.header)


def test_the_loop_of_the_other_tests_has_no_limits(tmp_path):
    with begin(tmp_path) as made:
        assert not list(tmp_path.rglob("*.lifetime.jsonl")) and made.silos
