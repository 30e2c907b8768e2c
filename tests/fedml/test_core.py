"""What rests on numpy, with the one that FedML needs, before 2: fast tests of it, in FedML's environment."""

import os
import subprocess

import pytest

from tests.fedml.test_fedml import BIN, ROOT, needs_fedml

pytestmark = [pytest.mark.fedml, pytest.mark.slow, needs_fedml]
# What draws, adds up and composes by numpy. All else takes it from these, or computes by torch.
TESTS = (
    "core",
    *(f"gradients/test_{name}.py" for name in ("engines", "fused", "smoothing", "stacked", "sums")),
    *(f"privacy/test_{name}.py" for name in ("accountants", "pld", "samplers", "views")),
)
FAST = "not slow and not statistical and not gpu"


def test_the_fast_tests_of_the_core_pass_with_numpy_1():
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    python = str(BIN / "python")
    found = subprocess.run([python, "-c", "import numpy; print(numpy.__version__)"], capture_output=True, text=True)
    assert found.stdout.startswith("1.26.")
    options = [
        "-q",
        "-p",
        "no:cacheprovider",
        "-o",
        "filterwarnings=default",
        "-m",
        FAST,
        *(f"tests/{name}" for name in TESTS),
    ]
    done = subprocess.run(
        [python, "-m", "pytest", *options],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
