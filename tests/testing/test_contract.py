"""The contract notices what is wrong, each by the check that is for it, and says how to mend it."""

import re
from pathlib import Path

import pytest

import dpfl_plugin
from dpfl_plugin.errors import TrainingError
from dpfl_plugin.oracle import PrivateOracle
from dpfl_plugin.testing import AlgorithmContract, ContractError
from tests.testing import right, wrong

CHECKS = sorted(name for name in vars(AlgorithmContract) if name.startswith("test_"))
WRONG = [
    ("NotFrozen", "test_options", "is not a frozen dataclass: write @dataclass"),
    ("OptionsThatChange", "test_options", "is not the same after its options were written"),
    ("StateOnSelf", "test_resume", "interrupted after round . and resumed, the run ends with another model"),
    ("StateInAGlobal", "test_resume", "neither attributes of self nor globals"),
    ("CoinsOfItsOwn", "test_resume", "nor the state of a random generator"),
    ("CoinsOfItsOwn", "test_stack", "no random numbers of your own"),
    ("MoreGradients", "test_plan", r"asks for gradient 4 \(round 0, m = 1\), but its round_plan says num_gradients=3"),
    ("FewerGradients", "test_plan", "asks for 3 gradients in round 0, and its round_plan says num_gradients=4"),
    ("PlanOfItsOwn", "test_plan", "round_plan answers two equal questions differently"),
    ("ChangesTheServer", "test_shapes", "aggregate changes the server's state in place: 'model' differs"),
    ("ChangesTheMean", "test_shapes", "aggregate changes the mean of the uploads in place"),
    ("ChangesTheDownload", "test_shapes", "local_update changes the download"),
    (
        "Squeezes",
        "test_shapes",
        r"'model', of shape \(15,\) \(round 0, m = 1\); it must be \(m, d\), \(m, 1\) or \(m,\), here \(1, 15\)",
    ),
    ("OnePointForAll", "test_shapes", r"gives oracle.gradient shape \(15,\) .* a point for each silo is needed"),
    ("OfAnotherType", "test_shapes", "'control', of torch.float32; the model is torch.float64"),
    ("StatesInOneMemory", "test_shapes", "'update' in the memory of 'control'"),
    ("RowsInOneMemory", "test_shapes", "'anchor' in the memory of itself"),
    ("StateFromNowhere", "test_shapes", "keeps the state 'last' .* which init_silos does not begin"),
    (
        "NameThatComesLater",
        "test_shapes",
        r"returns the states \['model', 'velocity'\] in round 0, and got \['model'\]",
    ),
    ("NotesAreText", "test_shapes", "notes returns 'one string'"),
    ("MixesSilos", "test_stack", "silos advanced 2 at a time compute something else than one at a time: 'model'"),
    ("SendsWhatWasNotReleased", "test_ledger", "sends 'model' without releasing it as it is"),
    ("SendsMoreThanWasReleased", "test_ledger", "sends 'half' without releasing it as it is"),
    ("IgnoresTheSiloRate", "test_partial_participation", "lets all silos take part although silo_rate is 0.5"),
    ("CoinsInLocalUpdate", "test_replay", "repeated with the same answers of the oracle, round 0 gives other uploads"),
]


def contract(name: str) -> AlgorithmContract:
    made = AlgorithmContract()
    module = next(one for one in (right, wrong) if hasattr(one, name))
    made.algorithm = {"module": f"{module.__name__}:{name}", **wrong.RIGHT}
    made.config = {"rounds": 2}
    return made


@pytest.mark.parametrize("check", [check for check in CHECKS if check != "test_mpi"])
def test_what_is_right_passes(check: str) -> None:
    getattr(contract("Right"), check)()


@pytest.mark.parametrize("check", ["test_shapes", "test_stack"])
def test_an_upload_may_be_a_number(check: str) -> None:
    getattr(contract("ShortUploads"), check)()


@pytest.mark.parametrize(("name", "check", "message"), WRONG, ids=lambda x: x.replace(" ", "-")[:40])
def test_what_is_wrong_is_noticed(name: str, check: str, message: str) -> None:
    with pytest.raises(ContractError, match=message):
        getattr(contract(name), check)()


def test_an_oracle_that_was_kept_answers_no_more() -> None:
    with pytest.raises(TrainingError, match="an oracle of a round that is over: it would not be charged"):
        contract("KeepsTheOracle").test_ledger()


@pytest.mark.parametrize("unit", ["record", "silo"])
def test_a_release_that_the_ledger_lacks_is_noticed(monkeypatch, unit) -> None:
    real = PrivateOracle.charges

    def charges(self):
        return [charge for charge in real(self) if charge.release.unit != unit or charge.silo != 2]

    monkeypatch.setattr(PrivateOracle, "charges", charges)
    with pytest.raises(ContractError, match=r"round 0, silo 2: \d answers of oracle\.\w+, and 0 in the ledger"):
        contract("Right").test_ledger()


def test_the_suite_is_there_without_pytest() -> None:
    """Nothing of the package imports it, now or later."""
    package = Path(dpfl_plugin.__file__).parent
    wanting = re.compile(r"^\s*(import|from) _?pytest\b|import_module\(.pytest", re.MULTILINE)
    files = list(package.rglob("*.py"))
    assert len(files) > 100 and not [path for path in files if wanting.search(path.read_text())]
