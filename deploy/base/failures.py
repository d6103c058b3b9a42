"""The message of a failed command, and its exit code.

| code | meaning |
|---|---|
| 0 | done |
| 1 | rejected or failed in a way that is not listed below |
| 2 | wrong usage |
| 3 | the token was rejected or lacks the permission |
| 4 | the object does not exist, or no longer exists |
| 5 | conflict: the name exists, another client is writing, or the content differs |
| 6 | no answer, no quorum, or no room: a later attempt may succeed |
| 10 | done, but something needs attention (`status` and other checks) |
| 130 | interrupted |
"""

import base64
import binascii
from collections.abc import Sequence
from typing import Final

import click
import msgspec

from ca.errors import FilestoreError as LocalError
from ca.errors import Internal
from deploy.base.printed import printable_name
from filestore_client.base.errors import FilestoreError, Unauthorized
from runtime.timestamps import rfc3339
from runtime.wording import duration

ADMIN: Final = "admin"  # the first admin, whose token every coordinator can mint

FAILED: Final = 1
USAGE: Final = 2
NEEDS_ATTENTION: Final = 10
_BY_CODE: Final = {
    "invalid_request": USAGE,
    "unauthorized": 3,
    "forbidden": 3,
    "not_found": 4,
    "gone": 4,
    "conflict": 5,
    "not_available": 5,
    "offset_mismatch": 5,
    "precondition_failed": 5,
    "upload_locked": 5,
    "file_changed": 5,
    "rate_limited": 6,
    "unavailable": 6,
    "insufficient_storage": 6,
    "untrusted_server": 6,
}

Failure = FilestoreError | LocalError
FAILURES: Final = (FilestoreError, LocalError)


def exit_code_of(error: Exception) -> int:
    """The exit code of a command that this has ended."""
    return _BY_CODE.get(error.code, FAILED) if isinstance(error, FAILURES) else FAILED


def worse_of(code: int, other: int) -> int:
    """Return the exit code of a command by those of two parts: a failure is worse than NEEDS_ATTENTION."""
    return other if other and code in (0, NEEDS_ATTENTION) else code


def line_of(error: Failure) -> str:
    """Format an error on one line, as its code and details.

    An error of this machine, and not of the API, has no code, but a sentence.
    """
    details = " ".join(error.details.split())
    return details if is_local(error) else f"{error.code}: {details}"


def is_local(error: Failure) -> bool:
    """Whether it says what is wrong with a file or a certificate, and not that a server failed."""
    return isinstance(error, LocalError) and error.code == Internal.code and type(error) is not Internal


def reason_of(error: Exception) -> str:
    """The short text of an operating system error."""
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


def print_failure(name: object, error: Exception) -> int:
    """Print on standard error what failed, and why; return the exit code of that."""
    line = line_of(error) if isinstance(error, FAILURES) else reason_of(error)
    click.echo(f"filestore: {printable_name(str(name))}: {line}", err=True)
    return exit_code_of(error)


def print_failures(failures: Sequence[tuple[object, Exception]]) -> int:
    """Print what failed; return the exit code of the first, 0 for none."""
    codes = [print_failure(name, error) for name, error in failures]
    return codes[0] if codes else 0


def explain_rejection(token: str, named: str, *, at_s: float) -> Unauthorized:
    """Return the refusal of a token at this time, with what can be seen of it.

    `named`: which token it is, behind "the token".
    """
    user, ends_at_s = claims_of(token)
    ended_s = at_s - ends_at_s
    if ends_at_s and ended_s > 0:
        who = f" of {user}" if user else ""
        return Unauthorized(
            f"The token{who} {named} expired at {rfc3339(int(ends_at_s * 1000))}, {duration(ended_s)} "
            f"ago. {_another_token(user)}"
        )
    return Unauthorized(
        f"The token {named} was rejected: it was revoked, or is for another cluster. {_another_token(user)}"
    )


def _another_token(user: str) -> str:
    """Say how another one is made. For the first admin, there may be no other admin to ask."""
    if user == ADMIN:
        return "On a coordinator, this creates a new one: filestore token admin --data DIR"
    return f"An admin can create a new one: filestore token user {user or 'NAME'}"


def claims_of(token: str) -> tuple[str, float]:
    """User and end (seconds since 1970) of a user token, as it says itself; "" and 0 where it does not."""
    try:
        payload = token.split(".")[1]
        decoded = base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4))
        claims = msgspec.json.decode(decoded, type=dict[str, object])
    except (IndexError, binascii.Error, msgspec.MsgspecError, UnicodeDecodeError, ValueError):
        return "", 0.0
    user, ends_at_s = claims.get("sub"), claims.get("exp")
    return (
        user if isinstance(user, str) else "",
        float(ends_at_s) if isinstance(ends_at_s, (int, float)) else 0.0,
    )
