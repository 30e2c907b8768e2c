"""`dpfl audit`: verdicts, exit codes, what is printed."""

import pytest

from benchmarks.audit import MUTANTS
from tests.cli.command import dpfl, one_message, write

VARIANTS = {
    "variants": {
        "A": {},
        "B": {"algorithm": {"name": "fedavg"}},
        "free": {"privacy": {"noise_multiplier": 0, "clip_norm": float("inf")}},
    }
}
BIG = {"data": {"dataset": {"name": "synthetic", "num_features": 4, "num_classes": 3, "records_per_silo": 250}}}


def test_a_consistent_configuration(tmp_path):
    done = dpfl("audit", write(tmp_path, BIG))
    assert done.code == 0, done.out
    assert "CONSISTENT: nothing in the server's transcript" in done.out and "replace-one" in done.out
    assert "canaries: made-up records" in done.out and "To conclude: no defect was found" in done.out
    assert max(map(len, (line for line in done.out.splitlines() if "│" in line))) <= 100
    assert list(tmp_path.iterdir()) == [tmp_path / "config.yaml"], "an audit leaves no run folder"


@pytest.mark.statistical
def test_a_contradicted_one_exits_with_1(tmp_path):
    """Misses with a probability below 1e-6: half the noise is 30 standard errors from the claim."""
    with MUTANTS["noise halved"].applied():
        done = dpfl("audit", write(tmp_path, BIG))
    assert done.code == 1
    assert "CONTRADICTED: the noise in the uploads is 0.5" in done.out or "is 0.49" in done.out
    assert "CONSISTENT" not in done.out and "To conclude: do not rely on the stated epsilon" in done.out


def test_every_private_variant_or_the_one_that_is_named(tmp_path):
    path = write(tmp_path, VARIANTS)
    done = dpfl("audit", path, "--rounds", 2, "--json")
    assert done.code == 0 and set(done.json) == {"A", "B"}
    assert done.json["A"]["rounds"] == 2 and done.json["A"]["consistent"] is True
    assert "free: not private" in done.err
    named = dpfl("audit", path, "--variant", "B", "--rounds", 1, "--json").json
    assert named["algorithm"] == "fedavg" and named["epsilon_bound"] <= named["epsilon"]
    free = dpfl("audit", path, "--variant", "free")
    assert free.code == 0 and "NOTHING CLAIMED" in free.out


def test_settings_and_options_are_used(tmp_path):
    path = write(tmp_path)
    found = dpfl("audit", path, "--set", "privacy.noise_multiplier=8", "--silos", 2, "--canaries", 6, "--json").json
    assert (found["silos"], found["canaries"]) == (2, 6)
    assert found["epsilon"] < dpfl("audit", path, "--json").json["epsilon"]


def test_a_picture(tmp_path):
    target = tmp_path / "new" / "audit.png"
    done = dpfl("audit", write(tmp_path, VARIANTS), "--rounds", 1, "--picture", target)
    assert done.code == 0 and str(target) in done.out
    assert target.read_bytes()[:4] == b"\x89PNG"


def test_mistakes_are_one_message(tmp_path):
    path = write(tmp_path, VARIANTS)
    one_message(dpfl("audit", path, "--variant", "C"), "variant", "A, B, free")
    one_message(dpfl("audit", write(tmp_path, name="plain.yaml"), "--variant", "A"), "no variants")
    for option in ("--canaries", "--silos", "--rounds"):
        one_message(dpfl("audit", path, option, 0), f"{option[2:]}=0", "at least 1")
    one_message(dpfl("audit", path, "--set", "privacy.unit=silo", "--variant", "A"), "variant A", "without releasing")
