"""What travels between a server and a silo: named vectors (d,) and a header of plain JSON; never a pickle."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn, TypeGuard

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from dpfl_plugin.core.vectors import Vectors
from dpfl_plugin.errors import MessageError

PROTOCOL: Final = 1
HEADER: Final = "dpfl.header"  # among tensors, the header as UTF-8 bytes

Layout = dict[str, tuple[torch.dtype, int]]
"""Type and length of each vector of a message."""


@dataclass(frozen=True, slots=True)
class Message:
    """A header and named vectors (d,).

    Attributes:
        header: plain JSON values.
    """

    header: dict[str, Any]
    vectors: Vectors = field(default_factory=dict)

    def to_tensors(self) -> Vectors:
        """The vectors, and the header as one more of type uint8, for platforms that carry tensors by name."""
        return {HEADER: torch.frombuffer(bytearray(self._text()), dtype=torch.uint8), **self.vectors}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Any]) -> Message:
        """The message that `to_tensors` wrote.

        Raises:
            MessageError: it is not a message.
        """
        named = dict(tensors)
        found = named.pop(HEADER, None)
        if not _is_plain(found) or found.dtype != torch.uint8 or found.dim() != 1:
            raise MessageError(f"it holds no {HEADER}: it is not a message of dpfl_plugin.")
        if not all(isinstance(name, str) and isinstance(value, Tensor) for name, value in named.items()):
            raise MessageError("it holds something that is not a tensor.")
        _check_plain(named)
        return cls(parsed(bytes(found.cpu().numpy())), {name: value.detach().cpu() for name, value in named.items()})

    def to_bytes(self) -> bytes:
        """The message in the safetensors format."""
        data: bytes = save({name: value.contiguous() for name, value in self.to_tensors().items()})
        return data

    @classmethod
    def from_bytes(cls, data: bytes, limit: int | None = None) -> Message:
        """The message that `to_bytes` wrote.

        Args:
            limit: the most bytes that it may have.

        Raises:
            MessageError: it is not a message, or is longer than that.
        """
        if limit is not None and len(data) > limit:
            raise MessageError(f"it has {len(data)} bytes, where {limit} are enough.")
        try:
            return cls.from_tensors(load(data))
        except (SafetensorError, ValueError, KeyError, RuntimeError) as error:
            if isinstance(error, MessageError):
                raise
            raise MessageError(f"it cannot be read ({error}).") from error

    def digest(self) -> str:
        """sha256 over all of it."""
        found = hashlib.sha256(self._text())
        for name, value in sorted(self.vectors.items()):
            found.update(name.encode() + value.detach().cpu().contiguous().numpy().tobytes())
        return found.hexdigest()

    def layout(self) -> Layout:
        return {name: (value.dtype, value.numel()) for name, value in self.vectors.items()}

    def _text(self) -> bytes:
        return json.dumps(self.header, separators=(",", ":"), sort_keys=True, allow_nan=False).encode()


def parsed(text: bytes) -> dict[str, Any]:
    """A header as it was written: a JSON object, each of whose numbers can be written again, and is a float if wanted.

    Raises:
        MessageError: it is none.
    """
    try:
        header = json.loads(text, parse_constant=_no_number, parse_float=_float, parse_int=_int)
    except (ValueError, RecursionError) as error:
        raise MessageError(f"its header is not JSON ({error}).") from error
    if not isinstance(header, dict):
        raise MessageError("its header is not a JSON object.")
    return header


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word[:20]} where a finite number of at most 64 bits is needed")


def _float(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _no_number(text)


def _int(text: str) -> int:
    value = int(text) if len(text) <= 20 else 2**63
    return value if -(2**63) <= value < 2**63 else _no_number(text)


def value_of(header: Mapping[str, Any], key: str, *kinds: type) -> Any:
    """A header's value, of one of ``kinds`` (bool is no int here).

    Raises:
        MessageError: it is missing, or of another kind.
    """
    value = header.get(key)
    if type(value) not in kinds:
        raise MessageError(f"its header has {key}={str(value)[:100]!r}, where {_names(kinds)} is needed.")
    return value


def _names(kinds: tuple[type, ...]) -> str:
    return " or ".join(kind.__name__ for kind in kinds)


def check_vectors(vectors: Vectors, expected: Layout) -> None:
    """Raise MessageError unless the vectors have the names, types and lengths of ``expected``, and are finite."""
    if set(vectors) != set(expected):
        raise MessageError(f"it holds the vectors {_listed(vectors)}, where {_listed(expected)} are needed.")
    _check_plain(vectors)
    for name, (dtype, length) in expected.items():
        value = vectors[name]
        if value.dtype != dtype or tuple(value.shape) != (length,):
            found = f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
            raise MessageError(f"{name} is {found}, where {str(dtype).removeprefix('torch.')}[{length}] is needed.")
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise MessageError(f"{name} has entries that are not finite.")


def _check_plain(vectors: Vectors) -> None:
    for name, value in vectors.items():
        if not _is_plain(value):
            raise MessageError(
                f"{name[:50]} is no plain tensor: it is sparse, nested, quantised or without values. Send a dense one."
            )


def _is_plain(value: object) -> TypeGuard[Tensor]:
    """Whether it is a tensor each of whose numbers is in its storage."""
    if not isinstance(value, Tensor) or value.layout != torch.strided:
        return False
    return not (value.is_quantized or value.is_nested or value.is_meta)


def num_bytes(layout: Layout) -> int:
    return sum(dtype.itemsize * length for dtype, length in layout.values())


def _listed(names: Mapping[str, Any]) -> str:
    return ", ".join(sorted(name[:50] for name in names)[:10]) or "none"
