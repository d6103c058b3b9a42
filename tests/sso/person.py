"""A person at the pages of oidc-provider, without a window: fills in forms, and follows to what is awaited.

As a program it is the browser of `filestore login` (BROWSER): python -m tests.sso.person NAME URL.
"""

import asyncio
import re
import sys
from html import unescape
from urllib.parse import urljoin, urlsplit

import aiohttp

STEPS_MAX = 20
_FORM = re.compile(r"<form[^>]*action=\"([^\"]+)\"[^>]*>(.*?)</form>", re.DOTALL | re.IGNORECASE)
_INPUT = re.compile(r"<input[^>]*>", re.IGNORECASE)
_ATTRIBUTE = re.compile(r"(\w+)=\"([^\"]*)\"")


class Person:
    """Somebody with a browser, which keeps the cookies of the provider. Use as a context manager."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def __aenter__(self) -> "Person":
        self._http = aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.close()

    async def visit(self, url: str, *, until: str = "") -> str:
        """Sign in and consent; return the first address that begins with `until`, which is not opened.

        Without `until`: the last page.
        """
        form: dict[str, str] | None = None
        for _ in range(STEPS_MAX):
            if until and url.startswith(until):
                return url
            method = "GET" if form is None else "POST"
            async with self._http.request(method, url, data=form, allow_redirects=False) as answer:
                body = await answer.text()
                if answer.status in (301, 302, 303, 307):
                    url, form = urljoin(url, answer.headers["Location"]), None
                    continue
            if (found := _FORM.search(body)) is None or answer.status != 200:
                assert not until, f"{answer.status} at {urlsplit(url).path}: {body[:2000]}"
                return body
            url, form = urljoin(url, unescape(found[1])), self._filled(found[2])
        raise AssertionError(f"no end of pages at {url}")

    def _filled(self, form: str) -> dict[str, str]:
        fields: dict[str, str] = {}
        for tag in _INPUT.findall(form):
            attributes = dict(_ATTRIBUTE.findall(tag))
            if attributes.get("name"):
                fields[attributes["name"]] = unescape(attributes.get("value", ""))
        return fields | ({"login": self.name, "password": "any"} if "login" in fields else {})


async def _main(name: str, url: str) -> None:
    async with Person(name) as person:
        print(await person.visit(url))


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:3]))
