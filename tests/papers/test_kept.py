"""The kept numbers of published experiments are of the runs that are configured."""

from dataclasses import replace

from papers import catalog, numbers


def test_the_kept_numbers_are_of_the_configured_runs() -> None:
    """Else run that figure again (dpfl papers), and keep it (python -m benchmarks.papers --keep DIR)."""
    for paper in catalog.papers():
        for item in paper.items:
            found = numbers.kept(paper.name, item)
            if found is not None and item.computed is None:
                whole = replace(found.extent, seeds=())
                expansions = [part.expansion(whole) for part in item.ran(whole)]
                assert found.runs == numbers.runs_digest(expansions), f"{paper.name} {item.name}"
