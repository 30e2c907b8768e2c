"""Every registered algorithm keeps the contract that strangers' are held to."""

import pytest

from dpfl_plugin.testing import AlgorithmContract
from tests.conformance.cases import ALGORITHMS, NEED_A_CLIP_NORM, NEED_ALL_SILOS, NON_SMOOTH, RECORD_LEVEL_ONLY, ROUNDS

CASES = [(name, options) for name in sorted(ALGORITHMS) for options in ALGORITHMS[name]]
CHECKS = sorted(name for name in vars(AlgorithmContract) if name.startswith("test_"))
HINGE = {"model": "logistic", "loss": "hinge", "data": {"dataset": {"name": "synthetic", "num_classes": 2}}}


def contract(name: str, options: dict[str, object]) -> AlgorithmContract:
    made = AlgorithmContract()
    made.algorithm = {"name": name, **options}
    made.config = {"rounds": ROUNDS, **(HINGE if name in NON_SMOOTH else {})}
    made.silo_level = name not in RECORD_LEVEL_ONLY
    made.partial_participation = name not in NEED_ALL_SILOS
    made.without_clipping = name not in NEED_A_CLIP_NORM
    made.ranks = (3,)
    return made


@pytest.mark.parametrize(
    "check", [pytest.param(check, marks=[pytest.mark.mpi] * (check == "test_mpi")) for check in CHECKS]
)
@pytest.mark.parametrize(("name", "options"), CASES, ids=lambda x: x if isinstance(x, str) else "-".join(x))
def test_contract(name: str, options: dict[str, object], check: str) -> None:
    getattr(contract(name, options), check)()


def test_a_check_of_the_contract_fails_where_a_declaration_is_wrong() -> None:
    """Else the algorithms above could be declared to be anything."""
    wrong = {
        "silo_level": "test_ledger",
        "partial_participation": "test_partial_participation",
        "without_clipping": "test_without_noise",
    }
    for declared, check in wrong.items():
        made = contract("fedavg", ALGORITHMS["fedavg"][0])
        getattr(made, check)()
        setattr(made, declared, False)
        with pytest.raises(AssertionError, match="is not refused"):
            getattr(made, check)()
