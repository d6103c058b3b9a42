"""Deliberate bugs around public links and what browsers do with content. Each names the quick test
that has to catch it.
"""

from tests.mutants.mutant import Mutant

_LINKS = "tests/unit/coordinator/machine/test_public_tokens.py::test_"
_HOT = "tests/unit/node/content/test_fastpath.py::test_"
_CONSOLE = "tests/unit/api/console/test_routes.py::test_"
_ENDS = f"{_LINKS}token_ends_with_its_time_and_with_what_its_maker_may"

LINKS = (
    Mutant.of(
        "public link lives on when its maker is disabled",
        "coordinator/machine/public_tokens",
        "maker is None or maker[2]:",
        "maker is None:",
        _ENDS,
    ),
    Mutant.of(
        "public link lives on when its maker may only read",
        "coordinator/machine/public_tokens",
        "maker[0], row, Level.ADMIN)",
        "maker[0], row, Level.READ)",
        _ENDS,
    ),
    Mutant.of(
        "public link opens through any bucket",
        "coordinator/machine/public_tokens",
        "if row is None or files.row_of(row).bucket_id != query.bucket_id:",
        "if row is None:",
        f"{_LINKS}unknown_token_and_wrong_bucket_are_not_found_even_when_it_has_ended",
    ),
    Mutant.of(
        "public link to another's file revoked through one's own",
        "coordinator/machine/public_tokens",
        'WHERE token_id = ? AND +file_sequence = ?",\n        (command.token_id, file.sequence),',
        'WHERE token_id = ?",\n        (command.token_id,),',
        f"{_LINKS}token_is_revoked_through_its_own_file_alone",
    ),
)
BROWSERS = (
    Mutant(
        "content served to a page that would run it",
        (("node/content/download.py", "    require_no_code(request.headers)\n", ""),),
        (f"{_HOT}content_is_not_served_to_be_run_by_a_page",),
    ),
    Mutant.of(
        "page of the console loads scripts from anywhere at its origin",
        "api/console/routes",
        ", {scripts_of(PLACE)}",
        "",
        f"{_CONSOLE}page_has_a_strict_policy_and_is_asked_for_each_time",
    ),
)

RIGHTS = LINKS + BROWSERS
