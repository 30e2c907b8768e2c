"""Sums of clipped gradients that one record moves by no more than is charged, whatever floating point does.

Added up one after another, b records lose some u b^2 C of a sum to rounding (u is half the distance from 1 to the next
number: 2^-24 in float32), and one record decides in which direction all later ones are rounded: a record that is
replaced among 60,000 may move a float32 sum by six times 2 C (Casacuberta, Shoham, Vadhan and Wagner, CCS 2022). So a
batch is cut into blocks. A record is in one of them, of no more than `LONGEST` records, and the others do not change.

**Promise.** Let D and D' be batches of one length that differ in the record at one place, or in that it counts as zero
in one of them; or let D' be D without one record, in which case (7.) the last record of D takes its place. For every
engine, every C and bounds by layer that together are C,

    ||S(D) - S(D')|| <= Delta (1 + `slack`) <= Delta (1 + SUM_SLACK),

Delta = 2 C where the record is replaced, C where it counts as zero or is not there.

**What an engine has to keep** for this, where g_i is the gradient of record i as it was computed:

1. g_i, and what is made of it, is a function of that record, its place in the batch, y, and what is public: shapes, C.
   Products of matrices are, row by row (`tests/gradients/test_sums.py`); what is chosen by values, or leaves out
   records and moves the others, is not.
2. v_i, what is added for record i, is clipped by a norm that was computed from the numbers that v_i is made of, to
   `inner` (C). It is the outer product of two vectors of float32 numbers, one product for each entry; or a row that was
   added up within the record before its norm was taken; or, of sequences, a sum over positions in float64 (5.).
3. The batch is cut into chunks by `chunk_of`, and these into blocks by `blocks_of`, by the records' places. Of each
   block the v_i are added up by themselves; the blocks' sums are added up in float64, and are float64 from there on.
4. A record whose gradient does not count as finite has v_i = 0 at its place, in a product of the same shape: one whose
   norm, or the norm of one of whose layers, is not a number or more than `balls.longest`, 2^120 C.

**Proof.** gamma_n = n u / (1 - n u).

1. *One record.* Squares are added up in float64 (d < 2^32 of them: to 2^-21 of themselves), constants of records are
   rounded to float32 once (u), the clip factor and its products with g_i are rounded once each. The clip factor is
   min(1, `inner` / norm), 2^-120 or more (4.): a normal number, in float32, too, and off by u of itself. `inner` is
   128 u inside C, which is more than all of it in float32; in float64, ||v_i|| <= C (1 + 2^-20).
   A factor of an outer product is shorter than 2^64 (`squared_inputs` of a longer one are inf, and so is the norm).
   So numbers of the other factor that are rounded up below 2^-126, by 2^-150 each, add no more than
   2^-86 sqrt(d) <= 2^-20 C. In float64 it is shorter than 2^512, and they add 2^-1075 each: 2^-563 sqrt(d).
   In float64 squares vanish, too: of numbers below 2^-511 they are off by 2^-1022 at most, also if they become 0. Both
   factors' squares have that added for each of their numbers (`squared_norms`), so neither is too small. What
   their product lacks, if that is below 2^-1022, is less than 2^-1022: nothing beside C^2.
2. *A block*, of B records. Each entry of its sum is a sum of at most B products; in whatever order they are added up,
   with fused multiply-adds or without, the error is at most gamma_B times the sum of their absolute values (Higham
   2002, Accuracy and Stability of Numerical Algorithms, 3.1). Over the entries these are sum_i |v_i|, of norm B C or
   less. So ||fl(block) - block|| <= gamma_B B C: of D, and of D'; in a block with a record that counts as zero,
   gamma_B (B - 1) C. What underflows on the way, 2^-126 or less for each operation, is
   2 B 2^-126 sqrt(d) <= 2^-20 C.
3. *All blocks.* Those without the record are the same numbers in D and in D'. n float64 numbers whose norms are b C
   together are added up to n 2^-53 b C; n is the number of blocks of a chunk, and of chunks (`depth`).
4. S(D) - S(D') is v_i - v_i' and these errors. Relative to Delta: gamma_B B + n 2^-53 b where a record is replaced;
   gamma_B (2 B - 1) + 2 n 2^-53 b where it counts as zero; 4 gamma_B B + 2 n 2^-53 b where it is not there (7.). B = 62
   is the most that leaves room for the rest of 2^-10.
5. *Sequences* of T positions whose gradients are not formed: v_i is a sum of T products an entry, and the sum L_i of
   their norms may be longer than v_i by any factor, if positions cancel. There float32 numbers are multiplied and added
   up in float64: off by gamma_(B T) (of 2^-53) times sum_i w_i L_i, w_i the clip factor. The norm that w_i was made of
   is (T + 4) 2^-24 L_i or more (`bookkeeping`), so w_i L_i <= C 2^24 / (T + 4), and the error is at most B^2 2^-29 C.

6. *Scaled instead of clipped* (`balls.Normalised`): the factor is `inner` / (norm + gamma). 1. and 5. use no more of
   min(1, `inner` / norm) than that it is at most `inner` / norm and a normal number; so is this one, between 2^-121 and
   2^30, for gamma is between 1e-9 C and 1e9 C.

7. *With and without a record.* Amplification by sampling compares the batches that have a record with those that have
   not. Samplers hand out each batch in a uniform order (`draws.shuffled`), by which few blocks differ.
   Poisson batches: let T, of k records, be the others that were drawn, t_1, ..., t_k in a uniform order, and p uniform
   in 1, ..., k + 1. Put x at place p, and t_p, if there is one, behind the last. Of (order of T, p) and orders of T and
   x each gives the other, so that one is uniform, too. Thus coupled, all records but x and t_p stay at their places.
   Beyond 2 B records a place is in the same block whatever the length of the batch (`blocks_of`, `chunk_of`, `pieces`).
   So two blocks differ, that of p and the last. S(D) - S(D') is v_x and four errors of gamma_B B C or less (2.): of
   these blocks, of D and of D'. Up to 2 B records all blocks may differ: then 2. for all records of D and of D' gives
   gamma_B (2 b - 1) C, which is less than 4 gamma_B B C.
   Batches of fixed size: those with x, and those with another record z in its place, have one law, order included; they
   differ at one place, as in 4.
   In the order of a file all blocks behind x would differ: worst records move a sum over 5,000 by 1.002 C, one over
   20,000 by 1.009 C (`tests/gradients/test_sums.py`).

Layers' parts of v_i are orthogonal: by Minkowski's inequality the bounds hold for all layers together.

**Assumed**: products by the definition, in any order (no Strassen, no reduced formats: `precision.check`); IEEE
arithmetic, with or without numbers below 2^-126; clipping norms in [2^-40, 2^40] (bounds of a
layer, or adapted, in [2^-50, 2^50]). Others are refused. For 7. also: what is computed of a record is the same at
another place and in a batch of another length. Rows of torch's products are, of two columns or more; in products of one
column, as of models with one output, the last few rows may be rounded otherwise, which is not covered.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor

from dpfl_plugin.core.grid import SUM_SLACK
from dpfl_plugin.errors import UnsupportedError

LONGEST: Final = 62
"""Records of a block: see the proof, 4."""
HALVED: Final = 2 * LONGEST
"""Records that are cut into equal blocks: see the proof, 7."""
AT_A_TIME: Final = 2**16
"""Records of a chunk, whatever the memory: blocks' sums are added up chunk by chunk."""
AT_ONCE: Final = {"cpu": 2**18, "cuda": 2**22}
"""Numbers of blocks' sums that are formed at a time, before they are added up: as many as stay in the caches."""
_REST: Final = 2.0**-20 + 2.0**-20  # of one record, and of what underflows
_U64: Final = 2.0**-53


@dataclass(frozen=True, slots=True)
class Blocks:
    """Of some records, one block after another: ``full`` of ``length`` records each, and one of ``rest``, if not 0."""

    length: int
    full: int
    rest: int

    @property
    def count(self) -> int:
        return self.full + (self.rest > 0)


@functools.lru_cache(maxsize=4096)
def blocks_of(count: int) -> Blocks:
    """The fewest blocks of at most `LONGEST` of ``count`` records: as equal as can be up to `HALVED`, and beyond of
    `LONGEST` each but for the last, so that a record's block follows from its place alone."""
    if not count:
        return Blocks(1, 0, 0)
    length = LONGEST if count > HALVED else -(-count // -(-count // LONGEST))
    return Blocks(length, *divmod(count, length))


def filled(count: int) -> int:
    """The next number of records, ``count`` or more, whose blocks are all equal; ``count`` if that is far beyond it."""
    blocks = blocks_of(count)
    equal = blocks.count * blocks.length
    return equal if 10 * equal <= 11 * count or count <= HALVED else count


def pieces(count: int, size: int) -> list[tuple[int, int]]:
    """Where chunks begin and end, of ``count`` records and at most ``size`` each (`chunk_of`): beside others, what
    `blocks_of` would halve is two blocks, so that their length does not follow from how many records there are."""
    found = []
    for first in range(0, count, size):
        last = min(first + size, count)
        if last - first < count and LONGEST < last - first <= HALVED:
            found.append((first, first + LONGEST))
            first += LONGEST
        found.append((first, last))
    return found


Neighbouring = Literal["replace_one", "zeroed", "add_or_remove"]
"""The record at a place is another one; counts as zero; or is there or not, and another takes its place."""


def slack(
    count: int,
    at_a_time: int = AT_A_TIME,
    dtype: torch.dtype = torch.float32,
    neighbouring: Neighbouring = "add_or_remove",
    depth: int | None = None,
) -> float:
    """The proven bound on (||S(D) - S(D')|| - Delta) / Delta for batches of ``count`` records: see above.

    Args:
        at_a_time: records of a chunk.
        depth: additions in float64 that a number may go through, where they are not by block.
    """
    size = max(1, min(count, at_a_time, AT_A_TIME))
    longest = max(blocks_of(size).length, blocks_of(count % size).length)
    u = torch.finfo(dtype).eps / 2
    lost = longest * u / (1 - longest * u)
    of_positions = longest * 2.0**-29 if dtype is torch.float32 else 0.0
    if depth is None:
        depth = longest + blocks_of(size).count + -(-count // size)
    # How often a block's error, gamma C for each of its records, counts, over Delta.
    errors = {
        "replace_one": longest,
        "zeroed": 2 * longest - 1,
        "add_or_remove": 2 * count - 1 if count <= HALVED else 4 * longest,
    }
    of_blocks = (lost + of_positions) * errors[neighbouring]
    added_up = depth * _U64 * count * (1 if neighbouring == "replace_one" else 2)
    return (of_blocks + added_up) * (1 + 2.0**-10) + _REST


@functools.lru_cache(maxsize=4096)
def chunk_of(count: int, most: int, depth: int | None = None) -> int:
    """How many of ``count`` records to work on at a time, where there is room for ``most``.

    Raises:
        UnsupportedError: there are so many that nothing is proven of their sum.
    """
    size = max(1, min(most, AT_A_TIME))
    if count > size >= LONGEST:
        size -= size % LONGEST  # whole blocks, so that a record's block follows from its place alone
    if slack(count, size, depth=depth) > SUM_SLACK:
        raise UnsupportedError(
            f"a batch of {count:,} records, {size:,} at a time, is too large: rounding could move its sum by more than "
            f"{SUM_SLACK:.1e} of the sensitivity, which is what is charged. Lower privacy.record_rate or batch_size, "
            "or raise runtime.memory_budget."
        )
    return size


def add_products(g: Tensor, a: Tensor, out: Tensor, bad: Tensor | None = None) -> None:
    """Add to ``out`` (m, o, i), in float64, sum_j g_j a_j^T over the records j of ``g`` (m, b, o) and ``a`` (m, b, i),
    block by block.

    Args:
        bad: (b,) records that count as zero, where m is 1: their ``g`` are zero, their ``a`` need not be finite.
    """
    (m, b, o), i = g.shape, a.shape[2]
    blocks = blocks_of(b)
    if bad is not None:
        a = a.masked_fill(bad.view(1, -1, 1), 0.0)
    if m == blocks.count == 1:  # of what follows, all that there is to do
        out += torch.bmm(g.transpose(1, 2), a)
        return
    length, in_blocks = blocks.length, blocks.full * blocks.length
    per = AT_ONCE.get(g.device.type, AT_ONCE["cuda"]) // (m * o * i)
    # Views of several silos' blocks at once are there only if these lie one after another.
    dense = all(b == in_blocks and one.stride(0) == b * one.stride(1) for one in (g, a))
    step = length * max(1, per) if m == 1 or (dense and per >= blocks.full) else length
    for first in range(0, in_blocks, step):
        last = min(first + step, in_blocks)
        some = g[:, first:last].reshape(-1, length, o).transpose(1, 2)
        found = torch.bmm(some, a[:, first:last].reshape(-1, length, i))
        out += found.view(m, -1, o, i).sum(dim=1, dtype=torch.float64) if len(found) > m else found
    if blocks.rest:
        out += torch.bmm(g[:, in_blocks:].transpose(1, 2), a[:, in_blocks:])


def add_rows(factors: Tensor | None, rows: Tensor, out: Tensor) -> None:
    """Add to ``out`` (p,), in float64, the sum of ``rows`` (b, p), times ``factors`` (b,), block by block."""
    weights = rows.new_ones(len(rows)) if factors is None else factors
    add_products(weights.view(1, -1, 1), rows.unsqueeze(0), out.view(1, 1, -1))


def add_up(rows: Tensor, out: Tensor) -> None:
    """Add to ``out`` (m, o), in float64, the sums of ``rows`` (m, b, o) over b, block by block."""
    blocks = blocks_of(rows.shape[1])
    in_blocks = blocks.full * blocks.length
    if not blocks.full:
        return
    if blocks.count == 1:
        out += rows.sum(dim=1)
        return
    of_blocks = rows[:, :in_blocks].unflatten(1, (blocks.full, blocks.length)).sum(dim=2)
    out += of_blocks.sum(dim=1, dtype=torch.float64)
    if blocks.rest:
        out += rows[:, in_blocks:].sum(dim=1)
