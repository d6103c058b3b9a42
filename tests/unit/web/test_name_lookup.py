"""Names become addresses in bounded time, whatever the resolver of the machine does."""

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Iterator, Sequence

import aiohttp
import pytest
from aiohttp import web

from web import name_lookup
from web.name_lookup import LOOKUPS_MAX, NameLookup, of_system

Addresses = Sequence[tuple[socket.AddressFamily, str]]
V4, V6 = socket.AF_INET, socket.AF_INET6


class System:
    """A resolver that answers, fails, or hangs, as it is told."""

    def __init__(self, addresses: Addresses) -> None:
        self.addresses = addresses
        self.asked = 0
        self.fails = False
        self.answers = threading.Event()
        self.answers.set()

    def __call__(self, name: str) -> Addresses:
        self.asked += 1
        self.answers.wait(30)
        if self.fails:
            raise socket.gaierror(socket.EAI_AGAIN, f"no answer for {name}")
        return self.addresses


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A resolver that answers is waited for, however busy the machine is."""
    monkeypatch.setattr(name_lookup, "LOOKUP_S", 30.0)


@contextlib.contextmanager
def hanging(system: System) -> Iterator[None]:
    """Nobody gets an answer meanwhile, nor waits for it long; what was asked is answered at the end."""
    system.answers.clear()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(name_lookup, "LOOKUP_S", 0.05)
        try:
            yield
        finally:
            system.answers.set()


async def addresses_of(names: NameLookup, name: str = "files1") -> list[str]:
    return [each["host"] for each in await names.resolve(name, 7443)]


async def test_all_addresses_of_a_name_are_found_in_their_order() -> None:
    names = NameLookup(System([(V6, "fd00::1"), (V4, "10.0.0.1")]))
    found = await names.resolve("files1", 7443)
    assert [(each["host"], each["port"], each["family"]) for each in found] == [
        ("fd00::1", 7443, V6),
        ("10.0.0.1", 7443, V4),
    ]
    assert [each["host"] for each in await names.resolve("files1", 1, V4)] == ["10.0.0.1"]


async def test_name_is_looked_up_once_for_all_and_again_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    system = System([(V4, "10.0.0.1")])
    names = NameLookup(system)
    await asyncio.gather(*(addresses_of(names) for _ in range(20)))
    assert system.asked == 1
    system.addresses = [(V4, "10.0.0.2")]
    assert await addresses_of(names) == ["10.0.0.1"]
    monkeypatch.setattr(name_lookup, "FRESH_S", 0.0)
    assert await addresses_of(names) == ["10.0.0.2"]


async def test_resolver_that_hangs_costs_a_bounded_time_and_a_bounded_number_of_threads() -> None:
    system = System([(V4, "10.0.0.1")])
    names = NameLookup(system)
    with hanging(system):
        before_s = time.monotonic()
        asked = [addresses_of(names, f"files{number}") for number in range(LOOKUPS_MAX + 5)]
        results = await asyncio.gather(*asked, return_exceptions=True)
        assert time.monotonic() - before_s < 5
        assert all(isinstance(result, OSError) for result in results)
        assert system.asked == LOOKUPS_MAX
        assert "are still running" in str(results[-1])


@pytest.mark.parametrize("fault", ["hangs", "fails"])
async def test_known_name_keeps_its_addresses_while_the_resolver_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    monkeypatch.setattr(name_lookup, "FRESH_S", 0.0)
    system = System([(V4, "10.0.0.1")])
    names = NameLookup(system)
    assert await addresses_of(names) == ["10.0.0.1"]
    system.fails = fault == "fails"
    with hanging(system) if fault == "hangs" else contextlib.nullcontext():
        assert await addresses_of(names) == ["10.0.0.1"]
        assert [await addresses_of(names) for _ in range(20)] == [["10.0.0.1"]] * 20
        assert fault == "fails" or system.asked == 2
        with pytest.raises(OSError, match="cannot be looked up"):
            await addresses_of(names, "unknown")
    assert len([each for each in caplog.records if "last known addresses" in each.message]) == 1


async def test_addresses_of_long_ago_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(name_lookup, "FRESH_S", 0.0)
    monkeypatch.setattr(name_lookup, "STALE_S", 0.0)
    system = System([(V4, "10.0.0.1")])
    names = NameLookup(system)
    await addresses_of(names)
    system.fails = True
    with pytest.raises(OSError, match="files1 cannot be looked up"):
        await addresses_of(names)


async def test_name_without_an_address_is_an_error_of_the_system() -> None:
    with pytest.raises(OSError, match="has no address"):
        await addresses_of(NameLookup(System([])))


def test_system_knows_localhost() -> None:
    assert {address for _, address in of_system("localhost")} <= {"127.0.0.1", "::1"}


async def test_second_address_is_tried_where_the_first_is_not_there() -> None:
    """Nothing listens at 127.0.0.2; a peer with an old record beside the new one looks like that."""
    app = web.Application()
    app.router.add_get("/", _answered)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    names = NameLookup(System([(V6, "::1"), (V4, "127.0.0.2"), (V4, "127.0.0.1")]))
    connector = aiohttp.TCPConnector(resolver=names, use_dns_cache=False)
    async with aiohttp.ClientSession(connector=connector) as session:
        port = runner.addresses[0][1]
        async with session.get(f"http://files1:{port}/") as answer:
            assert answer.status == 200
    await runner.cleanup()


async def _answered(_request: web.Request) -> web.Response:
    return web.Response()
