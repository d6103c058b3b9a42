"""`filestore login`, `logout`, `context` and `whoami`: which cluster, and who one is there.

Tested by tests/cluster/test_command_account.py.
"""

import http.client
import json
import re
import sys
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import click
import uvloop

from ca.certificates import UntrustedCertificate, root_digest, trusted_root
from ca.errors import InvalidRequest, NotFound
from ca.jointoken import JoinToken
from ca.tls import first_contact_context
from deploy.base import contexts
from deploy.base.connection import Connection, connection_options, read_text
from deploy.base.failures import claims_of, explain_rejection
from deploy.base.option_names import names_options
from deploy.base.output import json_option, moment, print_json, print_record, print_records
from deploy.base.own_files import UserPath
from deploy.base.signed_in import forget, keep, read_kept
from deploy.people.login import choose, has_browser, sign_in
from deploy.people.session import print_sessions
from filestore_client import AsyncClient
from filestore_client.base.contexts import Context, read_contexts
from filestore_client.base.errors import FilestoreError, Unauthorized, Unavailable, UntrustedServer
from filestore_client.base.errors import NotFound as NotFoundThere
from filestore_client.base.records import SignedIn, User
from filestore_client.base.transport import base_url
from runtime.timestamps import rfc3339

CONNECT_TIMEOUT_S: Final = 10.0
ANSWER_BYTES_MAX: Final = 256 << 10
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


@click.command()
@click.argument("urls", metavar="URL...", nargs=-1, required=True)
@click.option("--name", help="What the cluster is called here.  [default: the host of URL]")
@click.option(
    "--ca", type=UserPath(path_type=Path), help="The root certificate of the cluster, if you have it."
)
@click.option(
    "--fingerprint", metavar="SHA256", help="SHA-256 of the root certificate, as the operator gave it to you."
)
@click.option(
    "--join-token-file",
    type=UserPath(path_type=Path),
    help="A file that holds a join token, which names the fingerprint.",
)
@click.option(
    "--token-file",
    help="Sign in with a user token, which this file holds; - reads standard input.  [default: asked for]",
)
@click.option("--provider", help="Sign in with this identity provider.  [default: the one that there is]")
@click.option("--device", is_flag=True, help="Show a code to enter on another device, and open no browser.")
@names_options
def login(
    urls: tuple[str, ...],
    name: str | None,
    ca: Path | None,
    fingerprint: str | None,
    join_token_file: Path | None,
    token_file: str | None,
    provider: str | None,
    *,
    device: bool,
) -> None:
    """Sign in to a cluster, and use it from now on.

    URL is the address of a node, such as https://files.lab.example:7443. You can give several nodes of the
    cluster.

    The cluster is verified once, by the fingerprint of its root certificate: it is compared with the one that
    you give, or you are asked to confirm it. If the cluster has an identity provider, your browser opens, or
    you get a code where there is none. Otherwise you are asked for a token. The token is stored in a file
    that only you can read; `filestore logout` removes it.
    """
    if token_file is not None and (provider is not None or device):
        raise click.UsageError("Give either --token-file, or --provider and --device.")
    nodes = [base_url(url) for url in urls]
    root_pem = _pinned_root(nodes, ca, fingerprint, join_token_file)
    signed_in = _by_provider(nodes, root_pem, provider, device=device) if token_file is None else None
    token = _token(token_file) if signed_in is None else signed_in[1].token
    user = _recognised(nodes, root_pem, token, token_file)
    context = name or _host_as_name(nodes[0])
    saved = contexts.save_context(context, nodes, root_pem=root_pem, token=token)
    if signed_in is None:
        forget(Path(saved.token_file))
    else:
        keep(Path(saved.token_file), *signed_in)
    is_renewed = signed_in is not None and bool(signed_in[1].renewal)
    end = "is renewed while your session lasts" if is_renewed else f"expires {_end_of(user, token)}"
    click.echo(f"Signed in as {user.user_id}. The context is {context}, and the token {end}.")


@click.command()
@click.argument("name", required=False)
@click.option("--all", "is_all", is_flag=True, help="Also end all your sessions: every token made before.")
def logout(name: str | None, *, is_all: bool) -> None:
    """Forget a cluster, and your token for it.

    NAME is what `filestore context ls` shows; without it, the cluster that is used at present. If you signed
    in with an identity provider, it ends the session of this command.
    """
    context = name or read_contexts().current
    if not context:
        raise NotFound("You are signed in nowhere.")
    if is_all:
        uvloop.run(_end_sessions(context))
    has_ended = _ended_at_provider(read_contexts().find(context))
    contexts.forget_context(context)
    if is_all:
        click.echo(f"{context} is forgotten, and all your tokens there are rejected from now on.")
    elif has_ended:
        click.echo(f"{context} is forgotten. The provider renews its token no more, which expires soon.")
    else:
        click.echo(
            f"{context} is forgotten. The token stays valid until it expires; `filestore session end`, "
            "or `logout --all`, ends it before."
        )


async def _end_sessions(context: str) -> None:
    """End every session of the user of a context. Raises NotFound, and what the API answers."""
    found = read_contexts().find(context)
    root_pem = read_text(Path(found.ca), "the CA certificate")
    token = read_text(Path(found.token_file), "the token")
    async with AsyncClient(found.urls, root_pem=root_pem, token=token) as client:
        await client.sessions.end_all((await client.whoami()).user_id)


@click.group()
def context() -> None:
    """The clusters that you are signed in to: ls, use."""


@context.command("ls")
@json_option
def list_contexts(as_json: bool) -> None:
    """List the clusters; * marks the one that is used."""
    known = read_contexts()
    rows = [
        {"name": name, "current": name == known.current, "urls": each.urls, "user": _user_of(each)}
        for name, each in sorted(known.contexts.items())
    ]
    columns = {
        "": lambda row: "*" if row["current"] else "",
        "name": lambda row: row["name"],
        "user": lambda row: row["user"],
        "urls": lambda row: row["urls"],
    }
    print_records(rows, columns, as_json=as_json, empty="None. `filestore login URL` creates one.")


@context.command("use")
@click.argument("name")
def use_context(name: str) -> None:
    """Use another cluster from now on."""
    contexts.use_context(name)
    click.echo(f"{name} is used from now on.")


@click.command()
@click.option("--sessions", "has_sessions", is_flag=True, help="List your live sessions.")
@json_option
@connection_options
def whoami(connection: Connection, as_json: bool, *, has_sessions: bool) -> None:
    """Show your user name, and when your token ends."""
    if has_sessions:
        print_sessions(connection, "", as_json=as_json)
        return
    user = connection.run(lambda client: client.whoami())
    if as_json:
        print_json(user)
        return
    print_record(user, as_json=False)
    if not user.token_expires_at:
        click.echo(f"The token expires {_end_of(user, connection.token())}.")


def _by_provider(
    nodes: list[str], root_pem: str, wanted: str | None, *, device: bool
) -> tuple[str, SignedIn] | None:
    """Sign in with a provider, and return its name and the token; None if the cluster has no provider."""

    async def work() -> tuple[str, SignedIn] | None:
        async with AsyncClient(nodes, root_pem=root_pem, token="") as client:
            try:
                names = await client.providers.names()
            except NotFoundThere:  # of an older version
                names = []
            if not names and wanted is None and not device:
                return None
            provider = choose(names, wanted)
            return provider, await sign_in(client, provider, by_code=device or not has_browser())

    return uvloop.run(work())


def _recognised(nodes: list[str], root_pem: str, token: str, token_file: str | None) -> User:
    """Return the user of a token. Raises Unauthorized, which says why."""

    async def work() -> User:
        async with AsyncClient(nodes, root_pem=root_pem, token=token) as client:
            try:
                return await client.whoami()
            except Unauthorized as error:
                named = f"in {token_file}" if token_file not in (None, "-") else "that you gave"
                raise explain_rejection(token, named, at_s=client.transport.time.now_s()) from error

    return uvloop.run(work())


def _ended_at_provider(context: Context) -> bool:
    """Have the provider of a sign-in end its session; False if there is none, or it does not answer."""
    kept = read_kept(Path(context.token_file))
    if kept is None:
        return False
    root_pem = read_text(Path(context.ca), "the CA certificate")

    async def work() -> None:
        async with AsyncClient(
            context.urls, root_pem=root_pem, token="", deadline_s=CONNECT_TIMEOUT_S
        ) as client:
            await client.providers.end(kept.provider, kept.renewal)

    try:
        uvloop.run(work())
    except FilestoreError as error:
        click.echo(f"filestore: the provider was not told: {error.details}", err=True)
        return False
    return True


def _pinned_root(
    urls: list[str], ca: Path | None, fingerprint: str | None, join_token_file: Path | None
) -> str:
    """The root certificate of the cluster. Raises InvalidRequest, Unavailable, UntrustedServer."""
    if sum(each is not None for each in (ca, fingerprint, join_token_file)) > 1:
        raise click.UsageError("Give one of --ca, --fingerprint and --join-token-file.")
    if ca is not None:
        return read_text(ca, "the CA certificate")
    wanted = ""
    if join_token_file is not None:
        wanted = JoinToken.parse(read_text(join_token_file, "the join token")).ca_digest
    elif fingerprint is not None:
        wanted = fingerprint.replace(":", "").strip().lower()
        if not _DIGEST.fullmatch(wanted):
            raise click.UsageError("--fingerprint: expected 64 hexadecimal digits (SHA-256).")
    url, shown = _first_root(urls)
    try:
        found = root_digest(shown)
        if not wanted:
            _confirm(url, found)
        return trusted_root(shown, wanted or found)
    except UntrustedCertificate as error:
        if not wanted:
            raise Unavailable(f"{url} does not answer like a node of Filestore.") from error
        raise UntrustedServer(
            f"{url} does not belong to the expected cluster: its root certificate has the fingerprint "
            f"{found}."
        ) from error


def _confirm(url: str, fingerprint: str) -> None:
    """Ask the user to confirm. Raises click.UsageError without a terminal, UntrustedServer for a no."""
    if not sys.stdin.isatty():
        raise click.UsageError(
            f"The root certificate of {url} has the fingerprint {fingerprint}. Compare it with the one "
            "from the operator, and give it as --fingerprint."
        )
    click.echo(f"The root certificate of {url} has the SHA-256 fingerprint\n\n    {fingerprint}\n", err=True)
    if not click.confirm("Is this the fingerprint from the operator?", err=True):
        raise UntrustedServer(f"{url}: its fingerprint was not confirmed. Nothing was stored.")


def _first_root(urls: list[str]) -> tuple[str, str]:
    """The first node that answers, and the root that it shows. Raises InvalidRequest, Unavailable."""
    failure: Unavailable | None = None
    for url in urls:
        try:
            return url, _unverified_root(url)
        except Unavailable as error:
            failure = failure or error
    assert failure is not None
    raise failure


def _unverified_root(url: str) -> str:
    """Fetch the root certificate of an unverified server, only for comparison. No secret is sent."""
    parts = urlsplit(url)
    if parts.scheme != "https":
        raise InvalidRequest(f"{url}: a cluster can be verified over https only. Give --ca.")
    connection = http.client.HTTPSConnection(
        parts.hostname or "", parts.port or 443, timeout=CONNECT_TIMEOUT_S, context=first_contact_context()
    )
    try:
        connection.request("GET", "/api/v1/cluster/ca")
        response = connection.getresponse()
        answer = json.loads(response.read(ANSWER_BYTES_MAX))
        return str(answer["ca_cert"])
    except OSError as error:
        raise Unavailable(f"{url}: {error.strerror or error}.") from error
    except (http.client.HTTPException, ValueError, KeyError, TypeError) as error:
        raise Unavailable(f"{url} does not answer like a node of Filestore.") from error
    finally:
        connection.close()


def _token(token_file: str | None) -> str:
    """Read the token from a file, standard input or the terminal. Raises InvalidRequest, click.UsageError."""
    if token_file not in (None, "-"):
        token = read_text(Path(str(token_file)), "the token")
    elif token_file == "-":  # noqa: S105
        token = sys.stdin.readline().strip()
    elif sys.stdin.isatty():
        token = str(click.prompt("Token", hide_input=True, err=True)).strip()
    else:
        raise click.UsageError("--token-file: is required if there is no terminal to ask on.")
    if not token:
        raise InvalidRequest("The token is empty.")
    return token


def _host_as_name(url: str) -> str:
    """Return the default name of a context. An IPv6 address has characters that are not allowed in names."""
    return (urlsplit(url).hostname or "").replace(":", "-").strip("-") or "default"


def _end_of(user: User, token: str) -> str:
    return moment(user.token_expires_at or rfc3339(int(claims_of(token)[1] * 1000)))


def _user_of(context: Context) -> str:
    try:
        return claims_of(read_text(Path(context.token_file), "the token"))[0]
    except InvalidRequest:
        return ""
