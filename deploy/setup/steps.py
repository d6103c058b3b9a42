"""The steps of a setup. Each may be repeated: existing parts are not changed.

Tested by tests/cluster/test_setup.py.
"""

import asyncio
from dataclasses import dataclass
from typing import Final

import click
import msgspec
from msgspec import Struct

from ca.errors import Conflict, InvalidRequest, Unauthorized
from ca.secretfiles import make_directory, read_secret, write_secret
from ca.setuptoken import SetupToken
from ca.tls import client_context, read_roots
from coordinator.admin import setup as coordinators
from coordinator.storage.config import CoordinatorFiles
from deploy.setup import unfinished
from deploy.setup.plan import MachinePlan, url_at
from deploy.setup.running import MemberProcesses
from deploy.setup.tokens import mint_node_token
from node.base.config import NodeFiles
from node.membership import join as nodes
from node.membership.first_contact import ask, first_contact

_HANDED: Final = "what the first machine handed over"
_NOT_TAKEN: Final = (
    "The text of --join was rejected: it has expired, was used or revoked. `filestore token setup` on a "
    "machine of the cluster creates another."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewCluster:
    """The settings of a new cluster, in addition to names and addresses."""

    name: str
    replicas: int
    development: bool


class _JoinedCluster(Struct, frozen=True):
    """A coordinator's response to a machine that becomes another coordinator."""

    bundle: bytes


class SetupTokenNotTaken(nodes.TokenNotTaken):
    """The coordinator refuses the setup token; it does not say why."""


def first_coordinator(plan: MachinePlan, cluster: NewCluster, members: MemberProcesses) -> None:
    """Make the first coordinator of a new cluster, and let it run.

    Raises Conflict, InvalidRequest, Unavailable.
    """
    files = CoordinatorFiles(plan.coordinator_data)
    earlier = unfinished.read(files)
    if not files.config.exists():
        unfinished.begin(files, unfinished.UnfinishedSetup())
        coordinators.init_cluster(
            files.data,
            coordinator_id=plan.name,
            cluster=cluster.name,
            members=[plan.record],
            replicas=cluster.replicas,
            write_quorum=cluster.replicas // 2 + 1,
            development=cluster.development,
        )
    elif earlier is not None and not files.admin_token.exists():
        write_secret(files.admin_token, coordinators.mint_admin_token(files.data).encode("ascii") + b"\n")
    unfinished.end(files)
    _run_coordinator(files, members)


def another_coordinator(plan: MachinePlan, token: SetupToken | None, members: MemberProcesses) -> None:
    """Create another coordinator of the cluster of a token, start it, and add it to the group.

    Without a token, it continues with the first one. Raises SetupTokenNotTaken, Conflict, InvalidRequest,
    UntrustedCertificate, Unavailable.
    """
    files = CoordinatorFiles(plan.coordinator_data)
    attempt = unfinished.read(files)
    if files.config.exists() and attempt is None:
        _run_coordinator(files, members)
        return
    if attempt is not None and attempt.token and token is None:
        token = SetupToken.parse(attempt.token)
    if token is None:
        raise InvalidRequest("join: to continue, give the token of this machine: --join")
    if attempt is None or attempt.token != token.text:
        attempt = unfinished.new_attempt(token.text)
    if files.config.exists():
        unfinished.note(files, attempt)
    else:
        unfinished.begin(files, attempt)
        try:
            bundle = coordinators.bundle_in(_asked(plan, token, attempt, is_running=False), _HANDED)
        except SetupTokenNotTaken:
            unfinished.end(files)  # nothing was begun: the next setup may be of another kind
            raise
        _require_same(bundle, token)
        coordinators.init_with(files.data, bundle, plan.name, plan.record)
    members.give_ownership("coordinator")
    members.start("coordinator")
    _asked(plan, token, attempt, is_running=True)
    unfinished.end(files)
    _run_coordinator(files, members)


def _run_coordinator(files: CoordinatorFiles, members: MemberProcesses) -> None:
    members.give_ownership("coordinator")
    members.start("coordinator")
    members.wait_ready("coordinator", client_context(read_roots(files.root)))
    click.echo(f"Coordinator {files.read_config().id} is serving.")


def _asked(
    plan: MachinePlan, token: SetupToken, attempt: unfinished.UnfinishedSetup, *, is_running: bool
) -> bytes:
    """Return the bundle, or b"" once this machine runs. Only the coordinator in the token receives it."""
    body = {
        "id": plan.name,
        "address": plan.address,
        "peer_port": plan.peer_port,
        "api_port": plan.api_port,
        "attempt": attempt.attempt,
        "running": is_running,
    }

    async def work() -> bytes:
        name = token.coordinator.dns_name
        cluster = await first_contact(token.url, token.join.ca_digest, server_name=name)
        answer = await ask(
            "POST",
            f"{token.url}/api/v1/cluster/join/coordinator",
            client_context(cluster.ca_cert),
            _JoinedCluster,
            headers={
                "Authorization": f"Bearer {token.join.bearer}",
                "Content-Type": "application/json",
            },
            body=msgspec.json.encode(body),
            server_name=name,
        )
        return answer.bundle

    try:
        return asyncio.run(work())
    except Conflict as error:
        raise Conflict(f"{error.details} Give this machine its own name: --name") from error
    except Unauthorized as error:
        raise SetupTokenNotTaken(_NOT_TAKEN) from error


def _require_same(bundle: coordinators.Bundle, token: SetupToken) -> None:
    """Raises InvalidRequest for a bundle of another cluster than the token's."""
    command = coordinators.bootstrap_of(bundle.genesis)
    if command.cluster != token.coordinator.cluster:
        raise InvalidRequest(f"join: {_HANDED} belongs to the cluster {command.cluster}")


def own_node(plan: MachinePlan, members: MemberProcesses) -> None:
    """Make a node of this machine, whose coordinator runs, and let it run. Raises Conflict, Unavailable."""
    files = NodeFiles(plan.node_data)
    if not files.config.exists():
        coordinator = CoordinatorFiles(plan.coordinator_data)
        url = url_at(plan.address, plan.api_port)
        kept = files.data / unfinished.TOKEN
        if not (kept.exists() and _joined_before(plan, url, read_secret(kept).decode("ascii"))):
            make_directory(files.data)
            token = mint_node_token(coordinator, plan.name)
            write_secret(kept, token.encode("ascii"))
            _join(plan, url, token)
    _run_node(files, members)


def joining_node(plan: MachinePlan, token: SetupToken | None, members: MemberProcesses) -> None:
    """Make a node of this machine, and no coordinator, by a setup token. Raises as `another_coordinator`."""
    files = NodeFiles(plan.node_data)
    if not files.config.exists():
        if token is None:
            raise InvalidRequest("join: the token of this machine is required: --join")
        try:
            _join(plan, token.url, token.join.text, server_name=token.coordinator.dns_name)
        except nodes.TokenNotTaken as error:
            raise SetupTokenNotTaken(_NOT_TAKEN) from error
    _run_node(files, members)


def _joined_before(plan: MachinePlan, url: str, token: str) -> bool:
    """Whether a join that was broken off came through; its token may have ended meanwhile."""
    try:
        _join(plan, url, token)
    except nodes.TokenNotTaken:
        return False
    return True


def _join(plan: MachinePlan, url: str, token: str, *, server_name: str = "") -> None:
    work = nodes.join(
        plan.node_data,
        token=token,
        node_id=plan.name,
        coordinator_url=url,
        address=plan.address,
        api_port=plan.node_api_port,
        peer_port=plan.node_peer_port,
        zone=plan.zone,
        server_name=server_name,
    )
    try:
        asyncio.run(work)
    except Conflict as error:
        raise Conflict(
            f"{error.details} If that was this machine, in an interrupted setup, remove it first: "
            f"filestore node remove {plan.name} --force --is-gone. Or give this machine another name: "
            "--name"
        ) from error


def _run_node(files: NodeFiles, members: MemberProcesses) -> None:
    unfinished.end_node(files)
    members.give_ownership("node")
    members.start("node")
    members.wait_ready("node", client_context(read_roots(files.root)))
    click.echo(f"Node {files.read_config().id} is serving.")
