"""Which cluster a command talks to.

What comes first wins: options (--context is one, and brings all three of URL, root and token), variables of
the environment, ./.filestore/cluster.json, and the context that is used at present.

A token is never taken from the command line or the environment itself, only from a file: arguments and
environments are visible to others on the machine.

Tested by tests/cluster/test_command.py.
"""

import functools
import stat
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import click
import uvloop
from click.core import ParameterSource

from ca.errors import InvalidRequest
from deploy.base.failures import USAGE, explain_rejection, reason_of
from deploy.base.option_names import naming, options_named
from deploy.base.own_files import UserPath
from filestore_client import AsyncClient
from filestore_client.base.contexts import find_context
from filestore_client.base.errors import InvalidRequest as UnusableFile
from filestore_client.base.errors import Unauthorized
from filestore_client.base.retry import DEADLINE_S
from filestore_client.base.token import Token, require_token
from filestore_client.base.transport import base_url

TEXT_CHARS_MAX = 1 << 20  # a bound on what a wrong path costs

_GIVEN: Final = ("--url", "--ca", "--token-file")

T = TypeVar("T")


class NotSignedIn(click.ClickException):
    """It is not known which cluster is meant. One line: what to do, without how the command is used."""

    exit_code = USAGE

    def show(self, file: Any = None) -> None:
        """Print the line."""
        click.echo(f"filestore: {self.message}", file=file, err=True)


@dataclass(frozen=True, slots=True)
class Connection:
    """The addresses of the cluster, its trusted root, and the user's token."""

    urls: tuple[str, ...]
    ca: Path
    token_file: Path
    deadline_s: float

    def client(self) -> AsyncClient:
        """A client for this cluster, which reads the file of the token again when the cluster rejects it.

        Raises InvalidRequest for a URL or a file that cannot be used.
        """
        for url in self.urls:
            base_url(url)
        root_pem, token = read_text(self.ca, "the CA certificate"), Token(self.token(), file=self.token_file)
        try:
            return AsyncClient(self.urls, root_pem=root_pem, token=token, deadline_s=self.deadline_s)
        except UnusableFile as error:
            raise InvalidRequest(f"{naming(self.ca)}{self.ca}: {error.details}") from error

    def token(self) -> str:
        """The token, from its file. Raises InvalidRequest naming the file."""
        return _read_token(self.token_file)

    def run(self, work: Callable[[AsyncClient], Coroutine[Any, Any, T]]) -> T:
        """Run one piece of work with a client, and close the client in any case.

        Raises what the work raises. Unauthorized includes the readable facts of the token.
        """

        async def session() -> T:
            async with self.client() as client:
                try:
                    return await work(client)
                except Unauthorized as error:
                    raise explain_rejection(
                        self.token(), f"in {self.token_file}", at_s=client.transport.time.now_s()
                    ) from error

        return uvloop.run(session())  # the loop that the servers run on: see pyproject.toml


def _read_token(path: Path) -> str:
    """Read the token. Raises InvalidRequest naming the file. Warns if all users may read it."""
    if not (token := read_text(path, "the token")):
        raise InvalidRequest(f"{naming(path)}{path} is empty, but must contain a token.")
    try:
        require_token(token)
    except UnusableFile as error:
        raise InvalidRequest(f"{naming(path)}{path}: {error.details}") from error
    mode = path.stat().st_mode
    if stat.S_ISREG(mode) and mode & stat.S_IROTH:
        click.echo(f"filestore: warning: all users of this machine can read the token in {path}", err=True)
    return token


def read_text(path: Path, what: str) -> str:
    """A small text file, stripped, also of the mark that editors on Windows begin it with.

    Raises InvalidRequest naming the file, and the option or variable that named it.
    """
    try:
        with path.open(encoding="utf-8-sig") as file:
            text = file.read(TEXT_CHARS_MAX + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(_unreadable(path, what, reason_of(error))) from error
    if len(text) > TEXT_CHARS_MAX:
        raise InvalidRequest(_unreadable(path, what, f"it is longer than {TEXT_CHARS_MAX} characters"))
    return text.strip()


def _unreadable(path: Path, what: str, why: str) -> str:
    return f"{naming(path)}Cannot read {what} from {path}: {why}"


def connection_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command --url, --ca, --token-file, --context and --deadline; it receives one `connection`."""

    @click.option(
        "--url",
        "urls",
        multiple=True,
        envvar="FILESTORE_URL",
        metavar="URL",
        help="Address of a node. Give several to have the next one tried when one fails.  [FILESTORE_URL]",
    )
    @click.option(
        "--ca",
        type=UserPath(path_type=Path),
        envvar="FILESTORE_CA",
        help="The root certificate of the cluster.  [FILESTORE_CA]",
    )
    @click.option(
        "--token-file",
        type=UserPath(path_type=Path),
        envvar="FILESTORE_TOKEN_FILE",
        help="A file that holds a user token.  [FILESTORE_TOKEN_FILE]",
    )
    @click.option(
        "--context",
        envvar="FILESTORE_CONTEXT",
        help="A cluster that you are signed in to.  [FILESTORE_CONTEXT; default: the one that is used]",
    )
    @click.option(
        "--deadline",
        "deadline_s",
        type=click.FloatRange(min=0),
        default=DEADLINE_S,
        show_default=True,
        metavar="SECONDS",
        help="Give up after this long without progress.",
    )
    @functools.wraps(command)
    def wrapped(
        urls: tuple[str, ...],
        ca: Path | None,
        token_file: Path | None,
        context: str | None,
        deadline_s: float,
        **rest: Any,
    ) -> Any:
        if _is_on_the_command_line("context"):
            urls = urls if _is_on_the_command_line("urls") else ()
            ca = ca if _is_on_the_command_line("ca") else None
            token_file = token_file if _is_on_the_command_line("token_file") else None
        connection = find_connection(urls, ca, token_file, context, deadline_s)
        with options_named():
            return command(connection=connection, **rest)

    return wrapped


def _is_on_the_command_line(parameter: str) -> bool:
    """Whether it was given there, and not by the environment."""
    source = click.get_current_context().get_parameter_source(parameter)
    return source is ParameterSource.COMMANDLINE


def find_connection(
    urls: tuple[str, ...],
    ca: Path | None,
    token_file: Path | None,
    context: str | None,
    deadline_s: float,
) -> Connection:
    """Fill what was not given: from a context that is named, ./.filestore/cluster.json, or the current one.

    Raises NotSignedIn when something is missing, NotFound for a context that there is not.
    """
    if not (urls and ca and token_file):
        found = find_context(context or "")
        if found is not None:
            urls = urls or tuple(found.urls)
            ca = ca or Path(found.ca)
            token_file = token_file or Path(found.token_file)
    if not urls or ca is None or token_file is None:
        missing = [name for name, value in zip(_GIVEN, (urls, ca, token_file), strict=True) if not value]
        if len(missing) == len(_GIVEN):
            raise NotSignedIn("not signed in: run `filestore login URL`, or `filestore dev` to try it out.")
        raise NotSignedIn(f"{', '.join(missing)} missing: give all of {', '.join(_GIVEN)}, or none.")
    return Connection(urls=urls, ca=ca, token_file=token_file, deadline_s=deadline_s)
