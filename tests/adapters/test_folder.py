"""A shared folder as a wire: what is in it may be half, late, a stranger's or malicious; nothing is charged twice."""

import errno
import json
import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from dpfl_plugin.adapters.folder import place as places
from dpfl_plugin.adapters.folder.envelope import VERSION, About, MessageError, opened, read_head, seal
from dpfl_plugin.adapters.folder.keys import SERVER, Members, SecretKey, new_key
from dpfl_plugin.adapters.folder.place import Place, SharedFolderError, sequence_of
from dpfl_plugin.adapters.folder.project import for_server, for_silo
from dpfl_plugin.adapters.folder.silo import MOST_TRIES, FolderSilo, Over
from dpfl_plugin.adapters.folder.status import read_status
from dpfl_plugin.adapters.message import Message
from dpfl_plugin.config.load import configure
from dpfl_plugin.errors import ConfigError, LimitError, UnsupportedError
from dpfl_plugin.owners.limits import Limits
from dpfl_plugin.privacy.ledger import Ledger
from tests.adapters.federation import DATA, PUBLIC, block, draws, in_process, loop
from tests.adapters.power import cut
from tests.adapters.shared_folder import NAMES, Sites, keys_of, members_of, sites
from tests.adapters.test_faults import module, records
from tests.cli.command import dpfl as command

TWO = {i: one for i, one in records().items() if i < 2}


@pytest.fixture(autouse=True)
def no_power_cuts(monkeypatch):
    """Nothing here waits for the disk: that is most of the time of such small rounds."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.fixture
def two(tmp_path):
    """A server that has asked, and silos north and south that have not answered."""
    with sites(tmp_path, block(rounds=2), module(), TWO) as made:
        made.server.step()
        yield made


# The bits


def test_the_folder_gives_the_bits_and_charges_of_dpfl_run_with_the_same_configuration(tmp_path):
    values = block(rounds=3)
    _, model, charges, draw, _ = in_process(tmp_path / "runs", values, "float64")
    config = configure({**values, "data": DATA, "runtime": {"dtype": "float64"}}, source="test")
    keys = keys_of(*NAMES)
    members = members_of(keys)
    server = for_server(config, Path(), members)
    found = [for_silo(config, Path(), members, silo, None) for silo in range(4)]
    assert {one.agreement.run for one, _ in found} == {server.agreement.run}
    held = {silo: train for silo, (_, train) in enumerate(found)}
    made = Sites(tmp_path, server.agreement, server.model, held, keys, members, draw=draw)
    made.start_all()
    assert torch.equal(made.run(), model)
    assert {charge for name in NAMES for charge in made.charges(name)} == charges
    made.server.close()


@pytest.mark.parametrize("encrypt", [False, True], ids=["signed", "encrypted"])
def test_processes_that_are_started_again_before_every_step_go_on_to_the_same_bits(tmp_path, encrypt):
    draw = draws(3, "same")
    with loop(tmp_path / "plain", block(rounds=3), module(), TWO, draw) as plain:
        expected, charges = plain.run(), plain.charges()
    with sites(tmp_path, block(rounds=3), module(), TWO, draw=draw, encrypt=encrypt) as made:
        ended = False
        while not ended:
            made.start_server()
            ended = made.server.step() is None
            for name in made.members.silos:
                found = made.start(name).step()
                assert isinstance(found, Over) is ended
        assert torch.equal(made.server.server.model, expected)
        assert {charge for name in made.members.silos for charge in made.charges(name)} == charges
        assert found.status == "done" and found.rounds == 3
        kept = places.os.listdir(found.folder)
        assert "model.safetensors" in kept and "privacy.md" in kept
        assert not list((made.shared / "north").glob("answer*"))  # nobody waits for it any more


# What is in the folder is not what the silo put there


def garbled(place: int):
    def change(made, path):
        data = bytearray(path.read_bytes())
        data[place] ^= 1
        path.write_bytes(data)

    return change


def half(made, path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def nothing_yet(made, path):
    path.write_bytes(b"")


def longer(made, path):
    path.write_bytes(path.read_bytes() + b"\0")


def zeros(made, path):
    """As a file that is given its room before it is synchronised."""
    path.write_bytes(bytes(path.stat().st_size))


def a_link(made, path):
    target = made.path / "elsewhere"
    path.rename(target)
    path.symlink_to(target)


def a_pipe(made, path):
    path.unlink()
    os.mkfifo(path)


def a_folder(made, path):
    path.unlink()
    path.mkdir()


def another_format(made, path):
    path.write_bytes(path.read_bytes().replace(b"dpfl-folder %d\n" % VERSION, b"dpfl-folder %d\n" % (VERSION + 1), 1))


def signed_by(key: SecretKey, **changes):
    """Somebody else's, in the silo's (or the server's) name."""

    def change(made, path):
        data = path.read_bytes()
        head = read_head(data)
        message = Message.from_bytes(data[head.start :])
        path.write_bytes(seal(replace(head.about, **changes), message, key))

    return change


def far_too_large(made, path):
    with path.open("r+b") as file:
        file.truncate(2**33)  # a file with a hole: no disk is needed


SPOILED = {
    "half of it": (half, r"\d+ of its \d+ bytes are there"),
    "nothing of it yet": (nothing_yet, "only a part of it"),
    "more of it": (longer, "more bytes than it says"),
    "room for it, and nothing in it": (zeros, "not a message|only a part of it"),
    "a bit of its body": (garbled(-1), "its checksum is another"),
    "a bit of its header": (garbled(40), "not signed|cannot be read|makes no sense|header has"),
    "a stranger's signature": (signed_by(new_key()), "not signed with the key of"),
    "a link": (a_link, "cannot be opened"),
    "a pipe": (a_pipe, "no plain file"),
    "a folder": (a_folder, "no plain file"),
    "8 GiB": (far_too_large, "where .* are enough|more bytes than it says"),
}


@pytest.mark.parametrize(("spoil", "why"), SPOILED.values(), ids=SPOILED)
def test_what_a_silo_did_not_put_there_is_not_taken_and_its_own_file_still_is(two, spoil, why):
    """Nobody but a silo uses up its place in a round; it puts the same bits there again, which costs nothing."""
    for silo in two.silos.values():
        silo.step()
    path, before = two.file_of("north"), two.charges("north")
    spoil(two, path)
    waits = two.server.step()
    assert waits.silos == ("north",) and re.search(why, waits.odd["north"])
    assert json.loads((two.shared / "server" / "status.json").read_text())["odd"]["north"]
    path.rmdir() if path.is_dir() else path.unlink()
    two.start("north").step()
    assert two.charges("north") == before
    assert two.server.step().round == 2
    assert not two.server.server.summary()["refused"]


@pytest.mark.parametrize(("spoil", "why"), SPOILED.values(), ids=SPOILED)
def test_what_the_server_did_not_put_there_is_not_answered(two, spoil, why):
    (path,) = (two.shared / "server").glob("message-*.dpfl")
    spoil(two, path)
    waits = two.silos["north"].step()
    assert re.search(why, waits.what) and not two.charges("north")
    path.rmdir() if path.is_dir() else path.unlink()
    two.start_server()  # which puts it there again
    two.run()
    assert two.server.server.status == "done" and len({c.noise_id for c in two.charges("north")}) == 2


def test_another_version_is_named_at_both_ends_and_ends_neither(two, caplog):
    """Whose the file is, is not known: so the silo waits for one that it can read."""
    (path,) = (two.shared / "server").glob("message-*.dpfl")
    good = path.read_bytes()
    another_format(two, path)
    silo, named = two.silos["north"], f"message-00000001.dpfl: it is in format '{VERSION + 1}' of messages"
    first = silo.step()
    answer, written = two.file_of("north"), two.file_of("north").stat()
    assert first == silo.step() and named in first.what and "install the same version at both ends" in first.what
    assert os.path.samestat(answer.stat(), written), "it is answered once"
    assert caplog.text.count("is not taken: it is in format") == 1
    assert json.loads((two.shared / "north" / "status.json").read_text())["why"] == first.what
    whole = answer.read_bytes()
    another_format(two, answer)  # as a server of that version sees it
    assert "install the same version" in two.server.step().odd["north"]
    assert not two.charges("north")
    answer.write_bytes(whole)
    path.write_bytes(good)
    assert "next request" in silo.step().what and two.charges("north")


def test_a_file_in_another_format_before_the_first_request_ends_no_silo(two):
    (path,) = (two.shared / "server").glob("message-*.dpfl")
    path.rename(two.path / "later")
    (path.parent / "message-99999999.dpfl").write_bytes(b"dpfl-folder %d\nx\ny\nz" % (VERSION + 1))
    assert "message-99999999.dpfl: it is in format" in two.start("north").step().what
    (two.path / "later").rename(path)
    two.start("north").step()
    two.silos["south"].step()
    assert two.charges("north") and two.server.step().round == 2


@pytest.mark.parametrize("number", ["NaN", "1e999", "1" + 400 * "0"])
def test_numbers_of_the_server_that_are_none_are_refused_and_it_is_told(two, monkeypatch, number):
    (path,) = (two.shared / "server").glob("message-*.dpfl")
    data = path.read_bytes()
    head = read_head(data)
    message = Message.from_bytes(data[head.start :])
    message.header["plan"]["local_lr"] = "ODD"
    text = Message._text
    with monkeypatch.context() as patch:
        patch.setattr(Message, "_text", lambda self: text(self).replace(b'"ODD"', number.encode()))
        path.write_bytes(seal(head.about, message, two.keys[SERVER]))
    with pytest.raises(ConfigError, match=r"a message of the server: its header is not JSON .* where a finite number"):
        two.silos["north"].step()
    two.server.step()
    assert "the silo failed with an error" in two.server.server.summary()["refused"][0]["why"]
    assert not two.charges("north")


def test_copies_under_other_names_are_not_looked_at(two):
    (path,) = (two.shared / "server").glob("message-*.dpfl")
    for name in (
        "message-00000009.dpfl",  # the same number inside says what it is
        f"{path.stem} (conflicted copy).dpfl",
        f"{path.stem}.sync-conflict-20260101.dpfl",
        f".{path.name}.part",
        "message-00000009-south.dpfl",
        "message-0000000\N{ARABIC-INDIC DIGIT NINE}.dpfl",
    ):
        (path.parent / name).write_bytes(path.read_bytes())
        assert (sequence_of(name, "north") is None) is (name != "message-00000009.dpfl")
    assert sequence_of("answer-0000000\N{ARABIC-INDIC DIGIT NINE}.dpfl") is None
    two.silos["north"].step()
    assert len(two.charges("north")) > 0 and two.file_of("north").name == "answer-00000001.dpfl"
    (two.shared / "north" / "answer-00000001 (copy).dpfl").write_bytes(b"x")
    assert two.server.step().silos == ("south",)


def test_old_messages_cost_nothing_and_count_nowhere(tmp_path):
    """A request that comes again after a newer one; an answer to an earlier request under the present one's name."""
    with sites(tmp_path, block(rounds=3), module(), TWO) as made:
        made.turn()
        request = next((made.shared / "server").glob("message-*.dpfl"))
        old, answer = request.read_bytes(), made.file_of("north").read_bytes()
        made.turn()
        charged = made.charges("north")
        made.away = {"north"}
        newer = next((made.shared / "server").glob("message-*.dpfl"))
        newer.unlink()
        request.write_bytes(old)
        assert "request 1 after request 2: an old one" in made.start("north").step().what
        assert made.charges("north") == charged
        request.unlink()
        made.server.step()  # which has both answers, and asks for the third round
        (made.shared / "north" / "answer-00000003.dpfl").write_bytes(answer)
        waits = made.server.step()
        assert waits is not None and waits.round == 3 and "answers another request (a replay)" in waits.odd["north"]


def test_two_processes_of_a_site_that_know_nothing_of_each_other_release_once(two, tmp_path, monkeypatch):
    """As on an old and a new machine: each has a folder, and with it a ledger, of its own."""
    second, reply = two.start("north", own=tmp_path / "another"), FolderSilo._reply
    first = two.start("north")

    def meanwhile(self, *given):
        made = reply(self, *given)
        if self is second:
            first.step()
        return made

    monkeypatch.setattr(FolderSilo, "_reply", meanwhile)
    with pytest.raises(ConfigError, match="with this site's key while this process worked at it"):
        second.step()
    left = two.file_of("north").read_bytes()
    (charge,) = two.charges("north")
    (other,) = Ledger.open(tmp_path / "another" / "ledger.jsonl", append=False)
    assert other.noise_id != charge.noise_id and other.round == 0  # charged, and kept in
    assert first.step().what == "the server's next request" and two.file_of("north").read_bytes() == left


def test_one_silo_cannot_answer_for_another(two):
    for silo in two.silos.values():
        silo.step()
    for spoil, why in (
        (signed_by(two.keys["south"]), "not signed with the key of north"),
        (lambda made, path: path.write_bytes(made.file_of("south").read_bytes()), "it says that it is from 'south'"),
    ):
        whole = two.file_of("north").read_bytes()
        spoil(two, two.file_of("north"))
        assert re.search(why, two.server.step().odd["north"])
        two.file_of("north").write_bytes(whole)
    assert two.server.step().round == 2


def test_a_silo_that_breaks_its_own_upload_is_refused_by_name(two):
    """It is signed: the silo's place in the round is used up, and the others go on."""
    for silo in two.silos.values():
        silo.step()
    path = two.file_of("north")
    head = read_head(path.read_bytes())
    path.write_bytes(seal(head.about, Message({"dpfl": 1}), two.keys["north"]))
    assert two.server.step().round == 2
    (refused,) = two.server.server.summary()["refused"]
    assert refused["silo"] == 0 and "run='None'" in refused["why"]


def test_where_a_link_is_in_place_of_a_members_folder_nothing_is_written(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "north").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="is a link, or no folder"), sites(tmp_path, block(), module(), TWO):
        pass
    assert not list((tmp_path / "elsewhere").iterdir())


# Disks, clocks, absence


@pytest.mark.parametrize("who", ["server", "north"])
def test_a_full_shared_folder_costs_nothing_and_the_next_step_goes_on(tmp_path, monkeypatch, who):
    with sites(tmp_path, block(rounds=2), module(), TWO) as made:
        if who == "north":
            made.server.step()
        real = os.replace

        def full(source, target, **given):
            if str(target).endswith(".dpfl"):
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(source, target, **given)

        monkeypatch.setattr(places.os, "replace", full)
        for _ in range(3):
            with pytest.raises(SharedFolderError, match="No space left"):
                (made.server if who == "server" else made.silos["north"]).step()
            assert not [path for path in (made.shared / who).iterdir() if "tmp" in path.name]
        charged = made.charges("north")
        monkeypatch.setattr(places.os, "replace", real)
        made.silos["north"].step()
        assert who == "server" or made.charges("north") == charged != []
        made.run()
        assert {name: len({c.round for c in made.charges(name)}) for name in ("north", "south")} == {
            "north": 2,
            "south": 2,
        }
        assert len({c.noise_id for c in made.charges("north")}) == 2


def test_a_silo_whose_own_disk_fails_after_each_charge_stops_trying(tmp_path, monkeypatch):
    from dpfl_plugin.adapters import silo as silo_module

    with sites(tmp_path, block(rounds=4), module(), TWO) as made:
        made.server.step()

        def fails(*args):
            raise OSError(errno.ENOSPC, "No space left on device", "state.safetensors")

        with monkeypatch.context() as patched:
            patched.setattr(silo_module, "save", fails)
            for _ in range(MOST_TRIES):
                with pytest.raises(OSError, match="No space"):
                    made.start("north").step()
        assert len({c.noise_id for c in made.charges("north")}) == MOST_TRIES
        made.start("north").step()
        assert len({c.noise_id for c in made.charges("north")}) == MOST_TRIES
        made.silos["south"].step()
        assert made.server.step().round == 2
        assert "the silo failed with an error" in made.server.server.summary()["refused"][0]["why"]
        made.run()
        assert made.server.server.status == "done"


def test_a_silo_that_is_away_is_waited_for_or_after_patience_done_without(tmp_path):
    day = 86400.0
    with sites(tmp_path, block(rounds=3), module(), records(3), away={"south"}) as made:
        made.turn()
        made.now += 30 * day
        assert made.turn().silos == ("south",)
        made.patience = day
        made.start_server()  # by the same command with --patience; it knows when it asked
        assert made.server.step().round == 2
        made.away = set()
        made.run()
        assert made.server.server.status == "done"
        rounds = {name: {c.round for c in made.charges(name)} for name in NAMES[:3]}
        assert rounds == {"north": {0, 1, 2}, "south": {1, 2}, "east": {0, 1, 2}}


def test_patience_alone_voids_no_round(tmp_path):
    with sites(tmp_path, block(rounds=1), module(), TWO, away={"north", "south"}, patience=1.0) as made:
        made.turn()
        made.now += 1000
        assert made.turn().silos == ("north", "south")


def answered(made) -> set[bytes]:
    """The uploads that are in the folder."""
    found = set()
    for path in (made.shared / "north").glob("answer-*.dpfl"):
        data = path.read_bytes()
        message = Message.from_bytes(data[read_head(data).start :])
        found |= {message.vectors["model"].numpy().tobytes()} if message.header["status"] == "upload" else set()
    return found


EVERY = [pytest.param(lost, first, marks=pytest.mark.slow) for lost in ("nothing", "data") for first in range(3)]


@pytest.mark.parametrize(("lost", "first"), [("all", 0), *EVERY])
def test_no_power_cut_leaves_an_answer_without_its_charge(tmp_path, lost, first):
    """Nor two answers to a request; before every third call that writes, syncs, renames or removes, within limits.

    What was put into the shared folder is there: it is on another machine. Noise is new at every try.
    """
    for at in range(first, 1000, 3):
        with sites(tmp_path / str(at), block(rounds=2), module(), TWO) as made:
            owner = made.path / "owner"
            owner.mkdir(mode=0o700)
            limits = Limits(folder=owner, epsilon=50, delta=1e-2, **PUBLIC)
            given = {"limits": limits, "surroundings": "deployment", "own": None}
            made.server.step()
            was_cut = cut(owner, at, lost, lambda made=made, given=given: made.start("north", **given).step())
            seen = answered(made)
            assert len(seen) <= len(named(owner, "*.lifetime.jsonl")), "an answer left before it was charged"
            made.start("north", **given).step()
            seen |= answered(made)
            assert len(seen) == 1 and len(named(owner, "*.lifetime.jsonl")) <= 2
            assert named(owner, "ledger.jsonl") == named(owner, "*.lifetime.jsonl")
        if not was_cut:
            assert at > 30
            return


def named(folder: Path, pattern: str) -> set[str]:
    """The names of noise that is charged."""
    begun = [path for path in folder.rglob(pattern) if b"\n" in path.read_bytes()]
    return {charge.noise_id for path in begun for charge in Ledger.open(path, append=False)}


# Who decides


def test_a_refusal_is_said_at_both_ends_and_nothing_is_charged(two, tmp_path):
    low = Limits(folder=tmp_path / "owner", epsilon=1e-3, delta=1e-3, source="limits.yaml", **PUBLIC)
    silo = two.start("north", limits=low, surroundings="deployment", own=None)
    with pytest.raises(LimitError, match=r"limits\.yaml"):
        silo.step()
    two.away = {"north"}
    two.silos["south"].step()
    two.server.step()
    said = two.server.server.summary()
    assert not list((tmp_path / "owner").rglob("ledger.jsonl"))
    status = json.loads((two.shared / "north" / "status.json").read_text())
    assert status["doing"] == "refused" and status["why"] == "not within this owner's limits"
    assert said["status"] == "running" and said["rounds"] == 1


def test_another_configuration_is_named_at_both_ends(two):
    from dpfl_plugin.adapters import agree

    other = agree(block(rounds=3), num_silos=2, model=module())
    with pytest.raises(ConfigError, match="configurations differ"):
        two.start("north", agreement=other).step()
    two.silos["south"].step()
    two.server.step()
    assert "settings there differ" in two.server.server.summary()["refused"][0]["why"]


def test_another_list_of_members_is_named_at_both_ends(two):
    two.members = members_of(two.keys, encrypt=True)
    with pytest.raises(ConfigError, match="the list of members there is another"):
        two.start("north").step()
    two.silos["south"].step()
    two.server.step()
    assert "another list of members" in two.server.server.summary()["refused"][0]["why"]


# Keys and encryption


def test_an_encrypted_message_opens_for_its_receiver_in_its_own_envelope_only():
    keys = keys_of("north", "south")
    members = members_of(keys, encrypt=True)
    message = Message({"round": 0}, {"model": torch.full((50,), 7.0)})
    about = About("answer", "north", (SERVER,), "run", members.digest, 3, 2, "tag")
    data = seal(about, message, keys["north"], members.keys[SERVER])
    head = read_head(data)
    body = data[head.start :]
    assert message.vectors["model"].numpy().tobytes()[:16] not in data
    assert opened(head, body, members, keys[SERVER]).digest() == message.digest()
    with pytest.raises(MessageError, match="cannot be decrypted"):
        opened(head, body, members, keys["south"])
    for change in ({"sender": "south"}, {"sequence": 4}, {"run": "other"}, {"tag": "other"}, {"round": 1}):
        moved = read_head(seal(replace(about, **change), message, keys["south"], members.keys[SERVER]))
        with pytest.raises(MessageError, match="cannot be decrypted"):
            opened(moved, body, members, keys[SERVER])
    plain = seal(about, message, keys["north"])
    with pytest.raises(MessageError, match="is not encrypted"):
        opened(read_head(plain), plain, members, keys[SERVER])


def test_lists_of_members_that_are_wrong_are_refused(tmp_path):
    keys = keys_of("north", "south")
    texts = {name: key.public.text for name, key in keys.items()}
    good = {"server": texts["server"], "silos": {"north": texts["north"], "south": texts["south"]}}
    for changes, why in (
        ({"silos": {"../north": texts["north"]}}, "must be of a-z"),
        ({"silos": {"server": texts["north"]}}, "and not 'server'"),
        ({"silos": {"North": texts["north"]}}, "must be of a-z"),  # one folder where case does not count
        ({"silos": {}}, "must map the name"),
        ({"silos": {"north": texts["north"], "south": texts["north"]}}, "have the same key"),
        ({"silos": {"north": texts["north"][:-4]}}, "is no public key"),
        ({"encrypted": True}, "did you mean 'encrypt'"),
        ({"encrypt": "yes"}, "must be true or false"),
        ({"server": None}, "server='None' is no public key"),
    ):
        with pytest.raises(ConfigError, match=re.escape(why)):
            Members.of({**good, **changes}, "members.yaml")
    assert Members.of(good, "members.yaml").digest != Members.of({**good, "encrypt": True}, "members.yaml").digest
    path = tmp_path / "a.key"
    path.write_text(keys["north"].text)
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="let nobody else read it"):
        SecretKey.read(path)
    path.chmod(0o600)
    assert SecretKey.read(path).public.text == texts["north"]


def test_what_no_statement_here_would_say_is_refused_at_both_ends():
    members = members_of(keys_of(*NAMES))
    for changes, why in (
        ({"preprocess": ["standardise"]}, "standardise is fitted to records"),
        ({"num_silos": 3}, "be that of the silos among the members, 4"),
    ):
        config = configure({**block(), "data": {**DATA, **changes}}, source="test")
        with pytest.raises((UnsupportedError, ConfigError), match=why):
            for_server(config, Path(), members)
        with pytest.raises((UnsupportedError, ConfigError), match=why):
            for_silo(config, Path(), members, 0, None)


@pytest.mark.parametrize("seed", [{}, {"seed": 7}])
def test_a_deployment_is_fresh_and_both_ends_have_one_model_and_dealing_whether_a_seed_is_named_or_not(seed):
    members = members_of(keys_of(*NAMES))
    values = {**block(), **seed, "data": {**DATA, "partition": "iid"}}
    server = for_server(configure(values, source="test"), Path(), members)
    (silo, train), (_, again) = [for_silo(configure(values, source="test"), Path(), members, 0, None) for _ in range(2)]
    assert server.agreement.config.fresh and server.agreement.run == silo.agreement.run
    for mine, others in zip(server.model.parameters(), silo.model.parameters(), strict=True):
        assert torch.equal(mine, others)
    assert np.array_equal(train.train_x, again.train_x)
    seeded = {**values, "seed": 7, "privacy": {**values["privacy"], "randomness": "seeded"}}
    with pytest.raises(UnsupportedError, match=r"privacy\.randomness: seeded has no meaning in a deployment"):
        for_server(configure(seeded, source="test"), Path(), members)


def test_a_file_is_never_seen_half_and_its_mode_is_that_of_the_folder(tmp_path):
    (tmp_path / "north").mkdir(mode=0o750)
    place = Place(tmp_path, "north")
    place.put("answer-00000001.dpfl", b"whole")
    assert (tmp_path / "north" / "answer-00000001.dpfl").stat().st_mode & 0o777 == 0o640
    (tmp_path / "north" / ".dpfl-tmp-killed").write_bytes(b"half")
    place.put("answer-00000002.dpfl", b"whole")
    assert sorted(place.names()) == ["answer-00000001.dpfl", "answer-00000002.dpfl"]


# What a stranger may do with files that somebody did sign


def test_what_a_silo_signed_for_another_federation_uses_up_no_place_in_this_one(two):
    """It has one key for both, and whoever carries files can put the one under the other's name."""
    for silo in two.silos.values():
        silo.step()
    path, whole = two.file_of("north"), two.file_of("north").read_bytes()
    head = read_head(whole)
    for changes, why in (
        ({"members": "0" * 32, "tag": "of another"}, "answers another request"),
        ({"kind": "request", "tag": "of another"}, "answers another request"),
        ({"receivers": ("west",), "tag": "of another"}, "answers another request"),
        ({"run": "0" * 16, "sequence": 9}, "answers another request"),
    ):
        path.write_bytes(seal(replace(head.about, **changes), Message({}), two.keys["north"]))
        waits = two.server.step()
        assert waits.silos == ("north",) and why in waits.odd["north"]
    path.write_bytes(whole)
    assert two.server.step().round == 2 and not two.server.server.summary()["refused"]


@pytest.mark.parametrize("of", ["another format", "another federation"])
def test_a_file_beside_the_servers_own_ends_no_silo_and_removes_no_answer(two, of):
    """Neither one that nobody signed, nor one that the server signed elsewhere, whatever its number."""
    (path,) = (two.shared / "server").glob("message-*.dpfl")
    two.silos["north"].step()
    answer = two.file_of("north").read_bytes()
    if of == "another format":
        data = b"dpfl-folder %d\n{}\nAAAA\n" % (VERSION + 1)
    else:
        about = replace(read_head(path.read_bytes()).about, members="0" * 32, sequence=7)
        data = seal(about, Message({}), two.keys[SERVER])
    (path.parent / "message-00000007.dpfl").write_bytes(data)
    assert "next request" in two.start("north").step().what
    assert two.file_of("north").read_bytes() == answer
    two.silos["south"].step()
    assert two.charges("south") and two.server.step().round == 2


@pytest.mark.parametrize("who", ["server", "north"])
def test_no_end_reads_more_of_its_own_place_than_it_wrote_there(two, monkeypatch, who):
    """Else a file with a hole, which takes no room on the disk, takes all memory of the site."""
    two.silos["north"].step()
    (path,) = (two.shared / who).glob("*.dpfl")
    header, most, check = json.loads(path.read_bytes().split(b"\n")[1]), 2**24, places.check_body
    start = b"dpfl-folder %d\n%s\nAAAA\n" % (VERSION, json.dumps({**header, "size": most}).encode())
    path.write_bytes(start)
    os.truncate(path, len(start) + most)
    monkeypatch.setattr(
        places, "check_body", lambda head, body: check(head, body) if len(body) < most else pytest.fail("all")
    )
    (two.start_server(), two.server.step()) if who == "server" else two.start("north").step()
    assert path.stat().st_size < 2**20


def test_a_status_that_somebody_wrote_is_printed_as_text_or_refused(two):
    """Whoever may write to the folder tells no terminal what to do."""
    two.silos["north"].step()
    path = two.shared / "server" / "status.json"
    good = json.loads(path.read_text())
    (two.path / "outside").mkdir()
    (two.path / "outside" / "status.json").write_text('{"doing": "is of elsewhere"}')
    (two.shared / "linked").symlink_to(two.path / "outside")
    for name, text in (
        ("deep", "[" * 10**5),
        ("nested", 900 * '{"why":' + "1" + 900 * "}"),
        ("huge", '{"round": 1e999}'),
    ):
        (two.shared / name).mkdir()
        (two.shared / name / "status.json").write_text(text)
    (two.shared / "north" / "status.json").write_text(
        json.dumps({"doing": "\x1b]0;owned\x07\x1b[2Jwaits", "round": "\n1"})
    )
    for changes in (
        {"reason": "\x1b[31mred\nof 9: done"},
        {"waits_for": [{"a": 1}, 3], "since": ["\x1b"]},
        {"refused": [{"round": 1}, 7, {"round": "\x07", "silo": "x", "why": None}]},
        {"odd": ["north"], "rounds": {"a": "\x1b"}},
        {"silos": ["\x1bnorth", "north", 3, "../server"], "odd": {"north": {"a": "\x1b"}}},
        {"silos": ["a\0b", "\ud800", "", "..", "x" * 5000, ["north"], "server", "north"]},
        {"silos": ["linked", "deep", "nested", "huge", "north"]},
    ):
        path.write_text(json.dumps({**good, **changes}))
        for more in ((), ("--json",)):
            done = command("status", two.shared, *more)
            assert done.code in (0, 2) and "Traceback" not in done.err
            assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", done.out), repr(done.out)
            assert "of elsewhere" not in done.out
    said = read_status(two.shared)["silos"]
    assert said.pop("north")["doing"] and said == {one: {} for one in ("linked", "deep", "nested", "huge")}
    path.write_text(json.dumps({**good, "silos": ["a\0b", "..", "north"]}))
    assert list(read_status(two.shared)["silos"]) == ["north"]
