"""How each site writes dates: 07/01/2015 is 7 January or July 1, and 42011 may be the same day in a spreadsheet."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final

from dpfl_plugin.data.column_profile import (
    ColumnProfile,
    Counts,
    Sites,
    is_date,
    is_number,
    nearly_all,
    numbers_of,
    site_list,
)
from dpfl_plugin.data.draft_marks import NOT_USED

DAY_FIRST: Final = "%d/%m/%Y"
MONTH_FIRST: Final = "%m/%d/%Y"
DATES: Final = (None, "%d.%m.%Y", DAY_FIRST, MONTH_FIRST)
SERIAL: Final = "numbers"
SERIALS: Final = (20_000, 60_000)  # days from 1899-12-30, of 1954 to 2064
_LIKE: Final = re.compile(r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}")
EXAMPLES: Final = {None: "2020-01-31", SERIAL: "43861, a day as spreadsheets count them"}
Forms = frozenset[str | None]


def forms_of(counts: Counts) -> Forms:
    """The formats that read nearly all words of a site, the fewest of them left out; none where they are no dates."""
    if not any(_LIKE.match(word) for word in counts):
        whole = nearly_all(counts, is_number)
        numbers = None if whole is None else numbers_of(whole.fit)
        if numbers is None or not all(SERIALS[0] <= number <= SERIALS[1] for number in numbers):
            return frozenset()
        return frozenset([SERIAL])
    strays = {form: dates.num_strays for form in DATES if (dates := nearly_all(counts, is_date(form))) is not None}
    fewest = min(strays.values(), default=0)
    return frozenset(form for form, num in strays.items() if num == fewest)


def are_dates(column: ColumnProfile) -> bool:
    """Whether some cells of text look like dates."""
    return not column.is_time and any(_LIKE.match(word) for word in column.texts)


def by_forms(column: ColumnProfile, sites: Sites) -> dict[Forms, list[int]]:
    """{formats of dates: the places of the sites that write them so}; sites without dates are left out."""
    places: dict[Forms, list[int]] = {}
    for site, counts in enumerate(column.by_site(sites)):
        if forms := forms_of(counts):
            places.setdefault(forms, []).append(site)
    return places


def written(forms: Forms) -> str:
    """E.g. "%d/%m/%Y or %m/%d/%Y"."""
    return " or ".join(EXAMPLES.get(form, str(form)) for form in sorted(forms, key=str))


def doubts(
    columns: Mapping[str, ColumnProfile], known: Collection[str], sites: Sites
) -> tuple[dict[str, str], list[str]]:
    """({column: why no date is read from it}, what to say of others that one site's dates leave open).

    A format is decided by each site's own cells. Where all dates of all sites have a day that may be a month, and where
    sites write dates in different ways, none is read.

    Args:
        known: columns of which more is known already.
    """
    left_out, notes = dict[str, str](), list[str]()
    for name, column in columns.items():
        if name in known or not are_dates(column) or not (sites_by_forms := by_forms(column, sites)):
            continue
        common = frozenset.intersection(*sites_by_forms)
        if not common:
            shown = "; ".join(
                f"{site_list(sites, places)} {written(forms)}" for forms, places in sites_by_forms.items()
            )
            left_out[name] = (
                f"{name} {NOT_USED}: sites write dates in different ways: {shown}. Write all alike, as 2020-01-31."
            )
        elif {DAY_FIRST, MONTH_FIRST} <= common:
            if shown := next(filter(_is_open, column.counts), ""):
                left_out[name] = (
                    f"{name} {NOT_USED}: in {shown!r} either number may be the day. Write {{type: date, range: [first, "
                    f"last], format: '{DAY_FIRST}'}}, or format: '{MONTH_FIRST}'."
                )
        elif several := [place for forms, places in sites_by_forms.items() if forms > common for place in places]:
            notes.append(
                f"{name}: in all dates of {site_list(sites, several)} either number may be the day. They are read as "
                f"{written(common)}, as other sites write them: check that."
            )
    return left_out, notes


def _is_open(word: str) -> bool:
    """Whether a date is another one if its month comes first."""
    return all(is_date(form)(word) for form in (DAY_FIRST, MONTH_FIRST)) and len({*word.split("/")[:2]}) > 1
