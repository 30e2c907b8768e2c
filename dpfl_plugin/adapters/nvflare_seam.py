"""What this package relies on in NVFlare, tried out before the adapter imports it: a newer version may keep it, or not.

Nothing of NVFlare is imported here before it is tried, so that what is missing is said by name.
"""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from dpfl_plugin.adapters.platforms import check_seam

OLDEST: Final = "2.9"
NEWEST: Final = "2.9"  # of those that are tested
FILES: Final = ("nvflare.py", "nvflare_checks.py")  # beside this one, which import NVFlare
# What the adapter calls or overrides: (module, name, what it passes by position, what by name).
CALLS: Final = (
    ("nvflare.apis.controller_spec", "Task.__init__", "self name data", "timeout result_received_cb"),
    ("nvflare.apis.impl.controller", "Controller.__init__", "self", ""),
    ("nvflare.apis.impl.controller", "Controller.broadcast", "self task fl_ctx targets min_responses wait", ""),
    ("nvflare.apis.impl.controller", "Controller.cancel_task", "self task status fl_ctx", ""),
    ("nvflare.apis.impl.controller", "Controller.start_controller", "self fl_ctx", ""),
    ("nvflare.apis.impl.controller", "Controller.stop_controller", "self fl_ctx", ""),
    ("nvflare.apis.impl.controller", "Controller.control_flow", "self abort_signal fl_ctx", ""),
    (
        "nvflare.apis.impl.controller",
        "Controller.process_result_of_unknown_task",
        "self client task_name client_task_id result fl_ctx",
        "",
    ),
    ("nvflare.apis.impl.wf_comm_server", "WFCommServer.process_dead_client_report", "self client fl_ctx", ""),
    ("nvflare.apis.impl.controller", "Controller.get_client_disconnect_time", "self client", ""),
    ("nvflare.apis.executor", "Executor.execute", "self task_name shareable fl_ctx abort_signal", ""),
    ("nvflare.apis.fl_component", "FLComponent.handle_event", "self kind fl_ctx", ""),
    ("nvflare.apis.fl_component", "FLComponent.system_panic", "self reason fl_ctx", ""),
    ("nvflare.apis.fl_context", "FLContext.get_identity_name", "self", ""),
    ("nvflare.apis.fl_context", "FLContext.get_workspace", "self", ""),
    ("nvflare.apis.workspace", "Workspace.get_site_config_dir", "self", ""),
    ("nvflare.apis.shareable", "make_reply", "code", ""),
    ("nvflare.apis.utils.analytix_utils", "create_analytic_dxo", "tag value data_type", "global_step"),
    ("nvflare.apis.utils.analytix_utils", "send_analytic_dxo", "component dxo fl_ctx", ""),
    ("nvflare.apis.utils.task_utils", "get_filters", "name fl_ctx filters task direction", ""),
    ("nvflare.app_common.logging.constants", "is_log_streaming_allowed", "fl_ctx", ""),
    ("nvflare.private.fed.client.client_run_manager", "ClientRunManager.get_all_components", "self", ""),
    ("nvflare.job_config.api", "FedJob.__init__", "self", "name min_clients"),
    ("nvflare.job_config.api", "FedJob.set_app_packages", "self packages", ""),
    ("nvflare.job_config.api", "FedJob.to_server", "self component", ""),
    ("nvflare.job_config.api", "FedJob.to_clients", "self component", "tasks"),
    ("nvflare.recipe.spec", "Recipe.__init__", "self job", ""),
    ("nvflare.recipe.spec", "Recipe.process_env", "self env", ""),
)
TASK: Final = "dpfl"


def try_seam() -> None:
    """See to it that everything is there, is called as it was, and keeps messages, names and filters as it did.

    Raises:
        AssertionError, Exception: NVFlare does something else there than the versions that are tested.
    """
    missing = dict.fromkeys([*_missing_names(), *_other_calls()])
    _expect(not missing, "; ".join(missing))
    _messages_keep_bits()
    _a_context_has_the_name_and_the_filters()


def _expect(condition: bool, otherwise: str) -> None:
    """Not by `assert`, which python -O leaves out."""
    if not condition:
        raise AssertionError(otherwise)


def imported() -> list[tuple[str, str]]:
    """(module, name) of all that the adapter imports from NVFlare, as its own files say."""
    found = []
    for file in FILES:
        for node in ast.walk(ast.parse(Path(__file__).with_name(file).read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("nvflare."):
                found += [(str(node.module), alias.name) for alias in node.names]
    return found


def _missing_names() -> Iterator[str]:
    for module, name in imported():
        try:
            there = hasattr(importlib.import_module(module), name)
        except ImportError:
            there = False
        if not there:
            yield f"{module}.{name} is missing"


def _other_calls() -> Iterator[str]:
    for module, path, positional, keywords in CALLS:
        try:
            called: Any = importlib.import_module(module)
            for part in path.split("."):
                called = getattr(called, part)
        except (ImportError, AttributeError):
            yield f"{module}.{path} is missing"
            continue
        try:
            inspect.signature(called).bind(*positional.split(), **dict.fromkeys(keywords.split()))
        except TypeError as error:
            yield f"{module}.{path} is called otherwise ({error})"


def _messages_keep_bits() -> None:
    shareable = importlib.import_module("nvflare.apis.shareable")
    codes = importlib.import_module("nvflare.apis.fl_constant").ReturnCode
    fobs = importlib.import_module("nvflare.fuel.utils.fobs")
    data = bytes(range(256)) * 3
    found = fobs.loads(fobs.dumps(shareable.Shareable({"dpfl.message": data})))
    _expect(
        isinstance(found, shareable.Shareable)
        and found.get("dpfl.message") == data
        and found.get_return_code() == "OK",
        "a Shareable does not keep bytes",
    )
    failed = fobs.loads(fobs.dumps(shareable.make_reply(codes.EXECUTION_EXCEPTION)))
    _expect(failed.get_return_code() == codes.EXECUTION_EXCEPTION != codes.OK, "a Shareable loses its return code")


def _a_context_has_the_name_and_the_filters() -> None:
    keys = importlib.import_module("nvflare.apis.fl_constant")
    context = importlib.import_module("nvflare.apis.fl_context")
    filters = importlib.import_module("nvflare.apis.utils.task_utils")
    scopes = importlib.import_module("nvflare.private.privacy_manager")
    one = type("One", (importlib.import_module("nvflare.apis.filter").Filter,), {"process": lambda *given: None})
    scope, of_site, of_job = scopes.Scope(), one(), one()
    scope.add_task_result_filter(of_site, keys.FilterKey.OUT)
    stickers = {keys.FLContextKey.SCOPE_OBJECT: scope}
    made = context.FLContextManager(None, "a site", "a job", {}, stickers).new_context()
    _expect(made.get_identity_name() == "a site", "a context does not know the name of its site")
    job = {f"{TASK}{keys.FilterKey.DELIMITER}{keys.FilterKey.OUT}": [of_job]}
    found = filters.get_filters(scopes.Scope.TASK_RESULT_FILTERS_NAME, made, job, TASK, keys.FilterKey.OUT)
    _expect(set(map(id, found)) == {id(of_site), id(of_job)}, "the filters of a job and of a site are not found")


check_seam("nvflare", OLDEST, NEWEST, try_seam)
