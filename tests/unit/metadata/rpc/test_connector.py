"""Outgoing connections that fail early: their descriptors are given back once, never taken from others."""

import asyncio
import gc
import os
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import aiohttp
import pytest
import uvloop

from metadata.rpc.connector import Connector

TRIES = 400
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closed by a reset


@contextmanager
def resetting() -> Iterator[int]:
    """A port where every connection is reset as soon as it is there."""
    with socket.create_server(("127.0.0.1", 0), backlog=TRIES) as listening:

        def reset_all() -> None:
            while True:
                try:
                    arrived, _ = listening.accept()
                except OSError:
                    return
                with arrived:
                    arrived.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)

        accepting = threading.Thread(target=reset_all)
        accepting.start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)
    accepting.join()


async def fail_to_connect(port: int) -> None:
    async with aiohttp.ClientSession(connector=Connector(context=ssl.create_default_context())) as session:

        async def fail() -> None:
            with pytest.raises(aiohttp.ClientError):
                await session.get(f"https://127.0.0.1:{port}/")

        for _ in range(TRIES // 20):
            await asyncio.gather(*(fail() for _ in range(20)))


def test_descriptor_of_a_connection_that_was_reset_is_not_closed_again(tmp_path: Path) -> None:
    """As it was: the number belonged to a file by then, and that was closed under its owner."""

    async def test() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # handshakes that were reset
        with resetting() as port, ExitStack() as opened:
            gc.disable()  # what is collected is collected below
            await fail_to_connect(port)
            files = [opened.enter_context((tmp_path / str(n)).open("wb")) for n in range(TRIES)]
            gc.enable()
            gc.collect()
            for number, file in enumerate(files):
                assert os.fstat(file.fileno()).st_ino == (tmp_path / str(number)).stat().st_ino

    try:
        uvloop.run(test())
    finally:
        gc.enable()


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_connections_that_fail_leave_no_descriptor(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def test() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        with resetting() as port:
            await fail_to_connect(port)
            gc.collect()
            before = len(os.listdir("/proc/self/fd"))
            await fail_to_connect(port)
            gc.collect()
            assert len(os.listdir("/proc/self/fd")) <= before + 2

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(test())
