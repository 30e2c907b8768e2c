"""How runs of `dpfl run` stand to the contract of adapters: their loop asks a `Runtime`, and no `Server` is asked.

None of the contract's checks runs here. Each says why it cannot be, or where the same is tested with real processes.
"""

from __future__ import annotations

import contextlib
from typing import ClassVar

from dpfl_plugin.testing.wire import Federation, Parties, WireContract
from dpfl_plugin.testing.wire_faults import DecidedByPlatform, Declared, Elsewhere, Impossible

CALLS = Impossible("silos are asked by function calls in the process of the server")
ONCE = DecidedByPlatform("MPI delivers a message once, whole and in order, or ends the job")
RANKS = DecidedByPlatform("MPI knows a rank by its place in the job, which whoever starts it decides")
BUFFERS = DecidedByPlatform("uploads go into buffers of the agreed length, and MPI refuses what does not fit")
FULL = Elsewhere(
    "for the checkpoint and the ledger",
    ("tests/cli/test_full_disk.py::test_wherever_the_space_ends_the_run_says_so_and_goes_on",),
)
KILLED = Elsewhere(
    "with processes that are killed", ("tests/cli/test_kill.py::test_whatever_left_a_silo_is_in_every_ledger",)
)


class _Run(WireContract):
    def federation(self, parties: Parties) -> contextlib.AbstractContextManager[Federation]:
        raise NotImplementedError


class TestInProcess(_Run):
    declared: ClassVar[dict[str, Declared]] = {
        "test_bits_and_charges_are_those_of_a_plain_loop": Elsewhere(
            "for many algorithms and both privacy units",
            ("tests/adapters/test_equality.py::test_the_seam_gives_the_bits_and_charges_of_a_run_in_one_process",),
        ),
        "test_processes_that_are_started_again_before_every_round_go_on": Elsewhere(
            "with processes that are killed", ("tests/cli/test_resume.py::test_killed_again_and_again",)
        ),
        "test_what_an_owner_does_not_allow_is_refused_and_said_to_the_server": Elsewhere(
            "for the one owner of a run",
            ("tests/owners/test_custody.py::test_what_is_beyond_the_limits_does_not_begin",),
        ),
        "test_every_statement_covers_what_was_charged": KILLED,
        "test_a_silo_whose_disk_is_full_sends_nothing_and_goes_on_when_there_is_room": FULL,
        "test_a_server_whose_disk_is_full_goes_on_from_what_it_has_when_there_is_room": FULL,
        **dict.fromkeys(
            (
                "test_a_lost_upload_is_charged_and_changes_no_other",
                "test_what_is_delivered_twice_counts_once",
                "test_damaged_uploads_do_not_count",
                "test_an_upload_of_an_earlier_round_does_not_count",
                "test_a_silo_cannot_answer_for_another",
                "test_what_is_too_large_does_not_count",
                "test_a_late_upload_does_not_take_the_place_of_the_right_one",
                "test_a_silo_that_claims_to_be_another_is_refused_and_the_other_counts",
                "test_a_silo_of_another_version_is_named_and_the_others_go_on",
                "test_messages_of_a_server_that_are_not_as_agreed_release_nothing",
                "test_a_server_that_asks_for_more_than_was_agreed_gets_nothing",
                "test_a_silo_that_is_away_for_a_day_comes_back",
                "test_what_is_announced_is_not_allocated",
                "test_names_are_never_paths",
            ),
            CALLS,
        ),
    }


class TestMPI(_Run):
    lacks = (
        "a silo whose process ended comes back only with the next start of the job",
        "all processes are started by one person, or by one cluster",
    )
    declared: ClassVar[dict[str, Declared]] = {
        "test_bits_and_charges_are_those_of_a_plain_loop": Elsewhere(
            "with 2 to 9 ranks",
            ("tests/mpi/test_same_bits.py::test_any_number_of_ranks_gives_them",),
        ),
        "test_processes_that_are_started_again_before_every_round_go_on": Elsewhere(
            "with jobs that are killed",
            (
                "tests/mpi/test_faults.py::test_a_kill_from_outside_leaves_no_process_and_it_is_resumed_to_the_same_bits",
            ),
        ),
        "test_a_lost_upload_is_charged_and_changes_no_other": Elsewhere(
            "for a rank that dies or hangs anywhere",
            ("tests/mpi/test_protocol.py::test_a_rank_that_dies_or_hangs_at_any_time_is_left_out_of_what_follows",),
        ),
        "test_what_is_delivered_twice_counts_once": ONCE,
        "test_damaged_uploads_do_not_count": ONCE,
        "test_an_upload_of_an_earlier_round_does_not_count": ONCE,
        "test_a_late_upload_does_not_take_the_place_of_the_right_one": ONCE,
        "test_a_silo_cannot_answer_for_another": RANKS,
        "test_a_silo_that_claims_to_be_another_is_refused_and_the_other_counts": RANKS,
        "test_what_is_too_large_does_not_count": BUFFERS,
        "test_what_is_announced_is_not_allocated": BUFFERS,
        "test_what_an_owner_does_not_allow_is_refused_and_said_to_the_server": Elsewhere(
            "with an owner for each rank", ("tests/mpi/test_limits.py::test_each_rank_keeps_the_limits_of_its_owner",)
        ),
        "test_every_statement_covers_what_was_charged": KILLED,
        "test_a_silo_of_another_version_is_named_and_the_others_go_on": Impossible(
            "a job whose ranks have different versions does not begin"
        ),
        "test_messages_of_a_server_that_are_not_as_agreed_release_nothing": Elsewhere(
            "for what a server may ask of a rank",
            ("tests/mpi/test_hostile_server.py::test_what_is_refused_changes_no_state",),
        ),
        "test_a_server_that_asks_for_more_than_was_agreed_gets_nothing": Elsewhere(
            "for rounds that no plan has reserved",
            ("tests/mpi/test_hostile_server.py::test_without_a_reserved_plan_nothing_is_released",),
        ),
        "test_a_silo_that_is_away_for_a_day_comes_back": Elsewhere(
            "for a rank that hangs, which is given up",
            ("tests/mpi/test_outliving.py::test_a_rank_that_hangs_is_given_up_and_its_process_ended",),
        ),
        "test_a_silo_whose_disk_is_full_sends_nothing_and_goes_on_when_there_is_room": Elsewhere(
            "for the rank's ledger", ("tests/mpi/test_protocol.py::test_a_sync_that_fails_keeps_everything_in",)
        ),
        "test_a_server_whose_disk_is_full_goes_on_from_what_it_has_when_there_is_room": FULL,
        "test_names_are_never_paths": Impossible("silos and ranks are numbers in what they send"),
    }
