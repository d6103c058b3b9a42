"""What one seed draws before it begins: the group, how bad network, disks and power are, and what clients do.

Every seed is bad in few ways at once ("swarm testing"): a run in which everything fails all the time never
gets far enough to break anything interesting. Times are in units of which `TICK` make one tick of a member's
clock.
"""

import random
from dataclasses import dataclass

TICK = 100
NEVER = 0


@dataclass(frozen=True, slots=True)
class Weather:
    """One seed's conditions. An `..._every` is the mean time between two such events, `NEVER` for none."""

    voters: int
    loss: float  # share of messages that get lost
    double: float  # share that comes twice
    delay_max: int
    disk_max: int  # longest write, sync or apply
    clock_drift: float  # how much faster or slower than the others a clock may be
    crash_every: int
    boundary_crash: float  # chance of a crash at each step of a turn
    power_share: float  # of crashes that lose what was not synced; the others only kill the process
    down_max: int
    partition_every: int
    pause_every: int
    transfer_every: int
    membership_every: int
    housekeeping_every: int  # checkpoints and compaction, for each member
    clients: int
    think_max: int
    read_share: float
    patience: int  # how long a client waits for one answer
    segment_bytes: int
    trailing_entries: int
    chunk_bytes: int
    append_bytes_max: int
    inflight_messages_max: int
    inflight_bytes_max: int
    committed_bytes_max: int
    applying_bytes_max: int


def draw(rand: random.Random, *, voters: int | None = None, has_membership: bool | None = None) -> Weather:
    """The conditions of one seed."""
    choose = rand.choice
    may_change = rand.random() < 0.35 if has_membership is None else has_membership
    return Weather(
        voters=voters or choose((1, 3, 3, 3, 4, 5)),
        loss=choose((0.0, 0.0, 0.01, 0.05, 0.2)),
        double=choose((0.0, 0.0, 0.05)),
        delay_max=choose((2, 20, 60, 150)),
        disk_max=choose((1, 10, 40, 150)),
        clock_drift=choose((0.0, 0.05, 0.3)),
        crash_every=choose((NEVER, 4000, 12_000)),
        boundary_crash=choose((0.0, 0.0005, 0.003)),
        power_share=choose((0.0, 0.5, 1.0)),
        down_max=choose((300, 3000)),
        partition_every=choose((NEVER, 3000, 10_000)),
        pause_every=choose((NEVER, NEVER, 5000)),
        transfer_every=choose((NEVER, 4000)),
        membership_every=2000 if may_change else NEVER,
        housekeeping_every=choose((NEVER, 800, 4000)),
        clients=choose((1, 3, 6)),
        think_max=choose((20, 100, 400)),
        read_share=choose((0.1, 0.4, 0.7)),
        patience=choose((300, 1500)),
        segment_bytes=choose((600, 2000, 8000)),
        trailing_entries=choose((0, 0, 10, 100)),
        chunk_bytes=choose((30_000, 100_000)),
        append_bytes_max=choose((1, 500, 8192)),
        inflight_messages_max=choose((1, 3, 16)),
        inflight_bytes_max=choose((300, 8192)),
        committed_bytes_max=choose((1, 500, 8192)),
        applying_bytes_max=choose((1, 8192)),
    )
