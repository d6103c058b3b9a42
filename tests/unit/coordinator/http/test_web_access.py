"""What the options for browsers may say."""

import pytest

from ca.errors import InvalidRequest
from coordinator.http.web_access import understood
from coordinator.http.web_options import WebOptions


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
        understood(WebOptions(public_url=url))


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
    assert understood(WebOptions(public_url=url)).public_url == taken


@pytest.mark.parametrize(
    ("given", "missing"),
    [(WebOptions(certificate="/here"), "--web-key"), (WebOptions(key="/here"), "--web-certificate")],
    ids=["certificate", "key"],
)
def test_certificate_and_key_come_together(given: WebOptions, missing: str) -> None:
    with pytest.raises(InvalidRequest, match=f"{missing} is needed with it"):
        understood(given)
