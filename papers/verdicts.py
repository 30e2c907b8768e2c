"""How published orderings stand: at how many of their places they were tried, and where they do not agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from papers.items import Claim, Item
from papers.numbers import Numbers, differences, places, together
from papers.numbers import Place as Run
from papers.paired import Difference
from papers.tables import by, markdown, place, unit_of

NAMED: Final = 3  # places; of more there is only how many
AGREES: Final = "agrees"
MISSING: Final = "a run diverged, or is missing"


@dataclass(frozen=True, slots=True)
class Place:
    """An ordering at one place: where, and what came out; None where a run diverged or is missing."""

    claim: Claim
    at: Mapping[str, Any]
    found: Difference | None

    @property
    def verdict(self) -> str:
        return MISSING if self.found is None else self.found.verdict(self.claim.least)


@dataclass(frozen=True, slots=True)
class Standing:
    """Some orderings: at which places they were tried, and how many places there are in all runs."""

    item: Item
    tried: Sequence[Place]
    of: int

    @property
    def agree(self) -> int:
        return sum(one.verdict == AGREES for one in self.tried)

    @property
    def whole(self) -> bool:
        """Whether they agree at all of their places."""
        return self.agree == self.of

    def counted(self, what: str) -> str:
        """E.g. "4 of 5 places", "1 of 1 places tried (of 5)"."""
        tried = len(self.tried)
        return f"{self.agree} of {tried} {what}" + (f" tried (of {self.of})" if tried < self.of else "")

    def others(self) -> str:
        """The places that do not agree, by verdict; "" where there are none."""
        groups: dict[str, list[Place]] = {}
        for one in self.tried:
            if one.verdict != AGREES:
                groups.setdefault(one.verdict, []).append(one)
        return "; ".join(f"{_bracketed(verdict)} {self._where(found)}".strip() for verdict, found in groups.items())

    def _where(self, found: Sequence[Place]) -> str:
        if len(found) == len(self.tried) > 1:
            return "at all of them"
        if len(found) > NAMED:
            return f"at {len(found)} places"
        named = [self._name(one) for one in found]
        return "at " + "; ".join(named) if any(named) else ""

    def _name(self, one: Place) -> str:
        """What tells a place from the others that were tried."""
        claims = {id(other.claim): other.claim for other in self.tried}.values()
        parts, lines = {claim.part for claim in claims}, {(claim.better, claim.worse) for claim in claims}
        name = [self.item.part(one.claim.part).title] if len(parts) > 1 else []
        name += [f"{one.claim.better} against {one.claim.worse}"] if len(lines) > 1 else []
        return ", ".join([*name, *place(one.at)])


def _bracketed(verdict: str) -> str:
    words, comma, rest = verdict.partition(", one")
    return f"{words} (one{rest})" if comma else verdict


def standing(item: Item, numbers: Numbers, claims: Sequence[Claim]) -> Standing:
    tried = [Place(claim, at, found) for claim in claims for at, found in differences(numbers, item, claim)]
    parts = [item.part(name) for name in {claim.part for claim in claims}]
    runs = {part.name: [run for _, run in places(item, part, part.expansion())] for part in parts}
    return Standing(item, tried, max(len(tried), sum(_places(item, claim, runs[claim.part]) for claim in claims)))


def _places(item: Item, claim: Claim, runs: Sequence[Run]) -> int:
    """At how many places all runs have the line that is said to be better."""
    found = set[str]()
    for one in runs:
        same = one.line == claim.better or (claim.better in item.tuned and one.line.startswith(f"{claim.better}, "))
        if same and all(one.at.get(key) == value for key, value in claim.at.items()):
            found.add(str(sorted(one.at.items())))
    return len(found)


def groups(item: Item) -> list[list[Claim]]:
    """Claims of the same words and source."""
    found: dict[tuple[str, str, bool], list[Claim]] = {}
    for claim in item.claims:
        found.setdefault((claim.text, claim.source, claim.published), []).append(claim)
    return list(found.values())


def verdicts(item: Item, numbers: Numbers) -> str:
    """Each published ordering: how it stands, and what came out at each place."""
    texts = []
    for claims in groups(item):
        stands, first = standing(item, numbers, claims), claims[0]
        source = first.source if first.published else f"not published: {first.source}"
        others = stands.others()
        said = f"agrees at {stands.counted('places')}" + (f"; {others}" if others else "")
        if not stands.tried:
            said = f"not tried at any of {stands.of} places"
        texts.append(f"**{first.text[0].upper()}{first.text[1:]}** ({source}): {said}.")
        if stands.tried:
            texts.append(_table(item, numbers, stands, claims))
    return "\n\n".join(texts)


def _table(item: Item, numbers: Numbers, stands: Standing, claims: Sequence[Claim]) -> str:
    rows = []
    for claim in claims:
        said = [(place(one.at), one.found, one.verdict) for one in stands.tried if one.claim is claim]
        if (all_of := together(numbers, item, claim)) is not None:
            said.append(([f"all {len(said)} together"], all_of, all_of.verdict(claim.least)))
        for at, found, verdict in said:
            where = ", ".join([item.part(claim.part).title, *at])
            ours = "" if found is None else by(item, found)
            rows.append([where, claim.better, ", ".join([claim.worse, *place(claim.worse_at or {})]), ours, verdict])
    return markdown(["at", "better", "worse", f"ours: better by ({unit_of(item)})", "verdict here"], rows)
