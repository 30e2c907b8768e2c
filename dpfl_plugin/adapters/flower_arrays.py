"""A message of ours among Flower's records. What a stranger's arrays announce is compared with what is there, first."""

from __future__ import annotations

import io
import math
from typing import Any, Final

import numpy as np
from flwr.app import ArrayRecord, RecordDict

from dpfl_plugin.adapters.message import Message
from dpfl_plugin.errors import MessageError

TABLE: Final = "dpfl"  # of the run's configuration, and the name of what is ours in messages and contexts
_HEADERS: Final = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def written(message: Message) -> RecordDict:
    return RecordDict({TABLE: ArrayRecord(message.to_tensors())})


def read(content: RecordDict, limit: int | None = None) -> Message:
    """The message that `written` wrote.

    Args:
        limit: the most bytes that it may have.

    Raises:
        MessageError: it is none, is longer than that, or announces other sizes than it has.
    """
    found = content.get(TABLE)
    if not isinstance(found, ArrayRecord):
        raise MessageError(f"it holds no ArrayRecord {TABLE!r}.")
    size = sum(len(array.data) for array in found.values())
    if limit is not None and size > limit:
        raise MessageError(f"it has {size} bytes, where {limit} are enough.")
    try:
        for array in found.values():
            _check_size(array)
        tensors = found.to_torch_state_dict()
    except MessageError:
        raise
    except Exception as error:  # what a stranger sent may fail in any way
        raise MessageError(f"its arrays cannot be read ({type(error).__name__}).") from error
    return Message.from_tensors(tensors)


def _check_size(array: Any) -> None:
    """numpy makes room for what an array's header announces, before it looks whether that is there."""
    data = io.BytesIO(array.data)
    shape, _, dtype = _HEADERS[np.lib.format.read_magic(data)](data)
    announced, there = math.prod(shape) * dtype.itemsize, len(array.data) - data.tell()
    if announced != there:
        raise MessageError(f"an array announces {announced} bytes, and has {there}.")
