"""A rank 0 that does not follow the protocol, in front of a silo rank whose owner has set limits: it gets no more."""

from __future__ import annotations

import csv
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from dpfl_plugin.algorithms.base import RoundPlan
from dpfl_plugin.config.load import load
from dpfl_plugin.core.vectors import Vectors
from dpfl_plugin.data.base import digest
from dpfl_plugin.errors import MessageError
from dpfl_plugin.federation.planning import Planner
from dpfl_plugin.oracle import Draw
from dpfl_plugin.owners import limits as limits_module
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.runs.build import build
from dpfl_plugin.runs.record_marks import MarkKey
from dpfl_plugin.runtimes.mpi import wire
from dpfl_plugin.runtimes.mpi.link import Patience
from dpfl_plugin.runtimes.mpi.rank_log import RankLog
from dpfl_plugin.runtimes.mpi.session import joined
from dpfl_plugin.runtimes.mpi.silos import SiloRank
from tests.adapters.named_code import HERE, PATH, recorded
from tests.cli.command import write
from tests.mpi.network import Loopback, Network, loopback
from tests.mpi.test_protocol import SILOS, hosts

FRESH = {"noise_multiplier": None, "epsilon": 3.0, "delta": 1e-5, "randomness": "fresh"}
NAME = "x" * 32


class OwnersLog(RankLog):
    """What a rank says to the owner of its records."""

    def __init__(self) -> None:
        super().__init__(1)
        self.told: list[str] = []

    def tell(self, text: str) -> None:
        self.told.append(text)


class Server:
    """Rank 0 of a session with one silo rank, which it may ask for anything; the rank and its custody are real."""

    def __init__(self, folder: Path, changes: dict[str, Any]) -> None:
        self.folder, self.number = folder, 0
        self.network = Network(2)
        self.log = OwnersLog()
        self.rank = SiloRank(Loopback(self.network, 1), log=self.log)
        self.network.silo_ranks.append(self.rank)
        self.link = Loopback(self.network, 0)
        self.take({"rounds": 2, "privacy": FRESH, **changes})
        self.parts = build(self.config, folder)
        self.facts = {
            "noise_multiplier": self.parts.noise_multiplier,
            "engine": self.parts.engine.name,
            "chunk_bytes": self.parts.memory.chunk,
            "profile": False,
            "folder": str(folder / "silos"),
        }

    def take(self, changes: dict[str, Any]) -> None:
        self.config = load(write(self.folder, changes)).variants[0].config

    def tell(self, do: str, **more: Any) -> None:
        self.number += 1
        self.link.send(1, {"do": do, "number": self.number, **more})

    def hear(self, *say: str) -> dict[str, Any]:
        """The next answer of these, or an error."""
        for _ in range(100):
            found = self.link.poll()
            if found is not None and found[1]["say"] in (*say, "error"):
                return found[1]
        raise AssertionError(f"none of {say} came")

    def ask(self, do: str, say: str, **more: Any) -> dict[str, Any]:
        self.tell(do, **more)
        return self.hear(say)

    def survey(self, **changes: Any) -> dict[str, Any]:
        config, here = self.config.model_dump(mode="python"), {"dealt": [1], "server": [platform.node(), 1]}
        here |= {"base": str(self.folder), "key": str(self.folder / "key"), "seed": self.config.public_seed, **changes}
        return self.ask("survey", "surveyed", config=config, **here)

    def begin(self, **changes: Any) -> dict[str, Any]:
        """A survey and a beginning."""
        said = self.survey()
        self.known = wire.survey_header(joined({1: said}))
        return self.ask("begin", "ready", survey=self.known, **{**self.facts, **changes})

    def plan(self, *participants: int) -> tuple[Vectors, RoundPlan]:
        """What the algorithm downloads, and plans for these silos."""
        algorithm, setting = self.parts.algorithm, self.parts.setting
        server = algorithm.init_server(self.parts.model.clone(), setting)
        planned = Planner(algorithm, setting, (1 / setting.num_silos,) * setting.num_silos, 0).plan(server, 0)
        weights = (1 / len(participants),) * len(participants)
        return algorithm.download(server), replace(planned, participants=participants, weights=weights)

    def round(self, down: Vectors, plan: RoundPlan, name: str = NAME) -> list[dict[str, Any]]:
        """The answers of a round, one for each stack, the last of which may be an error."""
        self.tell("round", down=wire.layout(down), apart=True, **wire.plan_header(plan, Draw(0, 0, name)))
        for value in down.values():
            self.link.push(1, value)
        answers = [self.hear("computed")]
        while answers[-1]["say"] != "error" and sum(len(one["silos"]) for one in answers) < len(plan.participants):
            answers.append(self.hear("computed"))
        return answers

    def refused(self, said: dict[str, Any], why: str) -> bool:
        """Whether the owner's file does not allow it: rank 0 hears that alone, and the owner's log says why."""
        heard = (said["say"], said.get("kind"), said.get("text"))
        return heard == ("error", "LimitError", "not within this owner's limits") and why in "\n".join(self.log.told)

    def states(self) -> Vectors:
        said = self.ask("states", "states")
        rows = []
        for _ in range(self.parts.setting.num_silos):
            into = wire.empty(wire.read_layout(said["states"]), torch.device("cpu"))
            assert all(transfer.done() for transfer in [self.link.pull(1, value) for value in into.values()])
            rows.append(into)
        return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}

    def released(self, silo: int = 0) -> int:
        ledger = Ledger.open(self.folder / "owner" / "data.lifetime.jsonl", append=False)
        return sum(charge.count for charge in ledger if charge.silo == silo)


Start = Callable[..., Server]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    begun: list[Server] = []

    def server(limits: str = "", send: str = "record_counts", **changes: Any) -> Server:
        path = tmp_path / "limits.yaml"
        path.write_text(f"folder: {tmp_path}/owner\nepsilon: 8\ndelta: 1e-4\nsend: [{send}]\n{limits}")
        path.chmod(0o600)
        monkeypatch.setenv("DPFL_LIMITS", str(path))
        begun.append(Server(tmp_path, changes))
        return begun[-1]

    monkeypatch.setattr(limits_module, "PLACES", ())
    monkeypatch.setattr(Patience, "wait", lambda self: None)
    yield server
    for one in begun:
        one.rank._forget()


def per_round(server: Server) -> int:
    return server.plan(0)[1].num_gradients


def test_a_round_that_is_asked_for_again_is_another_release_where_noise_is_drawn_afresh(start: Start) -> None:
    """By the same name: the name is rank 0's, and bits do not follow from it."""
    server = start()
    assert server.begin()["say"] == "ready"
    down, plan = server.plan(0)
    answers = [server.round(down, plan)[0] for _ in range(12)]
    made = [one["say"] for one in answers].count("computed")
    assert server.refused(answers[-1], "are left of those in the agreed plan")
    assert 2 <= made < 12  # as many as the plan has, of which some are for rounds that are run again
    assert server.released() == made * per_round(server)


def test_slots_are_not_had_back_by_beginning_again(start: Start) -> None:
    server = start()
    made = 0
    for _ in range(3):
        assert server.begin()["say"] == "ready"
        down, plan = server.plan(0)
        made += [server.round(down, plan)[0]["say"] for _ in range(12)].count("computed")
    assert server.released() == made * per_round(server) and made < 12


def test_a_name_of_noise_belongs_to_one_agreement(start: Start) -> None:
    """Else what is released in another one is not written down, and its slots are there again after a restart."""
    server = start()
    for name in ("one", "two"):
        server.take({"rounds": 2, "privacy": FRESH, "name": name})
        assert server.begin()["say"] == "ready"
        said = server.round(*server.plan(0))[0]
    assert server.refused(said, "that of another agreement")
    assert server.released() == per_round(server)
    assert server.round(*server.plan(0), name="y" * 32)[0]["say"] == "computed"


def test_seeded_noise_is_refused_under_limits(start: Start) -> None:
    server = start(privacy={**FRESH, "randomness": "seeded"})
    said = server.survey()
    assert server.refused(said, "randomness: seeded")


@pytest.mark.parametrize(
    ("participants", "why"),
    [([0, 0], "takes part once"), ([1, 0], "ascending"), ([-1], "takes part once"), ([0, 4], "there are 4 silos")],
)
def test_silos_take_part_once_and_are_known(start: Start, participants: Sequence[int], why: str) -> None:
    server = start()
    assert server.begin()["say"] == "ready"
    said = server.round(*server.plan(*participants))[0]
    assert said["say"] == "error" and said.get("kind") == "MessageError" and why in said["text"]
    assert server.released() == 0


def test_rank_0_refuses_to_ask_for_a_silo_twice() -> None:
    """Before a silo rank computes anything."""
    network = Network(3)
    runtime = loopback(hosts(3), Ledger(), network=network)
    plan = RoundPlan(
        local_steps=1, local_lr=0.1, num_gradients=1, participants=(0, 0), weights=(0.5, 0.5), participation="all"
    )
    with mock.patch.object(Patience, "wait", return_value=None), pytest.raises(MessageError, match="takes part once"):
        runtime.run_round({"model": torch.zeros(2)}, plan, Draw(0, 0))
    assert len(SILOS) > 2 and not [one for one in network.log if one[0] == "computed"]


def test_what_is_refused_changes_no_state(start: Start) -> None:
    """A new control variate is a release of gradients, too."""
    server = start()
    assert server.begin()["say"] == "ready"
    down, plan = server.plan(0, 1, 2, 3)
    answers = server.round(down, plan, name="0" * 32)
    assert answers[-1]["say"] == "computed"
    server.tell("commit")
    for number in range(1, 12):
        before = server.states()
        answers = server.round(down, plan, name=f"{number:032x}")
        if answers[-1]["say"] == "error":
            break
        server.tell("commit")
    assert server.refused(answers[-1], "agreed plan")
    server.rank._unanswered = False  # the silo rank's other guard, of which the next test is
    server.tell("commit")
    after = server.states()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_only_a_round_that_was_answered_is_committed(start: Start) -> None:
    server = start(runtime={"stack": 1})
    assert server.begin()["say"] == "ready"
    down, plan = server.plan(0, 1, 2, 3)
    server.tell("round", down=wire.layout(down), apart=True, **wire.plan_header(plan, Draw(0, 0, NAME)))
    for value in down.values():
        server.link.push(1, value)
    server.hear("computed")  # the first of four
    server.tell("commit")
    while (said := server.hear("computed"))["say"] == "computed":
        pass
    assert said.get("kind") == "MessageError" and "was not answered" in said["text"]
    assert all(not value.any() for value in server.states().values())


def test_a_session_begins_once_after_each_survey(start: Start) -> None:
    server = start()
    assert server.begin()["say"] == "ready"
    for changes in (server.facts, {}):
        said = server.ask("begin", "ready", survey=server.known, **changes)
        assert said.get("kind") == "MessageError" and "without a survey" in said["text"]
        assert server.rank._host is None
        assert server.round(*server.plan(0))[0]["say"] == "error"
    assert server.released() == 0


def test_a_session_that_does_not_begin_has_no_silos(start: Start) -> None:
    """Nor those of the one before."""
    server = start()
    assert server.begin()["say"] == "ready"
    assert server.begin(noise_multiplier=1e-3)["say"] == "error"
    assert server.rank._host is None and server.round(*server.plan(0))[0]["say"] == "error"


def test_without_a_reserved_plan_nothing_is_released(start: Start) -> None:
    server = start()
    assert server.begin()["say"] == "ready"
    server.rank._custody.close()
    said = server.round(*server.plan(0))[0]
    assert server.refused(said, "no plan is reserved")


def test_numbers_of_records_are_told_by_one_description_of_the_data(start: Start) -> None:
    """A histogram of a column for each name that a server may give, without noise, else."""
    server = start()
    with (server.folder / "patients.csv").open("w", newline="") as file:
        rows = [[f"d{i % 3}", i % 2, i % 5, i] for i in range(60)]
        csv.writer(file).writerows([["diagnosis", "outcome", "age", "x"], *rows])
    said = []
    for column, other in (("diagnosis", "age"), ("age", "diagnosis"), ("diagnosis", "age")):
        names = {"label_column": "outcome", "silo_column": column, "ignore_columns": [other], "classes": [0, 1]}
        dataset = {"name": "csv", "files": ["patients.csv"], **names}
        for unused in ("num_features", "num_classes", "records_per_silo"):
            dataset[unused] = None
        server.take({"privacy": FRESH, "data": {"dataset": dataset, "num_silos": None, "partition": "natural"}})
        said.append(server.survey())
    assert [one["say"] for one in said] == ["surveyed", "error", "surveyed"]
    assert [one[1] + one[2] for one in said[0]["silos"]] == [20, 20, 20]
    assert server.refused(said[1], "for another description")
    server.rank = SiloRank(Loopback(server.network, 1))  # started again
    server.network.silo_ranks[:] = [server.rank]
    server.take({"privacy": FRESH})
    assert server.survey().get("kind") == "LimitError"


def test_records_that_cannot_be_read_have_their_one_description_too(start: Start) -> None:
    """Whether they can be read tells of them: with a range of her own, a server finds the oldest patient."""
    server = start()
    (server.folder / "patients.csv").write_text("age,hiv,site\n" + "37,0,a\n89,1,b\n" * 4)
    said = []
    for oldest in (200, 50):
        columns = {"age": {"type": "number", "range": [0, oldest], "outside": "refuse"}}
        schema = {"label": {"column": "hiv", "classes": [0, 1]}, "silo": "site", "columns": columns}
        dataset = {"name": "table", "files": ["patients.csv"], "schema": schema}
        dataset |= dict.fromkeys(("num_features", "num_classes", "records_per_silo"))
        data = {"dataset": dataset, "num_silos": None, "partition": "natural", "preprocess": ["hog"]}  # which fails
        server.take({"privacy": FRESH, "data": data})
        said.append(server.survey())
    assert [one["say"] for one in said] == ["error", "error"]
    assert (said[0]["kind"], said[0]["text"]) == (None, "it failed, and its own log says why")
    assert server.refused(said[1], "for another description")


def test_rank_0_names_no_file_that_silos_look_at_or_write(start: Start) -> None:
    """But in the description of the data: whether there is one tells who is a patient."""
    server = start("code: ['found_here:Found']\n")
    (server.folder / "smith.csv").write_text("no key")
    marks = []
    for name in ("smith.csv", "jones.csv", "smith.csv"):
        said = server.survey(key=str(server.folder / name))
        assert said["say"] == "surveyed"
        marks.append([mark for *_, mark in said["silos"]])
    assert marks[0] == marks[2] != marks[1], "records are known again by the runs of one key"
    server.known = wire.survey_header(joined({1: said}))
    assert server.ask("begin", "ready", survey=server.known, **server.facts)["say"] == "ready"
    server.take({"privacy": FRESH, "algorithm": {"name": None, "module": "found_here:Found"}})
    said = [server.survey(base=str(server.folder / name)) for name in ("smith.csv", "jones.csv")]
    assert all(server.refused(one, "for another description") for one in said)
    assert not (server.folder / "jones.csv").exists() and (server.folder / "smith.csv").read_text() == "no key"


def test_code_is_not_looked_for_where_others_may_put_it(start: Start, tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    server = start("code: ['found_here:Found']\n")
    server.take({"privacy": FRESH, "algorithm": {"name": None, "module": "found_here:Found"}})
    for mode, answer in ((0o777, "error"), (0o1777, "error"), (0o770, "error"), (0o755, "surveyed")):
        there.chmod(mode)
        said = server.survey(base=str(there))
        assert said["say"] == answer, (oct(mode), said)
        assert answer == "surveyed" or server.refused(said, "folder that others may write to")


MPI_NAMED: dict[str, dict[str, Any]] = {
    "algorithm.module": {"algorithm": {"name": None, **HERE}},
    "loss": {"loss": PATH},
    "model.module": {"model": {"name": None, **HERE}},
    "data.dataset.module": {
        "data": {"dataset": {**dict.fromkeys(("name", "num_features", "num_classes", "records_per_silo")), **HERE}}
    },
    "data.partition.module": {"data": {"partition": {"name": None, **HERE}}},
    "data.preprocess[0].module": {"data": {"preprocess": [HERE]}},
    "data.preprocess[0].factory": {"data": {"preprocess": [{"name": "backbone", "factory": PATH}]}},
    "privacy.clip.module": {"privacy": {**FRESH, "clip": HERE}},
    "privacy.mechanism.module": {"privacy": {**FRESH, "mechanism": HERE}},
    "privacy.schedule.module": {"privacy": {**FRESH, "schedule": HERE}},
    "trackers[0].module": {"trackers": [HERE]},
}


@pytest.mark.parametrize("key", MPI_NAMED)
def test_no_code_that_rank_0_names_is_called_unless_the_owners_file_names_it(start: Start, key: str) -> None:
    server = start(send="record_counts, fitted")
    server.take({"privacy": FRESH, **MPI_NAMED[key]})
    with recorded() as calls:
        assert server.refused(server.survey(), f"{key} (tempfile:mkdtemp)") and not calls


@pytest.mark.parametrize("key", ["data.dataset.module", "data.preprocess[0].factory"])
def test_code_that_the_owners_file_names_is_called(start: Start, key: str) -> None:
    """These are when records are read; what is wrong with them then is between the owner and the code."""
    server = start(f"code: ['{PATH}']\n", "record_counts, fitted")
    server.take({"privacy": FRESH, **MPI_NAMED[key]})
    with recorded() as calls:
        assert server.survey()["text"] == "it failed, and its own log says why" and calls


def test_marks_of_records_are_by_a_key_that_nobody_else_has_a_part_in(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Marks by a key that somebody knows would confirm a guess of all records: the silos' key is another owner's."""
    server = start()
    known = MarkKey(server.folder / "key", b"k" * 32, kept=True)
    monkeypatch.setattr(SiloRank, "_agree_on_key", lambda self, path: known)
    marks = [(mark, cut[0]) for *_, mark, cut in server.survey()["silos"]]
    silos = server.rank._mine.values()
    guessed = [(known.mark(digest(silo)), known.mark(silo.cut.mark)) for silo in silos if silo.cut is not None]
    assert len(marks) == len(guessed) == 4 and not {*sum(marks, ())} & {*sum(guessed, ())}
    assert marks == [(mark, cut[0]) for *_, mark, cut in server.survey()["silos"]], "records are known again"


def test_rank_0_is_no_silo_rank(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Silo ranks tell each other the key, and what they find in records."""
    server, told = start(), list[Any]()
    monkeypatch.setattr(SiloRank, "_agree", lambda self, value: told.append(value) or [value])
    said = server.survey(dealt=[0, 1])
    assert said["say"] == "error" and said["kind"] == "MessageError" and "rank 0" in said["text"] and not told


def test_measurements_go_to_no_file_that_rank_0_made(start: Start) -> None:
    server = start()
    assert server.begin()["say"] == "ready"
    notes = server.rank._notes
    assert notes is not None and notes.own and notes.path.parent == server.folder / "silos"


def test_who_lets_metrics_be_sent_lets_no_gradient_be_sent(start: Start) -> None:
    """A silo's gradient, without noise, at any model that rank 0 names."""
    server = start(send="record_counts, metrics", evaluation={"reveal": "server"})
    assert server.begin()["say"] == "ready"
    model = server.plan(0)[0]["model"]
    for dissimilarity, say in ((False, "evaluated"), (True, "error")):
        what = {"model": wire.layout({"model": model}), "after": 0, "at": 1, "dissimilarity": dissimilarity}
        server.tell("evaluate", apart=True, **what)
        server.link.push(1, model)
        said = server.hear("evaluated")
        assert said["say"] == say, said
    assert server.refused(said, "gradient")
    server.take({"rounds": 2, "privacy": FRESH, "evaluation": {"reveal": "server", "dissimilarity": True}})
    assert server.survey()["kind"] == "LimitError"
