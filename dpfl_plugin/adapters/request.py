"""The request of a round, on disk before it is sent: a server that is started again sends the same bits again.

Silos that answered it send the answer that they kept, which costs them nothing; the others answer as if nothing had
happened. A request is made from the server's vectors, which its checkpoint has, and from a tag that is drawn at random:
so the tag is kept, and a digest by which it is seen that the request is the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Final

from dpfl_plugin.access import Access
from dpfl_plugin.adapters.message import Message
from dpfl_plugin.errors import DataError
from dpfl_plugin.training.folder import to_json, write_atomic

FILE: Final = "request.json"


class Requests:
    """What a server's folder knows of its last request.

    Args:
        folder: of the server. access: who may read what is written there.

    Raises:
        DataError: the file cannot be read.
    """

    def __init__(self, folder: Path, access: Access) -> None:
        self._path, self._access = folder / FILE, access
        self._round, self._tag, self._digest = _read(self._path)

    def again(self, round: int, made: Callable[[str], Message]) -> tuple[Message | None, bool]:
        """The request for ``round`` that an earlier process sent and did not finish.

        Args:
            made: the request with a tag.

        Returns:
            The request, or None; and whether there was one which cannot be made again to the bit.
        """
        pending, self._round = self._round == round, -1  # once: what is void is asked again under another tag
        if not pending:
            return None, False
        message = made(self._tag)
        return (message, False) if message.digest() == self._digest else (None, True)

    def keep(self, message: Message) -> None:
        """Have it on disk; to be called before it is sent."""
        facts = {"round": message.header["round"], "tag": message.header["tag"], "sha256": message.digest()}
        write_atomic(self._path, to_json(facts), self._access)


def _read(path: Path) -> tuple[int, str, str]:
    if not path.exists():
        return -1, "", ""
    try:
        facts = json.loads(path.read_text())
        round, tag, digest = facts["round"], facts["tag"], facts["sha256"]
        if type(round) is not int or not isinstance(tag, str) or not isinstance(digest, str):
            raise ValueError("its values make no sense")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{path} cannot be read: {error}. Restore it from a copy; or delete it: the round is then asked for again, "
            "and silos that answered it are charged again."
        ) from error
    return round, tag, digest
