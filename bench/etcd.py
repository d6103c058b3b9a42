"""A three-member etcd on this machine, to compare with: same disk, same number of load processes.

With mutual TLS on every port, as the coordinators have it, or plain TCP, which favours etcd. Its defaults
are kept: every commit is synced. The load goes to the leader.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from bench.loaders import Loader, Loaders
from deploy.processes import LOOPBACK, Child, free_ports, stop_children, wait_until

MEMBERS = 3
START_TIMEOUT_S = 30.0
COMMAND_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Credentials:
    """PEM files for mutual TLS: key and chain of each member, and the root that signed them."""

    members: Sequence[Path]
    root: Path


def reason_absent() -> str:
    """Why no etcd can be measured here; "" when it can."""
    missing = [name for name in ("etcd", "etcdctl") if shutil.which(name) is None]
    return f"no {' and no '.join(missing)} on PATH" if missing else ""


def version() -> str:
    """What `etcd --version` says first, as "3.5.1"."""
    output = subprocess.run(["etcd", "--version"], capture_output=True, text=True, check=True).stdout
    return output.splitlines()[0].rpartition(" ")[2]


class EtcdGroup:
    """Three members; use as a context manager."""

    def __init__(self, directory: Path, credentials: Credentials | None) -> None:
        self._directory = directory
        self._credentials = credentials
        self._scheme = "https" if credentials else "http"
        ports = free_ports(2 * MEMBERS)
        self._client_ports, self._peer_ports = ports[:MEMBERS], ports[MEMBERS:]
        self._children: list[Child] = []

    def __enter__(self) -> Self:
        self._directory.mkdir(parents=True)
        try:
            for number in range(MEMBERS):
                self._children.append(self._start(number))
            wait_until(
                lambda: self._leader() is not None,
                what="etcd has a leader",
                timeout_s=START_TIMEOUT_S,
                watched=self._children,
            )
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        stop_children(self._children)

    def loaders(self, count: int, value_bytes: int) -> Loaders:
        """Start so many load processes, all of which talk to the leader."""
        leader = self._leader()
        assert leader is not None, "the group has started"
        others = [number for number in range(MEMBERS) if number != leader]
        servers = {"leader": self._children[leader].process.pid}
        servers |= {f"follower {at}": self._children[n].process.pid for at, n in enumerate(others, 1)}
        arguments = ["bench.etcd_load", "--port", str(self._client_ports[leader])]
        arguments += ["--value-bytes", str(value_bytes)]
        if self._credentials:
            arguments += ["--credential", str(self._credentials.members[leader])]
            arguments += ["--root", str(self._credentials.root)]
        log = self._directory / "load.log"
        return Loaders([Loader(f"etcd load {at}", arguments, log) for at in range(count)], servers)

    def revision(self) -> int:
        """How many puts were ever committed, and one: etcd counts them itself."""
        status = self._status()
        assert status, "the group has started"
        return max(int(member["Status"]["header"]["revision"]) for member in status)

    def check_perf(self, load: str) -> str:
        """What etcd's own `check perf` says of itself: a minute at a rate that it limits by `load`."""
        done = self._control("check", "perf", f"--load={load}", timeout_s=120.0)
        lines = [line for line in done.stdout.splitlines() if line.startswith(("PASS", "FAIL"))]
        return "; ".join(lines) or done.stderr.strip()

    def _start(self, number: int) -> Child:
        peer_urls = [f"{self._scheme}://{LOOPBACK}:{port}" for port in self._peer_ports]
        client_url = f"{self._scheme}://{LOOPBACK}:{self._client_ports[number]}"
        arguments = ["etcd", f"--name=m{number}", f"--data-dir={self._directory / f'm{number}'}"]
        arguments += [f"--listen-peer-urls={peer_urls[number]}"]
        arguments += [f"--initial-advertise-peer-urls={peer_urls[number]}"]
        arguments += [f"--listen-client-urls={client_url}", f"--advertise-client-urls={client_url}"]
        arguments += ["--initial-cluster=" + ",".join(f"m{at}={url}" for at, url in enumerate(peer_urls))]
        arguments += ["--initial-cluster-state=new", "--logger=zap", "--log-level=error"]
        if self._credentials:
            credential = self._credentials.members[number]
            for prefix in ("", "peer-"):
                arguments += [f"--{prefix}cert-file={credential}", f"--{prefix}key-file={credential}"]
                arguments += [f"--{prefix}trusted-ca-file={self._credentials.root}"]
                arguments += [f"--{prefix}client-cert-auth"]
        log = self._directory / f"m{number}.log"
        with log.open("ab") as output:
            process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        return Child(f"etcd {number}", process, log)

    def _leader(self) -> int | None:
        """Which member leads, None while not all of them answer and agree."""
        status = self._status()
        if len(status) < MEMBERS:
            return None
        ports = {member["Endpoint"].rpartition(":")[2]: member["Status"] for member in status}
        for number, port in enumerate(self._client_ports):
            answer = ports[str(port)]
            if answer.get("leader") == answer["header"]["member_id"]:
                return number
        return None

    def _status(self) -> list[dict[str, Any]]:
        done = self._control("endpoint", "status", "--write-out=json", timeout_s=COMMAND_TIMEOUT_S)
        found: list[dict[str, Any]] = json.loads(done.stdout) if done.returncode == 0 and done.stdout else []
        return found

    def _control(self, *arguments: str, timeout_s: float) -> "subprocess.CompletedProcess[str]":
        endpoints = ",".join(f"{self._scheme}://{LOOPBACK}:{port}" for port in self._client_ports)
        options = [f"--endpoints={endpoints}"]
        if self._credentials:
            credential = self._credentials.members[0]
            options += [
                f"--cacert={self._credentials.root}",
                f"--cert={credential}",
                f"--key={credential}",
            ]
        return subprocess.run(
            ["etcdctl", *options, *arguments],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            env=os.environ | {"ETCDCTL_API": "3"},
        )
