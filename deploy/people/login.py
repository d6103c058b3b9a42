"""Signing in with a provider from the command: by a browser on this machine, or by a code on another one.

The browser returns to a port on loopback (RFC 8252): this process serves one address there, until the sign-in
has come back. Where there is no browser, the person enters a code elsewhere (RFC 8628).
"""

import asyncio
import hmac
import os
import sys
import webbrowser
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import parse_qs, urlsplit

import click

from ca.errors import Forbidden, InvalidRequest
from deploy.base.connection import NotSignedIn
from filestore_client import AsyncClient
from filestore_client.base.errors import Gone, NotFound, Unavailable
from filestore_client.base.records import SignedIn
from filestore_client.sign_in import ProviderName

WAIT_S: Final = 600.0  # for a person at the provider's page
HEAD_BYTES_MAX: Final = 16 << 10
_HEAD_S: Final = 5.0  # for a browser to send a request
_PAGE: Final = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Filestore</title>
<body><h1>{title}</h1><p>{text}</p></body></html>"""
_HEADERS: Final = (
    "Content-Type: text/html; charset=utf-8\r\nCache-Control: no-store\r\nReferrer-Policy: no-referrer\r\n"
    "Content-Security-Policy: default-src 'none'; frame-ancestors 'none'\r\nConnection: close\r\n"
)


def choose(providers: Sequence[ProviderName], wanted: str | None) -> str:
    """Return the name of the provider to sign in with. Raises NotFound, NotSignedIn."""
    names = [each.name for each in providers]
    if not names:
        raise NotFound("This cluster has no identity provider. Sign in with --token-file.")
    if wanted is not None:
        if wanted not in names:
            raise NotFound(f"There is no provider {wanted}. There are: {', '.join(names)}.")
        return wanted
    if len(names) == 1:
        return names[0]
    if not sys.stdin.isatty():
        raise NotSignedIn(f"give --provider, which is one of: {', '.join(names)}")
    return str(click.prompt("Sign in with", type=click.Choice(names), err=True))


def has_browser() -> bool:
    """Return whether a browser can be opened before the person who runs this."""
    if os.environ.get("BROWSER"):
        return True
    if os.environ.get("SSH_CONNECTION"):
        return False
    if sys.platform.startswith("linux") and not (
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    ):
        return False
    try:
        webbrowser.get()
    except webbrowser.Error:
        return False
    return True


async def sign_in(client: AsyncClient, provider: str, *, by_code: bool) -> SignedIn:
    """Return the token of a person who signs in. Raises Forbidden, Gone, Unavailable."""
    return await (_by_code(client, provider) if by_code else _by_browser(client, provider))


async def _by_browser(client: AsyncClient, provider: str) -> SignedIn:
    """Open a browser, and finish with the code that returns to the loopback port."""
    path = f"/sign-in/{provider}"
    async with _Loopback(path).listen() as loopback:
        started = await client.providers.start(provider, "command", port=loopback.port)
        loopback.state = started.state
        url = started.authorization_url
        click.echo(f"Sign in with your browser. If none opens, use this address:\n\n    {url}\n", err=True)
        if urlsplit(started.authorization_url).scheme not in ("https", "http"):
            raise InvalidRequest("The cluster named an address that is none of a web page.")
        await asyncio.to_thread(webbrowser.open, started.authorization_url)
        try:
            answer = await asyncio.wait_for(asyncio.shield(loopback.answer), WAIT_S)
        except TimeoutError as error:
            raise Gone("The sign-in was not finished within ten minutes. Start again.") from error
        if "error" in answer:
            raise Forbidden("The sign-in was declined at the provider.")
        code, issuer = answer.get("code", ""), answer.get("iss", "")
        signed_in = await client.providers.finish(provider, started, code=code, issuer=issuer)
    assert signed_in is not None, "only the device flow waits"
    return signed_in


async def _by_code(client: AsyncClient, provider: str) -> SignedIn:
    """Show a code, and ask until the person has entered it."""
    started = await client.providers.start(provider, "device")
    click.echo(
        f"Open {started.authorization_url} on any device, and enter this code:\n\n    {started.user_code}\n",
        err=True,
    )
    if started.complete_url:
        click.echo(f"Or open {started.complete_url}\n", err=True)
    pause_s = max(started.interval_seconds, 1)
    while True:
        await asyncio.sleep(pause_s)
        try:
            signed_in = await client.providers.finish(provider, started)
        except Unavailable:
            pause_s += 5  # the code lasts until the cluster says that it has expired
            continue
        if signed_in is not None:
            return signed_in


class _Loopback:
    """A listener on a free loopback port, for the one request that has the right state."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.state = ""
        self.port = 0
        self.answer: asyncio.Future[Mapping[str, str]] = asyncio.get_running_loop().create_future()

    @asynccontextmanager
    async def listen(self) -> AsyncIterator["_Loopback"]:
        """Listen until the end of the block."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=HEAD_BYTES_MAX)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_HEAD_S):
                head = await reader.readuntil(b"\r\n\r\n")
                status, title, text = self._received(head)
                page = _PAGE.format(title=title, text=text).encode()
                writer.write(
                    f"HTTP/1.1 {status}\r\n{_HEADERS}Content-Length: {len(page)}\r\n\r\n".encode() + page
                )
                await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError, OSError, ValueError):
            pass  # not the request that is waited for
        finally:
            writer.close()

    def _received(self, head: bytes) -> tuple[str, str, str]:
        """Return the status, title and text to answer a request with. No text of the request is in them."""
        method, target, _ = head.split(b"\r\n", 1)[0].decode("ascii").split(" ")
        parts = urlsplit(target)
        if method != "GET" or parts.path != self._path:
            return "404 Not Found", "No such page", "This address only finishes a sign-in."
        found = {name: values[0] for name, values in parse_qs(parts.query, max_num_fields=16).items()}
        if not self.state or not hmac.compare_digest(found.get("state", "").encode(), self.state.encode()):
            return "400 Bad Request", "Not this sign-in", "This answer belongs to another sign-in."
        if not self.answer.done():
            self.answer.set_result(found)
        if "error" in found:
            return "200 OK", "Not signed in", "The sign-in was declined. You can close this page."
        return "200 OK", "Signed in", "You can close this page, and go back to the terminal."
