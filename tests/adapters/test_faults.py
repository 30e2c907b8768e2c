"""What goes wrong on a wire and at a silo: nothing is lost, nothing counts twice, everything is charged."""

import copy
import functools
import json
import os
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from dpfl_plugin.adapters import Message, Server, agree
from dpfl_plugin.adapters import silo as silo_module
from dpfl_plugin.adapters.message import check_vectors
from dpfl_plugin.adapters.platforms import round_counted
from dpfl_plugin.callbacks import Callback
from dpfl_plugin.errors import (
    BusyError,
    ConfigError,
    DataError,
    LedgerError,
    MessageError,
    TrainingError,
    UnsupportedError,
)
from dpfl_plugin.oracle import Draw
from tests.adapters.federation import NOISY, SCAFFOLD, SimulatedSilo, block, draws, loop, over_the_wire

NUM_SILOS = 4


def module():
    made = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    with torch.no_grad():
        for number, parameter in enumerate(made.parameters()):
            parameter.copy_(torch.linspace(-0.5, 0.5, parameter.numel()).reshape(parameter.shape) + 0.01 * number)
    return made


def records(num_silos=NUM_SILOS, size=20):
    rng = torch.Generator().manual_seed(7)
    return {
        i: (torch.randn(size + i, 5, generator=rng).double() + i, (torch.arange(size + i) + i) % 3)
        for i in range(num_silos)
    }


def begin(folder, values=None, draw=None):
    return loop(folder, values or block(rounds=8), module(), records(), draw)


def mean_control(made, server_message):
    """The mean of the silos' control variates, each as it stands once the silo knows what counted."""
    counted = server_message.header["counted"]
    return torch.stack(
        [
            s._kept.settled(s._kept.round + 1, counted.get(str(i)), i, s._files.ledger).states["control"][0]
            for i, s in made.silos.items()
        ]
    ).mean(0)


# Uploads that do not arrive


def test_lost_uploads_leave_the_servers_control_the_mean_of_the_silos(tmp_path):
    """[N] Alg. 1 under any participation: c = 1/M sum_i c_i. It holds only if both sides agree on what counted."""
    lost = {(0, 1), (1, 0), (1, 3), (2, 1), (4, 2), (4, 1)}
    with begin(tmp_path) as made:
        for round in range(6):
            assert made.round(lambda silo, up, t=round: None if (t, silo) in lost else up)
            following = made.server.begin()
            control = following.vectors["control"]
            assert control.norm() > 1e-3
            torch.testing.assert_close(control, mean_control(made, following), rtol=0, atol=1e-14)
        charged = {i: len({c.round for c in silo._ledger}) for i, silo in made.silos.items()}
        assert charged == {0: 6, 1: 6, 2: 6, 3: 6}  # what was lost was released all the same


def test_a_round_without_half_of_the_silos_is_void_and_asked_again_and_charged_again(tmp_path):
    with begin(tmp_path) as made:
        before = made.server.model.clone()
        assert made.round(lambda silo, up: up if silo == 2 else None) is False
        assert torch.equal(made.server.model, before)
        assert made.server.rounds == 0
        assert made.round() is True
        assert made.server.rounds == 1
        ids = {charge.noise_id for charge in made.silos[2]._ledger}
        assert len(ids) == 2 and {charge.round for charge in made.silos[2]._ledger} == {0}
        following = made.server.begin()
        torch.testing.assert_close(following.vectors["control"], mean_control(made, following), rtol=0, atol=1e-14)


def test_rounds_that_never_count_end_in_an_error_that_names_the_silos(tmp_path):
    with begin(tmp_path) as made:
        assert made.round(lambda silo, up: None) is False
        assert made.round(lambda silo, up: None) is False
        with pytest.raises(TrainingError, match=r"0 of 4 silos.*3th time.*3: 'no answer'"):
            made.round(lambda silo, up: None)


def test_a_refusal_ends_the_run_only_where_silos_that_did_not_answer_cannot_make_up_for_it(tmp_path):
    """One refuses, two are away for a while: the run goes on once they are back."""

    def refuses(silo, up):
        return Message({**up.header, "status": "refused", "reason": "no\x1b[2J"}, {})

    with begin(tmp_path) as made:
        assert made.round(lambda silo, up: refuses(silo, up) if silo == 0 else up if silo == 1 else None) is False
        assert made.server.status == "running"
        assert made.round(lambda silo, up: refuses(silo, up) if silo == 0 else up) is True
        assert made.round(lambda silo, up: refuses(silo, up) if silo < 3 else up) is False
        assert (made.server.status, made.server.reason) == ("refused", "silo 0: no\ufffd[2J")


def test_scaffnew_needs_every_silo(tmp_path):
    values = block(algorithm={"name": "scaffnew", "local_lr": 0.1, "local_steps": 2})
    with begin(tmp_path / "a", values) as made, begin(tmp_path / "b", values) as whole:
        assert made.round(lambda silo, up: None if silo == 3 else up) is False
        made.run(), whole.run()
        for silo in made.silos.values():  # sum_i h_i = 0, which a silo that missed a mean would break
            assert len({charge.noise_id for charge in silo._ledger if charge.round == 0}) == 2
        following = {str(i): made.server._counted[i] for i in range(NUM_SILOS)}
        ended = [
            s._kept.settled(s._kept.round + 1, following[str(i)], i, s._files.ledger).states
            for i, s in made.silos.items()
        ]
        mean = made.server._vectors["mean_update"]
        h = [one["control"][0] + 0.5 / 0.1 * (mean - one["update"][0]) for one in ended]
        torch.testing.assert_close(sum(h), torch.zeros_like(h[0]), rtol=0, atol=1e-12)
        with pytest.raises(ConfigError, match="needs every silo in every round, and the platform asks 2 of 4"):
            Server(made.agreement, module()).begin([0, 1])


# Uploads that are no good


def swapped(**header):
    return lambda up: Message({**up.header, **header}, up.vectors)


def with_vectors(change):
    def changed(up):
        vectors = {name: value.clone() for name, value in up.vectors.items()}
        return Message(up.header, change(vectors))

    return changed


def poke(value):
    def change(vectors):
        vectors["control"][3] = value
        return vectors

    return with_vectors(change)


BAD = {
    "NaN": (poke(float("nan")), "control has entries that are not finite"),
    "infinite": (poke(float("inf")), "control has entries that are not finite"),
    "too long": (with_vectors(lambda v: {**v, "model": torch.cat([v["model"]] * 2)}), r"model is float64\[78\]"),
    "too short": (with_vectors(lambda v: {**v, "model": v["model"][:-1]}), r"model is float64\[38\], where"),
    "another type": (with_vectors(lambda v: {**v, "model": v["model"].float()}), r"model is float32\[39\], where"),
    "a matrix": (with_vectors(lambda v: {**v, "model": v["model"].reshape(3, 13)}), r"model is float64\[3, 13\]"),
    "one more": (with_vectors(lambda v: {**v, "extra": v["model"]}), "control, extra, model, where control, model"),
    "one less": (with_vectors(lambda v: {"model": v["model"]}), "it holds the vectors model, where"),
    "another silo's": (swapped(silo=2), "it says that it is of silo 2"),
    "another run's": (swapped(run="0" * 16), "of another run"),
    "no tag": (swapped(tag=None), "tag='None', where str is needed"),
    "another tag": (swapped(tag="f" * 16), "late, or was sent before"),
    "a round to come": (swapped(round=1), "late, or was sent before"),
    "a truth for a number": (swapped(silo=True), "silo='True', where int is needed"),
    "another protocol": (swapped(dpfl=2), "another version's protocol"),
    "an odd status": (swapped(status="fine"), "its status is 'fine'"),
    "damaged": (lambda up: MessageError("it cannot be read."), "it cannot be read"),
    "odd names": (with_vectors(lambda v: {**v, "\x1b[2J\nname": v["model"]}), r"\ufffd\[2J\ufffdname, control, model"),
    "odd words": (swapped(status="failed", reason="\x1b[2J\nno"), r"the silo failed with an error; its own log says"),
}


@pytest.fixture(scope="module")
def answered(tmp_path_factory):
    """A server that has begun a round, and what its silos answer."""
    with begin(tmp_path_factory.mktemp("answered")) as made:
        server = Server(made.agreement, module())
        message = server.begin()
        return server, {silo: made.silos[silo].answer(message) for silo in server.asked}


@pytest.mark.parametrize(("spoil", "why"), BAD.values(), ids=BAD)
def test_a_bad_upload_is_refused_by_name_and_the_round_goes_on_without_it(answered, spoil, why, caplog):
    server, ups = copy.deepcopy(answered)
    without = copy.deepcopy(server)
    for silo in server.asked:
        if silo == 1:
            assert re.search(why, server.receive(1, spoil(ups[1])))
        else:
            assert server.receive(silo, ups[silo]) is without.receive(silo, ups[silo]) is None
    assert server.end() and without.end()
    assert torch.equal(server.model, without.model)
    (refused,) = server.summary()["refused"]
    assert (refused["round"], refused["silo"]) == (1, 1) and re.search(why, refused["why"])
    assert refused["why"].isprintable(), "it goes into logs, and to terminals"
    assert "round 1: an upload of silo 1 is refused" in caplog.text


@pytest.mark.parametrize("said", [float("nan"), float("inf"), float("-inf"), -1.0, "2.0", True])
def test_an_epsilon_that_is_none_is_not_taken_for_one(answered, said):
    server, ups = copy.deepcopy(answered)
    for silo in server.asked:
        assert server.receive(silo, swapped(epsilon=said)(ups[silo]) if silo == 1 else ups[silo]) is None
    assert server.end()
    summary = server.summary()
    assert summary["silos"]["1"]["epsilon"] is None and summary["silos"]["0"]["epsilon"] > 0
    assert "epsilon none holds" in round_counted(summary, 4)


def test_refused_uploads_are_in_the_servers_summary(tmp_path):
    with begin(tmp_path) as made:
        assert made.round(lambda silo, up: poke(float("nan"))(up) if silo == 1 else up)
        said = json.loads((tmp_path / "server" / "summary.json").read_text())
        assert said["refused"] == [{"round": 1, "silo": 1, "why": "control has entries that are not finite."}]
        assert {silo: about["rounds"] for silo, about in said["silos"].items()} == {"0": 1, "2": 1, "3": 1}


def test_an_upload_of_an_earlier_round_is_a_replay(tmp_path):
    with begin(tmp_path) as made:
        kept = {}
        assert made.round(lambda silo, up: kept.setdefault(silo, up))
        assert made.round(lambda silo, up: kept[silo] if silo == 0 else up)
        (refused,) = made.server.summary()["refused"]
        assert refused["silo"] == 0 and "a replay" in refused["why"]


def test_the_second_of_two_uploads_is_refused_and_the_first_stays(tmp_path):
    draw = draws(1, "same")
    with begin(tmp_path / "a", draw=draw) as made, begin(tmp_path / "b", draw=draw) as plain:
        message = made.server.begin()
        for silo in made.server.asked:
            up = made.silos[silo].answer(message)
            assert made.server.receive(silo, up) is None
            assert made.server.receive(silo, up) == "it answered before"
        assert made.server.end() and plain.round()
        assert torch.equal(made.server.model, plain.server.model)


def test_a_silo_that_was_not_asked_is_refused(tmp_path):
    with begin(tmp_path, block(silo_rate=0.5)) as made:
        made.server.begin([0, 1])
        stranger = made.silos[2].answer(made.server.begin([2, 3]))
        made.server.begin([0, 1])
        assert made.server.receive(2, stranger) == "it was not asked in this round"


@pytest.mark.parametrize(
    "data",
    [b"", b"\x80\x04K\x01.", b"\xff" * 100, (2**40).to_bytes(8, "little") + b"{}", b"\x02" + b"\0" * 7 + b"{}"],
)
def test_bytes_that_are_no_message_are_refused_and_never_unpickled(data):
    with pytest.raises(MessageError):
        Message.from_bytes(data)


def test_bytes_beyond_the_limit_are_not_read(tmp_path):
    with begin(tmp_path) as made:
        message = made.server.begin()
        good = made.silos[0].answer(message).to_bytes()
        assert len(good) < made.server.max_bytes < 2**17
        with pytest.raises(MessageError, match=f"{len(good)} bytes, where 100 are enough"):
            Message.from_bytes(good, 100)


def test_a_header_that_is_no_json_object_is_refused():
    huge = (b'{"round": 1%s}' % (b"0" * more) for more in (19, 400, 5000))
    odd = (b'{"epsilon": %s}' % one for one in (b"NaN", b"-Infinity", b"1e999", b"-1e999"))
    for text in (b"[1]", b"{", b"\xff", b"[" * 100_000, *huge, *odd):
        tensors = {"dpfl.header": torch.frombuffer(bytearray(text), dtype=torch.uint8)}
        with pytest.raises(MessageError, match=r"header is not (a )?JSON"):
            Message.from_tensors(tensors)
    with pytest.raises(MessageError, match=r"holds no dpfl\.header"):
        Message.from_tensors({"model": torch.zeros(3)})


@pytest.mark.parametrize(
    "odd",
    [
        lambda value: value.to_sparse(),
        lambda value: torch.quantize_per_tensor(value, 0.1, 0, torch.qint8),
        lambda value: value.to("meta"),
        lambda value: torch.nested.nested_tensor([value]),
    ],
    ids=["sparse", "quantised", "without values", "nested"],
)
@pytest.mark.filterwarnings("ignore")  # of torch: nested and quantised tensors are to go, or to change
def test_a_vector_that_is_no_plain_tensor_is_refused(odd):
    """As platforms may carry them that carry tensors of torch."""
    good = torch.ones(3)
    tensors, layout = Message({}, {"model": good}).to_tensors(), {"model": (torch.float32, 3)}
    check_vectors(Message.from_tensors(tensors).vectors, layout)
    with pytest.raises(MessageError, match="model is no plain tensor"):
        Message.from_tensors({**tensors, "model": odd(good)})
    with pytest.raises(MessageError, match="model is no plain tensor"):
        check_vectors({"model": odd(good)}, layout)
    header = tensors["dpfl.header"]
    for text in (header.to_sparse(), header.to("meta")):
        with pytest.raises(MessageError, match=r"holds no dpfl\.header"):
            Message.from_tensors({**tensors, "dpfl.header": text})


# What a silo refuses


def planned(**changes):
    return lambda up: Message({**up.header, "plan": {**up.header["plan"], **changes}}, up.vectors)


SERVER_SAYS = {
    "another run": (swapped(run="0" * 16), "settings or the model differ"),
    "a wrong plan": (swapped(plan={}), "share='None'"),
    "steps without end": (planned(local_steps=10**9), "its plan makes no sense"),
    "gradients without end": (planned(num_gradients=10**18), "its plan makes no sense"),
    "a step size that is no float": (planned(local_lr=10**400), "int too large to convert to float"),
    "a part that is no float": (planned(share=[0, 10**400]), "int too large to convert to float"),
    "a part beyond the whole": (planned(share=[0, 10**18]), "its plan makes no sense"),
    "a radius that is no float": (planned(smoothing=["convolution", 10**400]), "int too large to convert to float"),
    "NaN": (poke(float("nan")), "control has entries that are not finite"),
    "too long": (with_vectors(lambda v: {**v, "model": torch.cat([v["model"]] * 2)}), r"model is float64\[78\]"),
    "an upload that it never made": (swapped(counted={"0": "f" * 16}), "one of the two lost its folder"),
}


@pytest.mark.parametrize(("spoil", "why"), SERVER_SAYS.values(), ids=SERVER_SAYS)
def test_a_bad_message_of_the_server_is_refused_before_anything_is_released(tmp_path, spoil, why):
    with begin(tmp_path) as made:
        message = made.server.begin()
        with pytest.raises(MessageError, match=why):
            made.silos[0].answer(spoil(message))
        assert len(made.silos[0]._ledger) == 0
        failure = made.silos[0].failure(message)
        assert "the silo failed with an error" in made.server.receive(0, failure)


def test_a_server_that_asks_for_more_gets_no_more_than_the_budget(tmp_path):
    with begin(tmp_path, block(privacy={**NOISY, "epsilon": 3.0})) as made:
        message = made.server.begin()
        plan = {**message.header["plan"], "num_gradients": 200, "local_steps": 200}
        answer = made.silos[0].answer(swapped(plan=plan)(message))
        assert (answer.header["status"], answer.vectors) == ("spent", {})
        assert "would pass epsilon 3" in answer.header["reason"]
        assert len(made.silos[0]._ledger) == 0
        late = made.silos[0].answer(swapped(round=4)(message))
        assert "more than the 4 that were agreed on" in late.header["reason"]


def test_a_server_cannot_talk_a_silo_into_an_amplification(tmp_path):
    with begin(tmp_path) as made:
        message = made.server.begin()
        for participation in ("sampled", "sampled_with_replacement"):
            plan = {**message.header["plan"], "participation": participation}
            made.silos[0].answer(swapped(plan=plan)(message))
        made.silos[0].write_statement()
        views = json.loads((tmp_path / "silo-0" / "ledger.json").read_text())["views"]
        assert views["third_party"]["epsilon"] == views["server"]["epsilon"] > 0


def test_an_old_message_is_refused(tmp_path):
    with begin(tmp_path) as made:
        first = made.server.begin()
        for silo in made.server.asked:
            made.server.receive(silo, made.silos[silo].answer(first))
        made.server.end()
        assert made.round()
        with pytest.raises(MessageError, match="round 1 after round 2: it is an old message"):
            made.silos[0].answer(first)


def test_a_cap_on_participations_is_kept_by_the_silo(tmp_path):
    with begin(tmp_path, block(rounds=8, max_participations=3)) as made:
        made.run()
        assert made.server.rounds == 3
        assert made.server.status == "budget_exhausted"
        assert all(len({c.round for c in silo._ledger}) == 3 for silo in made.silos.values())


# Asked again


def test_the_same_message_again_gives_the_same_bits_and_costs_nothing(tmp_path):
    with begin(tmp_path) as made:
        message = made.server.begin()
        first = made.silos[0].answer(over_the_wire(message))
        charges = set(made.silos[0]._ledger)
        again = made.silos[0].answer(over_the_wire(message))
        assert again.digest() == first.digest()
        assert set(made.silos[0]._ledger) == charges
        made.silos[0].close()
        with SimulatedSilo(made.agreement, 0, module(), records()[0], tmp_path / "silo-0") as restarted:
            assert restarted.answer(message).digest() == first.digest()
            assert set(restarted._ledger) == charges


def test_threads_that_ask_a_silo_the_same_get_the_same_bits_charged_once(tmp_path):
    with begin(tmp_path) as made:
        asked, silo = made.server.begin(), made.silos[0]
        with ThreadPoolExecutor(8) as threads:
            answers = list(threads.map(lambda _: silo.answer(asked).to_bytes(), range(8)))
        assert len(set(answers)) == 1
        assert len({charge.noise_id for charge in silo._ledger}) == 1


# Restarts


def test_silos_and_server_that_are_restarted_after_every_round_go_on_to_the_same_bits(tmp_path):
    draw = draws(3, "same")
    with begin(tmp_path / "whole", draw=draw) as whole:
        expected, charges = whole.run(), whole.charges()
        for _ in range(8):
            with begin(tmp_path / "cut", draw=draw) as made:
                assert made.round()
        with begin(tmp_path / "cut", draw=draw) as made:
            assert made.round() is None
            assert made.server.status == "done"
            assert torch.equal(made.server.model, expected)
            assert made.charges() == charges
            assert made.server.summary()["silos"] == whole.server.summary()["silos"]


def test_a_server_that_is_started_again_repeats_its_request_which_costs_no_more(tmp_path, caplog):
    caplog.set_level("INFO")
    tight = {"epsilon": 3.0, "delta": 1e-5, "record_rate": 0.25}  # the silos' noise is for four rounds, and no fifth
    with begin(tmp_path, block(privacy=tight)) as made:
        for round in range(4):  # all of them, though each is cut once
            message = made.server.begin()
            kept = {silo: made.silos[silo].answer(message) for silo in (0, 1, 2)}  # it ends before silo 3 answers
            made.server.close()
            made.server = Server(made.agreement, module(), tmp_path / "server")
            assert made.server.rounds == round
            again = made.server.begin()
            assert again.to_bytes() == message.to_bytes()
            assert all(made.silos[silo].answer(again).digest() == kept[silo].digest() for silo in kept)
            for silo in made.server.asked:
                assert made.server.receive(silo, made.silos[silo].answer(again)) is None
            assert made.server.end()
        assert made.server.status == "done"
        assert "round 4 was interrupted: its request is sent again" in caplog.text
        assert all(len({charge.noise_id for charge in silo._ledger}) == 4 for silo in made.silos.values())


def test_a_request_is_on_disk_before_it_is_sent_and_repeated_to_the_bit_or_not_at_all(tmp_path, caplog):
    with begin(tmp_path) as made:
        message, path = made.server.begin(), tmp_path / "server" / "request.json"
        facts = json.loads(path.read_text())
        assert facts == {"round": 0, "tag": message.header["tag"], "sha256": message.digest()}
        made.server.close()
        path.write_text(json.dumps({**facts, "sha256": "0" * 64}))  # as if another version made other messages
        made.server = Server(made.agreement, module(), tmp_path / "server")
        assert made.server.begin().header["tag"] != message.header["tag"]
        assert "cannot be repeated bit for bit" in caplog.text
        made.server.close()
        path.write_text("{")
        with pytest.raises(DataError, match=r"request\.json cannot be read: .*or delete it"):
            Server(made.agreement, module(), tmp_path / "server")


def test_a_folder_has_one_server_at_a_time(tmp_path):
    with begin(tmp_path) as made:
        with pytest.raises(BusyError, match=rf"server: another server \(pid {os.getpid()} on .*End that one first"):
            Server(made.agreement, module(), tmp_path / "server")
        made.run()  # which lets go of it
        assert Server(made.agreement, module(), tmp_path / "server").status == "done"


def test_a_server_that_is_started_again_goes_on_from_the_same_controls(tmp_path):
    with begin(tmp_path) as made:
        made.round()
        message = made.server.begin()
        for silo in (0, 1, 2):
            made.server.receive(silo, made.silos[silo].answer(message))
        made.server.close()
        made.server = Server(made.agreement, module(), tmp_path / "server")
        assert made.server.rounds == 1
        assert made.round()
        following = made.server.begin()
        torch.testing.assert_close(following.vectors["control"], mean_control(made, following), rtol=0, atol=1e-14)


class Unplugged(Exception):
    pass


def fail(*args, **kwargs):
    raise Unplugged


def test_a_silo_that_dies_before_its_upload_is_kept_has_charged_it(tmp_path, monkeypatch):
    with begin(tmp_path) as made:
        made.round()
        message = made.server.begin()
        with monkeypatch.context() as patch:
            patch.setattr(silo_module, "save", fail)
            with pytest.raises(Unplugged):
                made.silos[1].answer(message)
        made.silos[1].close()
        made.silos[1] = SimulatedSilo(made.agreement, 1, module(), records()[1], tmp_path / "silo-1")
        assert sum(charge.round == 1 for charge in made.silos[1]._ledger) == 1
        for silo in made.server.asked:
            assert made.server.receive(silo, made.silos[silo].answer(message)) is None
        assert made.server.end()
        assert len({c.noise_id for c in made.silos[1]._ledger if c.round == 1}) == 2
        following = made.server.begin()
        torch.testing.assert_close(following.vectors["control"], mean_control(made, following), rtol=0, atol=1e-14)
        made.silos[1].close()


def test_nothing_leaves_where_the_ledger_cannot_be_written(tmp_path, monkeypatch):
    with begin(tmp_path) as made:
        message = made.server.begin()
        monkeypatch.setattr(type(made.silos[0]._ledger), "sync", fail)
        with pytest.raises(Unplugged):
            made.silos[0].answer(message)
        assert not (tmp_path / "silo-0" / "state.safetensors").exists()
        monkeypatch.undo()


def test_charges_are_on_disk_before_the_upload_is_kept_or_returned(tmp_path, monkeypatch):
    order = []
    with begin(tmp_path) as made:
        ledger, save = type(made.silos[0]._ledger), silo_module.save
        append, sync = ledger.append_all, ledger.sync
        charge = lambda self: order.append("charge") if self.path else None  # noqa: E731, in memory it charges nothing
        monkeypatch.setattr(ledger, "append_all", lambda self, made: (charge(self), append(self, made))[1])
        monkeypatch.setattr(ledger, "sync", lambda self: (order.append("sync"), sync(self))[1])
        monkeypatch.setattr(silo_module, "save", lambda *args: (order.append("keep"), save(*args))[1])
        made.silos[0].answer(made.server.begin())
        assert order == ["charge", "sync", "keep"]


# Folders


def test_a_silo_that_lost_its_folder_is_not_let_in_again(tmp_path):
    with begin(tmp_path) as made:
        made.round()
        with (
            SimulatedSilo(made.agreement, 0, module(), records()[0], tmp_path / "elsewhere") as other,
            pytest.raises(
                MessageError, match=r"silo 0: the last of its uploads that the server counts is \w+, and that"
            ),
        ):
            other.answer(made.server.begin())


def test_a_server_that_lost_its_folder_is_told_so(tmp_path):
    with begin(tmp_path) as made:
        made.round(), made.round()
        made.server = Server(made.agreement, module())
        with pytest.raises(MessageError, match="or the server lost its folder"):
            made.silos[0].answer(made.server.begin())


def test_two_servers_with_folders_of_their_own_are_told_from_a_folder_that_was_lost(tmp_path):
    """No lock is between them; a silo that both ask is the first to see it."""
    with begin(tmp_path) as made:
        made.round()
        made.silos[0].answer(Server(made.agreement, module(), tmp_path / "another").begin())
        with pytest.raises(MessageError, match="Does a second server, with a folder of its own, ask these silos"):
            made.silos[0].answer(made.server.begin())


def test_a_ledger_whose_end_is_missing_is_refused(tmp_path):
    with begin(tmp_path) as made:
        made.round(), made.round()
    ledger = tmp_path / "silo-2" / "ledger.jsonl"
    lines = ledger.read_bytes().splitlines(keepends=True)
    ledger.write_bytes(b"".join(lines[:-1]))
    with pytest.raises(LedgerError, match=r"does not hold the line \w+ that state\.safetensors knows of"):
        SimulatedSilo(made.agreement, 2, module(), records()[2], tmp_path / "silo-2")
    ledger.unlink()
    with pytest.raises(LedgerError, match=r"ledger\.jsonl is missing"):
        SimulatedSilo(made.agreement, 2, module(), records()[2], tmp_path / "silo-2")
    (tmp_path / "silo-2" / "state.safetensors").unlink()
    ledger.symlink_to(tmp_path / "of-a-share" / "that-is-away.jsonl")
    with pytest.raises(LedgerError, match=r"ledger\.jsonl exists"):
        SimulatedSilo(made.agreement, 2, module(), records()[2], tmp_path / "silo-2")
    assert ledger.is_symlink()


BEGINNING = b'{"facts":{"name":"x","noise_multiplier":1.5'


@pytest.mark.parametrize(
    ("left", "why"),
    [
        (b"", None),
        (BEGINNING[:5], None),
        (BEGINNING, None),
        (b"notes of mine", "is not a ledger, nor the beginning of one"),
        (bytes(100), "is not a ledger, nor the beginning of one"),
        (BEGINNING + b'},"ledger":1,"check":"0123456789abcdef"}', "line 1: its checksum is wrong"),
    ],
    ids=["empty", "a few bytes", "half a line", "text", "zeros", "a whole line"],
)
@pytest.mark.parametrize("state", [False, True], ids=["first", "later"])
def test_what_is_in_a_ledgers_place_is_kept_and_taken_for_one_that_was_cut_only_where_it_is(tmp_path, left, why, state):
    path = tmp_path / "silo-0" / "ledger.jsonl"
    path.parent.mkdir(mode=0o700)
    path.write_bytes(left)
    path.chmod(0o600)
    if state:
        (path.parent / "state.safetensors").touch()
    begin_silo = functools.partial(SimulatedSilo, agree(block(), num_silos=1, model=module()), 0, module())
    if state or why:
        with pytest.raises(LedgerError, match=why or r"ledger\.jsonl is missing, or has not one whole line"):
            begin_silo(records()[0], path.parent)
        assert path.read_bytes() == left
        return
    begin_silo(records()[0], path.parent).close()
    assert path.read_bytes().startswith(BEGINNING[:10])


def test_a_first_line_that_lacks_its_end_alone_is_gone_on_with(tmp_path):
    with begin(tmp_path) as made:
        agreement = made.agreement
    path = tmp_path / "silo-0" / "ledger.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole.removesuffix(b"\n"))
    SimulatedSilo(agreement, 0, module(), records()[0], path.parent).close()
    assert path.read_bytes() == whole


def test_a_folder_belongs_to_one_silo_one_agreement_and_its_records(tmp_path):
    with begin(tmp_path) as made:
        made.round()
        with pytest.raises(BusyError, match="another process"):
            SimulatedSilo(made.agreement, 0, module(), records()[0], tmp_path / "silo-0")
    with pytest.raises(ConfigError, match="is the folder of silo 0, not of 1"):
        SimulatedSilo(made.agreement, 1, module(), records()[1], tmp_path / "silo-0")
    with pytest.raises(DataError, match="the records are not those"):
        SimulatedSilo(made.agreement, 0, module(), records()[1], tmp_path / "silo-0")
    other = agree(block(rounds=9), num_silos=NUM_SILOS, model=module())
    with pytest.raises(ConfigError, match="is the folder of agreement"):
        SimulatedSilo(other, 0, module(), records()[0], tmp_path / "silo-0")
    with pytest.raises(ConfigError, match="another agreement's server"):
        Server(other, module(), tmp_path / "server")


# What messages tell


def test_messages_hold_no_seed_and_no_number_of_records(tmp_path):
    with begin(tmp_path, block(seed=123456789)) as made:
        message = made.server.begin()
        answer = made.silos[0].answer(message)
        assert set(message.header) == {"dpfl", "run", "model", "fixed", "round", "tag", "counted", "plan"}
        assert set(answer.header) == {"dpfl", "run", "round", "tag", "silo", "status", "epsilon", "delta"}
        assert "123456789" not in json.dumps([message.header, answer.header])
        assert set(answer.vectors) == {"model", "control"}


def test_callbacks_get_the_configuration_without_weights_of_single_silos(tmp_path):
    class Spy(Callback):
        def on_begin(self, run):
            self.config = run.config

    agreement, spy = agree(block(silo_weights={0: 3, 1: 1}), num_silos=2, model=module()), Spy()
    with Server(agreement, module(), tmp_path, callbacks=[spy]) as server:
        server.begin()
    assert not {"silo_weights", "silos", "data", "trackers"} & set(spy.config)
    assert spy.config["rounds"] == 4 and "seed" in spy.config, "no noise follows from it"


def test_noise_is_the_operating_systems_and_never_the_same_twice(tmp_path):
    torch.manual_seed(0)
    with begin(tmp_path / "a") as made, begin(tmp_path / "b") as other:
        assert made.silos[0]._config.fresh
        one = made.silos[0].answer(made.server.begin())
        torch.manual_seed(0)
        two = other.silos[0].answer(other.server.begin())
        assert not torch.equal(one.vectors["model"], two.vectors["model"])


def test_the_algorithm_is_refused_what_it_cannot_have(tmp_path):
    for changes, why in (
        ({"data": {"dataset": "digits"}}, "data has no meaning here: silos bring their own records"),
        ({"silo_weights": "equal"}, r"Remove the line \(equal weights\)"),
        ({"silo_weights": "records"}, r"silo_weights: \{0: 3, 1: 1\}"),
        ({"silo_weights": {"0": 1.0}}, "no weight for silo 1"),
        ({"privacy": {**NOISY, "randomness": "seeded"}}, "noise always comes from each silo's operating system"),
        (
            {
                "algorithm": {
                    "name": "fedavg_sync",
                    "local_steps": 3,
                    "gradient_clip": 0.5,
                    "local_lr": 0.1,
                    "silo_sampling": "with_replacement",
                },
                "privacy": {"unit": "silo", "noise_multiplier": 1.0, "clip_norm": 0.5},
            },
            "drawn with replacement, so that some would weigh more",
        ),
        ({"algorithm": {**SCAFFOLD, "local_stps": 3}}, r"dpfl_args: algorithm\.local_stps"),
        ({"roundz": 3}, "roundz is not a known key"),
    ):
        with pytest.raises(ConfigError, match=why):
            agree(block(**changes), num_silos=2, model=module())


def test_a_model_that_mixes_records_is_refused():
    """At both ends, so that a server finds it before it asks anybody."""
    for layer, why in ((nn.BatchNorm1d(4), "batch statistics mix records"), (nn.Dropout(0.5), "dropout draws from")):
        mixing = nn.Sequential(nn.Linear(5, 4), layer, nn.Linear(4, 3)).double()
        with pytest.raises(UnsupportedError, match=f"layer 1.*{why}"):
            agree(block(), num_silos=1, model=mixing)


def test_draws_of_a_simulation_repeat(tmp_path):
    draw = lambda round: Draw(5, round)  # noqa: E731
    with begin(tmp_path / "a", draw=draw) as made, begin(tmp_path / "b", draw=draw) as other:
        assert torch.equal(made.run(), other.run())


@pytest.mark.parametrize("asked", [[0], [0, 0], [0, 1, 0], [2, 2, 1, 1, 1, 2], [0, 0, 1, 2, 2, 0]], ids=str)
def test_every_computation_of_a_fresh_answer_is_charged_and_the_same_request_gets_the_stored_one(tmp_path, asked):
    """Asked for one round with any models in any order: an answer is stored till another request is answered."""
    with begin(tmp_path) as made:
        message, silo = made.server.begin(), made.silos[0]
        requests = [with_vectors(lambda v, by=by: {**v, "model": v["model"] + by})(message) for by in (0.0, 1e-9, 1.0)]
        computed, sent = 0, []
        for turn, model in enumerate(asked):
            sent.append(silo.answer(requests[model]).to_bytes())
            if turn and asked[turn - 1] == model:
                assert sent[-1] == sent[-2]
            else:
                computed += 1
                assert sent[-1] not in sent[:-1]
            names = {charge.noise_id for charge in silo._ledger}
            assert len(names) == computed
            assert sum(charge.count for charge in silo._ledger) == computed * SCAFFOLD["local_steps"]


def test_a_round_that_the_server_counts_is_not_asked_again(tmp_path):
    """From the state after it the answer would be another, with the same noise where that is seeded."""
    with begin(tmp_path, draw=lambda round: Draw(5, round)) as made:
        message = made.server.begin()
        made.silos[0].answer(message)
        counted = {**message.header["counted"], "0": message.header["tag"]}
        again = Message({**message.header, "tag": "another", "counted": counted}, message.vectors)
        before = set(made.silos[0]._ledger)
        with pytest.raises(MessageError, match="asks for it again"):
            made.silos[0].answer(again)
        assert set(made.silos[0]._ledger) == before


def test_records_that_change_between_readings_are_refused_before_a_charge(tmp_path):
    class Augmented(torch.utils.data.Dataset):
        def __len__(self):
            return 20

        def __getitem__(self, index):
            return torch.full((5,), float(index)).double() + torch.randn(5).double() * (
                index == 19
            ), index % 3  # a look at every other record shows nothing

    agreement = agree(block(), num_silos=1, model=module())
    for records_of in (Augmented(), torch.utils.data.DataLoader(Augmented(), batch_size=4)):
        with pytest.raises(DataError, match=r"other records when they are read again.*augmentation"):
            SimulatedSilo(agreement, 0, module(), records_of, tmp_path / "silo")
    assert not (tmp_path / "silo" / "ledger.jsonl").exists()


def test_one_flipped_bit_in_a_silos_state_is_refused(tmp_path):
    with begin(tmp_path) as made:
        made.round()
        made.silos[0].close()
        path = tmp_path / "silo-0" / "state.safetensors"
        whole = path.read_bytes()
        for place in range(len(whole) - 300, len(whole), 23):  # its tensors lie at the end
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
            with pytest.raises(DataError, match=r"not what was written.*keep the ledger"):
                SimulatedSilo(made.agreement, 0, module(), records()[0], tmp_path / "silo-0")
        path.write_bytes(whole)
        SimulatedSilo(made.agreement, 0, module(), records()[0], tmp_path / "silo-0").close()
