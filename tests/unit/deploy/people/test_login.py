"""The loopback port of `filestore login`: which request is the provider's answer, and what others see."""

import asyncio

import pytest

from deploy.people import login
from deploy.people.login import HEAD_BYTES_MAX, choose, has_browser
from filestore_client.base.errors import NotFound
from filestore_client.sign_in import ProviderName

STATE = "the-state"
ONE = [ProviderName(name="uni", label="University")]


async def told(port: int, request: bytes) -> bytes:
    """The whole answer to what a browser, or another program of this machine, sends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    try:
        return await reader.read()
    finally:
        writer.close()


def get(target: str) -> bytes:
    return f"GET {target} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()


async def test_answer_with_the_right_state_is_taken_once() -> None:
    async with login._Loopback("/sign-in/uni").listen() as loopback:
        loopback.state = STATE
        page = await told(loopback.port, get(f"/sign-in/uni?code=c%2F1&state={STATE}&iss=https%3A%2F%2Fi"))
        assert page.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"Content-Security-Policy: default-src 'none'" in page
        await told(loopback.port, get(f"/sign-in/uni?code=another&state={STATE}"))
        assert await loopback.answer == {"code": "c/1", "state": STATE, "iss": "https://i"}


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (get("/sign-in/uni?code=c&state=other"), b"400"),
        (get("/sign-in/uni?code=c"), b"400"),
        (get("/sign-in/uni"), b"400"),
        (get("/sign-in/other?code=c&state=the-state"), b"404"),
        (get("/favicon.ico"), b"404"),
        (get("/?code=%3Cscript%3E&state=the-state"), b"404"),
        (b"POST /sign-in/uni?code=c&state=the-state HTTP/1.1\r\n\r\n", b"404"),
        (b"\xff\xfe\r\n\r\n", b""),
        (b"GET\r\n\r\n", b""),
        (b"GET / " + b"x" * (HEAD_BYTES_MAX + 1) + b"\r\n\r\n", b""),
        (get("/sign-in/uni?" + "&".join(f"a{n}=1" for n in range(40))), b""),
    ],
)
async def test_other_requests_end_nothing_and_are_not_shown(request_: bytes, status: bytes) -> None:
    async with login._Loopback("/sign-in/uni").listen() as loopback:
        loopback.state = STATE
        try:
            page = await told(loopback.port, request_)
        except ConnectionResetError:
            page = b""
        assert page[9:12] == status
        assert b"script" not in page
        assert not loopback.answer.done()


async def test_before_the_sign_in_has_begun_nothing_is_taken() -> None:
    async with login._Loopback("/sign-in/uni").listen() as loopback:
        assert (await told(loopback.port, get("/sign-in/uni?code=c&state=")))[9:12] == b"400"
        assert not loopback.answer.done()


def test_one_provider_is_chosen_and_an_unknown_one_is_named() -> None:
    assert choose(ONE, None) == choose(ONE, "uni") == "uni"
    with pytest.raises(NotFound, match="There are: uni"):
        choose(ONE, "other")
    with pytest.raises(NotFound, match="no identity provider"):
        choose([], None)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"BROWSER": "/bin/true", "SSH_CONNECTION": "x"}, True),
        ({"SSH_CONNECTION": "x", "DISPLAY": ":0"}, False),
        ({}, False),
    ],
)
def test_browser_is_opened_where_the_person_sees_it(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: bool
) -> None:
    for name in ("BROWSER", "SSH_CONNECTION", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert has_browser() is expected
