"""How many rounds more are known to fit a budget, so that most of them need no composition.

`Headroom` is of silos, for a budget in the server's view; `Stretch` of a whole run, for one in a third party's.

A check in the server's view composes what each silo of a round has released and would release, and asks whether that
fits. Where a round adds releases of one kind, the next check is of the same composition with a larger number in one
place. So once a check has passed, it is worked out how large that number may become; until then a comparison takes the
check's place.

**Why a comparison is enough.** What is remembered of a silo is a statement on compositions alone: beside so many
releases of other kinds, and certain planned ones, up to n of this kind fit. It is used only while the silo's ledger has
exactly as many of other kinds (they never become fewer, so that an equal number means the same ones), while what is
planned beside them is equal, and while its ledger with the round to come has n of this kind at most. Whatever was
charged meanwhile, by whom, in which round and under which name of noise, the ledger's counts have it. Anything else, a
silo that nothing is known of included, is left to the check.

**Why the answer is the check's own.** If a composition is of one kind only, the budget goes by a number of releases
that it has searched for, and n is that number. Else its accountant is asked for each composition, which may say a
little more of some than of larger ones (`Checked.wavers`). n is then the number of a composition which costs at least
as much, and whose epsilon is so far below the budget that the accountant cannot say of fewer that they pass it. Of an
accountant whose error is not known in this way, nothing is remembered. Such n are found by doubling: with each check a
few larger compositions are tried, and once one did not fit, ever smaller steps. So a quiet run asks the accountant
O(log rounds) times, and then again in each of the last rounds of its budget.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from dpfl_plugin.privacy.budget import Budget
from dpfl_plugin.privacy.composition import Earlier, Planned, Spending, Terms, dominates, undominated

_TRIED: Final = 4  # compositions, with each check; they may be as many as silos, each a call of the accountant


@dataclass(frozen=True, slots=True)
class _Room:
    """What is known of one silo in rounds of one kind.

    Attributes:
        kind: of the round's releases, a number of `Spending`; count: how many they are.
        others: releases of other kinds in the silo's ledger.
        beside: what is composed with those of the ledger.
        most: releases of the kind that fit together with these.
        step: by how many rounds more is tried the next time; 0 for none.
        growing: whether all that was tried did fit.
    """

    kind: int
    count: int
    others: int
    beside: Sequence[Planned]
    most: int
    step: int = 1
    growing: bool = True


class Headroom:
    """What is known of a budget's room for what was spent; see the module.

    Args:
        spent: may grow as it likes.
    """

    def __init__(self, budget: Budget, spent: Spending) -> None:
        self._budget, self._spent = budget, spent
        self._rooms: dict[Hashable, dict[int, _Room]] = {}

    def covers(self, what: Hashable, silos: Iterable[int], beside: Earlier) -> bool:
        """Whether such a round is known to fit for each of ``silos``; else `Budget.allows` has to say.

        Args:
            what: what a round makes of silos: the same for all rounds of which that is the same.
            beside: of each silo, what is to be composed with its releases.
        """
        rooms = self._rooms.get(what)
        if rooms is None:
            return False
        made = self._spent.made
        for silo in silos:
            room = rooms.get(silo)
            if room is None or room.beside != beside.get(silo, ()):
                return False
            of_kind, in_all = made(silo, room.kind)
            if in_all - of_kind != room.others or of_kind + room.count > room.most:
                return False
        return True

    def learn(self, what: Hashable, planned: Mapping[int, Sequence[Planned]], beside: Earlier) -> None:
        """Look how much further silos may go, of which `Budget.allows` has just said that such a round fits.

        Args:
            planned: what the round makes of each silo.
        """
        rooms = self._rooms.setdefault(what, {})
        further: dict[int, Terms] = {}
        for silo, releases in planned.items():
            if len(releases) != 1 or releases[0].count < 1:
                continue  # several kinds, of which each would need a number, or none
            if self.covers(what, (silo,), beside):
                continue
            (one,) = releases
            rooms[silo] = room = self._room(silo, one, beside.get(silo, ()), rooms.get(silo))
            terms = self._spent.composition(silo, (one, *room.beside), one.share)
            known = self._budget.most_known(terms[0]) if len(terms) == 1 else 0
            if known >= terms[0].rounds:
                rooms[silo] = replace(room, most=room.most + one.count + known - terms[0].rounds)
            elif room.step:
                further[silo] = _with(terms, one, room.step * one.count)
        tried = {terms: self._budget.clears(terms) for terms in undominated(further.values())[:_TRIED]}
        for silo, terms in further.items():
            found = [fits for other, fits in tried.items() if other == terms or dominates(other, terms)]
            if found:
                rooms[silo] = _stepped(rooms[silo], any(found))

    def _room(self, silo: int, one: Planned, beside: Sequence[Planned], known: _Room | None) -> _Room:
        """With nothing known but that this round fits, together with all the others' of the same check."""
        kind = self._spent.kind(one)
        of_kind, in_all = self._spent.made(silo, kind)
        # The check itself may go by others of the round that cost more, so that it is no word on this silo alone.
        room = _Room(kind, one.count, in_all - of_kind, beside, of_kind)
        return room if known is None else replace(room, step=known.step, growing=known.growing)


def _stepped(room: _Room, fits: bool) -> _Room:
    if not fits:
        return replace(room, step=room.step // 2, growing=False)
    # One more than the rounds further: the one that was checked.
    most = room.most + (1 + room.step) * room.count
    return replace(room, most=most, step=2 * room.step if room.growing else room.step)


def _with(terms: Terms, one: Planned, more: int) -> Terms:
    """The composition with so many more of one kind of release."""
    return tuple(replace(t, rounds=t.rounds + more) if t.release == one.release else t for t in terms)


class Stretch:
    """Rounds of one kind, one after the other, that are known to fit a budget in a third party's view.

    A third party's epsilon is of all rounds that were begun, of those that were released more than once, and of what is
    composed with them. It does not fall with a further round. So if a check has passed, and one of so many more rounds
    of the same kind says that they fit by more than the accountant wavers, each of these fits and would be said to.
    That holds until something else is counted: a round of another kind (`begun`), a second release of one, silos that
    were lost, whatever else a round may be counted by (`forget`), or other releases composed with them. After each of
    these the next round is checked as ever.
    """

    def __init__(self) -> None:
        self._kind: object = None
        self._beside: object = None
        self._until, self._step, self._growing = 0, 1, True

    def covers(self, kind: object, beside: object, number: int) -> bool:
        """Whether a new round of this kind is known to fit.

        Args:
            beside: what is composed with the rounds.
            number: how many there are with it.
        """
        return number <= self._until and _same(kind, self._kind) and _same(beside, self._beside)

    def learn(self, kind: object, beside: object, number: int, clears: Callable[[int], bool]) -> None:
        """Look how far it goes on from a new round that was just found to fit.

        Args:
            clears: whether so many more rounds of the kind fit, by more than the accountant wavers.
        """
        if not _same(kind, self._kind):
            self._step, self._growing = 1, True
        self._kind, self._beside, self._until = kind, beside, number
        if not self._step:
            return
        if clears(self._step):
            self._until += self._step
            self._step *= 2 if self._growing else 1
        else:
            self._step, self._growing = self._step // 2, False

    def begun(self, kind: object) -> None:
        """A new round of this kind counts from here on."""
        if not _same(kind, self._kind):
            self.forget()

    def forget(self) -> None:
        """Something else changed what is counted."""
        self._until = 0


def _same(one: object, other: object) -> bool:
    return one is other or one == other
