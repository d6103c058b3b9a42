"""Which exit code an error has, and the line that a command prints of it."""

import base64
import json
import re

import pytest

from ca.certificates import UntrustedCertificate
from ca.errors import CATALOGUE, Internal
from ca.errors import FilestoreError as LocalError
from deploy.base import failures
from deploy.base.failures import (
    NEEDS_ATTENTION,
    claims_of,
    exit_code_of,
    explain_rejection,
    line_of,
    worse_of,
)
from filestore_client.base.errors import CATALOGUE as OF_THE_CLIENT
from filestore_client.base.errors import (
    FileChanged,
    FilestoreError,
    RequestTimeout,
    UntrustedServer,
    error_of,
)
from tests.cluster.test_command_error_codes import EXIT_CODES


@pytest.mark.parametrize("kind", CATALOGUE, ids=lambda kind: kind.code)
def test_error_has_the_exit_code_and_the_line_of_its_code(kind: type[LocalError]) -> None:
    answer = json.dumps({"code": kind.code, "details": "What was\nwrong."}).encode()
    answered = error_of(kind.status, {}, answer, "/")
    assert exit_code_of(answered) == EXIT_CODES[kind.code]
    assert line_of(answered) == f"{kind.code}: What was wrong."


def test_request_that_came_too_slowly_is_1() -> None:
    """Nothing that the command sends takes so long."""
    error = RequestTimeout("The headers did not come within 10 s.")
    assert (exit_code_of(error), line_of(error)) == (
        1,
        "request_timeout: The headers did not come within 10 s.",
    )


def test_errors_of_the_client_alone_have_codes_of_their_own() -> None:
    own = [UntrustedServer, FileChanged]
    assert not {kind.code for kind in own} & {kind.code for kind in OF_THE_CLIENT}
    assert [exit_code_of(kind("x")) for kind in own] == [6, 5]


def test_fault_of_this_machine_is_1_and_has_no_code() -> None:
    assert exit_code_of(UntrustedCertificate("The certificate is damaged.")) == 1
    assert line_of(UntrustedCertificate("The certificate is damaged.")) == "The certificate is damaged."
    assert exit_code_of(Internal("see the log")) == 1
    assert exit_code_of(OSError(28, "No space left on device")) == 1


def test_exit_codes_are_those_of_the_documentation() -> None:
    told = set(re.findall(r"^\| (\d+) \|", failures.__doc__ or "", re.MULTILINE))
    assert told == {"0", "1", "2", "3", "4", "5", "6", "10", "130"}
    assert {str(code) for code in EXIT_CODES.values()} <= told


def token(**claims: object) -> str:
    payload = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"x.{payload}.x"


def test_token_that_has_ended_is_told_since_when() -> None:
    error = explain_rejection(token(sub="alice", exp=1_800_000_000), "in FILE", at_s=1_800_007_200)
    assert re.fullmatch(r"The token of alice in FILE expired at 2\S+Z, 2 h ago\. .+", error.details)
    assert error.details.endswith("An admin can create a new one: filestore token user alice")


@pytest.mark.parametrize("ends_at_s", [1_800_000_000, 1_900_000_000])
def test_token_of_the_first_admin_is_made_anew_on_a_coordinator(ends_at_s: int) -> None:
    error = explain_rejection(token(sub="admin", exp=ends_at_s), "in FILE", at_s=1_800_007_200)
    assert error.details.endswith("this creates a new one: filestore token admin --data DIR")


@pytest.mark.parametrize(
    "text", ["", "x", "a.b.c", "x.e30.x", token(sub=5, exp="soon"), "x.\udcff.x", "x.4.x"]
)
def test_token_that_says_nothing_of_itself_is_told_as_not_taken(text: str) -> None:
    assert claims_of(text) == ("", 0.0)
    assert explain_rejection(text, "in FILE", at_s=0).details.startswith("The token in FILE was rejected: ")


def test_what_else_is_raised_fails() -> None:
    assert exit_code_of(ValueError("a bug")) == 1
    assert isinstance(explain_rejection("", "in FILE", at_s=0), FilestoreError)


def test_failure_is_worse_than_what_needs_attention() -> None:
    assert worse_of(0, 0) == 0
    assert worse_of(0, NEEDS_ATTENTION) == worse_of(NEEDS_ATTENTION, 0) == NEEDS_ATTENTION
    assert worse_of(NEEDS_ATTENTION, 5) == worse_of(5, NEEDS_ATTENTION) == worse_of(5, 6) == 5
