"""What the benchmark of the tutorials shows of a session is what the page explains."""

from __future__ import annotations

from pathlib import Path

from benchmarks import quickstart, tutorials

AUDIT = """\
┏━━━━━━━━━━━━━━━━━━━━━━━━┳━━━━━━┓
┃ what                   ┃ seen ┃
┡━━━━━━━━━━━━━━━━━━━━━━━━╇━━━━━━┩
│ epsilon that the       │ 0.85 │
│ canaries prove         │      │
│ spread by batches      │ 1.01 │
│ strength of the noise  │ 1.00 │
└────────────────────────┴──────┘
"""


def test_the_rows_that_are_asked_for_with_the_lines_that_they_go_on_in() -> None:
    shown = tutorials.selected(AUDIT.splitlines(), ("epsilon that the", "strength"))
    assert [line.split("│")[1].strip() for line in shown] == [
        "epsilon that the",
        "canaries prove",
        "strength of the noise",
    ]


def test_the_files_of_the_algorithm_are_those_of_the_page(tmp_path: Path) -> None:
    config = tutorials.brake(tmp_path)
    assert "class Brake(LocalSteps)" in (tmp_path / "brake.py").read_text()
    assert 'module: "brake:Brake"' in config.read_text()


def test_a_file_with_one_run_is_run_over_seeds_with_changes(tmp_path: Path) -> None:
    config = tutorials.hospitals(tmp_path) / "hospitals.yaml"
    changes = ["rounds=1", "privacy.noise_multiplier=9", "privacy.epsilon=null"]
    ((name, results),) = quickstart.run(config, 2, tmp_path / "runs", changes).items()
    assert name == "hospitals"
    assert [(one["seed"], one["rounds"], one["noise_multiplier"]) for one in results] == [(0, 1, 9), (1, 1, 9)]
