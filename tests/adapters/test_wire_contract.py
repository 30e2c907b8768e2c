"""The contract of adapters: the shared folder and the toy platform of the documentation pass it."""

from __future__ import annotations

import contextlib
import importlib.util
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dpfl_plugin.adapters.folder.server import FolderServer
from dpfl_plugin.adapters.folder.silo import FolderSilo
from dpfl_plugin.errors import DpflError
from dpfl_plugin.testing import ContractError
from dpfl_plugin.testing.wire import Carry, Parties, WireContract
from tests.adapters.shared_folder import SERVER, keys_of, members_of
from tests.adapters.wires import no_power_cuts  # noqa: F401

ROOT = Path(__file__).parents[2]
NAMES = ("a", "b", "c")
KEYS = keys_of(*NAMES)
MEMBERS = {encrypt: members_of(KEYS, encrypt=encrypt) for encrypt in (False, True)}


def toy() -> Any:
    path = ROOT / "examples" / "toy_platform" / "adapter.py"
    spec = importlib.util.spec_from_file_location("toy_platform_adapter", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class Folder:
    """What is lost on the way is a file that is gone; who is missing then, patience is over with."""

    def __init__(self, parties: Parties, encrypt: bool) -> None:
        self.later, self.path, members = 0.0, parties.folder / "shared", MEMBERS[encrypt]
        model, agreement = parties.model(), parties.agreement
        self.at_server = FolderServer(
            self.path,
            members,
            KEYS[SERVER],
            agreement,
            model,
            parties.server_folder,
            patience=1.0,
            clock=lambda: time.time() + self.later,
        )
        self.server = self.at_server.server
        self.silos = {}
        for silo, name in enumerate(NAMES):
            options = parties.silo_options(silo)
            options["own"] = options.pop("folder")
            self.silos[name] = FolderSilo(
                self.path, members, KEYS[name], agreement, parties.model(), parties.records(silo), **options
            )

    def round(self, carry: Carry) -> bool:
        self.later += 1000
        if self.server.status != "running":
            self.at_server.step()
            return False
        if self.server.asked == () and self.at_server.step() is None:
            return False
        for silo, (name, site) in enumerate(self.silos.items()):
            with contextlib.suppress(DpflError, OSError):  # of an owner who refuses; of a full disk
                site.step()
            for path in (self.path / name).glob("answer-*.dpfl"):
                delivered = carry(silo, path.read_bytes())
                path.unlink()
                for data in delivered:
                    path.write_bytes(data)
                if len(delivered) > 1:
                    path.with_name(f"{path.stem} (copy).dpfl").write_bytes(data)
        self.later += 1000
        self.at_server.step()  # which asks for the next round, too
        return True


class TestFolder(WireContract):
    encrypt = False
    lacks = ("files of 2 GiB or more",)

    @contextlib.contextmanager
    def federation(self, parties: Parties) -> Iterator[Folder]:
        made = Folder(parties, self.encrypt)
        yield made
        made.at_server.close()


class TestToy(toy().TestPost):  # type: ignore[misc]
    """As the documentation has it."""


def test_the_page_shows_the_toy_platform_as_it_is() -> None:
    text = (ROOT / "examples" / "toy_platform" / "adapter.py").read_text()
    page = (ROOT / "docs" / "adapters.md").read_text()
    (shown,) = [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "class PostServer" in block]
    assert shown in text and len(shown.splitlines()) < 110


# An adapter that is wrong does not pass: each of these changes one line of the toy platform.

WRONG = {
    "no checksum": (
        "if hashlib.sha256(data[32:]).digest() != data[:32]:",
        "if not data:",
        "test_damaged_uploads_do_not_count",
    ),
    "owners' refusals as failures": (
        "return refusal(self.agreement, self.silo, message, error)",
        "return failure(self.agreement, self.silo, message)",
        "test_what_an_owner_does_not_allow_is_refused_and_said_to_the_server",
    ),
    "a server that lasts no longer than its process": (
        "parties.server()",
        "Server(parties.agreement, parties.model())",
        "test_processes_that_are_started_again_before_every_round_go_on",
    ),
    "who it is from as it says itself": (
        'silo = int(sender.removeprefix("silo-"))  # as the platform says, and not the letter',
        'silo = unpacked(data).header["silo"]',
        "test_a_silo_that_claims_to_be_another_is_refused_and_the_other_counts",
    ),
    "a full disk as the end of a silo's process": (
        "except (DpflError, OSError) as error:",
        "except DpflError as error:",
        "test_a_silo_whose_disk_is_full_sends_nothing_and_goes_on_when_there_is_room",
    ),
    "whoever comes first": (
        "for silo in self.silos:\n            silo.work()",
        "for silo in self.silos[:2]:\n            silo.work()",
        "test_bits_and_charges_are_those_of_a_plain_loop",
    ),
}


@pytest.mark.parametrize(("right", "wrong", "check"), WRONG.values(), ids=WRONG)
def test_an_adapter_that_is_wrong_does_not_pass(right: str, wrong: str, check: str) -> None:
    source = (ROOT / "examples" / "toy_platform" / "adapter.py").read_text()
    assert source.count(right) == 1
    names: dict[str, Any] = {"__name__": "wrong"}
    exec(compile(source.replace(right, wrong), "wrong", "exec"), names)
    with pytest.raises((ContractError, DpflError, OSError)):
        getattr(names["TestPost"](), check)()
