"""The outbox of a connection between members, and the end of the tasks that serve it."""

import asyncio
import contextlib
import select
import socket

import pytest
import uvloop

from metadata.rpc import websocket, wire
from metadata.rpc.websocket import OUTBOX_FRAMES_MAX, Outbox, OutboxFull, end


class Sink:
    """Takes messages until it has seen enough frames."""

    def __init__(self, frames: int) -> None:
        self.messages: list[bytes] = []
        self.left = frames
        self.done = asyncio.Event()

    async def send_bytes(self, data: bytes) -> None:
        self.messages.append(data)
        self.left -= len(wire.decode(data))
        if self.left <= 0:
            self.done.set()


def answer(number: int, size_bytes: int) -> wire.AnswerFrame:
    return wire.AnswerFrame(number, wire.OK, "", b"x" * size_bytes)


@pytest.mark.parametrize(("count", "size_bytes"), [(2000, 10), (60, 200_000), (3, 6 << 20)])
async def test_frames_travel_in_order_and_no_message_is_larger_than_a_peer_takes(
    count: int, size_bytes: int
) -> None:
    outbox, sink = Outbox(), Sink(count)
    for number in range(count):
        outbox.put(answer(number, size_bytes))
    sending = asyncio.create_task(outbox.run(sink))
    async with asyncio.timeout(20):
        await sink.done.wait()
    await end(sending)
    frames = [frame for message in sink.messages for frame in wire.decode(message)]
    assert [frame.number for frame in frames if isinstance(frame, wire.AnswerFrame)] == list(range(count))
    assert max(map(len, sink.messages)) < wire.MESSAGE_BYTES_MAX


async def test_outbox_is_bounded_in_frames_and_in_bytes() -> None:
    many, large = Outbox(), Outbox()
    for number in range(OUTBOX_FRAMES_MAX):
        many.put(answer(number, 1))
    with pytest.raises(OutboxFull):
        many.put(answer(0, 1))
    for number in range(6):
        large.put(answer(number, 10 << 20))
    with pytest.raises(OutboxFull):
        large.put(answer(0, 10 << 20))


class Stuck(Sink):
    """Takes one message, and no other."""

    async def send_bytes(self, data: bytes) -> None:
        if self.messages:
            await asyncio.Event().wait()
        await super().send_bytes(data)


async def test_peer_that_takes_nothing_ends_the_sending(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "SEND_TIMEOUT_S", 0.05)
    outbox, stuck = Outbox(), Stuck(1)
    sending = asyncio.create_task(outbox.run(stuck))
    outbox.put(answer(1, 10))
    async with asyncio.timeout(20):
        await stuck.done.wait()
        await asyncio.sleep(
            3 * websocket.SEND_TIMEOUT_S
        )  # with nothing to send: that is no fault of the peer
        assert not sending.done()
        outbox.put(answer(2, 10))
        with pytest.raises(TimeoutError):
            await asyncio.shield(sending)


def test_what_is_written_is_with_the_kernel_before_the_loop_turns() -> None:
    """The driver relies on it of uvloop: appends have left when the loop waits for its own disk."""

    async def write(listener: socket.socket) -> None:
        _, writer = await asyncio.open_connection(*listener.getsockname())
        accepted, _ = listener.accept()
        with accepted:
            writer.write(b"x")
            readable, _, _ = select.select([accepted], [], [], 5)  # the loop stands still
            assert readable
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        uvloop.run(write(listener))


class Slow(Sink):
    """Takes the second message only when it is told to."""

    def __init__(self, frames: int) -> None:
        super().__init__(frames)
        self.takes = asyncio.Event()
        self.waits = asyncio.Event()

    async def send_bytes(self, data: bytes) -> None:
        if self.messages:
            self.waits.set()
            await self.takes.wait()
        await super().send_bytes(data)


async def test_what_is_put_in_one_turn_travels_together_and_is_with_the_socket_when_flushed() -> None:
    outbox, sink = Outbox(), Sink(5)
    sending = asyncio.create_task(outbox.run(sink))
    await asyncio.sleep(0)
    for number in range(3):
        outbox.put(answer(number, 10))
    assert not sink.messages
    outbox.flush()
    assert [len(wire.decode(message)) for message in sink.messages] == [3]
    outbox.put(answer(3, 10))
    outbox.put(answer(4, 10))
    await sink.done.wait()
    assert [len(wire.decode(message)) for message in sink.messages] == [3, 2]
    await end(sending)


async def test_message_that_the_socket_took_late_is_sent_once_and_before_those_that_follow() -> None:
    outbox, slow = Outbox(), Slow(4)
    sending = asyncio.create_task(outbox.run(slow))
    await asyncio.sleep(0)
    for number in range(4):
        outbox.put(answer(number, 10))
        outbox.flush()
    async with asyncio.timeout(20):
        await slow.waits.wait()
        slow.takes.set()
        await slow.done.wait()
    frames = [frame for message in slow.messages for frame in wire.decode(message)]
    assert [frame.number for frame in frames if isinstance(frame, wire.AnswerFrame)] == [0, 1, 2, 3]
    await end(sending)


class Broken(Sink):
    """Takes nothing."""

    async def send_bytes(self, data: bytes) -> None:
        raise ConnectionResetError(f"{len(data)} bytes")


async def test_socket_that_breaks_ends_the_sending_and_not_who_puts_a_frame() -> None:
    outbox = Outbox()
    sending = asyncio.create_task(outbox.run(Broken(1)))
    await asyncio.sleep(0)
    outbox.put(answer(1, 10))
    outbox.flush()
    with pytest.raises(ConnectionResetError, match="bytes"):
        await sending


async def test_sending_that_is_ended_in_the_middle_leaves_no_part_to_the_next_connection() -> None:
    outbox, stuck, sink = Outbox(), Stuck(1), Sink(1)
    sending = asyncio.create_task(outbox.run(stuck))
    await asyncio.sleep(0)
    for number in range(2):
        outbox.put(answer(number, 10))
        outbox.flush()
    await end(sending)
    outbox.clear()
    outbox.put(answer(7, 10))
    sending = asyncio.create_task(outbox.run(sink))
    await sink.done.wait()
    (frame,) = [frame for message in sink.messages for frame in wire.decode(message)]
    assert isinstance(frame, wire.AnswerFrame)
    assert frame.number == 7
    await end(sending)


async def test_cancellation_is_not_lost_while_a_task_is_being_ended() -> None:
    released = asyncio.Event()

    async def slow_to_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await released.wait()

    async def owner() -> None:
        await end(asyncio.create_task(slow_to_end()))
        await asyncio.Event().wait()

    owning = asyncio.create_task(owner())
    for _ in range(3):
        await asyncio.sleep(0)
    owning.cancel()
    released.set()
    async with asyncio.timeout(5):
        await asyncio.wait([owning])
    assert owning.cancelled()
