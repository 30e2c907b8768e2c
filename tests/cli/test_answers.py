"""What a person is told in situations that are easy to misread."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from dpfl_plugin.federation.silo_group import SiloGroup
from tests.cli.command import dpfl, run, write

CSV = """
rounds: 3
data: {dataset: {name: csv, files: "*.csv"}, partition: natural}
model: logistic
algorithm: {name: fedavg, local_steps: 2, local_lr: 0.1}
privacy: {clip_norm: 1, noise_multiplier: 4, record_rate: 0.5}
"""


def silos(folder: Path, shift: float = 0.0) -> None:
    for place, site in enumerate(("a", "b")):
        rows = [f"{i + shift + place / 2},{(i * 7) % 5},{('no', 'yes')[i % 2]}" for i in range(20)]
        (folder / f"{site}.csv").write_text("\n".join(["age,dose,label", *rows]))


def test_a_run_folders_configuration_can_be_run_again(tmp_path: Path) -> None:
    """Its relative paths start where the user's file was; it is the same run, with the same id and the same bits."""
    (tmp_path / "mine").mkdir()
    silos(tmp_path / "mine")
    config = tmp_path / "mine" / "my.yaml"
    config.write_text(f"seed: 3\n{CSV}")
    first = run(config)
    again = dpfl("run", Path(first["folder"]) / "config.yaml", "--out", tmp_path / "again", "--json")
    assert again.code == 0, again.err
    assert (again.json["id"], again.json["model_sha256"]) == (first["id"], first["model_sha256"])
    assert dpfl("account", Path(first["folder"]) / "config.yaml").code == 0


def test_a_finished_run_is_not_shown_for_other_records(tmp_path: Path) -> None:
    silos(tmp_path)
    config = tmp_path / "config.yaml"
    config.write_text(CSV)
    first = run(config)
    assert any("2 features: age, dose" in note for note in first["notes"])
    stated = json.loads((Path(first["folder"]) / "ledger.json").read_text())
    assert not any("age, dose" in text or "labels: " in text for text in stated["caveats"])  # which is no gap
    assert any("the data as read: 2 features: age, dose" in text for text in stated["notes"])
    words = (Path(first["folder"]) / "privacy.md").read_text()
    assert words.index("## Notes of this run") < words.index("2 features: age, dose")
    again = dpfl("run", config, "--out", tmp_path / "runs", "--json")
    assert again.json == first
    assert "finished before" in again.err
    assert "since this result was made" not in again.err, "nothing changed"
    silos(tmp_path, shift=1.0)
    changed = dpfl("run", config, "--out", tmp_path / "runs")
    assert changed.code == 2
    assert "other records" in changed.err
    for path in tmp_path.glob("*.csv"):
        path.unlink()
    gone = dpfl("run", config, "--out", tmp_path / "runs", "--json")
    assert gone.json == first
    assert "cannot be compared with those of this finished run" in gone.err


def test_interrupted_in_the_first_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is finished, and kept."""
    real, sent = SiloGroup.run, []

    def interrupted(self: SiloGroup, *args: Any) -> Any:
        if not sent:
            sent.append(signal.raise_signal(signal.SIGINT))
        return real(self, *args)

    monkeypatch.setattr(SiloGroup, "run", interrupted)
    done = dpfl("run", write(tmp_path), "--out", tmp_path / "runs")
    assert done.code == 4 and "interrupted; 1 round done and saved. Go on with" in done.err
    assert "picture" not in done.out


def test_an_accountant_that_does_not_know_the_sampler_is_refused_before_anything_is_released(tmp_path: Path) -> None:
    done = dpfl("run", write(tmp_path, {"privacy": {"accountant": "prv"}}), "--out", tmp_path / "runs")
    assert done.code == 2
    assert "PRV" in done.err
    assert not (tmp_path / "runs").exists()


def test_a_delta_that_protects_nobody_is_remarked_on(tmp_path: Path) -> None:
    result = run(write(tmp_path, {"privacy": {"delta": 0.05}}))
    assert any("privacy.delta=0.05 is not below 1/24" in note for note in result["notes"])
    assert not any("delta" in note for note in run(write(tmp_path, {"name": "small"}))["notes"])


def test_a_run_that_was_all_warm_up_says_so(tmp_path: Path) -> None:
    result = run(write(tmp_path, {"algorithm": {"name": "scaffold_warm"}, "silo_rate": 0.5, "rounds": 1}))
    assert any("never trained" in note for note in result["notes"])
