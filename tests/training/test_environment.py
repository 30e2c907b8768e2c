"""What tells two computations apart that would not give the same bits."""

import importlib.util

import pytest

from dpfl_plugin.gradients import fused
from dpfl_plugin.training.environment import arithmetic, elsewhere, machine


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
        "dpfl_plugin.training.environment._processor",
        "platform.machine",
        "torch.backends.cpu.get_cpu_capability",
    ):
        with monkeypatch.context() as patch:
            patch.setattr(changed, lambda: "another")
            assert arithmetic("cpu", 1) != here[0] and elsewhere(here[0], [machine("cpu")]), changed
    assert not elsewhere(here[0], [{**here[1], "kernels": here[0]["kernels"]}])


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
