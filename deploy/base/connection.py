"""Which cluster a command talks to: options, then environment, then ./.filestore/cluster.json.

A token is never taken from the command line or the environment itself, only from a file: arguments and
environments are visible to others on the machine.
"""

import functools
import stat
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click
import uvloop

from ca.errors import FilestoreError, Internal, InvalidRequest
from deploy.base.cluster_file import read_cluster_file
from node.client.client import DEADLINE_S, Client, require_token

CLUSTER_FILE = Path(".filestore/cluster.json")
NOT_ASKED = 3  # the exit code of a `status` that tells nothing of the cluster
TEXT_CHARS_MAX = 1 << 20  # a bound on what a wrong path costs

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Connection:
    """Where the cluster is, whom to trust, and who asks."""

    urls: tuple[str, ...]
    ca: Path
    token_file: Path
    deadline_s: float

    def client(self) -> Client:
        """A client for this cluster. Raises InvalidRequest when a file cannot be read or used."""
        root_pem, token = read_text(self.ca, "the CA certificate"), _read_token(self.token_file)
        try:
            return Client(self.urls, root_pem=root_pem, token=token, deadline_s=self.deadline_s)
        except Internal as error:
            raise InvalidRequest(f"{self.ca}: {error.details}") from error

    def run(self, work: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
        """Run one piece of work with a client, and close the client whatever happens."""

        async def session() -> T:
            async with self.client() as client:
                return await work(client)

        # The loop that the servers run on: see pyproject.toml.
        return uvloop.run(session())


def _read_token(path: Path) -> str:
    """Raises InvalidRequest naming the file. Of one that everybody may read the user is told."""
    if not (token := read_text(path, "the token")):
        raise InvalidRequest(f"{path}: is empty, a token is wanted.")
    try:
        require_token(token)
    except InvalidRequest as error:
        raise InvalidRequest(f"{path}: {error.details}") from error
    mode = path.stat().st_mode
    if stat.S_ISREG(mode) and mode & stat.S_IROTH:
        click.echo(f"filestore: warning: everybody on this machine may read the token in {path}", err=True)
    return token


def read_text(path: Path, what: str) -> str:
    """A small text file, stripped, also of the mark that editors on Windows begin it with.

    Raises InvalidRequest naming the file.
    """
    try:
        with path.open(encoding="utf-8-sig") as file:
            text = file.read(TEXT_CHARS_MAX + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"Cannot read {what} from {path}: {reason_of(error)}") from error
    if len(text) > TEXT_CHARS_MAX:
        raise InvalidRequest(f"Cannot read {what} from {path}: it is longer than {TEXT_CHARS_MAX} characters")
    return text.strip()


def reason_of(error: Exception) -> str:
    """The short text of an operating system error."""
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


def connection_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command --url, --ca, --token-file and --deadline; it receives one `connection`."""

    @click.option(
        "--url",
        "urls",
        multiple=True,
        envvar="FILESTORE_URL",
        metavar="URL",
        help="A node; several may be given, the next is asked when one fails.  [FILESTORE_URL]",
    )
    @click.option(
        "--ca",
        type=click.Path(path_type=Path),
        envvar="FILESTORE_CA",
        help="The root certificate of the cluster.  [FILESTORE_CA]",
    )
    @click.option(
        "--token-file",
        type=click.Path(path_type=Path),
        envvar="FILESTORE_TOKEN_FILE",
        help="A file that holds a user token.  [FILESTORE_TOKEN_FILE]",
    )
    @click.option(
        "--deadline",
        "deadline_s",
        type=click.FloatRange(min=0),
        default=DEADLINE_S,
        show_default=True,
        metavar="SECONDS",
        help="Give up when nothing went forward for so long.",
    )
    @functools.wraps(command)
    def wrapped(
        urls: tuple[str, ...], ca: Path | None, token_file: Path | None, deadline_s: float, **rest: Any
    ) -> Any:
        return command(connection=find_connection(urls, ca, token_file, deadline_s), **rest)

    return wrapped


def find_connection(
    urls: tuple[str, ...], ca: Path | None, token_file: Path | None, deadline_s: float
) -> Connection:
    """Fill what was not given from ./.filestore/cluster.json.

    Raises click.UsageError when something is missing.
    """
    if not (urls and ca and token_file) and CLUSTER_FILE.is_file():
        cluster = read_cluster_file(CLUSTER_FILE)
        urls = urls or tuple(node.url for node in cluster.nodes)
        ca = ca or Path(cluster.ca)
        token_file = token_file or Path(cluster.admin_token_file)
    if not urls or ca is None or token_file is None:
        missing = [
            name for name, value in (("--url", urls), ("--ca", ca), ("--token-file", token_file)) if not value
        ]
        raise click.UsageError(
            f"{', '.join(missing)} missing: give options, or set FILESTORE_URL, FILESTORE_CA and"
            f" FILESTORE_TOKEN_FILE, or work where {CLUSTER_FILE} is, which `filestore dev`"
            " (`make run`) makes, and removes when it stops."
        )
    return Connection(urls=urls, ca=ca, token_file=token_file, deadline_s=deadline_s)


def line_of(error: FilestoreError) -> str:
    """An error on one line: its code and details. What the API never answers has no code: a sentence does."""
    details = " ".join(error.details.split())
    return details if is_local(error) else f"{error.code}: {details}"


def is_local(error: FilestoreError) -> bool:
    """Whether it says what is wrong with a file or a certificate, and not that a server failed."""
    return error.code == Internal.code and type(error) is not Internal
