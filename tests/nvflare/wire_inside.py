"""Runs in NVFlare's own environment (see test_nvflare.py): the contract of adapters, over NVFlare's own communicator.

Server and sites are as in a job, with NVFlare's tasks, its serialisation and its bookkeeping of who was asked what.
Only its sockets are left out: what a site sends is handed over here.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from types import SimpleNamespace
from typing import ClassVar

import pytest
from nvflare.apis.client import Client
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContextManager
from nvflare.apis.impl.wf_comm_server import WFCommServer
from nvflare.apis.job_def import JobMetaKey
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.apis.workspace import Workspace
from nvflare.fuel.utils import fobs

from dpfl_plugin.adapters import nvflare
from dpfl_plugin.adapters.nvflare import PAYLOAD, PrivateController, PrivateExecutor
from dpfl_plugin.testing.wire import NUM_SILOS, Parties, WireContract, faithful
from dpfl_plugin.testing.wire_faults import Declared, Elsewhere
from tests.adapters.wires import check_page

SITES = [f"site-{silo + 1}" for silo in range(NUM_SILOS)]
TIMEOUT = 600  # seconds of NVFlare's, which pass when a test says so
PATIENCE = 60.0


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Nothing waits for the disk here, nor for a turn, and whoever starts these processes simulates."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    monkeypatch.setattr(nvflare, "LOOK_SECONDS", 0.001)
    monkeypatch.setattr(nvflare, "surroundings", lambda: "simulation")


def records(site):
    return Parties.records(None, SITES.index(site))


class Repeatable(PrivateExecutor):
    def _draw(self):
        return self.drawn


class Engine:
    """What NVFlare's engine does for a communicator and a controller."""

    def __init__(self, place, clients=()):
        self.place, self.clients, self.errors = place, list(clients), []

    def new_context(self, name="server", **private):
        stickers = {FLContextKey.APP_ROOT: str(self.place), FLContextKey.JOB_META: {JobMetaKey.MIN_CLIENTS.value: 1}}
        return FLContextManager(self, name, "job", {}, stickers | private).new_context()

    def get_clients(self):
        return self.clients

    def validate_targets(self, targets):
        return [one for one in self.clients if one.name in [getattr(t, "name", t) for t in targets]], []

    def get_workspace(self):
        return Workspace(str(self.place), "job")

    def fire_event(self, kind, fl_ctx):
        if kind == EventType.FATAL_SYSTEM_ERROR:
            self.errors.append(fl_ctx.get_prop(FLContextKey.EVENT_DATA))


class Job:
    """One job: the controller in a thread, as NVFlare's server has it, and sites that ask it for tasks."""

    def __init__(self, parties):
        settings, folder = dict(WireContract.settings), str(parties.folder)
        self.abort, self.clients = Signal(), {site: Client(site, "token") for site in SITES}
        for part in ("local", "startup"):  # of the server's kit
            (parties.folder / part).mkdir(exist_ok=True)
        self.engine = Engine(parties.folder, self.clients.values())
        self.controller = PrivateController(settings, SITES, parties.model(), folder, TIMEOUT)
        self.communicator = WFCommServer(task_check_period=0.001)
        self.controller.set_communicator(self.communicator)
        self.sites, self.made_for = {}, {}
        for silo, site in enumerate(SITES):
            place = self._kit(parties, silo)
            module = f"{__name__}:records"
            executor = Repeatable(settings, SITES, parties.model(), module, folder)
            executor.drawn = parties.silo_options(silo).get("draw")
            self.sites[site] = executor, Engine(place)
        with self.engine.new_context(**{FLContextKey.RUNNER: SimpleNamespace(config=None)}) as fl_ctx:
            self.communicator.initialize_run(fl_ctx)
            self.thread = threading.Thread(target=self._flow, args=(fl_ctx,))
        self.thread.start()

    def _flow(self, fl_ctx):
        """As NVFlare's runner has it: an error of a controller ends the job."""
        try:
            self.controller.control_flow(self.abort, fl_ctx)
        except Exception as error:
            self.engine.errors.append(error)

    def _kit(self, parties, silo):
        place = parties.folder / f"kit-{silo}"
        for part in ("local", "startup"):
            (place / part).mkdir(parents=True, exist_ok=True)
        if silo in parties.limits:
            limits = str(parties.limits_file(silo))
            (place / "local" / "dpfl.json").write_text(json.dumps({"limits": limits}))
        return place

    @property
    def server(self):
        return self.controller.server

    def _until(self, condition):
        end = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < end, "NVFlare's controller hangs"
            time.sleep(0.001)

    def round(self, carry):
        tasks = self.communicator._tasks
        self._until(lambda: not self.thread.is_alive() or any(task.completion_status is None for task in tasks))
        if not self.thread.is_alive():
            assert not self.engine.errors, self.engine.errors
            return False
        (task,) = [one for one in tasks if one.completion_status is None]
        for site in SITES:
            self._turn(site, carry)
        task.schedule_time -= TIMEOUT  # whoever has not answered by now does not
        self._until(lambda: task.completion_status is not None and (not self.thread.is_alive() or task not in tasks))
        # The controller's step, up to its next question.
        self._until(lambda: not self.thread.is_alive() or tasks)
        return True

    def _turn(self, site, carry):
        """A site asks, trains, and its answer arrives as ``carry`` has it."""
        client, (executor, engine) = self.clients[site], self.sites[site]
        with self.engine.new_context() as fl_ctx:
            self.communicator.client_is_active(site, "getTask", fl_ctx)
            name, task_id, data = self.communicator.process_task_request(client, fl_ctx)
        if not name:
            return
        runner = {FLContextKey.RUNNER: SimpleNamespace()}
        with engine.new_context(site, **runner) as fl_ctx:
            result = executor.execute(name, over_the_wire(data), fl_ctx, Signal())
        arriving = carry(SITES.index(site), over_the_wire(result)[PAYLOAD])
        for number, payload in enumerate(arriving):
            # What comes before another is a result of the task that it was made for, however late it is.
            of = task_id if number == len(arriving) - 1 else self.made_for.get(payload, task_id)
            self.made_for.setdefault(payload, task_id)
            delivered = over_the_wire(Shareable({**result, PAYLOAD: payload}))
            with self.engine.new_context() as fl_ctx:
                self.communicator.process_submission(client, name, of, delivered, fl_ctx)

    def end(self):
        self.abort.trigger(True)
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()
        with self.engine.new_context() as fl_ctx:
            self.controller.stop_controller(fl_ctx)
            self.communicator.finalize_run(fl_ctx)


def over_the_wire(shareable):
    return fobs.loads(fobs.dumps(shareable))


class TestNVFlare(WireContract):
    checks_bytes = False  # NVFlare's connections do (TLS); here there are none
    declared: ClassVar[dict[str, Declared]] = {
        "test_a_silo_that_is_away_for_a_day_comes_back": Elsewhere(
            "for a site that goes away in a round, is given up, and is asked again when it is back",
            ("tests/nvflare/wire_inside.py::test_a_site_that_went_away_is_given_up_and_asked_again_when_it_is_back",),
        ),
    }
    lacks = (
        "homomorphic encryption and NVFlare's other filters on our task",
        "a training script of the Client API",
        "a folder with spaces in its path",
    )

    @contextlib.contextmanager
    def federation(self, parties):
        made = Job(parties)
        try:
            yield made
        finally:
            made.end()


def test_the_table_of_wires_states_what_runs_here():
    check_page("NVFlare", TestNVFlare)


def test_a_site_that_went_away_is_given_up_and_asked_again_when_it_is_back(tmp_path, monkeypatch, caplog):
    """NVFlare hears nothing of what happened to its machine; another site is slow, and says that it lives."""
    monkeypatch.setattr(nvflare, "SAID_SECONDS", 0.01)
    monkeypatch.setattr(nvflare, "surroundings", lambda: "deployment")
    parties = TestNVFlare()._parties(tmp_path)
    with TestNVFlare().federation(parties) as job:
        communicator, tasks = job.communicator, job.communicator._tasks
        communicator._dead_client_grace = TIMEOUT
        job._until(lambda: len(communicator._dead_clients) == NUM_SILOS)  # nobody has said anything
        monkeypatch.setattr(nvflare, "surroundings", lambda: "simulation")  # of the sites, which have no limits here
        (first,) = tasks
        for site in ("site-1", "site-2"):
            with job.engine.new_context() as fl_ctx:
                communicator.client_is_active(site, "jobHeartbeat", fl_ctx)
        job._turn("site-1", faithful)
        communicator._dead_clients["site-3"].report_time -= TIMEOUT
        first.schedule_time -= 60  # from when on NVFlare ends tasks of lost sites
        job._until(lambda: communicator.get_client_disconnect_time("site-3"))
        assert first.completion_status is None
        job._turn("site-2", faithful)
        job._until(lambda: first.completion_status is not None and first not in tasks)
        while job.round(
            faithful
        ):  # in the second it is heard of again: it asks for work, of which there is none for it
            pass
        assert (job.server.status, job.server.rounds) == ("done", 3)
    assert caplog.text.count("dpfl: site-3 are not in this job: rounds go on without them") == 1
    assert {charge.round for charge in parties.charges(2)} == {2}
