"""The owner's file: who may have written it, what it may say, and where it is looked for."""

import os
import stat
from pathlib import Path

import pytest

from dpfl_plugin.config.load import configure
from dpfl_plugin.errors import ConfigError, LimitError
from dpfl_plugin.owners import limits as module
from dpfl_plugin.owners.limits import Limits, find_limits, own_folder, read_limits
from tests.adapters.federation import NOISY, block

GOOD = "folder: {folder}\nepsilon: 8\ndelta: 1e-4\n"


@pytest.fixture
def path(tmp_path):
    found = tmp_path / "limits.yaml"
    found.write_text(GOOD.format(folder=tmp_path / "silo"))
    found.chmod(0o600)
    return found


def test_a_file_says_what_may_be_released(path, tmp_path):
    assert read_limits(path) == Limits(folder=tmp_path / "silo", epsilon=8, delta=1e-4, source=str(path))
    path.write_text(
        path.read_text() + "unit: silo\ndata: patients\nsend: [metrics, record_counts]\ncode: ['mine:Alg']\n"
    )
    found = read_limits(path)
    assert (found.unit, found.data, found.send) == ("silo", "patients", {"metrics", "record_counts"})
    assert found.code == {"mine:Alg"}


def test_a_key_of_earlier_versions_is_read_with_a_note_where_it_says_what_holds(path):
    without = read_limits(path)
    path.write_text(path.read_text() + "repeatable: false\n")
    with pytest.warns(FutureWarning, match=r"limits\.yaml: repeatable: false is no longer needed"):
        assert read_limits(path) == without


WRONG = {
    "epsilom: 8": r"epsilom is not a known key \(did you mean 'epsilon'\?\)\. Known: folder, epsilon, delta, unit,",
    "folder: silo": "folder='silo' must be an absolute path",
    "folder: /x": "key 'folder' is given twice",
    "epsilon: 0": "epsilon=0 must be a number above 0",
    "epsilon: -1": "epsilon=-1 must be a number above 0",
    "epsilon: .inf": "epsilon=inf must be a number above 0",
    "epsilon: true": "epsilon=True must be a number above 0",
    "epsilon: lots": "epsilon='lots' must be a number above 0",
    "delta: 1": r"delta=1 must be a number in \(0, 1\)",
    "delta:": "delta is missing",
    "unit: patient": "unit='patient' must be record or silo",
    "data: ../other": r"data='\.\./other' must be a name of letters",
    "send: metrics": r"send='metrics' must be a list, each once\. What may be sent: metrics: losses",
    "send: [metrics, metrics]": "must be a list, each once",
    "code: mine:Alg": r"code='mine:Alg' must be a list of package\.module:callable",
    "code: [mine.Alg]": r"code=\['mine\.Alg'\] must be a list of package\.module:callable",
    "send: [metric]": r"send: 'metric' is not known \(did you mean 'metrics'\?\)",
    "repeatable: true": r"limits\.yaml: repeatable: noise of owners' data is always fresh. Remove the line",
    "repeatable: 1": "repeatable: noise of owners' data is always fresh",
    "- a": r"limits\.yaml",
}


@pytest.mark.parametrize(("line", "why"), WRONG.items(), ids=WRONG)
def test_what_makes_no_sense_is_an_error_that_says_how_to_mend_it(path, tmp_path, line, why):
    key = line.partition(":")[0]
    kept = [one for one in path.read_text().splitlines() if not one.startswith(key) or line == "folder: /x"]
    path.write_text("\n".join([*kept, line]) + "\n")
    with pytest.raises(ConfigError, match=why):
        read_limits(path)


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_can_write_does_not_count(path, mode):
    path.chmod(mode)
    with pytest.raises(ConfigError, match=r"can be written by others: .* chmod go-w .*limits\.yaml"):
        read_limits(path)


def test_nor_one_in_a_folder_where_others_can_put_another_in_its_place(path, tmp_path):
    tmp_path.chmod(0o777)
    with pytest.raises(ConfigError, match=f"{tmp_path.name} can be written by others"):
        read_limits(path)
    tmp_path.chmod(0o777 | stat.S_ISVTX)  # as /tmp: only its owner can move a file away
    assert read_limits(path).epsilon == 8


def test_nor_one_of_another_user(path, monkeypatch):
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    path_owner = path.stat().st_uid
    if path_owner == 0:
        assert read_limits(path).epsilon == 8  # root's counts
        os.chown(path, 54321, -1)
        path_owner = 54321
    with pytest.raises(ConfigError, match=rf"belongs to user {path_owner}: .* sudo chown"):
        read_limits(path)


def test_one_that_cannot_be_read_is_an_error_and_not_the_absence_of_limits(tmp_path):
    with pytest.raises(ConfigError, match=r"limits file .*none\.yaml cannot be read"):
        find_limits(environment={"DPFL_LIMITS": str(tmp_path / "none.yaml")})
    with pytest.raises(ConfigError, match="must be named by an absolute path"):
        find_limits(environment={"DPFL_LIMITS": "limits.yaml"})


def test_where_limits_are_looked_for(path, tmp_path, monkeypatch):
    other = tmp_path / "other.yaml"
    other.write_text(GOOD.format(folder=tmp_path / "other"))
    monkeypatch.setattr(module, "PLACES", (str(tmp_path / "none"), str(other)))
    by_variable = {"DPFL_LIMITS": str(path)}
    assert find_limits(environment={}).folder == tmp_path / "other"
    assert find_limits(environment=by_variable).folder == tmp_path / "silo"
    assert find_limits(path, "node-config", by_variable).folder == tmp_path / "silo"
    assert find_limits(path, "node-config", {}).folder == tmp_path / "silo"
    with pytest.raises(ConfigError, match=r"two limits files, .*\(by node-config\) and .*\(by DPFL_LIMITS\)"):
        find_limits(other, "node-config", by_variable)
    monkeypatch.setattr(module, "PLACES", (str(path), str(other)))
    with pytest.raises(ConfigError, match="two limits files"):
        find_limits(environment={})
    monkeypatch.setattr(module, "PLACES", ())
    assert find_limits(environment={}) is None


def test_the_owners_folder_is_the_owners_alone(tmp_path):
    own_folder(tmp_path / "made" / "here", "limits")
    assert stat.S_IMODE((tmp_path / "made" / "here").stat().st_mode) == 0o700
    (tmp_path / "made" / "here").chmod(0o770)
    with pytest.raises(ConfigError, match="can be written by others, who might set the lifetime ledger back"):
        own_folder(tmp_path / "made" / "here", "limits")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be made"):
        own_folder(tmp_path / "file" / "folder", "limits")


PROPOSED = {
    "more epsilon": ({**NOISY, "epsilon": 8.001}, "epsilon 8.001 is above the owner's limit of 8"),
    "more delta": ({**NOISY, "delta": 2e-4, "epsilon": 8.0}, "delta 0.0002 is above the owner's limit of 0.0001"),
    "no noise": ({**NOISY, "noise_multiplier": 0}, "adds no noise"),
    "another unit": ({**NOISY, "unit": "silo"}, "protects each silo .* unit: record"),
    "code for noise": ({**NOISY, "mechanism": {"module": "os:getcwd"}}, r"privacy\.mechanism\.module \(os:getcwd\)"),
    "another's accountant": ({**NOISY, "accountant": "generous"}, "accountant 'generous' is not one of pld,"),
}


@pytest.mark.parametrize(("privacy", "why"), PROPOSED.values(), ids=PROPOSED)
def test_what_a_server_proposes_is_checked_against_the_limits(privacy, why):
    limits = Limits(folder=Path("/srv/silo"), epsilon=8, delta=1e-4, source="/etc/limits.yaml")
    with pytest.raises(LimitError, match=why) as refused:
        limits.check(configure(block(privacy=privacy), source="test"))
    assert "/etc/limits.yaml" in str(refused.value) and "Nothing was released" in str(refused.value)
    assert refused.value.public == "not within this owner's limits"


FITTED = {
    "standardise": {"preprocess": ["standardise"]},
    "each silo by itself": {"preprocess": ["unit_norm", {"name": "standardise", "fit": "silo"}]},
    "pca": {"preprocess": [{"name": "pca", "dims": 2}]},
    "pca of a file that the server calls public": {"preprocess": [{"name": "pca", "dims": 2, "fit": "public.npz"}]},
    "what somebody's own code says": {"dataset": {"module": "mine:load", "classes": "diagnosis"}},
    "classes": {"dataset": {"name": "csv", "files": "a.csv"}},
    "classes of a data frame": {"dataset": {"module": "dpfl_plugin.given:data_0123456789abcdef"}},
}
PUBLIC = {
    "steps": ["unit_norm", {"name": "scale", "factor": 2}, {"name": "standardise", "fit": "none", "mean": 0, "std": 1}],
}


@pytest.mark.parametrize("data", FITTED.values(), ids=FITTED)
def test_what_is_fitted_to_the_records_is_for_their_owner_to_allow(data):
    """One record moves all others then, and a sum by any multiple of what is charged."""
    limits = {"folder": Path("/srv/silo"), "epsilon": 8, "delta": 1e-4, "code": frozenset({"mine:load"})}
    config = configure({**block(privacy={**NOISY, "epsilon": 8.0}), "data": data}, source="test")
    with pytest.raises(LimitError, match=r"does not let .* be sent \(fitted\)"):
        Limits(**limits).check(config)
    Limits(**limits, send=frozenset(["fitted"])).check(config)


@pytest.mark.parametrize("steps", PUBLIC.values(), ids=PUBLIC)
def test_what_is_fitted_to_nothing_private_passes(steps):
    values = {**block(privacy={**NOISY, "epsilon": 8.0}), "data": {"preprocess": steps}}
    Limits(folder=Path("/srv/silo"), epsilon=8, delta=1e-4).check(configure(values, source="test"))


@pytest.mark.parametrize(
    "dataset", [{"name": "table", "files": "a.csv"}, {"module": "dpfl_plugin.given:data_0123456789abcdef"}]
)
def test_tables_whose_schema_says_all_pass(dataset):
    """Its classes, categories and ranges are public."""
    values = {**block(privacy={**NOISY, "epsilon": 8.0}), "data": {"dataset": dataset, "schema": {"label": {}}}}
    Limits(folder=Path("/srv/silo"), epsilon=8, delta=1e-4).check(configure(values, source="test"))


def test_what_is_within_the_limits_passes():
    limits = Limits(folder=Path("/srv/silo"), epsilon=8, delta=1e-4)
    limits.check(configure(block(privacy={**NOISY, "epsilon": 8.0, "delta": 1e-4}), source="test"))
    limits.check_noise(seeded=False)
    with pytest.raises(LimitError, match="would come from a seed"):
        limits.check_noise(seeded=True)
    with pytest.raises(LimitError, match="does not let accuracies be sent"):
        limits.allow("metrics", "accuracies")
    Limits(folder=Path("/srv/silo"), epsilon=8, delta=1e-4, send=frozenset(["metrics"])).allow("metrics", "accuracies")
