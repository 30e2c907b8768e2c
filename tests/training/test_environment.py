"""What tells two computations apart that would not give the same bits."""

import importlib.util

import pytest

from dpfl_plugin.training.environment import arithmetic


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


def test_a_gpu_is_not_trusted_to_repeat_itself(monkeypatch):
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: "some GPU")
    assert arithmetic("cpu", 1)["repeats"]
    assert not arithmetic("cuda:0", 1)["repeats"]
