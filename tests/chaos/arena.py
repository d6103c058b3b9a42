"""One cluster under chaos: members, network and clients together, and what a fault needs to know of them."""

import asyncio
import contextlib
import itertools
import random
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from deploy.processes import LOOPBACK, free_ports
from metadata.model.records import Caller
from metadata.protocol.calls import CoordinatorStatus
from metadata.rpc.client import MetadataClient
from metadata.rpc.roster import Roster
from tests.chaos.access import Access, join
from tests.chaos.clients import Client, Workload
from tests.chaos.cold import ColdContents
from tests.chaos.contents import Contents, session
from tests.chaos.gaps import Streams
from tests.chaos.isolation import packet_filter, why_no_shims
from tests.chaos.members import Member, set_up
from tests.chaos.network import CLIENTS, Network
from tests.chaos.nodes import NODE_NAMES, join_nodes
from tests.chaos.shims import Shims

WRITERS = 6
WRITER_CONNECTIONS = 2
LEADER_TIMEOUT_S = 20.0
POLL_S = 0.05
READY_POLL_S = 0.2
WATCH_S = 0.1
PEER_PORT, API_PORT = 7000, 7001
NODES_NETWORK = 1  # 127.0.1: coordinators are in 127.0.0
CLOCK_BASE_S = 14 * 3600  # members live in the future, so that a jump back is not before their certificates


@dataclass
class Arena:
    """What faults act upon. Made by `opened`."""

    members: dict[str, Member]  # the coordinators
    nodes: dict[str, Member]
    network: Network | None
    shims: Shims | None
    workload: Workload
    contents: Contents
    cold: ColdContents
    access: Access
    caller: Caller
    observer: MetadataClient
    prober: Client
    streams: Streams
    pinned: dict[str, Client]  # a client that only ever asks this member
    heard: Roster  # who gets the heartbeats of the clients' node
    dice: random.Random
    directory: Path
    group: asyncio.TaskGroup
    numbers: Iterator[int]  # of members that come later
    shared: list[MetadataClient] = field(default_factory=list)  # of clients that ask everybody
    owned: list[asyncio.Task[None]] = field(default_factory=list)  # cancelled in the end
    recoveries_s: list[float] = field(default_factory=list)
    victim: str = ""  # of the fault that is under way, if it is one, and whether it led
    pace: float = 1.0  # of what faults last by default

    @property
    def faults(self) -> list[str]:
        """What went wrong that must not."""
        return self.workload.ledger.faults

    def own(self, work: Coroutine[Any, Any, None]) -> None:
        """Keep it running until the end."""
        self.owned.append(self.group.create_task(work))

    def tell_clients(self) -> None:
        """The members are who they are now."""
        records = [member.record for member in self.members.values()]
        self.heard.update(records)
        for metadata in self.shared:
            metadata.update(records)

    def now_s(self) -> float:
        """Seconds since the clients began."""
        return self.workload.ledger.now_s()

    def any_member(self) -> Member:
        """A coordinator, by the dice."""
        return self.members[self.dice.choice(sorted(self.members))]

    @property
    def everybody(self) -> list[Member]:
        """Coordinators and nodes."""
        return [*self.members.values(), *self.nodes.values()]

    def others(self, member: Member) -> list[Member]:
        """All other coordinators."""
        return [other for other in self.members.values() if other is not member]

    async def statuses(self) -> dict[str, CoordinatorStatus]:
        """What every member that answers says of itself."""
        answers = await self.observer.status(self.caller)
        return {name: answer.coordinator for name, answer in answers.items() if answer is not None}

    async def leader(self) -> Member:
        """Who leads now: of those that say so, the one with the highest term. Raises TimeoutError."""
        async with asyncio.timeout(LEADER_TIMEOUT_S):
            while True:
                found = [s for s in (await self.statuses()).values() if s.role == "leader"]
                if found:
                    return self.members[max(found, key=lambda status: status.term).id]
                await asyncio.sleep(POLL_S)

    async def settled(self) -> None:
        """Until every member answers and has applied what the leader had, and every node serves.

        Raises TimeoutError.
        """
        async with asyncio.timeout(LEADER_TIMEOUT_S):
            while True:
                statuses = await self.statuses()
                committed = max((status.commit for status in statuses.values()), default=0)
                if len(statuses) == len(self.members):
                    break
                await asyncio.sleep(POLL_S)
            while any(status.applied < committed for status in (await self.statuses()).values()):
                await asyncio.sleep(POLL_S)
            while not await self.contents.are_served():
                await asyncio.sleep(READY_POLL_S)

    async def resumed(self, since: float, what: str) -> float | None:
        """Seconds from `since` until a write is acknowledged; a fault if that takes far too long."""
        took_s = await self.workload.acknowledged_after(self.prober, since)
        if took_s is None:
            self.faults.append(f"at {self.now_s():.1f} s: no write is acknowledged after {what}")
        return took_s

    async def watch(self) -> None:
        """One that ends without our doing is a fault, and is started again. Until cancelled."""
        while True:
            for member in self.everybody:
                if ended := member.ended_by_itself():
                    self.faults.append(f"at {self.now_s():.1f} s: {ended}")
                    member.start()
            await asyncio.sleep(WATCH_S)

    def cut(self, pairs: Iterable[tuple[str, str]]) -> None:
        """What the first of a pair sends no longer reaches the second, until `mend`. On top of earlier cuts.

        Where no packet filter is, what clients send arrives all the same.
        """
        if self.network is not None and packet_filter():
            self.network.cut(pairs)
            return
        assert self.shims is not None
        self.shims.cut((self._named(a), self._address(b)) for a, b in pairs if a != CLIENTS)

    def _named(self, name: str) -> Member:
        return self.nodes[name] if name in self.nodes else self.members[name]

    def _address(self, name: str) -> str:
        if name == CLIENTS:
            return self.network.address(CLIENTS) if self.network is not None else LOOPBACK
        return self._named(name).address

    def mend(self) -> None:
        """Networks and disks work, at full speed."""
        if self.network is not None:
            self.network.heal()
        if self.shims is not None:
            self.shims.heal()

    def heal(self) -> None:
        """Everybody runs and reaches everybody, with the right time and room on disk."""
        self.mend()
        for member in self.everybody:
            if member.has_small_disk:
                member.free_disk()
            if member.clocks is not None:
                member.set_clock(CLOCK_BASE_S)
            member.resume()
            if not member.runs and member.may_end:
                member.start()


@contextlib.asynccontextmanager
async def opened(
    directory: Path, *, count: int, dice: random.Random, networked: bool, small_disk: bool
) -> AsyncIterator[Arena]:
    """A cluster that runs, with clients and nodes that have joined; its processes end with the block."""
    names = [f"c{number}" for number in range(1, count + 1)]
    network = Network([*names, *NODE_NAMES]) if networked else None
    shims = None if why_no_shims() else Shims(directory / "shims")
    members = {name: new_member(directory, name, network, shims) for name in names}
    nodes = {name: new_member(directory, name, network, shims, role="node") for name in NODE_NAMES}
    try:
        token = set_up(list(members.values()), members[names[-1]] if small_disk else None)
        for member in members.values():
            member.start()
        caller = Caller("admin", 1, token)
        first = members[names[0]]
        access = await join(
            first.data,
            [member.record for member in members.values()],
            caller,
            address=network.address(CLIENTS) if network else LOOPBACK,
            target=directory / "clients.pem",
        )
        await join_nodes(list(nodes.values()), first, access, caller)
        root_pem = access.contexts.credential.root_pem
        async with session(root_pem, token) as http, asyncio.TaskGroup() as group:
            arena = _arena(members, nodes, network, shims, access, caller, http, dice, directory, group)
            arena.heal()
            try:
                yield arena
            finally:
                for task in arena.owned:
                    task.cancel()
    finally:
        for member in (*nodes.values(), *members.values()):
            member.kill()
            if member.has_small_disk:
                member.remove_small_disk(directory / f"{member.id}.kept")
        if network is not None:
            network.close()


def writers(arena: Arena) -> list[Client]:
    """The clients that write and read anywhere; a few share a connection."""
    shared = [arena.access.client() for _ in range(WRITER_CONNECTIONS)]
    arena.shared += shared
    for metadata in shared:
        arena.own(metadata.run())
    return [Client(f"w{n}", shared[n % len(shared)], is_writer=True) for n in range(1, WRITERS + 1)]


def readers(arena: Arena) -> list[Client]:
    """The clients that ask one member only: each member must answer as the group would."""
    return list(arena.pinned.values())


def pinned_client(access: Access, member: Member) -> Client:
    """A client that only ever asks this member."""
    return Client(f"at-{member.id}", access.client([member.record]), is_writer=False, timeout_s=2.0)


def new_member(
    directory: Path, name: str, network: Network | None, shims: Shims | None, *, role: str = "coordinator"
) -> Member:
    """One with an address of its own, where that is possible; nothing is on disk yet."""
    peer_port, api_port = (PEER_PORT, API_PORT) if network else free_ports(2)
    of_role = NODES_NETWORK if role == "node" else 0
    own = LOOPBACK if shims is None else f"127.0.{of_role}.{1 + int(name[1:])}"
    address = network.address(name) if network else own
    log = directory / "logs" / f"{name}.log"
    member = Member(name, address, peer_port, api_port, directory / name, log, role)
    member.command = network.inside(name) if network else ()
    if shims is not None:
        member.clocks = shims.clocks
        member.environment = shims.environment("" if network else own)
        member.set_clock(CLOCK_BASE_S)
    return member


def _arena(
    members: dict[str, Member],
    nodes: dict[str, Member],
    network: Network | None,
    shims: Shims | None,
    access: Access,
    caller: Caller,
    http: aiohttp.ClientSession,
    dice: random.Random,
    directory: Path,
    group: asyncio.TaskGroup,
) -> Arena:
    workload = Workload(caller, random.Random(dice.getrandbits(64)))
    as_a_node = access.client()
    contents = Contents(nodes, http, workload.ledger, random.Random(dice.getrandbits(64)))
    arena = Arena(
        members=members,
        nodes=nodes,
        network=network,
        shims=shims,
        workload=workload,
        contents=contents,
        cold=ColdContents(nodes, contents, random.Random(dice.getrandbits(64))),
        access=access,
        caller=caller,
        observer=access.client(),
        prober=Client("prober", access.client(), is_writer=True),
        streams=Streams(workload, as_a_node),
        pinned={name: pinned_client(access, member) for name, member in members.items()},
        heard=Roster(member.record for member in members.values()),
        dice=dice,
        directory=directory,
        group=group,
        numbers=itertools.count(len(members) + 1),
    )
    arena.shared += [arena.observer, arena.prober.metadata, as_a_node]
    for metadata in (*arena.shared, *(client.metadata for client in arena.pinned.values())):
        arena.own(metadata.run())
    arena.own(access.send_heartbeats(as_a_node, arena.heard))
    arena.own(arena.watch())
    return arena
