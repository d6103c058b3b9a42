"""Durable commands per second: three coordinators on loopback beside the bare disk and a three-member etcd.

    python -m bench.metadata

The command is RecordProgress on existing files, the one that nodes send most: through `MetadataClient`,
mutual TLS, Raft, an fsync on a majority, and SQLite, with duplicate suppression and permission checks. etcd
puts values of the size that this command has in the log, with mutual TLS and, in its favour, without.
Clients and servers share the cores of this machine; µs of CPU per command say who used them, and that the
load processes are not what is measured. RUNS (5), SECONDS (3) and LOADERS (2) are taken from the
environment; CHECK_PERF=s (or m, l, xl) adds what etcd's own `check perf` says, a minute for each of the two.
"""

import json
import os
import statistics
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import etcd, yardstick
from bench.load import Order
from bench.loaders import CoordinatorGroup, Loaders, Measured, median_of

RUNS = int(os.environ.get("RUNS", "5"))
SECONDS = float(os.environ.get("SECONDS", "3"))
LOADERS = int(os.environ.get("LOADERS", "2"))
CHECK_PERF = os.environ.get("CHECK_PERF", "")
CLIENTS = (1, 64, 512)
READERS = 64
FILES = 1000
ONE_CLIENT_SHARE_MIN = 0.30  # of the bare rate: one command is at least two syncs and four messages
COMMANDS_PER_S_MIN = 15_000  # with the most clients

CASES = {f"write {clients}": Order(what="write", clients=clients, seconds=SECONDS) for clients in CLIENTS}
CASES[f"read {READERS}"] = Order(what="read", clients=READERS, seconds=SECONDS)
OURS, ETCD_TLS, ETCD_PLAIN = "filestore", "etcd, mutual TLS", "etcd, plain TCP"


@dataclass(slots=True)
class Findings:
    """What was measured: per engine the runs of each case, and the bare disk before each round."""

    engines: dict[str, dict[str, list[Measured]]] = field(default_factory=dict)
    appends_per_s: list[float] = field(default_factory=list)
    entry_bytes: int = 0
    etcd_absent: str = ""
    etcd_own_words: dict[str, str] = field(default_factory=dict)


def run(directory: Path) -> Findings:
    """Everything: all engines are up, and each round has every case on every one of them, in turn.

    So what else this machine does meanwhile falls on all of them alike; an engine that waits costs little.
    """
    findings = Findings(etcd_absent=etcd.reason_absent())
    with ExitStack() as stack:
        group = stack.enter_context(CoordinatorGroup(directory / "filestore"))
        loaders = {OURS: stack.enter_context(group.loaders(LOADERS))}
        fill(loaders[OURS])
        findings.entry_bytes = loaders[OURS].run(Order(what="write", count=1)).entry_bytes
        etcds = {} if findings.etcd_absent else start_etcds(stack, group, directory)
        for name, each in etcds.items():
            loaders[name] = stack.enter_context(each.loaders(LOADERS, findings.entry_bytes))
            fill(loaders[name])
        findings.engines = {name: {case: [] for case in CASES} for name in loaders}
        for _ in range(RUNS):
            play(findings, loaders, directory)
        for name, each in etcds.items():
            check_etcd(findings, name, each, loaders[name])
    return findings


def start_etcds(stack: ExitStack, group: CoordinatorGroup, directory: Path) -> dict[str, etcd.EtcdGroup]:
    """One with the same keys and certificates as the coordinators have, one without any."""
    data = [group.cluster.data(member) for member in group.members]
    credentials = etcd.Credentials([each / "credential.pem" for each in data], data[0] / "ca.pem")
    return {
        ETCD_TLS: stack.enter_context(etcd.EtcdGroup(directory / "etcd-tls", credentials)),
        ETCD_PLAIN: stack.enter_context(etcd.EtcdGroup(directory / "etcd-plain", None)),
    }


def fill(loaders: Loaders) -> None:
    """Make what is written and read afterwards."""
    loaders.run(Order(what="create", clients=READERS, count=FILES))


def play(findings: Findings, loaders: Mapping[str, Loaders], directory: Path) -> None:
    """One round."""
    findings.appends_per_s.append(yardstick.fdatasync_appends_per_s(directory))
    for case, order in CASES.items():
        for name, each in loaders.items():
            findings.engines[name][case].append(each.run(order))


def check_etcd(findings: Findings, name: str, group: etcd.EtcdGroup, loaders: Loaders) -> None:
    """Its own count of the puts must agree with what its clients counted."""
    puts = group.revision() - 1
    assert puts == loaders.changes, f"etcd counts {puts} puts, its clients {loaders.changes}"
    if CHECK_PERF:
        findings.etcd_own_words[name] = group.check_perf(CHECK_PERF)


def ratios(findings: Findings) -> dict[str, float]:
    """What the targets speak of: medians of the rounds' own ratios."""
    ours = findings.engines[OURS]
    one, most = f"write {CLIENTS[0]}", f"write {CLIENTS[-1]}"
    pairs = zip(ours[one], findings.appends_per_s, strict=True)
    found = {
        "one client / bare appends": statistics.median(run.per_s / bare for run, bare in pairs),
        f"{most} / target": median_of(ours[most]).per_s / COMMANDS_PER_S_MIN,
    }
    for engine, runs in findings.engines.items():
        if engine != OURS:
            for case in CASES:
                both = zip(ours[case], runs[case], strict=True)
                found[f"{case} / {engine}"] = statistics.median(a.per_s / b.per_s for a, b in both)
    return found


def show(findings: Findings) -> None:
    """The table for people."""
    title = (
        f"bench.metadata: medians of {RUNS} runs of {SECONDS:g} s, {findings.entry_bytes} bytes per command"
    )
    table = Table("engine", "clients", "per s", "p50 ms", "p99 ms", "CPU µs: leader", "followers", "load")
    table.title = title
    for engine, cases in findings.engines.items():
        for name, runs in cases.items():
            run = median_of(runs)
            cpu_us = run.cpu_us
            followers_us = cpu_us["follower 1"] + cpu_us["follower 2"]
            cells = [f"{run.per_s:,.0f}", f"{run.p50_ms:.2f}", f"{run.p99_ms:.2f}"]
            cells += [f"{value:.0f}" for value in (cpu_us["leader"], followers_us, cpu_us["load"])]
            table.add_row(engine, name, *cells)
    console = Console(width=110)
    console.print(table)
    bare = statistics.median(findings.appends_per_s)
    target = ONE_CLIENT_SHARE_MIN * bare
    console.print(f"bare append + fdatasync: {bare:,.0f} per s; the target for one client is {target:,.0f}")
    if findings.etcd_absent:
        console.print(f"etcd was not measured: {findings.etcd_absent}")
    else:
        for name, words in findings.etcd_own_words.items():
            console.print(f"{name}, `etcdctl check perf --load={CHECK_PERF}`: {words}")
        console.print(f"etcd {etcd.version()}; its own revision agrees with what its clients counted")


def as_json(findings: Findings) -> str:
    """One line for programs."""
    facts: dict[str, object] = {"bench": "metadata", "runs": RUNS, "seconds": SECONDS}
    facts |= {"cores": os.cpu_count(), "loaders": LOADERS, "entry_bytes": findings.entry_bytes}
    facts["bare_appends_per_s"] = round(statistics.median(findings.appends_per_s), 1)
    for engine, cases in findings.engines.items():
        facts[engine] = {name: _numbers(median_of(runs)) for name, runs in cases.items()}
    facts["ratios"] = {name: round(ratio, 3) for name, ratio in ratios(findings).items()}
    facts["etcd_absent"] = findings.etcd_absent
    return json.dumps(facts)


def _numbers(run: Measured) -> Mapping[str, object]:
    cpu_us = {name: round(value, 1) for name, value in run.cpu_us.items()}
    return {"per_s": round(run.per_s, 1), "p50_ms": run.p50_ms, "p99_ms": run.p99_ms, "cpu_us": cpu_us}


def main() -> None:
    """Print the table and the JSON line."""
    with tempfile.TemporaryDirectory(prefix="filestore-bench-") as directory:
        findings = run(Path(directory))
    show(findings)
    print(as_json(findings))


if __name__ == "__main__":
    main()
