"""`python -m benchmarks.papers`: published experiments beside what we measure; writes the tables in docs/papers.md."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from benchmarks.pages import ROOT, put
from benchmarks.quickstart import run, table

PUBLISHED = "| Noble et al., Table 1 | 0.435 ± 0.015 | not stated; third party 3 | 2.5e-06 |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = run(ROOT / "configs" / "papers" / "noble_table1.yaml", arguments.seeds, Path(folder))
    third_party = max(run["epsilon"]["third_party"]["epsilon"] for runs in results.values() for run in runs)
    worst_case = max(run["epsilon"]["server"]["worst_case_epsilon"] for runs in results.values() for run in runs)
    text = f"{table(results)}\n{PUBLISHED}\n\n"
    text += f"Third party: {third_party:.2f}. A silo that took part in every round: {worst_case:.2f} (server)."
    print(text)
    put("docs/papers.md", "noble_table1", text)


if __name__ == "__main__":
    main()
