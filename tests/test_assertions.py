"""A test says what has to be so: it asserts, or calls what does, unless its subject raises by itself."""

import ast
from pathlib import Path
from typing import NamedTuple

from tests.sources import parse, tree_of

TESTS = Path(__file__).parent
RAISING = {"raises", "fail", "wait_until", "timeout", "wait_for", "check_call", "run_state_machine_as_test"}
# What they call refuses, or fails a check of its own, where it is wrong: they ask that nothing is raised.
RAISES_NOTHING = {
    "test_any_text_is_refused_or_a_token",
    "test_changed_byte_decodes_to_frames_or_is_refused",
    "test_checkpoint_of_another_process_is_no_damage",
    "test_comparison_of_indexes_ends_when_it_is_told",
    "test_comparison_of_indexes_is_given_up_when_the_wal_grows_too_long",
    "test_content_that_is_stored_everywhere_comes_down_to_what_is_wanted",
    "test_coordinator_is_admitted",
    "test_coordinator_that_hangs_ends_nobody_else",
    "test_digit_that_changed_in_what_is_known_of_others_refuses_nobody",
    "test_directory_in_a_partial_is_no_obstacle",
    "test_each_request_goes_on_with_the_token_that_the_file_holds_now",
    "test_keys_as_they_were_written_are_taken",
    "test_what_no_link_is_laid_for_passes",
    "test_long_lives_end_well",
    "test_module_of_a_benchmark_can_be_imported",
    "test_no_replica_that_counts_is_deleted_and_none_that_nobody_needs_stays",
    "test_only_what_the_disk_says_is_an_error",
    "test_project_in_a_folder_of_its_own_is_backed_up",
    "test_random_bytes_raise_nothing_but_invalid_request",
    "test_what_older_members_do_as_well_is_proposed_at_once",
}


class Function(NamedTuple):
    """`uses`: what it calls, by the last name, and its fixtures."""

    name: str
    line: int
    asserts: bool
    uses: frozenset[str]


def functions_in(tree: ast.Module) -> list[Function]:
    """All that it defines, those inside of others too."""
    return [
        described(found)
        for found in ast.walk(tree)
        if isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def described(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Function:
    uses, asserts = {argument.arg for argument in function.args.args}, False
    for found in ast.walk(function):
        if isinstance(found, ast.Call):
            called = found.func
            uses.add(called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", ""))
        asserts |= isinstance(found, ast.Assert | ast.Raise)
    return Function(function.name, function.lineno, asserts, frozenset(uses))


def without_assertion(files: dict[Path, list[Function]]) -> dict[str, str]:
    """Where they are, by name: helpers count as theirs, of other files those whose every namesake asserts."""
    here = {path: {each.name for each in functions if each.asserts} for path, functions in files.items()}
    while True:
        doubtful = {
            each.name for path, all_of in files.items() for each in all_of if each.name not in here[path]
        }
        everywhere = RAISING | (set[str]().union(*here.values()) - doubtful)
        more = 0
        for path, functions in files.items():
            known = everywhere | here[path]
            found = {each.name for each in functions if each.uses & known} - here[path]
            here[path] |= found
            more += len(found)
        if not more:
            break
    return {
        each.name: f"{path.name}:{each.line}"
        for path, functions in files.items()
        if path.name.startswith("test_")
        for each in functions
        if each.name.startswith("test_") and each.name not in here[path]
    }


def test_every_test_asserts() -> None:
    files = {path: functions_in(tree_of(path)) for path in TESTS.rglob("*.py")}
    without = without_assertion(files)
    more = [f"{where} {name}" for name, where in without.items() if name not in RAISES_NOTHING]
    assert not more, f"assert something: {', '.join(more)}"
    assert not RAISES_NOTHING - set(without), "these assert something, or are gone"


def test_what_asserts_nothing_is_told() -> None:
    helper = "def is_so():\n    assert x\n"
    tests = "def test_a():\n    is_so()\ndef test_b():\n    f()\ndef test_c():\n    assert y\n"
    files = {Path("helper.py"): functions_in(parse(helper)), Path("test_x.py"): functions_in(parse(tests))}
    assert without_assertion(files) == {"test_b": "test_x.py:3"}
    files[Path("other.py")] = functions_in(parse("def is_so():\n    pass\n"))
    assert set(without_assertion(files)) == {"test_a", "test_b"}
