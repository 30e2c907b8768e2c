"""What a silo keeps from one message to the next in `state.safetensors`: its vectors, and its last answer.

Whether an upload counted is known with the next download only; till then both states are kept.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialise

from dpfl_plugin.core.requests import request_digest
from dpfl_plugin.core.vectors import Vectors
from dpfl_plugin.errors import DataError, MessageError
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.runs.folder import RunFolder

STATE: Final = "state.safetensors"


@dataclass(slots=True)
class State:
    """What lasts from one message to the next.

    Attributes:
        states: (1, d) each, as of the last upload that is known to have counted, which has the tag ``counted``.
        staged, upload: of the last upload; whether it counted is not known. Its tag is ``tag``, and ``asked`` the
            digest of the message that asked for it.
    """

    states: Vectors
    counted: str | None = None
    round: int = -1
    tag: str | None = None
    asked: str = ""
    header: dict[str, Any] | None = None
    staged: Vectors | None = None
    upload: Vectors | None = None

    def settled(self, round: int, counted: str | None, id: int, ledger: Path) -> State:
        """The state from which ``round`` starts: with the last upload if it counted, else without it.

        Raises:
            MessageError: what the server asks for, or counts, contradicts what this silo knows.
        """
        if round < self.round:
            raise MessageError(
                f"silo {id}: the server asks for round {round + 1} after round {self.round + 1}: it is an "
                "old message, or the server lost its folder."
            )
        if round == self.round and counted is not None and counted == self.tag:
            raise MessageError(
                f"silo {id}: the server counts this silo's upload of round {round + 1}, and asks for it again."
            )
        if self.staged is not None and counted is not None and counted == self.tag:
            return State(self.staged, counted)
        if counted != self.counted:
            raise MessageError(
                f"silo {id}: the last of its uploads that the server counts is {counted}, and that its folder "
                f"knows of is {self.tag or self.counted}. Does a second server, with a folder of its own, ask these "
                "silos? Then end it. Else one of the two lost its folder, or was set back: restore it from a copy; or "
                f"start over with other folders for the server and all silos (what is in {ledger} stays spent)."
            )
        return State(self.states, self.counted)


def save(files: RunFolder, kept: State, ledger: Ledger) -> None:
    groups = {"states": kept.states, "staged": kept.staged or {}, "upload": kept.upload or {}}
    named = {
        f"{group}/{name}": v.cpu().contiguous() for group, vectors in groups.items() for name, v in vectors.items()
    }
    facts = {"counted": kept.counted, "round": kept.round, "tag": kept.tag, "asked": kept.asked, "header": kept.header}
    more = {"num_charges": len(ledger), "head": ledger.head}
    digest = _digest_of(named, {**facts, **more})
    metadata = {"facts": json.dumps({**facts, **more}), "digest": digest}
    files.write(files.path / STATE, serialise(named, metadata=metadata))


def _digest_of(named: Vectors, facts: Mapping[str, Any]) -> str:
    """Of all that decides what is released next: it must be to the bit what was written."""
    return request_digest(named, [json.dumps(facts, sort_keys=True)]).hex()


def load(path: Path, ledger: Ledger, initial: Vectors) -> State:
    """What `save` wrote, or the beginning.

    Raises:
        DataError: the file is damaged; LedgerError: the ledger lacks what it knows of.
    """
    if not path.exists():
        return State(initial)
    groups: dict[str, Vectors] = {"states": {}, "staged": {}, "upload": {}}
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata()
            facts = json.loads(metadata["facts"])
            named = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118, it cannot be iterated over
        digest = _digest_of(named, facts)
        if metadata.get("digest", digest) != digest:  # without one it is of an earlier version
            raise ValueError("it is not what was written")
        for key, value in named.items():
            group, name = key.split("/", 1)
            groups[group][name] = value
        kept = State(
            groups["states"],
            facts["counted"],
            facts["round"],
            facts["tag"],
            facts["asked"],
            facts["header"],
            groups["staged"],
            groups["upload"],
        )
        head = facts["head"]
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise DataError(
            f"{path} cannot be read: {error}. Restore it from a copy; or start over in another folder, and keep the "
            "ledger of this one: what it holds stays spent."
        ) from error
    ledger.check_holds(head, path.name)
    device = next(iter(initial.values())).device if initial else torch.device("cpu")
    for vectors in (kept.states, kept.staged):
        for name, value in (vectors or {}).items():
            assert vectors is not None
            vectors[name] = value.to(device)
    return kept
