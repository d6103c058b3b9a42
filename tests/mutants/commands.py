"""Deliberate bugs of the command: who may use its gateway, and what it prints. Each names the quick test that
has to catch it.
"""

from tests.mutants.mutant import Mutant

_GATEWAY = "tests/cluster/test_restic_gateway.py::test_"
_PRINTING = "tests/cluster/test_command_printing.py::test_"
_SCRIPTS = "tests/unit/deploy/test_maintainer_scripts.py::test_"
_ACCESS = "deploy/restic/access.py"
_SERVER = "deploy/restic/server.py"

GATEWAY = (
    Mutant(
        "any password lets in",
        ((_ACCESS, '_is_known(request.headers.get(hdrs.AUTHORIZATION, ""), passwords)', "request.headers"),),
        (f"{_GATEWAY}nobody_is_let_in_without_a_password_of_the_file[GET]",),
    ),
    Mutant(
        "foreign hosts are served",
        ((_ACCESS, "own_host is not None and not _is_own", "own_host is None and not _is_own"),),
        (f"{_GATEWAY}no_web_page_and_no_encoding_is_served",),
    ),
    Mutant(
        "bodies are unpacked",
        (
            (
                "web/connection.py",
                "if request.body_exists and hdrs.CONTENT_ENCODING in request.headers:",
                "if False:",
            ),
        ),
        (f"{_GATEWAY}compressed_body_is_not_unpacked",),
    ),
    Mutant(
        "password file that others can read",
        ((_ACCESS, "read_secret(path).splitlines()", "path.read_bytes().splitlines()"),),
        (f"{_GATEWAY}file_that_others_can_read_or_that_says_nothing_is_refused",),
    ),
    Mutant(
        "socket that others can connect to",
        (("deploy/restic/listening.py", "_OTHERS: Final = 0o177", "_OTHERS: Final = 0"),),
        (f"{_GATEWAY}socket_is_its_owners_and_only_appends",),
    ),
    Mutant(
        "appends only, and deletes",
        ((_SERVER, 'named[1] != "locks"', 'named[1] == "nothing"'),),
        (f"{_GATEWAY}socket_is_its_owners_and_only_appends",),
    ),
    Mutant(
        "content that is sent again is refused",
        (
            (
                "deploy/restic/repository.py",
                "if await _sha256(content) == there.blob_sha256:",
                "if not content:",
            ),
        ),
        (f"{_GATEWAY}what_is_sent_again_is_stored_already[1000]",),
    ),
    Mutant(
        "token of the start is kept",
        (("deploy/base/connection.py", "Token(self.token(), file=self.token_file)", "Token(self.token())"),),
        (f"{_GATEWAY}token_is_read_again_and_its_end_is_told",),
    ),
)
PRINTING = (
    Mutant(
        "cells of tables as they come",
        (("deploy/base/tables.py", "render_str(printable_name(text), ", "render_str(text, "),),
        (f"{_PRINTING}terminal_is_not_steered_by_what_a_node_says[status]",),
    ),
    Mutant(
        "lines as they come",
        (("deploy/cli.py", "    guard_streams()\n", ""),),
        (f"{_PRINTING}terminal_is_not_steered_by_what_a_node_says[ls]",),
    ),
    Mutant(
        "JSON with controls in it",
        (("deploy/base/printed.py", "    return _UNPRINTED.sub(escaped, text)", "    return text"),),
        (f"{_PRINTING}terminal_is_not_steered_by_what_a_node_says[status --json]",),
    ),
    Mutant(
        "root follows links of the service",
        (
            (
                "deploy/debian/postinst",
                "setpriv --reuid=filestore --regid=filestore --clear-groups \\\n            mkdir -p -m 0700",
                "install -d -m 0700 -o filestore -g filestore",
            ),
        ),
        (f"{_SCRIPTS}link_in_the_place_of_a_data_directory_gives_nothing_away",),
    ),
)
COMMANDS = (*GATEWAY, *PRINTING)
