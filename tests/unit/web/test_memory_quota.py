"""Clients that take their time, however many they are, have a bounded share of a process's memory."""

import asyncio
import json

from tests.unit.body_shell import GET, HOST, LARGE_BYTES, Run, Shell, answer_of, put
from web.app import JSON_BYTES_MAX
from web.listener import GREED
from web.memory_quota import BUFFERED, BUFFERED_BYTES_MAX

LARGE = b"GET /large HTTP/1.1\r\n" + HOST + b"\r\n"
ANSWERS = 3  # large ones that fit for one address
MIB = 1 << 20
BODIES = GREED * (BUFFERED_BYTES_MAX // MIB) // (GREED + 1)  # the same of bodies
HALF = BUFFERED_BYTES_MAX // 2 // MIB  # of bodies that could go elsewhere

Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def slow_clients(shell: Shell, count: int) -> list[Client]:
    """So many that asked for a large answer and have taken its head alone."""
    clients = [await shell.connect() for _ in range(count)]
    for reader, writer in clients:
        writer.write(LARGE)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
    return clients


def test_large_answers_that_nobody_takes_are_bounded(run: Run) -> None:
    async def scenario(shell: Shell) -> None:
        clients = await slow_clients(shell, ANSWERS)
        reader, writer = await shell.connect()
        writer.write(LARGE)
        status, body = await answer_of(reader)
        assert (status, json.loads(body)["code"]) == (429, "rate_limited")
        writer.write(GET)
        assert (await answer_of(reader))[0] == 200
        async with asyncio.timeout(20):
            await clients[0][0].readexactly(LARGE_BYTES)  # all but the JSON around it
            while BUFFERED.left_bytes < BUFFERED_BYTES_MAX - ANSWERS * LARGE_BYTES:
                await asyncio.sleep(0.01)
        writer.write(LARGE)
        assert (await answer_of(reader))[0] == 200

    run(scenario)


def test_one_address_leaves_room_for_answers_to_others(run: Run) -> None:
    async def scenario(shell: Shell) -> None:
        await slow_clients(shell, ANSWERS - 1)
        reader, writer = await shell.connect("127.0.0.2")
        writer.write(LARGE)
        assert (await answer_of(reader))[0] == 200

    run(scenario)


def test_clients_that_go_away_leave_the_room_of_their_answers(run: Run) -> None:
    async def scenario(shell: Shell) -> None:
        for _, writer in await slow_clients(shell, ANSWERS):
            writer.transport.abort()
        async with asyncio.timeout(20):
            while BUFFERED.left_bytes < BUFFERED_BYTES_MAX:
                await asyncio.sleep(0.01)

    run(scenario)


def test_change_that_was_made_is_told_however_much_is_kept(run: Run) -> None:
    async def scenario(shell: Shell) -> None:
        await slow_clients(shell, ANSWERS)
        reader, writer = await shell.connect()
        writer.write(put("/large", 0))
        assert (await answer_of(reader))[0] == 200
        assert shell.served == 1

    run(scenario)


def test_json_bodies_that_never_end_are_bounded_and_small_ones_are_taken(run: Run) -> None:
    async def scenario(shell: Shell) -> None:
        clients = [await shell.connect() for _ in range(BODIES + 5)]
        for _, writer in clients:
            writer.write(put("/json", JSON_BYTES_MAX) + b"{" + b" " * (JSON_BYTES_MAX - 2))
        answers = {asyncio.create_task(answer_of(reader)): writer for reader, writer in clients}
        refused: set[asyncio.Task[tuple[int, bytes]]] = set()
        async with asyncio.timeout(60):
            while len(refused) < 5:
                refused, _ = await asyncio.wait(answers, timeout=0.1)
        assert [task.result()[0] for task in refused] == [429] * 5
        assert BUFFERED.left_bytes == BUFFERED_BYTES_MAX - BODIES * MIB
        reader, writer = await shell.connect()
        writer.write(put("/json", 2) + b"{}")
        assert (await answer_of(reader))[0] == 200
        for task in answers.keys() - refused:
            answers[task].write(b"}")
            assert (await task)[0] == 200

    run(scenario)


def test_bodies_beyond_what_there_is_are_told_to_go_elsewhere_and_small_ones_stay(run: Run) -> None:
    async def scenario(shell: Shell) -> None:
        shell.go_on.clear()
        holding = [await shell.connect() for _ in range(HALF)]
        for _, writer in holding:
            writer.write(put(f"/keep?bytes={MIB}", 0))
        async with asyncio.timeout(20):
            while shell.served < HALF:
                await asyncio.sleep(0.01)
        reader, writer = await shell.connect()
        writer.write(put(f"/keep?bytes={MIB}", 0))
        status, body = await answer_of(reader)
        assert (status, json.loads(body)) == (200, {"kept": False})
        writer.write(LARGE)  # for which there is no other way
        assert (await answer_of(reader))[0] == 200
        shell.go_on.set()
        for each, _ in holding:
            assert json.loads((await answer_of(each))[1]) == {"kept": True}
        writer.write(put(f"/keep?bytes={MIB}", 0))  # all was given back
        assert json.loads((await answer_of(reader))[1]) == {"kept": True}

    run(scenario)
