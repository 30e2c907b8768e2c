"""The contract notices every fault by the check that is for it, and says how to fix it."""

from __future__ import annotations

import pytest

from dpfl_plugin.oracle import PrivateOracle
from dpfl_plugin.testing import AlgorithmContract, ContractError, endings

OPTIONS = "test_options_are_the_same_after_they_were_written_to_a_file"
SHAPES = "test_vectors_have_the_shape_and_type_of_the_model"
REPEAT = "test_equal_inputs_give_equal_results"
TOGETHER = "test_silos_advanced_together_compute_what_each_computes_alone"
PLAN = "test_round_plan_announces_every_gradient"
HALF = "test_half_of_the_silos_can_take_part_or_silo_rate_is_refused"
CHARGES = "test_every_answer_of_the_oracle_is_charged"
RESUME = "test_a_resumed_run_ends_as_an_uninterrupted_one"
MPI = "test_mpi_processes_end_as_one_process"
STEPS = {"local_steps": 3, "local_lr": 0.1}
FAULTS = [
    ("NotFrozen", OPTIONS, "is not a frozen dataclass: write @dataclass"),
    ("OptionsThatChange", OPTIONS, "is not the same after its options were written"),
    ("ReadsRecords", SHAPES, r"local_update reads oracle.records \(round 0, m = 1\): an algorithm never sees records"),
    ("StateOnSelf", RESUME, "interrupted after round . and resumed, the run ends with another model"),
    ("StateInAGlobal", RESUME, "neither attributes of self nor globals"),
    (
        "StateOnSelf",
        REPEAT,
        "with equal inputs in round 1, aggregate gives another state .* memory belongs into the states",
    ),
    ("CoinsOfItsOwn", RESUME, "nor random generators"),
    ("CoinsOfItsOwn", TOGETHER, "no random numbers of your own"),
    ("MoreGradients", PLAN, r"asks for gradient 4 \(round 0, m = 1\), but its round_plan says num_gradients=3"),
    ("FewerGradients", PLAN, "asks for 3 gradients in round 0, but its round_plan says num_gradients=4"),
    ("PlanOfItsOwn", PLAN, "round_plan answers two equal questions differently"),
    ("ChangesTheServer", SHAPES, "aggregate changes the server's state in place: 'model' differs"),
    ("ChangesTheMean", SHAPES, "aggregate changes the mean of the uploads in place"),
    ("ChangesTheDownload", SHAPES, "local_update changes the download"),
    (
        "Squeezes",
        SHAPES,
        r"'model', of shape \(15,\) \(round 0, m = 1\); it must be \(m, d\), \(m, 1\) or \(m,\), here \(1, 15\)",
    ),
    ("OnePointForAll", SHAPES, r"gives oracle.gradient shape \(15,\) .* a point for each silo is needed"),
    ("OfAnotherType", SHAPES, "'control', of torch.float32; the model is torch.float64"),
    ("StatesInOneMemory", SHAPES, "'update' in the memory of 'control'"),
    ("RowsInOneMemory", SHAPES, "'anchor' in the memory of itself"),
    ("StateFromNowhere", SHAPES, "keeps the state 'last' .* which init_silos does not begin"),
    (
        "NameThatComesLater",
        SHAPES,
        r"returns the states \['model', 'velocity'\] in round 0, and got \['model'\]",
    ),
    ("NotesAreText", SHAPES, "notes returns 'one string'"),
    ("MixesSilos", TOGETHER, "silos advanced 2 at a time compute something else than one at a time: 'model'"),
    ("SendsWhatWasNotReleased", CHARGES, "sends 'model' without releasing it as it is"),
    ("SendsMoreThanWasReleased", CHARGES, "sends 'half' without releasing it as it is"),
    ("IgnoresTheSiloRate", HALF, "lets all silos take part although silo_rate is 0.5"),
    (
        "CoinsInLocalUpdate",
        REPEAT,
        "with equal inputs in round 0, local_update gives other uploads .* draw no random numbers",
    ),
]


def contract(algorithm: dict[str, object]) -> AlgorithmContract:
    made = AlgorithmContract()
    made.algorithm = {**algorithm, **STEPS}
    made.config = {"rounds": 2}
    return made


@pytest.mark.parametrize(("name", "check", "message"), FAULTS)
def test_a_fault_is_noticed(name: str, check: str, message: str) -> None:
    with pytest.raises(ContractError, match=message):
        getattr(contract({"module": f"tests.testing.algorithms:{name}"}), check)()


@pytest.mark.parametrize("check", [SHAPES, REPEAT, TOGETHER])
@pytest.mark.parametrize(
    "algorithm",
    [{"module": "tests.testing.algorithms:ShortUploads"}, {"name": "fedavg", "server_optimizer": "fedexp"}],
    ids=["of our own", "fedexp"],
)
def test_an_upload_may_be_a_number(algorithm: dict[str, object], check: str) -> None:
    getattr(contract(algorithm), check)()


@pytest.mark.parametrize("unit", ["record", "silo"])
def test_an_answer_that_the_ledger_lacks_is_noticed(monkeypatch, unit) -> None:
    real = PrivateOracle.charges

    def charges(self):
        return [charge for charge in real(self) if charge.release.unit != unit or charge.silo != 2]

    monkeypatch.setattr(PrivateOracle, "charges", charges)
    with pytest.raises(ContractError, match=r"round 0, silo 2: \d answers of oracle\.\w+, and 0 in the ledger"):
        getattr(contract({"name": "fedavg"}), CHARGES)()


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ('exec "$python" "$@" --set algorithm.local_lr=0.2', "mpirun -n 3 ends with another model than one process"),
        ("echo no slots left >&2; exit 3", r"exit code 3:\nno slots left"),
    ],
    ids=["another result", "a failure"],
)
def test_a_fault_on_ranks_is_noticed(tmp_path, monkeypatch, script: str, message: str) -> None:
    """In place of mpirun stands what runs the command in one process, changed."""
    mpirun = tmp_path / "mpirun"
    mpirun.write_text(f'#!/bin/sh\ntest "$1 $4 $5 $6" = "-n -P -m mpi4py" || exit 9\npython=$3; shift 6\n{script}\n')
    mpirun.chmod(0o755)
    monkeypatch.setattr(endings, "_mpirun", lambda: str(mpirun))
    monkeypatch.setattr(endings, "mpi_missing", lambda: None)
    with pytest.raises(ContractError, match=message):
        getattr(contract({"name": "fedavg"}), MPI)()
