"""`dpfl new`: what it writes is well-formed; what cannot be written is refused, and nothing is overwritten."""

import ast
import subprocess
import sys
import tomllib

import pytest
import yaml

from dpfl_plugin.api.projects import KINDS
from dpfl_plugin.api.projects import rendered_package as rendered
from dpfl_plugin.config.load import load
from tests.cli.command import dpfl, one_message

STEPS = {
    "algorithm": ("pip install -e", "pytest", "dpfl run my_method.yaml"),
    "flower-app": ("flwr run . --federation-config 'num-supernodes=5'", "my_method/task.py"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_it_writes_a_package_and_says_what_to_do_next(tmp_path, kind):
    done = dpfl("new", kind, "my_method", "--out", tmp_path)
    assert done.code == 0, done.err
    folder = tmp_path / "my-method"
    written = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert written == set(rendered("my_method", kind)) and len(written) == len(KINDS[kind].files)
    for path, text in rendered("my_method", kind).items():
        assert (folder / path).read_text() == text
        assert "{{" not in text and "{%" not in text and path in done.out
    for step in (f"cd {folder}", *STEPS[kind]):
        assert step in done.out


def test_the_files_fit_together():
    files = rendered("my_2nd_method")
    project = tomllib.loads(files["pyproject.toml"])
    assert project["project"]["name"] == "my-2nd-method"
    points = project["project"]["entry-points"]["dpfl_plugin.algorithms"]
    assert points == {"my_2nd_method": "my_2nd_method:My2ndMethod"}
    assert project["tool"]["setuptools"]["py-modules"] == ["my_2nd_method"]
    classes = [node.name for node in ast.parse(files["my_2nd_method.py"]).body if isinstance(node, ast.ClassDef)]
    assert classes == ["My2ndMethod"]
    assert yaml.safe_load(files["my_2nd_method.yaml"])["algorithm"]["name"] == "my_2nd_method"


@pytest.mark.parametrize("kind", KINDS)
def test_the_code_is_clean(tmp_path, kind):
    """By the linter that this project uses, with its settings but for the mutable class attribute of a test."""
    for path, text in rendered("my_method", kind).items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    ruff = [sys.executable, "-m", "ruff"]
    for command in (["format", "--check"], ["check", "--select", "E,W,F,UP,B,C4,SIM,PT,NPY"]):
        options = ["--isolated", "--line-length", "120", str(tmp_path)]
        done = subprocess.run([*ruff, *command, *options], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_configuration_compares_with_fedavg_at_one_epsilon(tmp_path):
    path = tmp_path / "my_method.yaml"
    path.write_text(rendered("my_method")["my_method.yaml"].replace("{name: my_method,", "{name: fedprox, mu: 0,"))
    plan = load(path)
    assert plan.compare == (("my_method", "fedavg"),)
    first, second = (variant.config for variant in plan.variants)
    assert first.privacy == second.privacy and first.privacy.epsilon is not None
    assert second.algorithm.name == "fedavg" and "beta" not in second.algorithm.options


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("fedavg", "dpfl-plugin"),
        ("my-method", "e.g. my_method"),
        ("My Method", "e.g. my_method"),
        ("class", "not a keyword"),
        ("2fast", "begins with a letter"),
        ("../escape", "e.g. escape"),
        ("random", "there is a module of this name"),
        ("torch", "e.g. dp_torch"),
        ("", "must be a Python name"),
    ],
)
def test_a_name_that_cannot_be_used_is_refused(tmp_path, name, said):
    one_message(dpfl("new", "algorithm", name, "--out", tmp_path), "NAME=", said)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("kind", "said"), [("algoritm", "did you mean 'algorithm'?"), ("schedule", "Known: algorithm, flower-app.")]
)
def test_another_kind_is_refused(tmp_path, kind, said):
    one_message(dpfl("new", kind, "my_method", "--out", tmp_path), said)
    assert not list(tmp_path.iterdir())


def test_nothing_is_overwritten(tmp_path):
    (tmp_path / "my-method").mkdir()
    (tmp_path / "my-method" / "mine.py").write_text("x = 1\n")
    one_message(dpfl("new", "algorithm", "my_method", "--out", tmp_path), "is not empty", "another out")
    assert [path.name for path in (tmp_path / "my-method").iterdir()] == ["mine.py"]
    (tmp_path / "a-file").write_text("")
    one_message(dpfl("new", "algorithm", "a_file", "--out", tmp_path), "is not empty")


def test_an_empty_folder_is_filled(tmp_path):
    (tmp_path / "deep" / "my-method").mkdir(parents=True)
    assert dpfl("new", "algorithm", "my_method", "--out", tmp_path / "deep").code == 0
    assert (tmp_path / "deep" / "my-method" / "my_method.py").exists()
    assert dpfl("new", "algorithm", "other", "--out", tmp_path / "not" / "there").code == 0
