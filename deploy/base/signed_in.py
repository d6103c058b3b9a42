"""Sign-ins with a provider in the files of this user: a token has a second file, which renews it (0600).

A command renews the token when half of its life is over, before its work and while that lasts. Commands that
run side by side renew it once: a provider may accept each renewal only once.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Final

import click
import msgspec

from deploy.base.contexts import SIGN_IN, changing_files
from deploy.base.own_files import write_own
from filestore_client import AsyncClient
from filestore_client.base.errors import FilestoreError, Forbidden, InvalidRequest, NotFound
from filestore_client.base.records import SignedIn
from filestore_client.base.token import Token

_LOOK_S: Final = 30.0  # between two looks at whether the token must be renewed
_DEADLINE_S: Final = 5.0  # of one renewal: the work continues with the present token
_AGAIN_S: Final = 20.0  # after one that failed; the cluster remembers an answer that was lost for longer
_FILE_CHARS_MAX: Final = 64 << 10


class KeptSignIn(msgspec.Struct, frozen=True):
    """The provider of a sign-in, what renews it, and when that is due (seconds since 1970)."""

    provider: str
    renewal: str
    renew_at_s: float

    def __repr__(self) -> str:
        return f"KeptSignIn({self.provider!r}, ...)"


def kept_file(token_file: Path) -> Path:
    """Return the file that renews the token in another file."""
    return token_file.with_suffix(SIGN_IN)


def read_kept(token_file: Path) -> KeptSignIn | None:
    """Return the sign-in that a token belongs to; None for a token that was made in another way."""
    try:
        with kept_file(token_file).open("rb") as file:
            return msgspec.json.decode(file.read(_FILE_CHARS_MAX), type=KeptSignIn)
    except (OSError, msgspec.MsgspecError):
        return None


def keep(token_file: Path, provider: str, signed_in: SignedIn) -> None:
    """Write what renews a token; remove what is there if it cannot be renewed. Raises OSError."""
    if not signed_in.renewal:
        forget(token_file)
        return
    due_s = datetime.fromisoformat(signed_in.renew_at).timestamp()
    kept = KeptSignIn(provider, signed_in.renewal, due_s)
    write_own(kept_file(token_file), msgspec.json.encode(kept))


def forget(token_file: Path) -> None:
    """Remove what renews a token that was replaced, or whose sign-in has ended. Raises OSError."""
    kept_file(token_file).unlink(missing_ok=True)


@asynccontextmanager
async def keep_renewed(client: AsyncClient, token: Token, token_file: Path) -> AsyncIterator[None]:
    """Renew the client's token when that is due, now and until the end of the block.

    A provider that does not answer is no failure: the present token stays valid until it expires.
    """
    if read_kept(token_file) is None:
        yield
        return
    await _renew_if_due(client, token, token_file)
    is_over = asyncio.Event()
    keeping = asyncio.create_task(_keep_renewed(client, token, token_file, is_over))
    try:
        yield
    finally:
        is_over.set()  # and not cancelled: an answer that is under way may be the only one
        await keeping


async def _keep_renewed(client: AsyncClient, token: Token, token_file: Path, is_over: asyncio.Event) -> None:
    while not is_over.is_set():
        with suppress(TimeoutError):
            await asyncio.wait_for(is_over.wait(), _LOOK_S)
            return
        await _renew_if_due(client, token, token_file)


async def _renew_if_due(client: AsyncClient, token: Token, token_file: Path) -> None:
    kept = read_kept(token_file)
    if kept is None or time.time() < kept.renew_at_s:
        return
    with ExitStack() as lock:
        try:
            await asyncio.to_thread(lock.enter_context, changing_files())
            kept = read_kept(token_file)  # another command may have renewed it
            if kept is not None and time.time() >= kept.renew_at_s:
                await _renew(client, kept, token_file)
            token.is_renewed(token.text)  # reads the file
        except (FilestoreError, OSError):
            return  # whether the token is still good is for the work to find out


async def _renew(client: AsyncClient, kept: KeptSignIn, token_file: Path) -> None:
    try:
        async with asyncio.timeout(_DEADLINE_S):
            signed_in = await client.providers.renew(kept.provider, kept.renewal)
    except (Forbidden, InvalidRequest, NotFound) as error:
        forget(token_file)
        click.echo(f"filestore: your sign-in with {kept.provider} has ended: {error.details}", err=True)
        raise
    except (FilestoreError, TimeoutError):
        later = msgspec.structs.replace(kept, renew_at_s=time.time() + _AGAIN_S)
        write_own(kept_file(token_file), msgspec.json.encode(later))
        raise
    write_own(token_file, signed_in.token.encode("ascii") + b"\n")
    keep(token_file, kept.provider, signed_in)
