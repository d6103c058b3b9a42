"""What this machine lets a test break: network and mount namespaces, packet filters, slow links, and what a
library can that is compiled here and preloaded: clocks, disks, and connections again.

Nothing here leaves the machine: with namespaces, the program has a network of its own in which only its
members are.
"""

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

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


def why_no_namespaces() -> str:
    """Why members have no networks of their own; "" if they have. Inside the namespaces only."""
    if os.environ.get(ISOLATED):
        return ""
    return namespace_command()[1] or "not run in namespaces of its own"


def why_no_network() -> str:
    """Why packets between members cannot be dropped; "" if they can. Inside the namespaces only."""
    return why_no_namespaces() or ("" if packet_filter() else "neither nft nor iptables works here")


def why_no_disk() -> str:
    """Why a member cannot have a small disk of its own; "" if it can."""
    if failure := why_no_namespaces():
        return failure
    directory = Path("/mnt")
    failure = attempt(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(directory)])
    if failure:
        return f"tmpfs is refused: {failure}"
    attempt(["umount", str(directory)])
    return ""


@functools.cache
def why_no_shims() -> str:
    """Why no library can be preloaded into members, for their clocks and disks; "" if it can."""
    command = ["cc", "-shared", "-fPIC", "-x", "c", "-o", os.devnull, "-", "-ldl"]
    failure = attempt(command, "#include <stdlib.h>\n")
    return f"{failure} (Debian: apt install gcc)" if failure else ""


def why_no_cuts() -> str:
    """Why members cannot be cut off from each other; "" if they can, by a packet filter or by a library."""
    no_network, no_shims = why_no_network(), why_no_shims()
    return f"{no_network}, and {no_shims}" if no_network and no_shims else ""


@functools.cache
def packet_filter() -> str:
    """nft, iptables, or "" where neither works in a namespace of ours."""
    rules = filter_table("probe", "") + "delete table inet probe\n"
    if shutil.which("nft") and not attempt(["nft", "-f", "-"], rules):
        return "nft"
    if shutil.which("iptables") and not attempt(["iptables", "-L", "-n"]):
        return "iptables"
    return ""


def filter_table(name: str, rule: str) -> str:
    """For nft: a table with one rule for what comes in. Older ones want each block on lines of its own."""
    return f"table inet {name} {{\nchain input {{\ntype filter hook input priority 0;\n{rule}\n}}\n}}\n"


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
