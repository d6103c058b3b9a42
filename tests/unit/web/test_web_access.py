"""A real listener with options for browsers: whose requests they are, and what each kind of answer says."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from ca.errors import InvalidRequest
from web.app import new_application, serve
from web.web_access import CLIENT_ADDRESS, WEB, client_address, parse_web_access
from web.web_options import WebOptions

APP = "https://app.example.org"
OPTIONS = WebOptions(trusted_proxies="127.0.0.1", cors_origins=(APP,))
Lines = list[str]


async def tell(request: web.Request) -> web.Response:
    told = [client_address(request), request.app[WEB].shared_url(request)]
    return web.json_response(told, headers={"Vary": "Accept"})


async def broken(request: web.Request) -> web.Response:
    raise RuntimeError(request.path)


@asynccontextmanager
async def listening(options: WebOptions = OPTIONS, *, peer: bool = False) -> AsyncIterator[int]:
    app = new_application([web.get("/told", tell), web.get("/broken", broken)], component="test")
    app[WEB] = parse_web_access(options)
    listener = await serve(app, host="127.0.0.1", port=0, ssl_context=None, peer=peer)
    try:
        yield listener.port
    finally:
        await listener.close()


async def asked(
    port: int, *lines: str, path: str = "/told", method: str = "GET", source: str = "127.0.0.1"
) -> str:
    """The answer as it comes."""
    head = [f"{method} {path} HTTP/1.1", "Host: files.example.org:8443", *lines, "Connection: close", "", ""]
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))
    writer.write("\r\n".join(head).encode())
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer.decode()


def told(answer: str) -> str:
    return answer.partition("\r\n\r\n")[2]


async def test_trusted_proxy_says_who_asks_and_by_which_address() -> None:
    async with listening() as port:
        proto = "X-Forwarded-Proto: https"
        answer = await asked(port, "X-Forwarded-For: 192.0.2.1", proto)
        assert told(answer) == '["192.0.2.1", "https://files.example.org:8443"]'
        answer = await asked(port, "X-Forwarded-For: 192.0.2.1", proto, "X-Forwarded-Host: b.org")
        assert told(answer) == '["192.0.2.1", "https://b.org"]'
        answer = await asked(port, "Forwarded: for=192.0.2.1;proto=http;host=b.org")
        assert told(answer) == '["192.0.2.1", "http://b.org"]'
        assert told(await asked(port)) == '["127.0.0.1", ""]'


async def test_others_say_nothing() -> None:
    async with listening() as port:
        forged = ("X-Forwarded-For: 192.0.2.1", "X-Forwarded-Proto: https", f"{CLIENT_ADDRESS}: 192.0.2.2")
        assert told(await asked(port, *forged, source="127.0.0.2")) == '["127.0.0.2", ""]'
        assert told(await asked(port, f"{CLIENT_ADDRESS}: 192.0.2.2")) == '["127.0.0.1", ""]'


async def test_public_address_is_told_whatever_a_proxy_says() -> None:
    options = WebOptions(trusted_proxies="127.0.0.0/8", public_url="https://Files.example.org/")
    async with listening(options) as port:
        answer = await asked(port, "X-Forwarded-Proto: http", "X-Forwarded-Host: b.org")
        assert told(answer) == '["127.0.0.1", "https://files.example.org"]'


async def test_member_says_whose_request_it_passes_on() -> None:
    async with listening(peer=True) as port:
        assert told(await asked(port, f"{CLIENT_ADDRESS}: 192.0.2.2")) == '["192.0.2.2", ""]'
        assert told(await asked(port, f"{CLIENT_ADDRESS}: rubbish")) == '["127.0.0.1", ""]'
        assert told(await asked(port, "X-Forwarded-For: 192.0.2.1")) == '["127.0.0.1", ""]'


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [
        ("/told", "GET", 200),
        ("/broken", "GET", 500),
        ("/none", "GET", 404),
        ("/told", "PUT", 405),
        ("/told", "TRACE", 405),
    ],
)
async def test_every_answer_can_be_read_by_pages_of_the_configured_origin_only(
    path: str, method: str, status: int
) -> None:
    async with listening() as port:
        answer = await asked(port, f"Origin: {APP}", path=path, method=method)
        assert answer.startswith(f"HTTP/1.1 {status} ")
        assert answer.count(f"\r\nAccess-Control-Allow-Origin: {APP}\r\n") == 1
        assert answer.count("\r\nAccess-Control-Expose-Headers: ") == 1
        other = await asked(port, "Origin: https://evil.org", path=path, method=method)
        assert "Access-Control" not in other
        for each in (answer, other):
            assert each.count("\r\nVary: ") == 1
            assert f"\r\nVary: {'Accept, Origin' if status == 200 else 'Origin'}\r\n" in each


async def test_preflight_needs_no_handler() -> None:
    async with listening() as port:
        preflight = (f"Origin: {APP}", "Access-Control-Request-Method: PUT")
        answer = await asked(port, *preflight, method="OPTIONS")
        assert answer.startswith("HTTP/1.1 204 ")
        assert "\r\nAccess-Control-Allow-Methods: DELETE, GET," in answer
        assert "\r\nAccess-Control-Allow-Headers: Authorization," in answer


async def test_listener_without_options_says_nothing_of_origins() -> None:
    async with listening(WebOptions()) as port:
        answer = await asked(port, f"Origin: {APP}", "X-Forwarded-For: 192.0.2.1")
        assert "Access-Control" not in answer
        assert "\r\nVary: Accept\r\n" in answer
        assert told(answer) == '["127.0.0.1", ""]'


@pytest.mark.parametrize(
    "url",
    [
        "files.example.org",
        "ftp://files.example.org",
        "https://",
        "https://files.example.org/prefix",
        "https://user:secret@files.example.org",
        "https://files.example.org?x",
        "https://files.example.org#x",
        "https://files.example.org:0",
        "https://files.example.org:70000",
        "https://files.example.org:",
        "https://files example.org",
        "https://files.example.org\r\nX: y",
        "https://fïles.example.org",
        "//files.example.org",
    ],
)
def test_what_cannot_be_a_public_address_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^--public-url: "):
        parse_web_access(WebOptions(public_url=url))


@pytest.mark.parametrize(
    ("url", "taken"),
    [
        ("https://files.example.org/", "https://files.example.org"),
        ("HTTP://Files.Example.org:8080", "http://files.example.org:8080"),
        ("https://[2001:db8::1]:443", "https://[2001:db8::1]:443"),
        ("https://192.0.2.1", "https://192.0.2.1"),
    ],
)
def test_public_address_is_taken_without_a_slash(url: str, taken: str) -> None:
    assert parse_web_access(WebOptions(public_url=url)).public_url == taken


@pytest.mark.parametrize(
    ("given", "missing"),
    [(WebOptions(certificate="/here"), "--web-key"), (WebOptions(key="/here"), "--web-certificate")],
    ids=["certificate", "key"],
)
def test_certificate_and_key_come_together(given: WebOptions, missing: str) -> None:
    with pytest.raises(InvalidRequest, match=f"{missing} is required with it"):
        parse_web_access(given)
