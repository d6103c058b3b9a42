"""Which authorities a provider's certificate may come from, and what is said of one that is not trusted."""

import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from ca.errors import InvalidRequest
from coordinator.sign_in.provider_http import ProviderHttp, provider_context, system_bundle
from metadata.model.providers import ProviderUnavailable
from tests.web_certificates import write_pair


@asynccontextmanager
async def serving(directory: Path) -> AsyncIterator[tuple[str, Path]]:
    """A provider with a certificate of its own; its address, and its certificate."""
    pair = write_pair(directory, ["localhost"])
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair.certificate, pair.key)

    async def answer(request: web.Request) -> web.Response:
        if request.path == "/moved":
            raise web.HTTPFound("/there")
        return web.json_response({"path": request.path})

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    try:
        yield f"https://localhost:{runner.addresses[0][1]}", pair.certificate
    finally:
        await runner.cleanup()


def test_authorities_of_the_machine_count_whatever_the_environment_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not system_bundle():
        pytest.skip("this machine has no authorities")
    monkeypatch.setenv("SSL_CERT_FILE", os.devnull)
    monkeypatch.setenv("SSL_CERT_DIR", "/nonexistent")
    assert provider_context("").cert_store_stats()["x509_ca"] > 50
    assert ssl.create_default_context().cert_store_stats()["x509_ca"] == 0


async def test_certificate_of_another_authority_is_not_trusted_and_one_that_is_named_is(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as (url, certificates):
        http = ProviderHttp(provider_context(""), is_development=False)
        with pytest.raises(
            ProviderUnavailable, match=r"The certificate of localhost is not trusted: .*--ca-file"
        ):
            await http.get(f"{url}/x")
        http = ProviderHttp(provider_context(certificates.read_text()), is_development=False)
        assert (await http.get(f"{url}/x")).fields == {"path": "/x"}
        moved = await http.get(f"{url}/moved")
        assert (moved.status, moved.fields) == (302, {})  # no redirect is followed


async def test_named_authority_is_the_only_one_and_names_are_compared(tmp_path: Path) -> None:
    async with serving(tmp_path) as (url, certificates):
        context = provider_context(certificates.read_text())
        assert context.cert_store_stats()["x509"] <= 2
        http = ProviderHttp(context, is_development=False)
        with pytest.raises(ProviderUnavailable, match="not trusted"):
            await http.get(f"{url.replace('localhost', '127.0.0.1')}/x")


@pytest.mark.parametrize(
    "url", ["http://localhost:1/", "http://127.0.0.1:1/", "file:///etc/passwd", "ftp://x"]
)
async def test_nothing_but_https_is_spoken(url: str) -> None:
    with pytest.raises(ProviderUnavailable, match="an address that is not https"):
        await ProviderHttp(provider_context(""), is_development=False).get(url)


def test_text_that_is_no_certificate_is_named() -> None:
    with pytest.raises(InvalidRequest, match="ca_pem"):
        provider_context("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
