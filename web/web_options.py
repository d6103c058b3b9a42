"""Options of a command about browsers, unchecked. Apart from `web_access`, which loads the HTTP server.

Tested by tests/unit/web/test_web_access.py.
"""

from typing import Final

from msgspec import Struct


class WebOptions(Struct, frozen=True, kw_only=True):
    """`certificate` and `key` are paths, "" for none. Workers of a node get all of it as JSON: no secret."""

    certificate: str = ""
    key: str = ""
    public_url: str = ""
    trusted_proxies: str = ""
    cors_origins: tuple[str, ...] = ()


NO_WEB_OPTIONS: Final = WebOptions()
