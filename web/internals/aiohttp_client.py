"""Access to private parts of aiohttp's client, by plain names. Shared by calls of members and calls of peers.

aiohttp repeats a request of some methods if its connection breaks before the response. This module prevents
that for requests whose body is already consumed, and for connections that had failed before the request.

Tested by tests/unit/web/test_internals_client.py.
"""

import functools
from abc import abstractmethod
from collections.abc import AsyncGenerator
from typing import Any

import aiohttp
from aiohttp.abc import AbstractStreamWriter
from aiohttp.client_proto import ResponseHandler
from aiohttp.payload import AsyncIterablePayload

from web.internals.library_changed import library_changed


class FreshConnector(aiohttp.TCPConnector):
    """A pool that returns no connection whose timer expired while it was idle.

    aiohttp 3.14 returns a connection to the pool at the end of a body. Reading the remaining buffered bytes
    of the body restarts the read timer, which then expires in the pool, and the next request would fail at
    once.
    """

    def __init__(self, **options: Any) -> None:
        """`options` are those of TCPConnector."""
        super().__init__(**options)
        self._factory = functools.partial(_Connection, loop=self._loop)  # type: ignore[assignment]

    async def connect(self, *request: Any, **options: Any) -> aiohttp.connector.Connection:
        """Called by aiohttp for each request. Raises LibraryChanged."""
        connection = await super().connect(*request, **options)
        if not isinstance(connection.protocol, _Connection):
            connection.close()
            raise library_changed("aiohttp makes its connections in another way: a request may be sent twice")
        return connection


class _Connection(ResponseHandler):
    """One whose time ran out while it was idle is not handed out again."""

    def is_connected(self) -> bool:
        """Whether the pool may hand it out; the pool asks before it does."""
        return super().is_connected() and self.exception() is None


class BodySentOnce(AsyncIterablePayload):
    """The body of a request that is not there any more once its sending has begun."""

    def __init__(self, pieces: AsyncGenerator[Any, None]) -> None:
        super().__init__(pieces)
        self._is_begun = False

    @abstractmethod
    async def send(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        """Send all of it, in chunks where there is no length. The head goes with what aiohttp writes first.

        Raises ClientError; ValueError for more than the length.
        """

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        """Called by aiohttp, which ends the body. Raises what `send` does; LibraryChanged."""
        if self._is_begun or self._consumed:
            raise library_changed("aiohttp sends a request again whose body was sent, or begun, before")
        self._is_begun = self._consumed = True
        await self.send(writer, content_length)


async def send_head(writer: AbstractStreamWriter) -> None:
    """Send the head of a request, which aiohttp keeps until something is written. Raises LibraryChanged."""
    await writer.write(b"")
    if not writer.output_size:
        raise library_changed("aiohttp keeps the head of a request back: its body would go before it")
