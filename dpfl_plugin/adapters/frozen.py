"""Frozen layers and buffers travel from the server to its silos, once, and never back.

They are the server's, and public: what training begins with. A silo whose model has others trains another function. So
every message names their digest; the server sends the values as long as one of the silos that it asks has never sent an
upload that counted; and a silo keeps them in its folder, from the first round on.
"""

from __future__ import annotations

import copy
import functools
from pathlib import Path
from typing import Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import nn

from dpfl_plugin.adapters.message import Message, value_of
from dpfl_plugin.errors import DataError, MessageError
from dpfl_plugin.models.fixed import digest_of, fixed_tensors, pack, unpack
from dpfl_plugin.runs.folder import write_atomic

FIXED: Final = "dpfl.fixed"  # among a message's vectors, the values as bytes
FILE: Final = "frozen.safetensors"


class Frozen:
    """What a silo's model has from the server and never trains.

    Args:
        path: where it is kept, from the first round on.
        model: as the silo's process made it; a copy of what does not train is used.

    Attributes:
        digest: of these values, see `digest_of`.

    Raises:
        DataError: the file is damaged, or of another model.
    """

    def __init__(self, path: Path, model: nn.Module) -> None:
        self._path, self._model, self._kept = path, model, path.exists()
        if self._kept:
            unpack(_read(path, pack(model).numel()), self.seen)
        self._packed = pack(self.described)
        self.digest = digest_of(self._packed)

    @functools.cached_property
    def seen(self) -> nn.Module:
        """A copy of the model with these values, in eval mode, to be looked at only."""
        # With the model's own parameters where these train: nothing here looks at them, or writes to them.
        trained = {id(parameter): parameter for parameter in self._model.parameters() if parameter.requires_grad}
        return copy.deepcopy(self._model, trained).eval()

    @property
    def described(self) -> nn.Module:
        """What `seen` is by what decides what it computes, mode and trained parameters apart: without the copy, which
        takes longer than all else that a small model needs, where no values can differ."""
        return self.seen if self._kept or fixed_tensors(self._model) else self._model

    def model(self) -> nn.Module:
        """A copy of the model, with these values, in eval mode."""
        return copy.deepcopy(self.seen)

    def write_to(self, model: nn.Module) -> None:
        """Set them in a model that is built alike."""
        unpack(self._packed, model)

    def take(self, message: Message) -> bool:
        """Compare with what the server has, and take what it sent where that is another; whether it was.

        Raises:
            MessageError: it is another, and was not sent; or the server had others when this silo began.
        """
        wanted = value_of(message.header, "fixed", str)
        if wanted == self.digest:
            return False
        if self._kept:
            raise MessageError(
                f"the server's frozen layers or buffers are not those that this silo began with, in {self._path}: its "
                "model was built anew. Give the server the model that it began with."
            )
        sent = message.vectors.get(FIXED)
        if sent is None:
            raise MessageError(
                "the server's model has other frozen layers or buffers than this silo's, and it did not send them. "
                "Build the same model on both sides (the same seed, or the same file)."
            )
        if digest_of(sent) != wanted:
            raise MessageError("the frozen layers that came with it are not those that it names.")
        unpack(sent, self.seen)
        self._packed, self.digest = pack(self.seen), wanted
        return True

    def keep(self) -> None:
        """Write them to the folder, if there are any."""
        if not self._kept and self._packed.numel():
            write_atomic(self._path, save({"fixed": self._packed}))
            self._kept = True


def _read(path: Path, size: int) -> torch.Tensor:
    try:
        packed = load(path.read_bytes())["fixed"]
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}. Restore it from a copy.") from error
    if packed.dtype != torch.uint8 or packed.shape != (size,):
        raise DataError(f"{path} holds {packed.numel()} bytes, where the model has {size}: it is of another model.")
    return packed
