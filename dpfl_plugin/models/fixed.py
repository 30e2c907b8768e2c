"""What of a model does not train: frozen parameters, buffers, and how it is built.

An algorithm's vectors hold the parameters that train, and nothing else. Two processes that build another random model
have the same function only if the rest is the same as well: so it is compared by a digest, or carried as bytes. It is
public: it was there before any record was read, and training leaves it as it is.
"""

from __future__ import annotations

import copy
import hashlib
import json
import pickle
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from dpfl_plugin.core.vectors import Layout
from dpfl_plugin.errors import UnsupportedError

BUILT_ANEW: Final = (
    "A model's factory has to make the same wherever and whenever it is called: by torch's generator, which is seeded, "
    "or from a file; not by numpy's, Python's or the system's."
)
GOLDEN: Final = 0.6180339887498949
_NOT_ATTRIBUTES: Final = {"training", "_parameters", "_buffers", "_modules"}
LATER: Final = "an entry that came later"
_ADDRESS: Final = re.compile(r"0x[0-9a-fA-F]+")

FREEZE: Final = "layer.eval().requires_grad_(False), so that it uses its running statistics and never changes"


def frozen_norm(layer: nn.Module) -> bool:
    """Whether it is a BatchNorm that computes with its running statistics alone and never changes: a record's output is
    then its own. It is in eval mode, has statistics, and none of its parameters trains."""
    if not isinstance(layer, nn.modules.batchnorm._BatchNorm) or layer.training:
        return False
    trains = any(parameter.requires_grad for parameter in layer.parameters())
    return layer.running_mean is not None and layer.running_var is not None and not trains


def fixed_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Frozen parameters and all buffers, also those that no state_dict has, each once, in the model's own order."""
    frozen = {name: p.detach() for name, p in model.named_parameters() if not p.requires_grad}
    return {**frozen, **{name: value.detach() for name, value in model.named_buffers()}}


def pack(model: nn.Module) -> Tensor:
    """The values of `fixed_tensors`, as bytes (n,) of type uint8.

    Raises:
        UnsupportedError: one is not in plain memory (sparse, quantised, without data).
    """
    parts = [_bytes(name, value) for name, value in fixed_tensors(model).items()]
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.uint8)


def unpack(packed: Tensor, model: nn.Module) -> None:
    """Set the values of `fixed_tensors` to what `pack` gave of a model that is built alike."""
    tensors = fixed_tensors(model)
    sizes = [value.numel() * value.element_size() for value in tensors.values()]
    assert packed.dtype == torch.uint8 and packed.shape == (sum(sizes),), "of another model"
    with torch.no_grad():
        for (name, value), part in zip(tensors.items(), packed.cpu().split(sizes), strict=True):
            if not torch.equal(_bytes(name, value), part):
                # A copy: where a part begins, its type may not.
                value.copy_(part.clone().view(value.dtype).reshape(value.shape))


def fixed_digest(model: nn.Module) -> str:
    """sha256 of `pack`."""
    return digest_of(pack(model))


def model_digest(model: nn.Module) -> str:
    """sha256 over how a model is built, its parameters and what of it does not train."""
    trained = [_bytes(name, value.detach()).cpu().numpy().tobytes() for name, value in model.named_parameters()]
    return hashlib.sha256(b"".join([structure(model).encode(), fixed_digest(model).encode(), *trained])).hexdigest()


def digest_of(packed: Tensor) -> str:
    return hashlib.sha256(packed.cpu().numpy().tobytes()).hexdigest()


def structure(model: nn.Module) -> str:
    """sha256 over how a model is built: its layers with their options, and names, types and shapes of its tensors.

    Tensors and arrays that are plain attributes of a project's own layers count with their values. What ``forward``
    does with all that is not seen.
    """
    layers = [[path, type(layer).__qualname__, _options(layer), _own(layer)] for path, layer in model.named_modules()]
    named = [
        [name, str(value.dtype), list(value.shape), value.requires_grad]
        for name, value in (*model.named_parameters(), *model.named_buffers())
    ]
    return hashlib.sha256(json.dumps([layers, named]).encode()).hexdigest()


def attributes(model: nn.Module) -> tuple[bytes, tuple[type, ...]] | None:
    """What a model computes with besides its tensors: a digest of its layers' attributes, and their classes.

    In one process, models with equal attributes and tensors of one kind are built alike. None if something cannot be
    pickled. Modes are left out.
    """
    layers, pickled = dict(model.named_modules()), hashlib.sha256()
    file = SimpleNamespace(write=pickled.update)
    try:
        for path, layer in layers.items():
            state = dict(layer.__getstate__())
            _WithoutTensors(file).dump([path, {k: v for k, v in state.items() if k not in _NOT_ATTRIBUTES}])
    except Exception:  # users' objects may fail in any way
        return None
    return pickled.digest(), tuple(map(type, layers.values()))


class _WithoutTensors(pickle.Pickler):
    """Pickles tensors by their types and shapes."""

    def persistent_id(self, value: Any) -> Any:
        return (str(value.dtype), tuple(value.shape), value.requires_grad) if isinstance(value, Tensor) else None


@dataclass(frozen=True, slots=True)
class Entry:
    """One of a state_dict, before records are read.

    Attributes:
        digest: sha256 of its bytes. trains: the name of the parameter that it is; None if it depends on none.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    digest: str
    trains: str | None


@dataclass(frozen=True, slots=True)
class Before:
    """A model's state_dict before records are read, for `whole_state`.

    Attributes:
        entries: by their names, which a model's own code may choose. derived: names of those that it makes of what
            trains, in a form that is not known: no file holds them. layout: of what trains.
    """

    entries: Mapping[str, Entry]
    derived: tuple[str, ...]
    layout: Layout


def state_before(model: nn.Module) -> Before:
    """What a model's state_dict holds, and which parameter each entry is: whatever the code calls it, that one's values
    are in it. Whatever else depends on what trains is seen by that it changes with it, in a copy of the model."""
    whole, layout = _state(model), Layout.of(model)
    entries = {
        name: Entry(value.dtype, tuple(value.shape), _digest(name, value), None) for name, value in whole.items()
    }
    copied = _own_copy(model)  # never the model itself is marked: its memory may be a file's
    trains, derived = (_by_place(model), set[str]()) if copied is None else _by_marks(copied, layout, entries)
    return Before(
        {name: replace(entry, trains=trains.get(name)) for name, entry in entries.items() if name not in derived},
        tuple(name for name in entries if name in derived),
        layout,
    )


def _own_copy(model: nn.Module) -> nn.Module | None:
    """None where a stranger's module does not let itself be copied, or not so that what trains is its own."""
    try:
        copied = copy.deepcopy(model)
    except Exception:  # a stranger's code may fail in any way
        return None
    trained = {
        parameter.data_ptr() for parameter in model.parameters() if parameter.requires_grad and parameter.numel()
    }
    return None if any(parameter.data_ptr() in trained for parameter in copied.parameters()) else copied


def _by_marks(copied: nn.Module, layout: Layout, entries: Mapping[str, Entry]) -> tuple[dict[str, str], set[str]]:
    """(the parameter that each entry is, which others depend on some), by what is in a copy once each parameter holds
    numbers of its own, in no order that turning it would leave."""
    parameters, marks = dict(copied.named_parameters()), dict[Any, str]()
    for number, (name, shape) in enumerate(zip(layout.names, layout.shapes, strict=True), 1):
        # The first tells parameters apart, exactly up to 2^23 of them; the golden ratio spreads the others.
        numbers = -number - 0.5 * (torch.arange(shape.numel(), dtype=torch.float64) * GOLDEN).frac().reshape(shape)
        parameter = parameters[name]
        try:
            with torch.no_grad():
                parameter.copy_(numbers)
        except RuntimeError:  # several of its places are one in memory
            parameter.data = numbers.to(parameter)
        if parameter.numel():
            marks[parameter.dtype, tuple(parameter.shape), _digest(name, parameter.detach())] = name
    trains, derived, marked = dict[str, str](), set[str](), _state(copied)
    for name, entry in entries.items():
        value = marked.get(name)
        shown = None if value is None else (value.dtype, tuple(value.shape), _digest(name, value))
        if shown in marks:
            trains[name] = marks[shown]
        elif shown != (entry.dtype, entry.shape, entry.digest):
            derived.add(name)
    return trains, derived


def _by_place(model: nn.Module) -> dict[str, str]:
    """The parameter that each entry is, of a model that cannot be copied: by where it lies in memory."""
    of = {_place(one): name for name, one in model.named_parameters() if one.requires_grad and one.numel()}
    return {name: of[_place(value)] for name, value in _state(model).items() if _place(value) in of}


def _place(value: Tensor) -> tuple[Any, ...]:
    return value.data_ptr(), value.dtype, tuple(value.shape), value.stride()


def whole_state(model: nn.Module, vector: Tensor, before: Before) -> tuple[dict[str, Tensor], list[str]]:
    """A state_dict that the model, or one built like it, loads strictly: with ``vector`` (d,) as what trains; and what
    changed that does not train, by names that it had before: a model's own code may have put records there. If anything
    did, the state_dict holds what trains alone, since which of the others it held would tell of records, too.

    Each entry is a copy on the CPU, so that parameters which share memory can be written to a file.
    """
    try:
        found = _state(model)
    except Exception:  # a stranger's code may fail in any way, and what trains is known without it
        found = {}
    changed = [
        name
        for name, entry in before.entries.items()
        if entry.trains is None and not _is_as_before(name, found.get(name), entry)
    ]
    if not found.keys() <= {*before.entries, *before.derived}:
        changed.append(LATER)  # how many came may tell of records as well
    values, state = before.layout.unflatten(vector), dict[str, Tensor]()
    for name, entry in before.entries.items():
        if entry.trains is not None:
            state[name] = values[entry.trains].to(entry.dtype).reshape(entry.shape)
        elif not changed:
            state[name] = found[name]
    return {name: value.detach().cpu().contiguous().clone() for name, value in state.items()}, changed


def _is_as_before(name: str, value: Tensor | None, entry: Entry) -> bool:
    if value is None or (value.dtype, tuple(value.shape)) != (entry.dtype, entry.shape):
        return False
    return _digest(name, value) == entry.digest


def _digest(name: str, value: Tensor) -> str:
    return digest_of(_bytes(name, value))


def _state(model: nn.Module) -> dict[str, Tensor]:
    return {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}


def _bytes(name: str, value: Tensor) -> Tensor:
    if value.layout != torch.strided or value.is_quantized or value.is_meta:
        raise UnsupportedError(
            f"the model's {name} does not train, and is not a plain tensor that could be compared. Use a dense one."
        )
    return value.cpu().contiguous().reshape(-1).view(torch.uint8)


def _options(layer: nn.Module) -> str:
    try:
        return _ADDRESS.sub("", layer.extra_repr())
    except Exception:  # a stranger's code may fail in any way
        return ""


def _own(layer: nn.Module) -> list[Any]:
    """Digests of tensors that are plain attributes, by name."""
    return [[name, digest] for name, value in sorted(vars(layer).items()) for digest in _digests(value)]


def _digests(value: Any) -> Iterator[str]:
    if isinstance(value, np.ndarray) and value.dtype != object:
        value = torch.from_numpy(np.ascontiguousarray(value)) if value.dtype.kind in "fiubc" else None
    if isinstance(value, Tensor) and value.layout == torch.strided and not (value.is_quantized or value.is_meta):
        yield repr((str(value.dtype), tuple(value.shape))) + digest_of(_bytes("", value.detach()))
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _digests(one)
