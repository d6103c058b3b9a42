"""One kept-up connection to a coordinator, with many calls under way on it.

Tested by tests/unit/metadata/rpc/test_client.py.
"""

import asyncio
import itertools
import logging
import math
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus

import aiohttp

from ca.errors import InvalidRequest
from ca.identity import Identity, Role
from metadata.model.instance import HEADER
from metadata.model.records import CoordinatorRecord
from metadata.protocol.calls import AnyCall
from metadata.rpc import wire
from metadata.rpc.deadlines import Deadlines
from metadata.rpc.websocket import (
    DIAL_TIMEOUT_S,
    PING_S,
    Outbox,
    OutboxFull,
    connection_work,
    end,
    peer_url,
)
from runtime.logs import REQUEST_ID
from runtime.wording import connection_trouble

UNREACHABLE_S = 10.0  # without a connection, before the log says so
_NOT_WANTED = (
    "it refuses this member, because the member was removed from the cluster or its certificate has expired"
)
_DISPLACED = (
    "it refuses this member, because another process with the same name is known: a copy of this "
    "directory was started elsewhere, or this directory is an old copy, or was created again. Run "
    "`filestore status` for details, and see the runbook"
)
_REFUSALS = {
    HTTPStatus.UNAUTHORIZED: _NOT_WANTED,
    HTTPStatus.GONE: _NOT_WANTED,
    HTTPStatus.CONFLICT: _DISPLACED,
}
_log = logging.getLogger(__name__)


class LinkDown(Exception):
    """There is no connection, or it broke before the answer came: the call may or may not have been made."""


@dataclass(slots=True)
class _Trouble:
    """Since when there has been no connection, and whether that was logged."""

    since_s: float = field(default_factory=time.monotonic)
    is_logged: bool = False


class PeerLink:
    """Calls to one coordinator. `run` dials it again and again until it is cancelled."""

    def __init__(
        self,
        identity: Identity,
        coordinator: CoordinatorRecord,
        context: Callable[[], ssl.SSLContext],
        *,
        instance: str = "",
    ) -> None:
        """`instance`: which process this is, "" for none that matters."""
        self._headers = {HEADER: instance} if instance else {}
        self.coordinator = coordinator
        self._context = context
        self._name = Identity(identity.cluster, Role.COORDINATOR, coordinator.coordinator_id).dns_name
        self._outbox = Outbox()
        self._numbers = itertools.count(1)
        self._calls: dict[int, asyncio.Future[wire.AnswerFrame]] = {}
        self._deadlines = Deadlines(self._give_up)
        self._is_up = False
        self.is_removed = False  # as this coordinator said when it refused the last connection
        self._silent_since_s: float | None = None  # start of the first call without any answer since
        self._trouble = _Trouble()
        self._dialled_with: ssl.SSLContext | None = None

    def connects_to(self, record: CoordinatorRecord) -> bool:
        """Whether this is a connection to where that coordinator is."""
        known = self.coordinator
        return (known.address, known.peer_port) == (record.address, record.peer_port)

    @property
    def is_up(self) -> bool:
        """Whether there is a connection now."""
        return self._is_up

    @property
    def silent_s(self) -> float:
        """Return how long nothing arrived on this connection while a call was open; 0 if all is well."""
        return 0.0 if self._silent_since_s is None else time.monotonic() - self._silent_since_s

    async def call(self, call: AnyCall, timeout_s: float) -> wire.AnswerFrame:
        """Send a call and return the answer.

        Raises LinkDown, InvalidRequest, and TimeoutError after `timeout_s`, which is reported to the other
        side.
        """
        if not self._is_up:
            raise LinkDown(self.coordinator.coordinator_id)
        number = next(self._numbers)
        answer: asyncio.Future[wire.AnswerFrame] = asyncio.get_running_loop().create_future()
        self._calls[number] = answer
        try:
            # Rounded up: the other side must not give up first, which would look like a refusal.
            timeout_ms = math.ceil(timeout_s * 1000)
            encoded = wire.encode_call(call)
            self._outbox.put(wire.CallFrame(number, timeout_ms, encoded, REQUEST_ID.get()))
            if len(self._calls) == 1:
                self._outbox.flush()  # nothing else is under way that it could travel with
            self._deadlines.set(number, timeout_s)
            if self._silent_since_s is None:
                self._silent_since_s = time.monotonic()
            return await answer
        except OutboxFull as error:
            raise LinkDown(self.coordinator.coordinator_id) from error
        except wire.FrameTooLarge as error:
            raise InvalidRequest("The request is too large.") from error
        finally:
            del self._calls[number]
            self._deadlines.clear(number)

    async def run(self, http: aiohttp.ClientSession) -> None:
        """Keep the connection up."""

        async def connect() -> None:
            try:
                async with await self._dial(http) as socket:
                    work.note_success()
                    await self._serve(socket)
                    self._trouble = _Trouble()
            except (aiohttp.ClientError, OSError, InvalidRequest) as error:
                self._log_trouble(error)
                raise

        work = connection_work("connection", connect, self.coordinator.coordinator_id)
        await work.run()

    def _log_trouble(self, error: Exception) -> None:
        """Log once that there is no connection, if this member is rejected or the trouble lasts."""
        status = error.status if isinstance(error, aiohttp.WSServerHandshakeError) else 0
        refusal = next((why for known, why in _REFUSALS.items() if known == status), "")
        is_over = time.monotonic() - self._trouble.since_s > UNREACHABLE_S
        self.is_removed = status == HTTPStatus.GONE
        if (refusal or is_over) and not self._trouble.is_logged:
            self._trouble.is_logged = True
            why = refusal or connection_trouble(error)
            _log.warning("coordinator %s cannot be reached: %s", self.coordinator.coordinator_id, why)
        _log.debug("coordinator %s: %s", self.coordinator.coordinator_id, error)

    async def _dial(self, http: aiohttp.ClientSession) -> aiohttp.ClientWebSocketResponse[bool]:
        self._dialled_with = self._context()
        async with asyncio.timeout(DIAL_TIMEOUT_S):
            return await http.ws_connect(
                peer_url(self.coordinator.address, self.coordinator.peer_port, "/rpc"),
                ssl=self._dialled_with,
                server_hostname=self._name,
                heartbeat=PING_S,
                max_msg_size=wire.MESSAGE_BYTES_MAX,
                headers=self._headers,
            )

    async def _serve(self, socket: aiohttp.ClientWebSocketResponse[bool]) -> None:
        self._outbox.clear()
        self._silent_since_s = None
        sender = asyncio.create_task(self._outbox.run(socket), name="calls")
        receiver = asyncio.create_task(self._receive(socket), name="answers")
        self._is_up, self.is_removed = True, False
        try:
            await asyncio.wait((sender, receiver), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._is_up = False
            self._fail_calls()
            self._deadlines.close()
            await end(receiver)
            await end(sender)

    async def _receive(self, socket: aiohttp.ClientWebSocketResponse[bool]) -> None:
        async for message in socket:
            if message.type is not aiohttp.WSMsgType.BINARY:
                return  # aiohttp reports a lost peer as a message whose data is an exception
            self._silent_since_s = None
            frames = wire.decode(message.data)
            for frame in frames:
                self._deliver(frame)
            if self._is_refused_for_its_age(frames):
                return

    def _is_refused_for_its_age(self, frames: Sequence[wire.Frame]) -> bool:
        """Whether to dial again: with a certificate that has expired nothing but its renewal is to be had."""
        is_newer = self._dialled_with is not self._context()
        return is_newer and any(
            isinstance(frame, wire.AnswerFrame) and frame.status == wire.RETRY for frame in frames
        )

    def _deliver(self, frame: wire.Frame) -> None:
        if not isinstance(frame, wire.AnswerFrame):
            raise InvalidRequest("a coordinator sent an invalid message")
        answer = self._calls.get(frame.number)
        if answer is not None and not answer.done():
            answer.set_result(frame)

    def _give_up(self, number: int) -> None:
        answer = self._calls[number]
        if not answer.done():
            answer.set_exception(TimeoutError())

    def _fail_calls(self) -> None:
        for answer in self._calls.values():
            if not answer.done():
                answer.set_exception(LinkDown(self.coordinator.coordinator_id))
