"""What of a model does not train: frozen parameters, buffers, and how it is built.

An algorithm's vectors hold the parameters that train, and nothing else. Two processes that build another random model
have the same function only if the rest is the same as well: so it is compared by a digest, or carried as bytes. It is
public: it was there before any record was read, and training leaves it as it is.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
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
    marked, marks = _marked(model, layout)
    entries, derived = dict[str, Entry](), list[str]()
    for name, value in whole.items():
        entry = Entry(value.dtype, tuple(value.shape), _digest(name, value), None)
        seen = marked.get(name)
        shown = None if seen is None else (seen.dtype, tuple(seen.shape), _digest(name, seen))
        if shown in marks:
            entries[name] = replace(entry, trains=marks[shown])
        elif shown == (entry.dtype, entry.shape, entry.digest):
            entries[name] = entry
        else:
            derived.append(name)
    return Before(entries, tuple(derived), layout)


def _marked(model: nn.Module, layout: Layout) -> tuple[dict[str, Tensor], dict[Any, str]]:
    """(a state_dict with another number in each place that trains, whose parameter has which of them)"""
    try:
        copied = copy.deepcopy(model)  # never the model itself: its memory may be a file's
    except Exception:  # a stranger's code may fail in any way
        return _by_place(model)
    numbers = layout.unflatten(torch.arange(1, layout.dimension + 1, dtype=torch.float64).neg_())
    parameters, marks = dict(copied.named_parameters()), dict[Any, str]()
    for name, value in numbers.items():
        parameter = parameters[name]
        try:
            with torch.no_grad():
                parameter.copy_(value)
        except RuntimeError:  # several of its places are one in memory
            parameter.data = value.to(parameter)
        if parameter.numel():
            marks[parameter.dtype, tuple(parameter.shape), _digest(name, parameter.detach())] = name
    return _state(copied), marks


def _by_place(model: nn.Module) -> tuple[dict[str, Tensor], dict[Any, str]]:
    """The same of one that cannot be copied: an entry trains if it is in the memory of what does."""
    whole, trained = _state(model), [(name, one) for name, one in model.named_parameters() if one.requires_grad]
    of = {one.data_ptr(): name for name, one in trained if one.numel()}
    return whole, {
        (value.dtype, tuple(value.shape), _digest(name, value)): of[value.data_ptr()]
        for name, value in whole.items()
        if value.data_ptr() in of
    }


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
