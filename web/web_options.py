"""The options about browsers of a command that runs a member, as they were given. Nothing is checked here."""

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
