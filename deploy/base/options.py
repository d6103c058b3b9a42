"""Options that commands of both roles have."""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import Any, Final

import click

from deploy.base.own_files import UserPath
from deploy.base.ownership import hand_over_ownership
from runtime.timestamps import rfc3339
from web.web_options import WebOptions

_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


class Duration(click.ParamType[int]):
    """A number with s, m, h or d behind it, as seconds; `least_s` of them at least."""

    name = "duration"

    def __init__(self, *, least_s: int = 0) -> None:
        self._least_s = least_s

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Seconds; fails the command for anything else."""
        if isinstance(value, int):
            return value
        found = re.fullmatch(r"([0-9]{1,9})([smhd]?)", str(value), re.ASCII)
        if found is None:
            self.fail(f"{value!r} is not a duration such as 90s, 30m, 12h or 7d.", param, ctx)
        seconds = int(found[1]) * _SECONDS[found[2]]
        if seconds < self._least_s:
            self.fail(f"{value!r} is too short: at least {self._least_s:g}s is required.", param, ctx)
        return seconds


class Hours(click.ParamType[int]):
    """Whole hours: a number, or a duration such as 7d; 1 to `most` of them."""

    name = "hours"

    def __init__(self, *, most: int) -> None:
        self._most = most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Hours; fails the command for anything else."""
        text = str(value)
        seconds = Duration().convert(f"{text}h" if text.isdecimal() else text, param, ctx)
        if seconds % 3600 or not 1 <= seconds // 3600 <= self._most:
            self.fail(f"{value!r} is not 1 to {self._most} whole hours, such as 12h or 7d.", param, ctx)
        return seconds // 3600


class Days(click.ParamType[int]):
    """Whole days: a number, or a duration such as 30d; `least` to `most` of them."""

    name = "days"

    def __init__(self, *, least: int = 1, most: int) -> None:
        self._least, self._most = least, most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Days; fails the command for anything else."""
        text = str(value)
        seconds = Duration().convert(f"{text}d" if text.isdecimal() else text, param, ctx)
        if seconds % 86_400 or not self._least <= seconds // 86_400 <= self._most:
            self.fail(f"{value!r} is not {self._least} to {self._most} whole days, such as 30d.", param, ctx)
        return seconds // 86_400


class Digest(click.ParamType[str]):
    """A checksum of `digits` hexadecimal digits; in small letters then."""

    name = "digest"

    def __init__(self, digits: int) -> None:
        self._digits = digits

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Fails the command for anything else."""
        text = str(value).lower()
        if not re.fullmatch(rf"[0-9a-f]{{{self._digits}}}", text, re.ASCII):
            self.fail(f"{value!r} does not have {self._digits} hexadecimal digits.", param, ctx)
        return text


def data_option(whose: str) -> Callable[[Any], Any]:
    """`--data`: a directory of a member that is there already; `whose` is its help.

    What root makes there belongs to the owner of the directory when the command has ended.
    """
    existing = UserPath(exists=True, file_okay=False, path_type=Path)
    return click.option("--data", type=existing, required=True, callback=hand_over_ownership, help=whose)


def run_data_option() -> Callable[[Any], Any]:
    """`--data` of a process that a service manager runs.

    The directory may be missing while its disk is not mounted: the process itself says so, as click would
    end with the exit code of wrong usage, after which no service manager tries again.
    """
    place = UserPath(file_okay=False, path_type=Path)
    return click.option(
        "--data", type=place, required=True, callback=hand_over_ownership, help="Its directory."
    )


def new_data_option(whose: str) -> Callable[[Any], Any]:
    """`--data`: a directory that becomes a member's, and is made where it is missing."""
    place = UserPath(path_type=Path)
    return click.option("--data", type=place, required=True, callback=hand_over_ownership, help=whose)


def warn_of_argument(secret: str, cure: str) -> None:
    """Say on standard error that other users of the machine can read a secret among the arguments."""
    click.echo(f"filestore: warning: other users of this machine can read {secret}; {cure}", err=True)


http_option = click.option(
    "--http",
    default=None,
    metavar="127.0.0.1:PORT",
    help="Also serve plain HTTP on loopback, for a proxy on this host.",
)


def absolute(_context: click.Context, _parameter: click.Parameter, path: str) -> str:
    """A path that is right in other processes too, "" for none. Links stay: what they lead to may change."""
    return str(Path(path).absolute()) if path else ""


_WEB: Final = (
    click.option(
        "--web-certificate",
        type=UserPath(dir_okay=False),
        default="",
        callback=absolute,
        metavar="FILE",
        envvar="FILESTORE_WEB_CERTIFICATE",
        help="A certificate that browsers trust, with its chain (PEM). It is used for the names in it.",
    ),
    click.option(
        "--web-key",
        type=UserPath(dir_okay=False),
        default="",
        callback=absolute,
        metavar="FILE",
        envvar="FILESTORE_WEB_KEY",
        help="The key of --web-certificate: a PEM file without a password that only this user can read.",
    ),
    click.option(
        "--public-url",
        default="",
        metavar="URL",
        envvar="FILESTORE_PUBLIC_URL",
        help="Public base URL of the cluster, used in links, such as https://files.example.org.",
    ),
    click.option(
        "--trusted-proxies",
        default="",
        metavar="CIDR[,CIDR]",
        envvar="FILESTORE_TRUSTED_PROXIES",
        help="Proxies whose X-Forwarded-For and Forwarded headers are trusted.",
    ),
    click.option(
        "--cors-origin",
        multiple=True,
        metavar="ORIGIN",
        envvar="FILESTORE_CORS_ORIGINS",
        help="An origin whose pages may use the API, such as https://app.example.org; once for each.",
    ),
)
_WEB_FIELDS: Final = {
    "web_certificate": "certificate",
    "web_key": "key",
    "public_url": "public_url",
    "trusted_proxies": "trusted_proxies",
    "cors_origin": "cors_origins",
}


def web_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for browsers to a member's command, which gets them together as `web`."""

    @wraps(command)
    def wrapped(*arguments: Any, **options: Any) -> Any:
        web = WebOptions(**{field: options.pop(name) for name, field in _WEB_FIELDS.items()})
        return command(*arguments, web=web, **options)

    for option in reversed(_WEB):
        wrapped = option(wrapped)
    return wrapped


class Size(click.ParamType[int]):
    """A number of bytes, with K, M, G or T (powers of 1000), or Ki, Mi, Gi or Ti (of 1024) behind it."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Bytes; fails the command for anything else."""
        if isinstance(value, int):
            return value
        found = re.fullmatch(r"([0-9]{1,15})(?:([KMGT])(i?))?B?", str(value), re.ASCII | re.IGNORECASE)
        if found is None:
            self.fail(f"{value!r} is not a size such as 500M, 20G or 20GiB.", param, ctx)
        power = " KMGT".index((found[2] or " ").upper())
        unit: int = (1024 if found[3] else 1000) ** power
        return int(found[1]) * unit


class Expiry(click.ParamType[dict[str, Any]]):
    """When something ends: a duration, or an RFC 3339 time; as the arguments of the client's methods.

    The cluster adds a duration to its own time, so a wrong clock of this machine does no harm.
    """

    name = "expiry"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
        """`ttl_seconds`, or `expires_at` in UTC; fails the command for anything else."""
        text = str(value)
        if re.fullmatch(r"[0-9]{1,9}[smhd]", text, re.ASCII):
            return {"ttl_seconds": Duration(least_s=1).convert(text, param, ctx)}
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            self.fail(f"{value!r} is neither a duration (7d) nor a time (2026-12-24T18:00:00Z).", param, ctx)
        return {"expires_at": rfc3339(int(moment.astimezone(UTC).timestamp() * 1000))}
