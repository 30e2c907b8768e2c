"""`python slurm/generate.py`: writes the batch scripts beside it, which stop and go on as those of sweeps do."""

from __future__ import annotations

from pathlib import Path

from dpfl_plugin.experiments.scripts import rendered

if __name__ == "__main__":
    for name, text in rendered().items():
        path = Path(__file__).with_name(name)
        path.write_text(text)
        path.chmod(0o755)
