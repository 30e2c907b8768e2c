"""Pages: bounds in words are rounded up, and a paragraph is one line whatever its template looks like."""

from __future__ import annotations

from dpfl_plugin.core.text import _one_line, _unwrapped, cell, epsilon, factor, number, sentence


def test_an_epsilon_is_rounded_up() -> None:
    for value in (3.90929, 0.00123451, 2.0, 123456.0, 1.0000001):
        assert value <= float(epsilon(value)) <= value * 1.001
    assert (epsilon(0.0), epsilon(None), epsilon(2.0), number(0.1)) == ("0", "none", "2", "0.1")
    assert (factor(4.0), factor(None)) == ("e^4 (about 55 times)", "e^none")


def test_paragraphs_are_joined_and_code_is_not() -> None:
    code = "    x\n    y\n```sh\na\n\nb\n```\n"
    text = "# Title\nA paragraph\nof two lines.\n\n\n* an item,\nwrapped\n* another\n| a |\n| b |\n\n" + code
    joined = "# Title\nA paragraph of two lines.\n\n* an item, wrapped\n* another\n| a |\n| b |\n\n" + code
    assert _unwrapped(text) == joined


def test_a_users_line_ends_begin_nothing() -> None:
    for end in ("\n", "\r", "\x85", "\u2028"):
        assert _one_line(f"a{end}---{end}# b") == "a --- # b"
    assert (_one_line("  as it is "), _one_line(3)) == ("  as it is ", 3)


def test_a_name_is_no_mark_up_and_a_key_keeps_its_case() -> None:
    assert [cell(name) for name in ("st_anne", "_x_", "a|b", "a\n\n## b")] == [
        "st_anne",
        r"\_x\_",
        r"a\|b",
        r"a \#\# b",
    ]
    assert (sentence("it holds."), sentence("add_or_remove means")) == ("It holds.", "add_or_remove means")
