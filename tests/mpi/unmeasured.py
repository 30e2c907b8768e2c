"""``dpfl`` without pictures and tables of measures, as in tests/conftest.py: a rank needs longer to load what makes
them than for all that it computes.

    python -m tests.mpi.unmeasured [ARGUMENT ...]
"""

from __future__ import annotations

import dpfl_plugin.api.plots
from dpfl_plugin.cli.main import main
from dpfl_plugin.federation import silo_group


def switch_off() -> None:
    dpfl_plugin.api.plots.curves = lambda *given: None  # type: ignore[assignment]
    silo_group.measures = lambda *given: None  # type: ignore[assignment, return-value]


if __name__ == "__main__":
    switch_off()
    main()
