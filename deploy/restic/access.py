"""Access control of the gateway: requests need a password of its file, and may not come from web pages.

The gateway acts with the token of the user who started it. Other users of the machine can reach its port, and
so can web pages: by a form or a script of another origin, or by a host name that resolves to this machine
(DNS rebinding).
"""

import base64
import binascii
import hmac
import secrets
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from aiohttp import hdrs, web

from ca.errors import Conflict, InvalidRequest
from ca.secretfiles import create_secret, make_directory, read_secret

USER: Final = "restic"  # in a password file that is made here
PASSWORD_BYTES: Final = 24  # random ones, of a password that is made here
_BROWSER: Final = (hdrs.ORIGIN, "Sec-Fetch-Site")  # headers that browsers send and restic does not

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def read_passwords(path: Path) -> Sequence[bytes]:
    """Return the lines `USER:PASSWORD` of a file, which is made with a random password if there is none.

    Raises UnsafeSecretFile for a file that others can read, InvalidRequest for one without such a line.
    """
    if not path.exists():
        if not path.parent.exists():
            make_directory(path.parent)
        with suppress(Conflict):  # another gateway has made it at the same time
            create_secret(path, f"{USER}:{secrets.token_urlsafe(PASSWORD_BYTES)}\n".encode())
    lines = [line.strip() for line in read_secret(path).splitlines()]
    found = [line for line in lines if line and not line.startswith(b"#")]
    if not found or not all(_is_pair(line) for line in found):
        raise InvalidRequest(f"{path}: expected lines USER:PASSWORD, one for each user.")
    return found


def guard(passwords: Sequence[bytes] | None, own_host: str | None) -> Any:
    """Return the middleware that rejects what may not come in.

    `passwords`: None lets everybody in. `own_host`: the host that the gateway listens on; None for a Unix
    socket, which no web page reaches.
    """

    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        if own_host is not None and not _is_own(request.headers.get(hdrs.HOST, ""), own_host):
            raise web.HTTPMisdirectedRequest(text="The Host header is for another server.\n")
        if any(name in request.headers for name in _BROWSER):
            raise web.HTTPForbidden(text="This server has no web pages.\n")
        if passwords is not None and not _is_known(request.headers.get(hdrs.AUTHORIZATION, ""), passwords):
            headers = {hdrs.WWW_AUTHENTICATE: 'Basic realm="filestore"'}
            raise web.HTTPUnauthorized(headers=headers, text="The user or the password is wrong.\n")
        return await handler(request)

    return guarded


def _is_own(header: str, own_host: str) -> bool:
    """Whether a Host header is an address, localhost, or the host of --listen.

    A page that reaches this machine by DNS rebinding sends the name that it was loaded from.
    """
    try:
        host = urlsplit(f"//{header}").hostname or ""
        if host in ("localhost", own_host.lower()):
            return True
        ip_address(host)
    except ValueError:
        return False
    return True


def _is_known(header: str, passwords: Sequence[bytes]) -> bool:
    """Return whether an Authorization header has one of the passwords, in constant time."""
    scheme, _, encoded = header.partition(" ")
    try:
        given = base64.b64decode(encoded.strip(), validate=True)
    except (binascii.Error, ValueError):
        return False
    same = [hmac.compare_digest(given, each) for each in passwords]
    return scheme.lower() == "basic" and any(same)


def _is_pair(line: bytes) -> bool:
    user, _, password = line.partition(b":")
    return bool(user and password)
