"""Runs in NVFlare's own environment (see test_nvflare.py): the adapter, with NVFlare's communication made a loop."""

import importlib
import json
import logging
import sys
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml

sys.path.insert(0, str(Path(__file__).parent / "app"))

import project
from nvflare.apis.client import Client
from nvflare.apis.controller_spec import ClientTask, TaskCompletionStatus
from nvflare.apis.event_type import EventType
from nvflare.apis.filter import Filter
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContextManager
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.apis.utils import task_utils
from nvflare.apis.workspace import Workspace
from nvflare.app_common.filters.dxo_blocker import DXOBlocker
from nvflare.app_common.filters.exclude_vars import ExcludeVars
from nvflare.app_common.filters.percentile_privacy import PercentilePrivacy
from nvflare.app_common.filters.svt_privacy import SVTPrivacy
from nvflare.fuel.utils import fobs
from nvflare.private.privacy_manager import Scope
from repeatable import Repeatable

from dpfl_plugin.adapters import Server, agree, nvflare, nvflare_seam
from dpfl_plugin.adapters.nvflare import PAYLOAD, TASK, PrivateController, PrivateExecutor, PrivateRecipe
from dpfl_plugin.adapters.owner import say_once
from dpfl_plugin.errors import ConfigError, UnsupportedError
from dpfl_plugin.privacy.ledger import Ledger
from tests.adapters.federation import PUBLIC, SimulatedSilo
from tests.adapters.named_code import NAMED, recorded
from tests.adapters.named_code import settings as named

SCAFFOLD = {"name": "scaffold", "local_steps": 3, "local_lr": 0.5}
NOISY = {"noise_multiplier": 1.5, "delta": 1e-5, "record_rate": 0.25}
SETTINGS = {"rounds": 4, "algorithm": SCAFFOLD, "privacy": NOISY}
SITES = ["site-1", "site-2", "site-3"]


class Site:
    """A machine with a startup kit of its own, whose owner has set limits; or a simulated one, with seeded noise."""

    def __init__(self, folder, name, hidden=0, executor=PrivateExecutor, simulated=False, **limits):
        self.name, self.folder = name, folder / name
        self.workspace = self.folder / "kit"
        self.local = self.workspace / "local"
        for part in (self.local, self.workspace / "startup"):
            part.mkdir(parents=True, exist_ok=True)
        file = self.folder / "limits.yaml"
        values = {"folder": str(self.folder / "owner"), "epsilon": 100, "delta": 1e-3, **PUBLIC, **limits}
        file.write_text(yaml.safe_dump(values))
        file.chmod(0o600)
        self.says(**({} if simulated else {"limits": str(file)}), records="project:records")
        (self.local / "resources.json").write_text('{"allow_log_streaming": false}')
        self.job_filters, self.scope, self.components = {}, None, {}
        self.hidden, self.kind = hidden, Repeatable if simulated else executor
        self.of_job = self.folder / "owner" if simulated else "/nowhere"

    def says(self, **values):
        (self.local / "dpfl.json").write_text(json.dumps(values))

    def start(self, settings):
        """The process of a job."""
        self.executor = self.kind(settings, SITES, project.Net(self.hidden), "project:never", str(self.of_job))

    def context(self):
        private = {
            FLContextKey.RUNNER: SimpleNamespace(**self.job_filters),
            FLContextKey.SCOPE_OBJECT: self.scope,
            FLContextKey.WORKSPACE_ROOT: str(self.workspace),
        }
        return context(self.name, private, self)

    def get_workspace(self):
        return Workspace(str(self.workspace), self.name)

    def get_all_components(self):
        return self.components

    def execute(self, data, task=TASK):
        return self.executor.execute(task, data, self.context(), Signal())

    def log(self):
        """What is for its owner alone."""
        file = self.folder / "owner" / f"{self.name}.log"
        return file.read_text() if file.exists() else ""

    def charges(self):
        (own,) = (self.folder / "owner").glob("silo-*")
        return list(Ledger.open(own / "ledger.jsonl", append=False))


def context(name, private, engine=None):
    stickers = {key: value for key, value in private.items() if value is not None}
    return FLContextManager(engine, name, "job", {}, stickers).new_context()


class Loop(PrivateController):
    """Carries messages by function calls, through NVFlare's own serialisation."""

    def __init__(self, sites, folder, settings=SETTINGS, hidden=0, change=None, before=None):
        super().__init__(settings, SITES, project.Net(hidden), str(folder / "server-of-job"), 60)
        self.sites, self.change, self.before = {site.name: site for site in sites}, change, before
        self.events, self.app_root, self.filters, self.abort = [], folder / "app_server", {}, Signal()
        self.local = folder / "kit-of-server" / "local"
        self.local.mkdir(parents=True, exist_ok=True)
        (self.local.parent / "startup").mkdir(exist_ok=True)
        self.app_root.mkdir(exist_ok=True)
        for site in sites:
            site.start(settings)

    def broadcast(self, task, fl_ctx, targets=None, min_responses=1, wait=0):
        if self.before is not None:
            self.before(self)
        for site in reversed(targets):
            result = self.sites[site].execute(fobs.loads(fobs.dumps(task.data)))
            result = fobs.loads(fobs.dumps(result))
            if self.change is not None:
                result = self.change(site, result)
            client_task = ClientTask(Client(site, "token"), task)
            client_task.result = result
            task.result_received_cb(client_task=client_task, fl_ctx=fl_ctx)
        task.completion_status = TaskCompletionStatus.OK

    def get_workspace(self):
        return Workspace(str(self.local.parent), "server")

    def get_clients(self):
        return [Client(name, "token") for name in self.sites]

    def get_client_disconnect_time(self, client_name):
        return None

    @property
    def panics(self):
        """Why NVFlare is told to end the job."""
        return [data for kind, data in self.events if kind == EventType.FATAL_SYSTEM_ERROR]

    def fire_event(self, event_type, fl_ctx):
        self.events.append((event_type, fl_ctx.get_prop(FLContextKey.EVENT_DATA)))

    def run(self):
        private = {
            FLContextKey.APP_ROOT: str(self.app_root),
            FLContextKey.RUNNER: SimpleNamespace(config=SimpleNamespace(**self.filters)),
        }
        fl_ctx = context("server", private, self)
        try:
            self.control_flow(self.abort, fl_ctx)
        finally:
            self.stop_controller(fl_ctx)
        return self


def nameless(charges):
    """Fresh noise has another name each time; and within limits a rate is charged that is no function of n."""
    rate = NOISY["record_rate"]
    return [replace(charge, noise_id="", release=replace(charge.release, rate=rate)) for charge in charges]


def sites(folder, **options):
    return [Site(folder, name, **options) for name in SITES]


def plain_loop(folder, settings, hidden=0):
    model = project.Net(hidden)
    agreement = agree(settings, num_silos=3, model=model)
    server, said = Server(agreement, model), []
    silos = [
        SimulatedSilo(agreement, i, model, project.records(SITES[i]), folder / f"plain-{i}", draw=project.draw)
        for i in range(3)
    ]
    while (message := server.begin()) is not None:
        for silo in server.asked:
            server.receive(silo, silos[silo].answer(message))
        server.end()
    for silo in silos:
        said.append(list(Ledger.open(folder / f"plain-{silo.id}" / "ledger.jsonl", append=False)))
        silo.close()
    return server.model, said


@pytest.mark.parametrize(
    ("changes", "hidden"),
    [
        ({}, 5),
        ({"silo_rate": 0.5, "rounds": 6}, 0),
        ({"algorithm": {**SCAFFOLD, "name": "fedavg", "server_optimizer": "adam", "server_lr": 0.1}}, 0),
        ({"algorithm": {"name": "scaffnew", "local_lr": 0.2, "p": 0.4}}, 0),
        ({"algorithm": {**SCAFFOLD, "name": "fedprox", "mu": 0.1}}, 0),
        ({"algorithm": {**SCAFFOLD, "name": "scaffold_warm"}, "rounds": 6}, 0),
    ],
    ids=["scaffold", "partial", "fedavg", "scaffnew", "fedprox", "scaffold_warm"],
)
def test_nvflares_messages_carry_the_same_bits_and_charges_as_a_plain_loop(tmp_path, monkeypatch, changes, hidden):
    monkeypatch.setattr(nvflare, "surroundings", lambda: "simulation")
    settings, made = {**SETTINGS, **changes}, sites(tmp_path, hidden=hidden, simulated=True)
    found = Loop(made, tmp_path, settings, hidden).run()
    model, charges = plain_loop(tmp_path, settings, hidden)
    assert torch.equal(found.server.model, model)
    assert [site.charges() for site in made] == charges
    kept = torch.load(tmp_path / "app_server" / "FL_global_model.pt")["model"]
    assert torch.equal(torch.cat([value.flatten() for value in kept.values()]), model)
    assert json.loads((tmp_path / "app_server" / "dpfl_summary.json").read_text()) == found.server.summary()


def test_epsilon_is_told_as_a_metric_of_nvflares(tmp_path):
    found = Loop(sites(tmp_path), tmp_path).run()
    shown = [data["DXO"]["data"] for kind, data in found.events if kind == "analytix_log_stats"]
    tags = {one["track_key"] for one in shown}
    assert tags == {"dpfl/epsilon", *(f"dpfl/epsilon/{site}" for site in SITES)}
    worst = [(one["global_step"], one["track_value"]) for one in shown if one["track_key"] == "dpfl/epsilon"]
    assert [step for step, _ in worst] == [1, 2, 3, 4]
    assert worst[-1][1] == max(about["epsilon"] for about in found.server.summary()["silos"].values())


def heard(caplog):
    return "\n".join(record.getMessage() for record in caplog.records)


def test_an_owners_limits_are_refused_at_both_ends_and_the_others_go_on(tmp_path, caplog):
    """Whatever the job says of records and folders, which here would fail."""
    settings = {**SETTINGS, "privacy": {"epsilon": 6.0, "delta": 1e-5, "record_rate": 0.25}}
    strict = Site(tmp_path, "site-2", epsilon=3)
    made = [Site(tmp_path, "site-1"), strict, Site(tmp_path, "site-3")]
    with caplog.at_level(logging.INFO):
        found = Loop(made, tmp_path, settings).run()
    assert (found.server.status, found.server.rounds) == ("done", 4)
    why = "the agreement's epsilon 6 is above the owner's limit of 3"
    public = "not within this owner's limits"
    assert f"site-2 (silo 1) takes no part: {public}; what else there is" in heard(caplog)
    assert f"site-2 (silo 1) takes no part: {strict.folder / 'limits.yaml'}: {why}" in strict.log()
    assert f"round 1: silo 1 takes no part: {public}" in heard(caplog)
    assert not (strict.folder / "owner").exists() or not list((strict.folder / "owner").glob("silo-*"))
    for site in (made[0], made[2]):
        (lifetime,) = (site.folder / "owner").glob("*.lifetime.jsonl")
        assert set(Ledger.open(lifetime, append=False)) == set(site.charges())


@pytest.mark.parametrize("key", NAMED)
def test_no_code_that_a_job_names_is_called_unless_the_sites_owner_lists_it(tmp_path, caplog, key):
    """In a job without custom code, at sites whose allow-list has this package's classes alone."""
    found = Loop(made := sites(tmp_path), tmp_path)
    for site in made:
        site.start(named(key))
    with recorded() as calls:
        found.run()
        assert found.server.status == "refused" and found.server.reason.endswith("not within this owner's limits")
        assert not calls and all(f"{key} (tempfile:mkdtemp)" in site.log() for site in made)
        if key not in ("loss", "privacy.accountant.module", "algorithm.of.module"):
            for site in made:
                limits = site.folder / "limits.yaml"
                limits.write_text(limits.read_text() + "code: ['tempfile:mkdtemp']\n")
            again = tmp_path / "again"
            again.mkdir()
            found = Loop(made, again)
            for site in made:
                site.start(named(key))
            assert "return code is EXECUTION_EXCEPTION" in str(found.run().panics) or calls
            assert calls and "it was called" in made[0].log()


def test_nor_at_a_server_that_does_not_list_it(tmp_path, caplog):
    """Its submitter is somebody else."""
    settings = named("algorithm.module")
    with recorded() as calls:
        found = Loop(sites(tmp_path), tmp_path, settings)
        assert found.run().panics == ["dpfl: not within this owner's limits"] and not calls
        assert "algorithm.module (tempfile:mkdtemp)" in heard(caplog)
        (found.local / "dpfl.json").write_text(json.dumps({"code": ["tempfile:mkdtemp"]}))
        assert "it was called" in found.run().panics[-1] and calls
        (found.local / "dpfl.json").write_text(json.dumps({"limits": "/srv/limits.yaml"}))
        assert "limits is not a known key. Known: code." in found.run().panics[-1]


@pytest.mark.parametrize(("kind", "calls"), [(lambda pair: pair, 1), (lambda pair: iter([pair]), 4)])
def test_a_sites_function_is_asked_once_if_its_records_can_be_read_again(tmp_path, monkeypatch, kind, calls):
    asked, plain = [], project.records
    monkeypatch.setattr(project, "records", lambda site: asked.append(site) or kind(plain(site)))
    found = Loop(made := sites(tmp_path), tmp_path).run()
    assert found.server.rounds == 4 and sorted(asked) == sorted(SITES * calls)
    monkeypatch.undo()
    assert [nameless(site.charges()) for site in made] == [*map(nameless, plain_loop(tmp_path, SETTINGS)[1])]


FILTERS = {
    "PercentilePrivacy": PercentilePrivacy,
    "SVTPrivacy": SVTPrivacy,
    "ExcludeVars": lambda: ExcludeVars(["x"]),
    "DXOBlocker": lambda: DXOBlocker(["WEIGHTS"]),
}


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("where", ["job", "site", "server"])
def test_nvflares_own_filters_are_refused_by_name(tmp_path, caplog, name, where):
    made = sites(tmp_path)
    loop, one = Loop(made, tmp_path), FILTERS[name]()
    if where == "server":
        loop.filters = {"task_result_filters": {f"{TASK}/in": [one]}}
        (why,) = loop.run().panics
        assert f"dpfl: task_result_filters of the job has NVFlare's {name} for task" in why
    else:
        for site in made:
            if where == "job":
                site.job_filters = {"task_result_filters": {f"{TASK}/out": [one]}}
            else:
                site.scope = Scope()
                site.scope.add_task_data_filter(one, "in")
        loop.run()
        assert loop.server.status == "refused" and name in loop.server.reason
        which = "task_data_filters of the site's privacy.json (choose another scope)" if where == "site" else "the job"
        assert f"{which} has NVFlare's {name}" in heard(caplog)
    assert not list(tmp_path.glob("site-*/owner/silo-*"))


def test_a_filter_of_somebodys_own_is_named_and_passes(tmp_path, caplog):
    class Counts(Filter):
        def process(self, shareable, fl_ctx):
            return shareable

    say_once.cache_clear()
    made = sites(tmp_path)
    for site in made:
        site.job_filters = {"task_result_filters": {f"{TASK}/out": [Counts()]}}
    with caplog.at_level(logging.INFO):
        assert Loop(made, tmp_path).run().server.rounds == 4
    assert "task_result_filters of the job has Counts for task" in heard(caplog)


def test_a_job_that_ended_goes_on_when_it_is_submitted_again_and_nothing_is_charged_twice(tmp_path, caplog):
    """Aborted by its user after a round, then lost while answers were on their way, then over."""
    made = sites(tmp_path)

    def abort(loop):
        if loop.server.rounds == 1:
            loop.abort.trigger(True)

    caplog.set_level(logging.INFO)
    assert Loop(made, tmp_path, before=abort).run().server.rounds == 1
    for site in made:
        site.executor.handle_event(EventType.ABORT_TASK, site.context())
    again = "What was charged stays charged; submitted again with the same settings it goes on"
    assert f"the job was aborted after 1 rounds. {again}" in heard(caplog)
    assert all(f"{site}: the job was aborted. {again}" in heard(caplog) for site in SITES)

    class Killed(BaseException):
        pass

    def kill(site, result):
        raise Killed if site == "site-2" else ValueError

    lost = Loop(made, tmp_path, change=lambda site, result: kill(site, result) if site == "site-2" else result)
    with pytest.raises(Killed):
        lost.run()
    found = Loop(made, tmp_path).run()
    charges = [nameless(charged) for charged in plain_loop(tmp_path, SETTINGS)[1]]
    assert [nameless(site.charges()) for site in made] == charges
    begun = f"dpfl: scaffold, 4 rounds, 3 silos, noise 1.5 at delta 1e-05 for each, unit record, folder {tmp_path}/"
    assert f"{begun}server-of-job\n" in heard(caplog)
    assert "server-of-job, 1 of them done" in heard(caplog)
    assert "the model is in the job's result, app_server/FL_global_model.pt" in heard(caplog)
    again = Loop(made, tmp_path)
    again.run()
    assert "was over before: done after 4 rounds" in heard(caplog)
    assert [nameless(site.charges()) for site in made] == charges
    assert torch.equal(again.server.model, found.server.model)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (lambda result: make_reply(ReturnCode.EXECUTION_EXCEPTION), "return code is EXECUTION_EXCEPTION"),
        (lambda result: Shareable(), "it holds no bytes under"),
        (lambda result: Shareable({PAYLOAD: "text"}), "it holds no bytes under"),
        (lambda result: Shareable({PAYLOAD: result[PAYLOAD][:-1]}), "it cannot be read"),
        (lambda result: Shareable({PAYLOAD: bytes(10**6)}), "bytes, where"),
        (lambda result: None, "return code is None"),
    ],
)
def test_what_a_site_sends_is_checked_and_the_others_go_on(tmp_path, answer, why):
    bad = Loop(sites(tmp_path), tmp_path, change=lambda site, result: answer(result) if site == "site-2" else result)
    summary = bad.run().server.summary()
    assert summary["rounds"] == 4 and why in str(summary["refused"])
    assert {silo: about["rounds"] for silo, about in summary["silos"].items() if about["rounds"]} == {"0": 4, "2": 4}


def test_who_a_site_is_comes_from_its_certificate(tmp_path):
    """A site that is none of the silos answers nothing; one that sends another's answer is refused."""
    stranger = Site(tmp_path, "site-9")
    stranger.start(SETTINGS)
    reply = stranger.execute(Shareable({PAYLOAD: b""}))
    assert reply.get_return_code() == ReturnCode.EXECUTION_EXCEPTION
    assert "site-9 is none of the job's silos (site-1, site-2, site-3)" in stranger.log()
    assert stranger.execute(Shareable(), "train").get_return_code() == ReturnCode.TASK_UNKNOWN
    kept = {}

    def swap(site, result):
        kept[site] = result
        return kept["site-3"] if site == "site-2" else result  # site-3 is asked first here

    found = Loop(sites(tmp_path), tmp_path, change=swap).run()
    assert "it says that it is of silo 2" in str(found.server.summary()["refused"]) and found.server.rounds == 4


def test_too_few_sites_in_the_job_end_it_before_any_is_asked(tmp_path, caplog):
    made = sites(tmp_path)
    two = Loop(made[:2], tmp_path).run()
    assert two.server.rounds == 4
    one = Loop(made[1:2], tmp_path / "site-1", {**SETTINGS, "rounds": 3}).run()
    (why,) = one.panics
    assert "site-1, site-3 are not in this job; 1 of 3 are, and 2 are needed" in why
    assert why not in heard(caplog)  # NVFlare says it, and a line of ours would be the second


MODEL = {"class_path": "project.Net", "args": {"hidden": 5}}
OWN_MODELS = {**SCAFFOLD, "name": "mr_mtl", "mean_weight": 1.0}


def test_a_job_holds_none_of_this_packages_code(tmp_path):
    recipe = PrivateRecipe(model=MODEL, settings=SETTINGS, silos=["a", "b"], folder="/srv/dpfl", timeout=9)
    recipe.export(str(tmp_path))
    assert not list(tmp_path.rglob("*.py"))
    (client,) = tmp_path.rglob("config_fed_client.json")
    (server,) = tmp_path.rglob("config_fed_server.json")
    args = json.loads(client.read_text())["executors"][0]["executor"]["args"]
    assert args == {
        "settings": SETTINGS,
        "silos": ["a", "b"],
        "model": {"path": "project.Net", "args": {"hidden": 5}},
        "folder": "/srv/dpfl",
    }
    (workflow,) = json.loads(server.read_text())["workflows"]
    assert workflow["path"] == "dpfl_plugin.adapters.nvflare.PrivateController" and workflow["args"]["timeout"] == 9


@pytest.mark.parametrize(
    ("given", "kind", "why"),
    [
        ({"model": project.Net()}, ConfigError, "model=Net must be"),
        ({"model": {"class_path": "project.Net", "args": {"hidden": {1}}}}, ConfigError, "must be plain JSON"),
        ({"model": {"class_path": "project.records"}}, Exception, "records"),
        ({"silos": ["a", "a"]}, ConfigError, "silos=.*distinct"),
        ({"timeout": 0}, ConfigError, "timeout=0"),
        ({"folder": "here"}, ConfigError, "folder='here' must be an absolute path"),
        (
            {
                "settings": {
                    **SETTINGS,
                    "algorithm": {"name": "mr_mtl", "local_steps": 3, "local_lr": 0.5, "mean_weight": 1.0},
                }
            },
            UnsupportedError,
            "mr_mtl",
        ),
        (
            {"settings": {**SETTINGS, "privacy": {**NOISY, "unit": "person", "max_records_per_person": 2}}},
            ConfigError,
            "does not go with privacy.unit=person",
        ),
        ({"settings": {**SETTINGS, "round": 3}}, ConfigError, "settings.*round"),
    ],
)
def test_a_recipe_refuses_what_cannot_be_before_it_is_submitted(given, kind, why):
    with pytest.raises(kind, match=why):
        PrivateRecipe(**{"model": MODEL, "settings": SETTINGS, "silos": 3, **given})


def test_seeded_noise_is_refused_where_an_owner_has_set_limits(tmp_path):
    made = sites(tmp_path, executor=Repeatable)
    assert Loop(made, tmp_path).run().server.status == "refused"
    assert all("privacy.randomness: seeded" in site.log() for site in made)


def test_a_newer_nvflare_is_tried_and_what_is_missing_is_said_by_name(monkeypatch, caplog):
    importlib.reload(nvflare_seam)
    assert "newer" not in caplog.text
    monkeypatch.setattr(metadata, "version", lambda package: "3.0.1")
    importlib.reload(nvflare_seam)
    assert "nvflare 3.0.1 is newer than 2.9" in caplog.text and "works as it did" in caplog.text
    broken = (
        (task_utils, "get_filters", lambda *given: [], "the filters of a job and of a site are not found"),
        (
            PrivateController.__mro__[1],
            "broadcast",
            lambda self, task: None,
            r"Controller\.broadcast is called otherwise",
        ),
        (Shareable, "get_return_code", lambda self: "?", "a Shareable does not keep bytes"),
    )
    for owner, name, other, why in broken:
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, other)
            with pytest.raises(UnsupportedError, match=f"does not do what the adapter relies on .*{why}"):
                importlib.reload(nvflare_seam)
    monkeypatch.delattr(task_utils, "get_filters")
    with pytest.raises(UnsupportedError, match=r"nvflare\.apis\.utils\.task_utils\.get_filters is missing"):
        importlib.reload(nvflare_seam)
    monkeypatch.setattr(metadata, "version", lambda package: "2.8.3")
    with pytest.raises(UnsupportedError, match=r"older than 2\.9.*Install 2\.9\."):
        importlib.reload(nvflare_seam)
