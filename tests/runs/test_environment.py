"""What tells two computations apart that would not give the same bits."""

import importlib.util
import tomllib
from pathlib import Path

import pytest
import torch

from dpfl_plugin.gradients import fused
from dpfl_plugin.runs.environment import HAND_OVER, arithmetic, elsewhere, flags, machine, modules

ROOT = Path(__file__).parents[2]


def test_the_same_twice():
    assert arithmetic("cpu", 1) == arithmetic("cpu", 1)
    assert arithmetic("cpu", 1) != arithmetic("cpu", 2)


def test_a_plugin_whose_source_changed_is_another(tmp_path):
    def algorithm():
        spec = importlib.util.spec_from_file_location("theirs", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(__import__("sys").modules, "theirs", module)
            return arithmetic("cpu", 1, [module.Algorithm()])

    path = tmp_path / "theirs.py"
    path.write_text("class Algorithm:\n    step = 1\n")
    first, again = algorithm(), algorithm()
    path.write_text("class Algorithm:\n    step = 2\n")
    assert first == again
    assert algorithm() != first


def test_what_libraries_choose_their_kernels_by_tells_machines_apart(monkeypatch):
    """Another model of processor, version or instruction set: other roundings, so never the same noise."""
    here = arithmetic("cpu", 1), machine("cpu")
    for changed in (
        "dpfl_plugin.runs.environment._processor",
        "platform.machine",
        "torch.backends.cpu.get_cpu_capability",
    ):
        with monkeypatch.context() as patch:
            patch.setattr(changed, lambda: "another")
            assert arithmetic("cpu", 1) != here[0] and elsewhere(here[0], [machine("cpu")]), changed
    assert not elsewhere(here[0], [{**here[1], "kernels": here[0]["kernels"]}])


def test_what_is_left_out_of_a_runs_modules_is_what_no_run_can_import():
    """The rooms are above all that a run is made in, by the contract of imports; and each is somewhere in it."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(one["layers"] for one in contracts if one["type"] == "layers" and one["exhaustive"])
    above = layers[: layers.index("runs")]
    assert {room for layer in above for room in layer.split(" | ")} > HAND_OVER
    found = modules()
    assert {"errors", "runs.environment", "gradients.fused"} <= found.keys() and all(found.values())
    assert not HAND_OVER & {name.partition(".")[0] for name in found}


def test_a_gpu_is_not_trusted_to_repeat_itself(monkeypatch):
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: "some GPU")
    assert arithmetic("cpu", 1)["repeats"]
    assert not arithmetic("cuda:0", 1)["repeats"]


def test_compiled_loops_are_another_computation():
    compiled, plain = arithmetic("cpu", 1, (), "numba 1"), arithmetic("cpu", 1)
    assert compiled != plain and compiled != arithmetic("cpu", 1, (), "numba 2")
    assert machine("cpu")["kernels"] == fused.version()


def test_compiled_loops_elsewhere_count_where_the_engine_uses_them():
    there = {**machine("cpu"), "kernels": "numba 1"}
    assert elsewhere(arithmetic("cpu", 1, (), "numba 1"), [there]) == {}
    assert elsewhere(arithmetic("cpu", 1), [there, {**there, "kernels": None}]) == {}
    for own, theirs in (("numba 1", None), ("numba 1", "numba 2")):
        assert elsewhere(arithmetic("cpu", 1, (), own), [there, {**there, "kernels": theirs}])["elsewhere"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OMP_THREAD_LIMIT", "1"),  # fewer threads than torch says, and sums in another order
        ("MKL_CBWR", "COMPATIBLE"),
        ("MKL_ENABLE_INSTRUCTIONS", "SSE4_2"),
        ("NUMBA_CPU_NAME", "generic"),
        ("NUMBA_CPU_FEATURES", ""),
        ("NUMBA_DISABLE_JIT", "1"),
        ("ONEDNN_MAX_CPU_ISA", "SSE41"),
        ("DNNL_MAX_CPU_ISA", "SSE41"),
        ("OPENBLAS_CORETYPE", "Haswell"),
        ("ATEN_CPU_CAPABILITY", "default"),
        ("NPY_DISABLE_CPU_FEATURES", "AVX2"),
        ("GLIBC_TUNABLES", "glibc.cpu.hwcaps=-AVX2_Usable"),
        ("NVIDIA_TF32_OVERRIDE", "1"),
    ],
)
def test_variables_by_which_libraries_choose_kernels_tell_computations_apart(monkeypatch, name, value):
    monkeypatch.delenv(name, raising=False)
    here, there = arithmetic("cpu", 1), machine("cpu")
    monkeypatch.setenv(name, value)
    assert arithmetic("cpu", 1) != here and elsewhere(here, [machine("cpu")]) and not elsewhere(here, [there])


@pytest.mark.parametrize(
    "name",
    [
        *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS", "NUMBA_CACHE_DIR"),
        *("OMP_PROC_BIND", "OMP_PLACES", "KMP_AFFINITY", "GOMP_CPU_AFFINITY", "KMP_BLOCKTIME", "OMP_WAIT_POLICY"),
        *("MKL_VERBOSE", "TORCH_HOME", "TORCH_NCCL_BLOCKING_WAIT", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"),
    ],
)
def test_variables_of_launchers_and_places_do_not(monkeypatch, name):
    """Ranks, sweeps and a run by itself differ in them, and compute the same."""
    monkeypatch.delenv(name, raising=False)
    here = arithmetic("cpu", 1), machine("cpu")
    monkeypatch.setenv(name, "3")
    assert (arithmetic("cpu", 1), machine("cpu")) == here


def test_what_users_code_told_torch_tells_computations_apart():
    """And once it is told otherwise, all is as it was."""
    here = flags()
    assert arithmetic("cpu", 1)["flags"] == here
    told = {
        "denormal": (torch.set_flush_denormal, True, False),
        "deterministic": (torch.use_deterministic_algorithms, True, False),
        "dtype": (torch.set_default_dtype, torch.float64, torch.float32),
        "matmul": (torch.set_float32_matmul_precision, "medium", "highest"),
        "mkldnn": (lambda on: setattr(torch.backends.mkldnn, "enabled", on), False, True),
        "attention": (torch.backends.mha.set_fastpath_enabled, False, True),
    }
    for name, (tell, other, usual) in told.items():
        tell(other)
        try:
            assert flags() != here, name
        finally:
            tell(usual)
        assert flags() == here, name
