"""`python -m tests.mutants [NAME ...]`: break the package in every way of the catalogue, see that tests notice.

Without names, all of them. Their rows in docs/mutants.md are written anew, where their tests are green without
a mutation. Exit code 1 if a mutant survives, or a test is not.
"""

from __future__ import annotations

import argparse
import os
import sys

from tests.mutants import harness, table
from tests.mutants.catalogue import MUTANTS, suites


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="mutants to try (all)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time (one for each core)")
    parser.add_argument("--serve", action="store_true", help="read names from stdin, write results to stdout")
    arguments = parser.parse_args()
    if arguments.serve:
        harness.serve()
        return 0
    known = {mutant.name: mutant for mutant in MUTANTS}
    chosen = [known[name] for name in arguments.names] or MUTANTS
    with harness.Workshop() as workshop:
        green = workshop.all([("", suite) for suite in suites(chosen)], arguments.jobs)
        for result in green:
            if not result.green:
                print(f"NOT GREEN without a mutation: {result.tests}\n{result.output}")
        results = workshop.all([(mutant.name, mutant.tests) for mutant in chosen], arguments.jobs, say=_say)
    survivors = [result for result in results if not result.killed]
    for result in survivors:
        print(f"SURVIVES: {result.mutant} ({result.verdict})\n{result.output}")
    print(f"{len(results) - len(survivors)} of {len(results)} mutants killed")
    if not all(result.green for result in green):  # then it may not be the mutation that is noticed
        return 1
    table.write([result for result in results if result.killed])
    return 1 if survivors else 0


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
