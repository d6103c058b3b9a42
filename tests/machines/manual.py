"""Does what docs/install.md says for three machines, block by block, word by word.

A block is preceded by a comment that names its machines, and what its reader has copied there. Where the
manual says to put one's own number in, that is done. What a block exports holds in its later ones.
"""

import re
from base64 import b64decode
from collections.abc import Sequence

from deploy.dev.processes import wait_until
from tests.machines.bed import Machine
from tests.test_tidy import ROOT

BLOCK = re.compile(
    r"<!-- machines: (?P<numbers>[\d ]+)(?:, with (?P<copied>[\w.-]+))?(?P<healthy>, healthy)? -->\n"
    r"```sh\n(?P<script>.*?)```",
    re.DOTALL,
)
BUNDLE = "/var/lib/filestore/coordinator/cluster.bundle"
HEALTHY_TIMEOUT_S = 120.0


def follow(machines: Sequence[Machine]) -> int:
    """Do all of it; how many commands that were for all machines."""
    exports: dict[str, str] = {}
    commands = 0
    manual = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    for block in BLOCK.finditer(manual):
        for number in map(int, block["numbers"].split()):
            machine = machines[number - 1]
            if (name := block["copied"]) is not None:
                name = name.replace("n1", f"n{number}")
                source = BUNDLE if name == "cluster.bundle" else f"/srv/{name}"
                machine.write(f"/srv/{name}", b64decode(machines[0].run(f"base64 {source}")))
            script = for_machine(block["script"], number)
            commands += len(re.findall(r"^[a-z](?:.*\\\n)*.*$", script, re.MULTILINE))
            whole = exports.get(machine.name, "") + script
            if block["healthy"]:
                wait_until(
                    lambda: machine.succeeds(whole),  # noqa: B023  # asked before the loop goes on
                    what="a healthy cluster",
                    timeout_s=HEALTHY_TIMEOUT_S,
                )
            else:
                machine.run(whole)
            exported = re.findall(r"^export .*\n", script, re.MULTILINE)
            exports[machine.name] = exports.get(machine.name, "") + "".join(exported)
    return commands


def for_machine(script: str, number: int) -> str:
    """The block as the reader at this machine types it."""
    script = re.sub(r"--id ([cn])\d", rf"--id \g<1>{number}", script)
    script = re.sub(r"--address 10\.0\.0\.\d", f"--address 10.0.0.{number}", script)
    return re.sub(r"< join-n\d", f"< join-n{number}", script)
