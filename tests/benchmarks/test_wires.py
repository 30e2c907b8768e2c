"""The table of wires states what classes run and declare. Those of platforms say so in their own environments."""

import pytest

from benchmarks.wires import PAGE, ROOT, WIRES, expected, load, missing_tests, stated
from dpfl_plugin.testing.wire import WireContract
from dpfl_plugin.testing.wire_faults import Declared, Elsewhere, Impossible

HERE = {wire.name: wire for wire in WIRES if wire.environment == ".venv"}


@pytest.mark.parametrize("name", HERE)
def test_the_page_states_what_runs(name):
    kind = load(HERE[name])
    assert stated((ROOT / PAGE).read_text(), name) == expected(kind, name)
    assert missing_tests([kind]) == []


def test_every_wire_is_on_the_page():
    assert all(stated((ROOT / PAGE).read_text(), wire.name) for wire in WIRES)


CHECK = "test_what_is_too_large_does_not_count"


@pytest.mark.parametrize(
    ("declared", "why"),
    [
        ({"test_what_is_too_long": Impossible("nothing is ever too long")}, "is not a check of the contract"),
        ({"federation": Impossible("nothing is ever carried here")}, "is not a check of the contract"),
        ({CHECK: Declared("nothing is ever too large")}, "must be Impossible, DecidedByPlatform or Elsewhere"),
        ({CHECK: "nothing is ever too large"}, "must be Impossible, DecidedByPlatform or Elsewhere"),
    ],
)
def test_what_is_not_run_is_declared_by_a_type(declared, why):
    with pytest.raises(TypeError, match=why):
        type("TestMine", (WireContract,), {"declared": declared})


@pytest.mark.parametrize("make", [lambda: Impossible("no"), lambda: Elsewhere("with processes that are killed")])
def test_a_reason_is_a_sentence_and_tests_are_named(make):
    with pytest.raises(TypeError):
        make()


def test_a_check_that_is_declared_is_no_test_in_subclasses_either_and_the_others_are():
    mine = type("TestMine", (WireContract,), {"declared": {CHECK: Impossible("nothing is ever too large")}})
    other = type("TestOther", (mine,), {})
    assert getattr(other, CHECK) is None and other.faults()[CHECK][1] == mine.declared[CHECK]
    assert all(callable(getattr(other, name)) for name in WireContract.faults() if name != CHECK)
    assert missing_tests(
        [
            type(
                "TestAway",
                (WireContract,),
                {"declared": {CHECK: Elsewhere("by a test that is gone", ("tests/x.py::y",))}},
            )
        ]
    ) == ["tests/x.py::y"]
