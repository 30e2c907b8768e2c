"""What rounds cost, in columns, is what a dictionary of them is."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from dpfl_plugin.privacy.costs import Rounds

KINDS = [("a",), ("b",), tuple("a")]  # the last is equal to the first, and another object
ROUNDS: list[Any] = [*range(8), 10**6, 2**62, 2**63 - 1, 2**63, -1, -(2**63), 1.0, 2.5]
CHANGES = st.lists(st.tuples(st.sampled_from(ROUNDS), st.sampled_from(range(3)), st.booleans()), max_size=30)


@settings(deadline=None)
@given(CHANGES, st.integers(0, 20), st.booleans())
def test_rounds_are_a_plain_dictionary(changes: list[tuple[Any, int, bool]], ascending: int, removed: bool) -> None:
    found: Rounds[tuple[str, ...]] = Rounds({n: KINDS[n % 2] for n in range(ascending)})
    plain = {n: KINDS[n % 2] for n in range(ascending)}
    for round_, kind, kept in changes:
        if kept or round_ not in plain or not removed:
            found[round_] = plain[round_] = KINDS[kind]
        else:
            del found[round_], plain[round_]
        assert found.get(round_) is plain.get(round_)
    for one, other in (
        (found, plain),
        (found.mapped(lambda kind: kind * 2), {n: kind * 2 for n, kind in plain.items()}),
    ):
        assert list(one.items()) == list(other.items()) and len(one) == len(other) and one == other
        assert list(one) == list(other) and list(one.values()) == list(other.values())
        assert Counter(one.values()) == Counter(other.values()) and {**one} == other
        assert [one.get(n) for n in ROUNDS] == [other.get(n) for n in ROUNDS]
        assert [n in one for n in (*ROUNDS, "x", None)] == [n in other for n in (*ROUNDS, "x", None)]
    assert all(found[n] is plain[n] for n in plain)
    again = Rounds(found)
    again[10**7] = KINDS[0]
    assert 10**7 not in found and {**again} == plain | {10**7: KINDS[0]}
