"""`filestore user import`: a class of people from a CSV file, with a link or a token for each.

The command skips users, groups and links that exist, so a repeated call resumes after an interruption.
"""

import csv
import io
import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final, NoReturn

import click

from ca.errors import InvalidRequest
from deploy.base.connection import Connection, connection_options
from deploy.base.failures import reason_of
from deploy.base.options import Duration
from deploy.base.output import json_option, moment, print_json, print_table
from deploy.base.own_files import UserPath, secret_output_option
from deploy.base.printed import printable_name
from deploy.people.class_list import FILE_BYTES_MAX, Person, WrongList, people_in
from deploy.people.group import ADDED_AT_ONCE
from filestore_client import AsyncClient
from filestore_client.base.records import ListedInvitation, User
from runtime.wording import counted

LINKS, TOKENS, NOTHING = "links", "tokens", "nothing"
FAULTS_SHOWN: Final = 50
_HEADER: Final = ("name", "mail", "label", "secret", "expires_at")


@dataclass(frozen=True, slots=True)
class Step:
    """The work for one person. `why_not`: the reason for which a known user gets no link or token."""

    person: Person
    is_new: bool
    joins: tuple[str, ...]
    is_given: bool
    why_not: str = ""

    @property
    def is_done(self) -> bool:
        """Return whether nothing is left to do."""
        return not (self.is_new or self.joins or self.is_given)


@dataclass(frozen=True, slots=True)
class NewSecret:
    """A link or token that was made for a person."""

    person: Person
    secret: str
    expires_at: str

    def cells(self) -> tuple[str, ...]:
        """Return the line of the file."""
        return self.person.name, self.person.mail, self.person.label, self.secret, self.expires_at


@click.command("import")
@click.argument("file", type=UserPath(exists=True, dir_okay=False, path_type=Path), metavar="FILE.csv")
@click.option("--dry-run", is_flag=True, help="Check the file, and show what would be done.")
@click.option(
    "--give",
    type=click.Choice([LINKS, TOKENS, NOTHING]),
    default=LINKS,
    show_default=True,
    help="What each person gets: a link to the console that gives a token once, or a token.",
)
@click.option(
    "--expires",
    "ttl_seconds",
    type=Duration(least_s=60),
    help="How long links work, or tokens are valid; at most 30d.  [default: 7d]",
)
@secret_output_option("Write links or tokens to this CSV file (0600); print none.")
@json_option
@connection_options
def import_class(
    connection: Connection,
    file: Path,
    *,
    dry_run: bool,
    give: str,
    ttl_seconds: int | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Create the users of a class from a CSV file. Admins only.

    It puts them into groups, and makes a link or a token for each. The first line of FILE.csv names its
    columns: name, and optionally groups (separated by spaces), mail and label, which only appear in the
    output. The whole file is checked before the first change.

    Repeat the command to resume after an interruption, or after lines were added. Users keep their groups.
    Users who are signed in, have an open link or a line in the output file get no other link.
    """
    people = _read(file)
    known_names = _names_in(output)

    async def work(client: AsyncClient) -> list[NewSecret]:
        plan = await _plan(client, people, known_names, give)
        if dry_run:
            _show(plan, give, as_json=as_json)
            return []
        await _join(client, plan)
        made: list[NewSecret] = []
        async for each in _give(client, plan, give, ttl_seconds):
            if output is not None:
                _append(output, each)
            elif not as_json:
                _print_line(each, is_first=not made)
            made.append(each)
        _report(plan, made, output, give, as_json=as_json)
        return made

    connection.run(work)


def _read(path: Path) -> list[Person]:
    """Return the people in the file. Raises InvalidRequest after printing each fault on a line."""
    try:
        with path.open("rb") as file:
            return people_in(file.read(FILE_BYTES_MAX + 1))
    except OSError as error:
        raise InvalidRequest(f"{path}: {reason_of(error)}") from error
    except WrongList as wrong:
        _fail(str(path), wrong.faults)


def _fail(name: str, faults: Sequence[str]) -> NoReturn:
    """Print the faults, and raise InvalidRequest."""
    for fault in faults[:FAULTS_SHOWN]:
        click.echo(f"{printable_name(name)}: {printable_name(fault)}", err=True)
    raise InvalidRequest(f"{name}: {counted(len(faults), 'fault', 'faults')}. Nothing was changed.")


async def _plan(
    client: AsyncClient, people: Sequence[Person], known_names: frozenset[str], give: str
) -> list[Step]:
    """Compare the people with the users of the cluster. Raises InvalidRequest if one is disabled."""
    users = {user.user_id: user async for user in client.users.list()}
    now_s = client.transport.time.now_s()
    open_links = {each.user_id async for each in client.invitations.list() if is_open(each, now_s)}
    disabled = [
        f"line {each.line}: {each.name} is disabled: `filestore user enable {each.name}` first"
        for each in people
        if each.name in users and users[each.name].disabled
    ]
    if disabled:
        _fail("The cluster", disabled)
    plan = []
    for person in people:
        user = users.get(person.name)
        why_not = "nothing is given" if give == NOTHING else ""
        if not why_not and person.name in known_names:
            why_not = "in the output file"
        if not why_not and user is not None:
            why_not = await _why_not(client, user, open_links)
        held = user.groups if user else []
        joins = tuple(group for group in person.groups if group not in held)
        plan.append(Step(person, user is None, joins, not why_not, why_not))
    return plan


def is_open(invitation: ListedInvitation, now_s: float) -> bool:
    """Return whether the link works at this time, in seconds since 1970."""
    return not invitation.used_at and datetime.fromisoformat(invitation.expires_at).timestamp() > now_s


async def _why_not(client: AsyncClient, user: User, open_links: set[str]) -> str:
    """Return why a user of the cluster gets no link or token, "" if it gets one."""
    if "admin" in user.roles:
        return "has the role admin"
    if user.user_id in open_links:
        return "has an open link"
    async for _ in client.sessions.list(user.user_id):
        return "is signed in"
    return ""


async def _join(client: AsyncClient, plan: Iterable[Step]) -> None:
    """Put users who exist into their groups; new ones are created in theirs."""
    joining: dict[str, list[str]] = {}
    for step in plan:
        for group in step.joins if not step.is_new else ():
            joining.setdefault(group, []).append(step.person.name)
    for group, names in joining.items():
        for start in range(0, len(names), ADDED_AT_ONCE):
            await client.groups.add(group, names[start : start + ADDED_AT_ONCE])


async def _give(
    client: AsyncClient, plan: Iterable[Step], give: str, ttl_seconds: int | None
) -> AsyncIterator[NewSecret]:
    """Create the new users, and yield what each person gets."""
    for step in plan:
        name = step.person.name
        groups = list(step.joins) if step.is_new else None
        if not step.is_given:
            if step.is_new:
                await client.users.put(name, groups=groups)
        elif give == TOKENS:
            minted = await client.users.mint_token(name, groups=groups, ttl_seconds=ttl_seconds or 7 * 86_400)
            yield NewSecret(step.person, minted.token, minted.expires_at)
        else:
            link = await client.invitations.create(name, groups=groups, ttl_seconds=ttl_seconds)
            yield NewSecret(step.person, link.url, link.expires_at)


def _names_in(output: Path | None) -> frozenset[str]:
    """Return the names that the output file has already. Raises InvalidRequest for another kind of file."""
    if output is None or not output.exists():
        return frozenset()
    try:
        text = output.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{output}: {error}") from error
    rows = list(csv.reader(io.StringIO(text, newline="")))
    if rows and tuple(rows[0]) != _HEADER:
        raise InvalidRequest(f"{output}: is there, and was not written by this command.")
    return frozenset(row[0] for row in rows[1:] if row)


def _append(output: Path, made: NewSecret) -> None:
    """Add a line to the file of its user, and sync it: a link that is lost has to be made again."""
    descriptor = os.open(output, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
        os.fchmod(descriptor, 0o600)
        lines = csv.writer(file, lineterminator="\n")
        if os.fstat(descriptor).st_size == 0:
            lines.writerow(_HEADER)
        lines.writerow(made.cells())
        file.flush()
        os.fsync(descriptor)


def _print_line(made: NewSecret, *, is_first: bool) -> None:
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    if is_first:
        lines.writerow(_HEADER)
    lines.writerow(made.cells())
    click.echo(text.getvalue(), nl=False)


_COLUMNS: Final[Mapping[str, Callable[[Step], str]]] = {
    "line": lambda step: str(step.person.line),
    "name": lambda step: step.person.name,
    "user": lambda step: "new" if step.is_new else "there",
    "joins": lambda step: " ".join(step.joins),
}


def _show(plan: Sequence[Step], give: str, *, as_json: bool) -> None:
    """Print what would be done."""
    what = {LINKS: "a link", TOKENS: "a token", NOTHING: ""}[give]
    if as_json:
        for step in plan:
            print_json(_fields(step))
        return
    rows = [
        [*(show(step) for show in _COLUMNS.values()), what if step.is_given else f"no: {step.why_not}"]
        for step in plan
    ]
    print_table([*_COLUMNS, "gets"], rows)
    click.echo(f"{_counts(plan)} Nothing was changed.", err=True)


def _report(
    plan: Sequence[Step], made: Sequence[NewSecret], output: Path | None, give: str, *, as_json: bool
) -> None:
    if as_json:
        given = {each.person.name: each for each in made}
        for step in plan:
            each = given.get(step.person.name)
            fields = (
                {"secret": each.secret if output is None else "", "expires_at": each.expires_at}
                if each
                else {}
            )
            print_json(_fields(step) | fields)
    click.echo(_counts(plan), err=True)
    if made:
        where = f" in {output} (only you can read it)" if output else ""
        once = " Each works once," if give == LINKS else " Each is valid"
        click.echo(
            f"{counted(len(made), give[:-1], give)}{where}.{once} until {moment(made[0].expires_at)}.",
            err=True,
        )
    left_out = [step for step in plan if step.why_not == "has an open link"]
    if left_out and give == LINKS:
        click.echo(
            f"Open links from before: {len(left_out)}. `filestore user invite NAME` makes another one.",
            err=True,
        )


def _counts(plan: Sequence[Step]) -> str:
    new = sum(step.is_new for step in plan)
    joining = sum(bool(step.joins) and not step.is_new for step in plan)
    done = sum(step.is_done for step in plan)
    return f"{len(plan)} people: {new} new, {joining} join groups, {done} unchanged."


def _fields(step: Step) -> dict[str, object]:
    return {
        "line": step.person.line,
        "name": step.person.name,
        "is_new": step.is_new,
        "joins": list(step.joins),
        "is_given": step.is_given,
        "why_not": step.why_not,
    }
