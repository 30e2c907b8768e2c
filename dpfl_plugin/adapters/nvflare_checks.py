"""What of an NVFlare job or site is in the way of what is charged, and what a site's own file says."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NoReturn

from nvflare.apis.fl_constant import FilterKey, FLContextKey
from nvflare.apis.utils.task_utils import get_filters
from nvflare.app_common.logging.constants import is_log_streaming_allowed
from nvflare.private.privacy_manager import Scope

from dpfl_plugin.adapters.agreement import Permit
from dpfl_plugin.adapters.owner import say_once, silo_limits
from dpfl_plugin.errors import ConfigError, LimitError, UnsupportedError, nearest
from dpfl_plugin.owners.limits import Limits, Surroundings, own_folder
from dpfl_plugin.owners.named_code import KEY, check_code, listed_code

FILE: Final = "dpfl.json"  # in local/ of a site's startup kit
KEYS_OF_SERVER: Final = {KEY: "what the settings of a job may name by module: here, a list of package.module:callable"}
KEYS: Final = {
    "limits": "the limits file of the data's owner (docs/limits.md), an absolute path",
    "records": "where the site's records come from: package.module:function, which is called with the site's name",
}
UNKNOWN: Final = "~/.dpfl/nvflare"  # where a site says what is wrong as long as its owner names no folder
RESTART: Final = "and restart the site (startup/stop_fl.sh, startup/start.sh), whose process read it when it began"
SIMULATOR: Final = "nvflare.private.fed.app.simulator."  # modules that are started as a simulator's processes


def surroundings() -> Surroundings:
    """Where this process runs, by the module that it was started as: no message has a bearing on that.

    NVFlare's simulator starts its workers by modules of its own; what is not known counts as a deployment.
    """
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    name = getattr(spec, "name", None) or ""
    return "simulation" if name.startswith(SIMULATOR) else "deployment"


def of_site(folder: Path) -> dict[str, str]:
    """What `dpfl.json` in a site's folder ``local`` says; nothing if it is not there.

    Raises:
        ConfigError: it cannot be read, or says what is not known.
    """
    path = folder / FILE
    values = _read(path, KEYS)
    for key, value in values.items():
        if not isinstance(value, str):
            raise ConfigError(f"{path}: {key}={value!r} must be {KEYS[key]}.")
    return values


def _read(path: Path, keys: Mapping[str, str]) -> dict[str, Any]:
    """A JSON object with some of ``keys``; {} where there is no such file."""
    try:
        values = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: it cannot be read as JSON ({error}).") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: it must be a JSON object with keys of {', '.join(keys)}.")
    for key in values:
        if key not in keys:
            raise ConfigError(f"{path}: {key} is not a known key{nearest(key, keys)}. Known: {', '.join(keys)}.")
    return values


def permit_of_server(folder: Path) -> Permit:
    """What jobs may have imported at a server: what its own `dpfl.json`, in its folder ``local``, lists.

    Raises:
        ConfigError: see `of_site`.
    """
    path = folder / FILE
    allowed = listed_code(_read(path, KEYS_OF_SERVER).get(KEY, []), str(path))
    return lambda config, num_records: check_code(config, allowed, str(path))


def limits_of(own: dict[str, str], folder: Path, silo: int, where: Surroundings) -> Limits | None:
    """The limits that hold at a site; in a simulation every silo is an owner of its own.

    Raises:
        LimitError: see `silo_limits`.
    """
    return silo_limits(
        where, own.get("limits"), f"{folder / FILE}: limits", own=silo if where == "simulation" else None
    )


def folder_of(local: Path, where: Surroundings) -> Path | None:
    """Where a site keeps what nobody else may read of its errors: the owner's folder; None in a simulation.

    It is asked when something went wrong, which may be what the owner has set.
    """
    if where == "simulation":
        return None
    try:
        limits = limits_of(of_site(local), local, 0, where)
        assert limits is not None  # there are some, or it raises
        own_folder(limits.folder, limits.source)
    except Exception:  # nothing of it is lost: the site met with the same, and that is what it is about to say
        return Path(UNKNOWN).expanduser()
    return limits.folder


def check_log_stays(fl_ctx: Any) -> None:
    """See to it that NVFlare does not send this site's log to the server: neither the job's part nor the site's.

    As provisioned it sends each job's error_log.txt, and whatever file of the log a job asks for. Errors there are of
    NVFlare's and of the owner's own code, and may quote records.

    Raises:
        LimitError: it does, or may; its words are about settings alone, and the server is told.
    """
    if is_log_streaming_allowed(fl_ctx):
        _refuse_streaming(
            "NVFlare may send the site's log to the server, and errors in it may quote records",
            f'Set "allow_log_streaming": false in the site\'s local/resources.json, {RESTART}.',
        )
    # The site's process takes streamers out of jobs where it knows that none is allowed.
    streamers = {type(one).__name__ for one in (fl_ctx.get_engine().get_all_components() or {}).values()}
    if found := sorted(name for name in streamers if "LogStreamer" in name):
        _refuse_streaming(
            f"the job has NVFlare's {found[0]} at a site that lets no log be sent to the server",
            f'The site has "allow_log_streaming": false in its local/resources.json: take enable_log_streaming out of '
            f"the job if it calls that, {RESTART}.",
        )


def _refuse_streaming(why: str, mend: str) -> NoReturn:
    why = f"allow_log_streaming: {why}"
    raise LimitError(f"{why}. {mend} Nothing was released.", why)


def check_site_filters(fl_ctx: Any, task: str) -> None:
    """See to it that no filter of NVFlare's own stands between this silo and the server.

    Raises:
        LimitError: one does; its words are about settings alone, and the server is told.
    """
    try:
        _check(fl_ctx, fl_ctx.get_prop(FLContextKey.RUNNER), task, FilterKey.IN, FilterKey.OUT)
    except UnsupportedError as error:
        raise LimitError(str(error), str(error).partition(":")[0]) from error


def check_server_filters(fl_ctx: Any, task: str) -> None:
    """Raise UnsupportedError if one stands there at the server."""
    runner = fl_ctx.get_prop(FLContextKey.RUNNER)
    _check(fl_ctx, getattr(runner, "config", None), task, FilterKey.OUT, FilterKey.IN)


def _check(fl_ctx: Any, holder: Any, task: str, asks: str, answers: str) -> None:
    chains = (
        (Scope.TASK_DATA_FILTERS_NAME, asks, "task_data_filters"),
        (Scope.TASK_RESULT_FILTERS_NAME, answers, "task_result_filters"),
    )
    for name, direction, key in chains:
        found = get_filters(name, fl_ctx, getattr(holder, key, None) or {}, task, direction)
        refuse_filters(found, key, task)


def refuse_filters(filters: Iterable[Any], key: str, task: str) -> None:
    """Raise UnsupportedError for a filter of NVFlare's, or one that is made of it; others are named once."""
    for one in filters:
        theirs = [kind.__name__ for kind in type(one).__mro__ if kind.__module__.startswith("nvflare.app_")]
        source = str(getattr(one, "__source", "job"))
        where = "the site's privacy.json (choose another scope)" if source == "site" else "the job"
        if theirs:
            raise UnsupportedError(
                f"{key} of {where} has NVFlare's {theirs[0]} for task {task!r}: its clipping, noise or blocking is in "
                "no ledger, and would change messages that were charged. Leave it out: silos clip each record's "
                f"gradient and add noise themselves. Filters of other tasks may stay: give them tasks without {task!r}."
            )
        say_once(
            logging.WARNING,
            f"{key} of {where} has {type(one).__name__} for task {task!r}: it sees messages after they were charged; "
            "what it changes is refused at the other end, or lost",
        )
