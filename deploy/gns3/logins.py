"""GNS3 servers that this user has signed in to: `gns3.toml` in the platform's folder for configuration.

    [servers.lab]
    url = "http://10.0.0.9:3080"
    server_id = "9f86d081884c7d65"
    user = "backup"
    password_file = ".../filestore/lab.gns3-password"   # mode 0600

Passwords lie in files of their own, which only this user can read.

Tested by tests/unit/deploy/gns3/test_state.py.
"""

import re
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from ca.errors import InvalidRequest, NotFound
from deploy.base.contexts import changing_files, quoted
from deploy.base.own_files import write_own
from deploy.gns3.identity import draw_server_id
from filestore_client.base.contexts import config_directory

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_FIELDS_IN_FILES: Final = ("password_file", "compute_password_file", "ca")


class ServerLogin(msgspec.Struct, frozen=True, kw_only=True):
    """One server. `compute_user` is who may read its images; `ca` is whom to trust, "" for the system's.

    `server_id` tells its backups from those of other servers, see `identity`. `machine` has the addresses of
    the network cards of the machine where the login was made: a clone of it has others. `reads_images`:
    whether images can be read with it.
    """

    url: str
    server_id: str
    user: str = ""
    password_file: str = ""
    compute_user: str = ""
    compute_password_file: str = ""
    ca: str = ""
    machine: str = ""
    reads_images: bool = False

    def is_cloned(self, cards: frozenset[str]) -> bool:
        """Whether a machine with these network cards is another one than that of the login. Pure."""
        return bool(cards and self.machine) and cards.isdisjoint(self.machine.split(","))


class ServerLogins(msgspec.Struct, frozen=True):
    """All of them by name."""

    servers: dict[str, ServerLogin] = {}

    def find(self, name: str) -> tuple[str, ServerLogin]:
        """The server of this name; "" is the only one. Raises NotFound, InvalidRequest."""
        known = ", ".join(sorted(self.servers)) or "none"
        if not name and len(self.servers) > 1:
            raise InvalidRequest(f"--server: several GNS3 servers are known. Name one of them: {known}.")
        found = name or next(iter(self.servers), "")
        if found not in self.servers:
            told = f"named {found!r}" if found else "at all"
            raise NotFound(
                f"No GNS3 server {told} is known here ({known}). Sign in with `filestore gns3 login URL`."
            )
        return found, self.servers[found]


def read_logins() -> ServerLogins:
    """Read the logins; none if there is no file. Raises InvalidRequest for an invalid file."""
    path = _file()
    try:
        return msgspec.convert(tomllib.loads(path.read_text("utf-8")), ServerLogins)
    except FileNotFoundError:
        return ServerLogins()
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise InvalidRequest(f"Cannot use {path}: {error}") from error


def save_login(
    name: str, login: ServerLogin, *, password: str, compute_password: str, ca_pem: str
) -> ServerLogin:
    """Keep a server, or replace the one of this name. Raises InvalidRequest for a bad name, OSError.

    Each secret is stored in its own file; the files that `login` names are set here. Without a `server_id` it
    gets that of the server at the same URL that this machine knows, or a new one.
    """
    if not _NAME.fullmatch(name):
        raise InvalidRequest(f"--name: {name!r} is none: letters, digits, '.', '_' and '-' are.")
    with changing_files() as directory:
        kept: dict[str, str] = {}
        for field, ending, text in (
            ("password_file", "gns3-password", password),
            ("compute_password_file", "gns3-compute-password", compute_password),
            ("ca", "gns3-ca.pem", ca_pem),
        ):
            path = directory / f"{name}.{ending}"
            kept[field] = str(path) if text else ""
            if text:
                write_own(path, text.encode("utf-8") + b"\n")
            else:
                path.unlink(missing_ok=True)
        servers = read_logins().servers
        cards = network_cards()
        known = [each for each in servers.values() if each.url == login.url and not each.is_cloned(cards)]
        ids = [login.server_id, *(each.server_id for each in known)]
        kept["server_id"] = next(filter(None, ids), "") or draw_server_id()
        kept["machine"] = ",".join(sorted(cards))
        saved = msgspec.structs.replace(login, **kept)
        _write(servers | {name: saved})
    return saved


def forget_login(name: str) -> None:
    """Remove a server and its secrets. Raises NotFound, InvalidRequest, OSError."""
    read_logins().find(name)  # before a directory is made
    with changing_files() as directory:
        known = read_logins()
        _, login = known.find(name)
        _write({other: each for other, each in known.servers.items() if other != name})
        for field in _FIELDS_IN_FILES:
            path = getattr(login, field)
            if path and Path(path).parent == directory:  # what lies elsewhere is not ours
                Path(path).unlink(missing_ok=True)


def network_cards(directory: Path = Path("/sys/class/net")) -> frozenset[str]:
    """Return the addresses of this machine's network cards; none in a container, and where it is no Linux."""
    found: set[str] = set()
    for card in directory.glob("*/device"):
        with suppress(OSError):
            found.add((card.parent / "address").read_text("ascii").strip())
    return frozenset(found)


def _write(servers: dict[str, ServerLogin]) -> None:
    lines: list[str] = []
    for name, login in sorted(servers.items()):
        lines.append(f"[servers.{quoted(name)}]")
        given = {field: getattr(login, field) for field in login.__struct_fields__}
        lines += [f"{field} = {quoted(value)}" for field, value in given.items() if value]
        lines.append("")
    write_own(_file(), "\n".join(lines).encode("utf-8"))


def _file() -> Path:
    return config_directory() / "gns3.toml"
