"""A TCP proxy in a thread that lets bytes through slowly, or cuts every connection: for interrupting
uploads and downloads.
"""

import asyncio
import threading
from types import TracebackType
from typing import Self

CHUNK_BYTES = 16 << 10


class ThrottlingProxy:
    """Use as a context manager; `url` leads to the target. A connection gets at most `bytes_per_s` up, or
    down if `is_down`; `passed_bytes` counts what went that way. `source`: the address that the target sees.
    """

    def __init__(
        self, target_port: int, *, bytes_per_s: int, is_down: bool = False, source: str = "127.0.0.1"
    ) -> None:
        self._is_down = is_down
        self._source = source
        self.connections_most = 0
        self._target_port = target_port
        self.bytes_per_s = bytes_per_s
        self.passed_bytes = 0
        self.cut_marks: list[int] = []  # of passed_bytes, rising: at each of them every connection breaks
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._writers: set[asyncio.StreamWriter] = set()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._port = 0

    @property
    def url(self) -> str:
        """Where clients connect; the certificate of the target is valid here too (same address)."""
        return f"https://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)
        assert not self._thread.is_alive()

    def cut(self) -> None:
        """Break every connection that passes through now."""
        self._loop.call_soon_threadsafe(self._abort)

    def _abort(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        server = await asyncio.start_server(self._pass, "127.0.0.1", 0)
        self._port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()
        self._abort()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            target_reader, target_writer = await asyncio.open_connection(
                "127.0.0.1", self._target_port, local_addr=(self._source, 0)
            )
        except OSError:
            writer.transport.abort()
            return
        ends = {writer, target_writer}
        self._writers |= ends
        self.connections_most = max(self.connections_most, len(self._writers) // 2)
        try:
            await asyncio.gather(
                self._copy(reader, target_writer, throttled=not self._is_down),
                self._copy(target_reader, writer, throttled=self._is_down),
            )
        except OSError:
            pass
        finally:
            for end in ends:
                end.transport.abort()
            self._writers -= ends

    async def _copy(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, throttled: bool
    ) -> None:
        while part := await source.read(CHUNK_BYTES):
            target.write(part)
            await target.drain()
            if throttled:
                self.passed_bytes += len(part)
                if self.cut_marks and self.passed_bytes >= self.cut_marks[0]:
                    del self.cut_marks[0]
                    self._abort()
                await asyncio.sleep(len(part) / self.bytes_per_s)
        if target.can_write_eof():
            target.write_eof()
