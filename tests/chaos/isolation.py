"""What this machine lets a test break: network and mount namespaces, packet filters, slow links, clocks.

Nothing here leaves the machine: with namespaces, the program has a network of its own in which only its
members are.
"""

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

FAKETIME_LIBRARIES = (
    "/usr/lib/*/faketime/libfaketime.so.1",
    "/usr/lib*/faketime/libfaketime.so.1",
    "/usr/local/lib/faketime/libfaketime.so.1",
)
ISOLATED = "FILESTORE_CHAOS_ISOLATED"  # set in the environment of the program inside its namespaces
PROBE_TIMEOUT_S = 10.0
WITH_LOOPBACK = 'ip link set lo up && exec "$@"'


def namespace_command() -> tuple[list[str], str]:
    """What to run a program with so that it has namespaces of its own, or why that is impossible."""
    if shutil.which("unshare") is None:
        return [], "there is no unshare command"
    if shutil.which("nsenter") is None or shutil.which("ip") is None:
        return [], "there is no nsenter or ip command"
    command = ["unshare", "--net", "--mount"]
    if os.geteuid() != 0:
        command += ["--user", "--map-root-user"]
    script = "ip link set lo up && ip link add name probe type bridge"
    failure = attempt([*command, "sh", "-c", script])
    return ([], f"namespaces are refused: {failure}") if failure else (command, "")


def isolate(module: str) -> None:
    """Run this module again, from its start, in namespaces of its own with loopback up.

    Returns inside them, and at once where they cannot be had.
    """
    if os.environ.get(ISOLATED):
        return
    command, why_not = namespace_command()
    if why_not:
        return
    os.environ[ISOLATED] = "1"
    os.environ.pop("FILESTORE_PORTS", None)  # every port is free there
    again = [sys.executable, "-m", module, *sys.argv[1:]]
    os.execvp(command[0], [*command, "sh", "-c", WITH_LOOPBACK, "sh", *again])


def attempt(command: list[str], stdin: str = "") -> str:
    """Run a command; "" if it succeeds, else the last line that it said, or that it is not here."""
    if shutil.which(command[0]) is None:
        return f"there is no {command[0]} command"
    done = subprocess.run(
        command, input=stdin.encode(), capture_output=True, timeout=PROBE_TIMEOUT_S, check=False
    )
    if done.returncode == 0:
        return ""
    said = (done.stderr + done.stdout).decode(errors="replace").strip().splitlines()
    return said[-1] if said else f"{command[0]} ended with {done.returncode}"


def faketime_library() -> Path | None:
    """libfaketime, of the Debian package `faketime`; None where it is not."""
    found = [path for pattern in FAKETIME_LIBRARIES for path in sorted(Path("/").glob(pattern[1:]))]
    return found[0] if found else None


def why_no_network() -> str:
    """Why members cannot be cut off from each other; "" if they can. Inside the namespaces only."""
    if not os.environ.get(ISOLATED):
        return namespace_command()[1] or "not run in namespaces of its own"
    if packet_filter() == "":
        return "neither nft nor iptables works here"
    return ""


def why_no_disk() -> str:
    """Why a member cannot have a small disk of its own; "" if it can."""
    if not os.environ.get(ISOLATED):
        return namespace_command()[1] or "not run in namespaces of its own"
    directory = Path("/mnt")
    failure = attempt(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(directory)])
    if failure:
        return f"tmpfs is refused: {failure}"
    attempt(["umount", str(directory)])
    return ""


def why_no_clock() -> str:
    """Why a member's clock cannot jump; "" if it can."""
    return "" if faketime_library() else "there is no libfaketime (Debian package: faketime)"


@functools.cache
def packet_filter() -> str:
    """nft, iptables, or "" where neither works in a namespace of ours."""
    rules = (
        "table inet probe { chain input { type filter hook input priority 0; } }\ndelete table inet probe\n"
    )
    if shutil.which("nft") and not attempt(["nft", "-f", "-"], rules):
        return "nft"
    if shutil.which("iptables") and not attempt(["iptables", "-L", "-n"]):
        return "iptables"
    return ""


@functools.cache
def slow_link_rule() -> list[str]:
    """What to hand to `tc qdisc` for a slow link: delay where the kernel has it, else little bandwidth."""
    netem = ["netem", "delay", "60ms", "20ms", "rate", "4mbit"]
    bucket = ["tbf", "rate", "1mbit", "burst", "8kb", "latency", "400ms"]
    for rule in (netem, bucket):
        if not attempt(["tc", "qdisc", "replace", "dev", "lo", "root", *rule]):
            attempt(["tc", "qdisc", "del", "dev", "lo", "root"])
            return rule
    return []
