"""NVFlare: a controller, an executor and a recipe that carry messages; see docs/nvflare.md.

A project's `job.py` makes a `PrivateRecipe` in the place of its own. The server's process of the job has a
`PrivateController`, each site's a `PrivateExecutor`. What a site's owner says is in `local/dpfl.json` of the site's
startup kit, which no job can change.
"""

from __future__ import annotations

import dpfl_plugin.adapters.nvflare_seam  # noqa: F401 - says by name what is missing, before it is imported below

# isort: split
import contextlib
import json
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from nvflare.apis.analytix import AnalyticsDataType
from nvflare.apis.controller_spec import ClientTask, Task, TaskCompletionStatus
from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.utils.analytix_utils import create_analytic_dxo, send_analytic_dxo
from nvflare.app_common.app_constant import DefaultCheckpointFileName
from nvflare.app_common.default_component_policy import DEFAULT_CLASS_ALLOW_LIST
from nvflare.job_config.api import FedJob
from nvflare.recipe.sim_env import SimEnv
from nvflare.recipe.spec import Recipe
from torch import nn

from dpfl_plugin import registry
from dpfl_plugin.adapters.agreement import Agreement, Permit, agree
from dpfl_plugin.adapters.kept import kept_here
from dpfl_plugin.adapters.message import Message
from dpfl_plugin.adapters.nvflare_checks import (
    check_log_stays,
    check_server_filters,
    check_site_filters,
    folder_of,
    limits_of,
    of_site,
    permit_of_server,
    surroundings,
)
from dpfl_plugin.adapters.platforms import begins, folder_from, is_over, over_before, round_counted, show_log
from dpfl_plugin.adapters.replies import failure, refusal
from dpfl_plugin.adapters.server import Server
from dpfl_plugin.adapters.silo import Silo
from dpfl_plugin.adapters.site_log import SiteLog
from dpfl_plugin.errors import (
    ConfigError,
    DpflError,
    LimitError,
    MessageError,
    TrainingError,
    require,
)
from dpfl_plugin.oracle import Draw
from dpfl_plugin.owners.limits import Limits
from dpfl_plugin.runs.folder import to_json

TASK: Final = "dpfl"  # the name of the one task
PAYLOAD: Final = "dpfl.message"  # in its Shareable, a message as bytes
SAID_SECONDS: Final = 30.0  # between two lines about what is waited for
LOOK_SECONDS: Final = 0.05  # between two looks at a task
POLL_SECONDS: Final = 0.3  # between two questions of a site for its next task
ALLOWED: Final = (f"{__name__}.PrivateController", f"{__name__}.PrivateExecutor")  # in a class_allow_list
AGAIN: Final = (
    "What was charged stays charged; submitted again with the same settings it goes on, and nothing is charged twice"
)
SUMMARY: Final = "dpfl_summary.json"  # beside the model of a job
LOG: Final = logging.getLogger("nvflare.app_opt.dpfl")  # of the names that the simulator shows, too


def _show_log() -> None:
    show_log(lambda: LOG)


def _written(message: Message) -> Shareable:
    return Shareable({PAYLOAD: message.to_bytes()})


def _read(found: Any, limit: int | None = None) -> Message:
    """The message in a Shareable.

    Raises:
        MessageError: there is none.
    """
    data = found.get(PAYLOAD) if isinstance(found, Shareable) else None
    if not isinstance(data, bytes):
        raise MessageError(f"it holds no bytes under {PAYLOAD!r}.")
    return Message.from_bytes(data, limit)


class PrivateExecutor(Executor):
    """A site's side: trains by the private oracle, and does nothing else.

    What is written here comes from the job, which is the submitter's word. Who the silo is comes from the certificate
    of the site; limits and records from `local/dpfl.json` there. Only in NVFlare's simulator the job's ``records`` and
    ``folder`` count.

    Args:
        settings: what both sides agree on; see `agree`.
        silos: the names of the sites; a silo's number is its place.
        model: the project's model, which NVFlare makes of ``{"path": CLASS, "args": {...}}``.
        records: of a simulation, as package.module:function, which gets the site's name.
        folder: of a simulation, where silos keep what lasts.
    """

    def __init__(
        self, settings: dict[str, Any], silos: list[str], model: Any, records: str = "", folder: str = ""
    ) -> None:
        super().__init__()
        self.settings, self.silos, self.model, self.records, self.folder = settings, silos, model, records, folder
        self._agreement: Agreement | None = None
        # Of a function and a site: asked once, its records are read in every round.
        self._given: dict[tuple[str, str], Any] = {}

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: Any, abort_signal: Any) -> Shareable:
        """The answer to what the server asks; what goes wrong is told to the owner, and the server hears that it did.

        NVFlare's log gets its kind and place: the server may get that log, and others may read it (see `SiteLog`).
        """
        _show_log()
        if task_name != TASK:
            LOG.error("dpfl: this site is asked for the task %r, and knows %r alone", task_name, TASK)
            return make_reply(ReturnCode.TASK_UNKNOWN)
        site = str(fl_ctx.get_identity_name())
        try:
            id, asked = self._id(site), _read(shareable)
        except Exception as error:
            _tell(fl_ctx, site, error)
            return make_reply(ReturnCode.EXECUTION_EXCEPTION)
        try:
            return _written(self._answered(id, asked, fl_ctx))
        except LimitError as error:
            _tell(fl_ctx, f"{site} (silo {id})", error)
            return _written(refusal(self._agreement, id, asked, error))
        except Exception as error:  # NVFlare would log its text where it likes, and it may tell of records
            _tell(fl_ctx, site, error)
            return _written(failure(self._agreement, id, asked))

    def handle_event(self, event_type: str, fl_ctx: Any) -> None:
        """NVFlare's own: told to all parts of a job, whatever happens to it."""
        if event_type == EventType.ABORT_TASK:
            LOG.warning("dpfl: %s: the job was aborted. %s", fl_ctx.get_identity_name(), AGAIN)

    def _id(self, site: str) -> int:
        if site not in self.silos:
            raise ConfigError(f"{site} is none of the job's silos ({', '.join(self.silos)}): it takes no part.")
        return self.silos.index(site)

    def _agree(self, limits: Limits | None) -> Agreement:
        permit = None if limits is None else limits.check_settings
        if self._agreement is None:
            self._agreement = _agreement(self.settings, self.silos, self.model, permit)
        elif permit is not None:
            permit(self._agreement.config, self._agreement.setting.num_records)
        return self._agreement

    def _answered(self, id: int, asked: Message, fl_ctx: Any) -> Message:
        where, local = surroundings(), _local(fl_ctx)
        own, site = of_site(local), str(fl_ctx.get_identity_name())
        limits = limits_of(own, local, id, where)
        agreement = self._agree(limits)
        check_site_filters(fl_ctx, TASK)
        if where == "deployment":  # a simulation is one machine's, whose log is where the records are
            check_log_stays(fl_ctx)
        folder = None
        if limits is None:  # a simulation, where whoever configures it decides
            folder = folder_from(self.folder, "folder", "~/.dpfl/nvflare") / f"silo-{id}"
        with Silo(
            agreement,
            id,
            self.model,
            self._records(own, site, local, simulated=where == "simulation"),
            folder,
            draw=self._draw(),
            limits=limits,
            surroundings=where,
            kept=kept_here(),
        ) as silo:
            return silo.answer(asked)

    def _records(self, own: Mapping[str, str], site: str, local: Path, *, simulated: bool) -> Any:
        path = own.get("records") or (self.records if simulated else "")
        if not path:
            raise ConfigError(
                f"{local / 'dpfl.json'}: records is missing. What a job says of records has no effect here: the site "
                'says where they are, by {"records": "module:function"}, with the module in local/custom.'
            )
        if (path, site) not in self._given:
            given = registry.load_object(path, "records")(site)
            if not hasattr(given, "__len__"):  # read once, a generator has nothing for the next round
                return given
            self._given[path, site] = given
        return self._given[path, site]

    def _draw(self) -> Callable[[int], Draw] | None:
        """Seeded bits, for simulations without limits; None for those of the operating system."""
        return None


def _tell(fl_ctx: Any, who: str, error: Exception) -> None:
    folder = folder_of(_local(fl_ctx), surroundings())
    SiteLog(LOG, str(fl_ctx.get_identity_name()), folder).tell(who, error)


def _local(fl_ctx: Any) -> Path:
    return Path(fl_ctx.get_workspace().get_site_config_dir())


def _agreement(
    settings: Mapping[str, Any], silos: Sequence[str], model: Any, permit: Permit | None = None
) -> Agreement:
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model is a {type(model).__name__}, where a torch.nn.Module is needed.")
    return agree(settings, num_silos=len(silos), model=model, source="settings", permit=permit)


class PrivateController(Controller):
    """The server's side: asks the silos that the algorithm draws, and takes its step.

    Args:
        settings, silos, model: as in `PrivateExecutor`.
        folder: where the server keeps what lasts: absolute, or from ~. A job that is submitted again goes on from it.
        timeout: seconds that a round waits for answers.
    """

    def __init__(
        self, settings: dict[str, Any], silos: list[str], model: Any, folder: str = "", timeout: int = 3600
    ) -> None:
        super().__init__()
        self.settings, self.silos, self.model, self.folder, self.timeout = settings, silos, model, folder, timeout
        self._lock = threading.Lock()  # answers come in threads
        self._server: Server | None = None
        self._absent: set[str] = set()

    @property
    def server(self) -> Server:
        """The state of the run; there once it has begun."""
        assert self._server is not None
        return self._server

    def start_controller(self, fl_ctx: Any) -> None:
        """Nothing is begun before the job runs."""
        _show_log()

    def stop_controller(self, fl_ctx: Any) -> None:
        """Let go of the server's folder."""
        if self._server is not None:
            self._server.close()

    def control_flow(self, abort_signal: Any, fl_ctx: Any) -> None:
        """All rounds, from where the folder is.

        What goes wrong ends the job, and is said once: settings or filters of the server that do not allow it (no site
        was asked), too few sites in the job, rounds that were void too often. An exception would be said four times,
        or by its kind alone, as NVFlare's settings have it.
        """
        try:
            check_server_filters(fl_ctx, TASK)
            folder = folder_from(self.folder, "folder", "~/.dpfl/nvflare") / "server"
            # The settings are the submitter's, who need not be whoever runs this server.
            permit = permit_of_server(_local(fl_ctx)) if surroundings() == "deployment" else None
            agreement = _agreement(self.settings, self.silos, self.model, permit)
            with Server(agreement, self.model, folder) as self._server:
                if self._server.status != "running":
                    LOG.warning("%s", over_before(folder.parent, self._server.summary()))
                    self._keep(fl_ctx)
                    return
                after = f", {self.server.rounds} of them done" if self.server.rounds else ""
                LOG.info("%s, folder %s%s", begins(agreement), folder.parent, after)
                self._rounds(abort_signal, fl_ctx)
                self._keep(fl_ctx)
                self._tell_end(folder.parent)
        except LimitError as error:
            LOG.error("dpfl: %s", error)
            self.system_panic(f"dpfl: {error.public}", fl_ctx)
        except DpflError as error:
            self.system_panic(f"dpfl: {error}", fl_ctx)

    def _tell_end(self, folder: Path) -> None:
        if self.server.status == "running":
            self.server.pause()
            LOG.warning("dpfl: the job was aborted after %d rounds. %s", self.server.rounds, AGAIN)
        else:
            LOG.info("%s", is_over(folder, self.server.summary()))

    def _rounds(self, abort_signal: Any, fl_ctx: Any) -> None:
        while not abort_signal.triggered and (message := self.server.begin()) is not None:
            targets = self._targets(fl_ctx)
            task = Task(TASK, _written(message), timeout=self.timeout, result_received_cb=self._received)
            self.broadcast(task, fl_ctx, targets, 0, 0)
            self._wait(task, targets, abort_signal, fl_ctx)
            if abort_signal.triggered:
                return
            with self._lock:
                counted = self.server.end()
            if counted:
                self._show(fl_ctx)

    def _targets(self, fl_ctx: Any) -> list[str]:
        """The sites of the silos that are asked, and are in this job.

        Raises:
            TrainingError: too few are.
        """
        lost = self.get_client_disconnect_time  # when NVFlare gave a site up; None as long as it is here
        here = {client.name for client in fl_ctx.get_engine().get_clients() if not lost(client.name)}
        wanted = [self.silos[silo] for silo in self.server.asked]
        found, absent = [site for site in wanted if site in here], set(wanted) - here
        if len(found) < self.server.needed:
            raise TrainingError(
                f"round {self.server.rounds + 1}: {', '.join(sorted(absent))} are not in this job; {len(found)} of "
                f"{len(wanted)} are, and {self.server.needed} are needed. None was asked, so nothing was charged. "
                "Start these sites, or correct silos, the names in their certificates; then submit the job again."
            )
        if absent - self._absent:
            LOG.warning("dpfl: %s are not in this job: rounds go on without them", ", ".join(sorted(absent)))
            self._absent |= absent
        return found

    def _wait(self, task: Any, targets: Sequence[str], abort_signal: Any, fl_ctx: Any) -> None:
        """Until all have answered, the time is over, NVFlare gives the rest up, or the job is aborted.

        NVFlare does not notice by itself that a site's machine went away, or came back without the job. So it is told,
        ever more rarely, that whoever is missing may have: from whom it then hears nothing for a minute it gives up.
        Processes of a job say that they live every 30 s, however long they train; those of the simulator do not.
        """
        began = said = time.monotonic()
        doubt = SAID_SECONDS if surroundings() == "deployment" else math.inf
        while task.completion_status is None:
            if abort_signal.triggered:
                self.cancel_task(task, TaskCompletionStatus.ABORTED, fl_ctx)
                return
            time.sleep(LOOK_SECONDS)
            now = time.monotonic()
            if now >= said + SAID_SECONDS:
                said = now
                with self._lock:
                    missing = [self.silos[silo] for silo in self.server.missing if self.silos[silo] in targets]
                LOG.info(
                    "dpfl: round %d waits for %s (%d of %d here answered), for %.0f s at most",
                    self.server.rounds + 1,
                    ", ".join(missing),
                    len(targets) - len(missing),
                    len(targets),
                    max(0.0, began + self.timeout - now),
                )
                if now >= began + doubt:
                    doubt *= 2
                    for site in missing:
                        self.communicator.process_dead_client_report(site, fl_ctx)

    def _received(self, client_task: ClientTask, fl_ctx: Any) -> None:
        """An answer; who sent it is the name in the site's certificate, and not what the answer says."""
        site, result = client_task.client.name, client_task.result
        with self._lock:
            code = result.get_return_code() if isinstance(result, Shareable) else None
            upload: Message | MessageError
            if code != ReturnCode.OK:
                upload = MessageError(f"NVFlare's return code is {code}; why is in the log of {site}.")
            else:
                try:
                    upload = _read(result, self.server.max_bytes)
                except MessageError as error:
                    upload = error
            self.server.receive(self.silos.index(site), upload)

    def process_result_of_unknown_task(
        self, client: Any, task_name: str, client_task_id: str, result: Any, fl_ctx: Any
    ) -> None:
        """One that came too late: its round is over. The silo learns that it did not count with the next message."""
        LOG.warning("dpfl: an answer of %s to %r came after its round was over: left out", client.name, task_name)

    def _show(self, fl_ctx: Any) -> None:
        """Rounds and epsilon, in the log and as metrics, for whatever receives these in a job (TensorBoard, ...)."""
        rounds, silos = self.server.rounds, self.server.summary()["silos"]
        epsilons = {self.silos[int(silo)]: about["epsilon"] for silo, about in silos.items()}
        worst = None if not epsilons or None in epsilons.values() else max(epsilons.values())
        LOG.info("%s", round_counted(self.server.summary(), self.server.agreement.config.rounds))
        shown = {f"dpfl/epsilon/{site}": epsilon for site, epsilon in epsilons.items()} | {"dpfl/epsilon": worst}
        for tag, value in shown.items():
            if value is not None:
                dxo = create_analytic_dxo(tag, float(value), AnalyticsDataType.SCALAR, global_step=rounds)
                send_analytic_dxo(self, dxo, fl_ctx)

    def _keep(self, fl_ctx: Any) -> None:
        """The model where NVFlare's own recipes have it, and the summary beside it."""
        place = Path(fl_ctx.get_prop(FLContextKey.APP_ROOT))
        self.server.write_to(self.model)
        path = place / DefaultCheckpointFileName.GLOBAL_MODEL
        half = path.with_suffix(".half")
        torch.save({"model": self.model.state_dict()}, half)
        os.replace(half, path)
        (place / SUMMARY).write_text(to_json(self.server.summary()))
        LOG.info("dpfl: the model is in the job's result, %s/%s", place.name, path.name)


class PrivateRecipe(Recipe):
    """A job that trains as ``settings`` say, for `SimEnv`, `PocEnv` and `ProdEnv`.

    Args:
        model: ``{"class_path": "package.module.Class", "args": {...}}``, as in NVFlare's own recipes. Sites and server
            make it themselves: its module has to be there (see docs/nvflare.md).
        settings: keys of a configuration (docs/adapters.md): ``algorithm``, ``privacy``, ``rounds`` and so on.
        silos: the names of the sites, as in their certificates; or how many, for site-1, site-2 and so on.
        records: of a simulation: package.module:function, which gets a site's name. Elsewhere the site's own file says.
        folder: where the server keeps what lasts, absolute or from ~; in a simulation the silos, too.
        min_clients: below how many sites NVFlare ends the job; half of the silos if it is left out.
        timeout: seconds that a round waits for answers.

    Raises:
        ConfigError, UnsupportedError: settings, model or names are wrong; nothing was submitted.
    """

    def __init__(
        self,
        *,
        model: Mapping[str, Any],
        settings: Mapping[str, Any],
        silos: int | Sequence[str],
        records: str = "",
        folder: str = "",
        name: str = "dpfl",
        min_clients: int | None = None,
        timeout: int = 3600,
    ) -> None:
        names = [f"site-{i + 1}" for i in range(silos)] if isinstance(silos, int) else [str(one) for one in silos]
        require(len(set(names)) == len(names) >= 1, "silos", silos, "be distinct names of sites, or their number")
        require(type(timeout) is int and timeout > 0, "timeout", timeout, "be a number of seconds above 0")
        folder_from(folder, "folder", "~/.dpfl/nvflare")
        spec, values = _model_spec(model), json.loads(json.dumps(dict(settings)))
        _agreement(values, names, _made(spec))
        job = FedJob(name=name, min_clients=min_clients or max(1, -(-len(names) // 2)))
        job.set_app_packages(["dpfl_plugin"])  # installed everywhere: the submitter's copy must not come along
        job.to_server(PrivateController(values, names, spec, folder, timeout))
        job.to_server({"server": {"task_request_interval": POLL_SECONDS}})
        job.to_clients(self._executor(values, names, spec, records, folder), tasks=[TASK])
        super().__init__(job)
        self._model = str(spec["path"])

    def _executor(self, *given: Any) -> PrivateExecutor:
        return PrivateExecutor(*given)

    def process_env(self, env: Any) -> None:
        """In the simulator allow what ``local/resources.json`` of server and sites has to allow elsewhere."""
        if not isinstance(env, SimEnv):
            return
        local = Path(env.workspace_root) / self._job.name / "local"
        path = local / "resources.json"
        values = json.loads(path.read_text()) if path.exists() else {"format_version": 2}
        allowed = list(values.get("class_allow_list", DEFAULT_CLASS_ALLOW_LIST))
        allowed += [one for one in (*ALLOWED, self._model) if one not in allowed]
        local.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({**values, "class_allow_list": allowed}))


def _model_spec(model: Any) -> dict[str, Any]:
    """As NVFlare's configurations name a component."""
    if not isinstance(model, Mapping) or set(model) - {"class_path", "args"} or "class_path" not in model:
        raise ConfigError(
            f'model={type(model).__name__} must be {{"class_path": "package.module.Class", "args": {{...}}}}: a job is '
            "a file, and each site makes the model itself."
        )
    args = dict(model.get("args") or {})
    with contextlib.suppress(TypeError, ValueError):
        return {"path": str(model["class_path"]), "args": json.loads(json.dumps(args))}
    raise ConfigError(f"model: args={args!r} must be plain JSON values.")


def _made(spec: Mapping[str, Any]) -> Any:
    module, _, name = str(spec["path"]).rpartition(".")
    return registry.load_object(f"{module}:{name}", "model")(**spec["args"])
