"""What messages say: a header is a JSON object, vectors follow as raw buffers in the order of their layout."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from itertools import pairwise
from typing import Any, Final

import torch

from dpfl_plugin.algorithms.base import RoundPlan
from dpfl_plugin.core.scaling import Measured
from dpfl_plugin.core.vectors import Vectors
from dpfl_plugin.data.base import Inputs, Survey
from dpfl_plugin.errors import MessageError
from dpfl_plugin.oracle import Draw
from dpfl_plugin.privacy.events import Charge, SampledGaussian

Header = dict[str, Any]
DRAW: Final = ("seed", "round", "noise_id")
Layout = dict[str, tuple[str, tuple[int, ...]]]
"""The type and shape of vectors, by name, in the order in which they travel."""


def encode(header: Mapping[str, Any]) -> bytes:
    """A header as bytes; floats keep all their bits, infinities and NaN included."""
    return json.dumps(header, separators=(",", ":")).encode()


def decode(data: bytes | bytearray) -> Header:
    header: Header = json.loads(data)
    return header


def layout(vectors: Vectors, *, row: bool = False) -> Layout:
    """Of ``vectors`` (d,), or with ``row`` of one row of stacks (m, d)."""
    return {name: (_name(v.dtype), tuple(v.shape[1:] if row else v.shape)) for name, v in vectors.items()}


def read_layout(found: Mapping[str, Any]) -> Layout:
    return {name: (str(dtype), tuple(shape)) for name, (dtype, shape) in found.items()}


def empty(described: Layout, device: torch.device, *rows: int) -> Vectors:
    """Vectors of a layout, to be written to: (d,) each, or (rows, d)."""
    return {
        name: torch.empty(*rows, *shape, dtype=getattr(torch, dtype), device=device)
        for name, (dtype, shape) in described.items()
    }


def zeros(described: Layout, device: torch.device, *rows: int) -> Vectors:
    return {name: value.zero_() for name, value in empty(described, device, *rows).items()}


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def read_dealt(header: Mapping[str, Any]) -> tuple[int, ...]:
    """The ranks that have silos, and tell each other what rank 0 is not told.

    Raises:
        MessageError: rank 0 is one of them.
    """
    dealt = tuple(header["dealt"])
    if 0 in dealt:
        raise MessageError("survey with silos at rank 0, the server, which would hear what silo ranks tell each other.")
    return dealt


def plan_header(plan: RoundPlan, draw: Draw) -> Header:
    """What a round's silos are told."""
    return {"plan": asdict(plan), "draw": {name: getattr(draw, name) for name in DRAW}}


def read_plan(header: Mapping[str, Any]) -> tuple[RoundPlan, Draw]:
    """What `plan_header` wrote.

    Raises:
        MessageError: a silo is to take part twice, or they are not in order.
    """
    plan, draw = RoundPlan(**_tuples(header["plan"])), Draw(**_tuples(header["draw"]))
    check_participants(plan)
    return plan, draw


def check_participants(plan: RoundPlan, num_silos: int | None = None) -> None:
    """Check that a round's silos are ascending ids, each once, and of ``num_silos`` where that is known.

    Raises:
        MessageError: they are not: each place would be an answer.
    """
    who = plan.participants
    whole = all(type(silo) is int and silo >= 0 for silo in who)
    if not whole or any(one >= other for one, other in pairwise(who)) or len(plan.weights) != len(who):
        raise MessageError(
            f"round of {len(who)} participants: each silo takes part once, in ascending order, with one weight. "
            "Correct how rank 0 draws them."
        )
    if num_silos is not None and who and who[-1] >= num_silos:
        raise MessageError(
            f"round of silo {who[-1]}: there are {num_silos} silos, from 0. Correct how rank 0 draws participants."
        )


def charges_header(charges: Iterable[Charge]) -> list[Header]:
    return [asdict(charge) for charge in charges]


def read_charges(found: Iterable[Mapping[str, Any]]) -> list[Charge]:
    return [Charge(**{**_tuples(item), "release": SampledGaussian(**_tuples(item["release"]))}) for item in found]


def survey_header(survey: Survey) -> Header:
    """For the silos' ranks, which know themselves what their records are."""
    return {name: value for name, value in asdict(survey).items() if name not in ("inputs", "outcome", "cuts", "key")}


def read_survey(found: Mapping[str, Any]) -> Survey:
    return Survey(**_tuples(found))


def inputs_header(inputs: Inputs | None, *, named: bool, ours: bool) -> Header | None:
    """What records are, for rank 0: without what was read from them.

    Args:
        named: whether the configuration has the names of classes.
        ours: whether this package's code says so: names of columns that others' code makes may be values of a column.
    """
    if inputs is None:
        return None
    shown = replace(inputs, classes=inputs.classes if named else (), columns=inputs.columns if ours else ())
    return asdict(shown)


def read_inputs(found: Mapping[str, Any]) -> Inputs:
    measured = tuple(Measured.of(one) for one in found["measured"])
    return Inputs(**{**_tuples(found), "measured": measured})


def _tuples(values: Mapping[str, Any]) -> dict[str, Any]:
    """JSON has lists where our frozen records have tuples."""
    return {name: _tuple(value) for name, value in values.items()}


def _tuple(value: Any) -> Any:
    return tuple(_tuple(item) for item in value) if isinstance(value, list) else value
