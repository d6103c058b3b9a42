"""A certified provider for a test: oidc-provider of npm, installed at its pinned version, as a process."""

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from urllib.request import urlopen

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from deploy.processes import LOOPBACK, free_ports, wait_until

HERE: Final = Path(__file__).parent
MODULES: Final = HERE.parent.parent / ".sso-provider"  # kept until `make clean`
INSTALL_TIMEOUT_S: Final = 240.0
SECRET: Final = "s3cret-of-the-console-and-of-nobody-else"


def installed() -> Path:
    """Where the provider is. Skips the test where it is not, and cannot be had."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("no node and npm commands here")
    lock = (HERE / "package-lock.json").read_text()
    stamp = MODULES / "installed-lock.json"
    if stamp.exists() and stamp.read_text() == lock:
        return MODULES
    MODULES.mkdir(exist_ok=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copy(HERE / name, MODULES / name)
    arguments = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    done = subprocess.run(
        arguments, cwd=MODULES, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False
    )
    if done.returncode != 0:
        pytest.skip(f"cannot install oidc-provider: {done.stderr.strip()[-300:]}")
    stamp.write_text(lock)
    return MODULES


class RealProvider:
    """Use as a context manager. `redirects`: those of the console; `names`: as what the cluster knows it."""

    def __init__(self, directory: Path, *, redirects: Sequence[str], names: Sequence[str] = ("uni",)) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        (self.port,) = free_ports(1)
        self.issuer = f"http://{LOOPBACK}:{self.port}"
        self._directory = directory
        self._issued = directory / "issued.jsonl"
        self._config = {
            "modules": str(installed()),
            "port": self.port,
            "redirects": list(redirects),
            "loopback": list(names),
            "secret": SECRET,
            "people": str(directory / "people.json"),
            "issued": str(self._issued),
        }
        self.know(alice=["netlab"])
        self.replace_keys()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def know(self, **groups: list[str]) -> None:
        """These are the people from now on, each with groups."""
        people = {name: {"groups": held, "email": f"{name}@uni.example"} for name, held in groups.items()}
        (self._directory / "people.json").write_text(json.dumps(people))

    def replace_keys(self) -> None:
        """Sign with another key; it counts from the next start on."""
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        private = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(key))
        kid = f"key-{private['n'][:8]}"
        self._config["keys"] = [
            {name: value for name, value in private.items() if name != "key_ops"} | {"kid": kid, "use": "sig"}
        ]

    def start(self) -> None:
        config = self._directory / "config.json"
        config.write_text(json.dumps(self._config))
        with (self._directory / "provider.log").open("ab") as log:
            self._process = subprocess.Popen(
                ["node", str(HERE / "provider.mjs"), str(config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
            )
        wait_until(self._answers, what="the provider", timeout_s=30)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

    def issued(self) -> list[Mapping[str, Any]]:
        """Every answer of the token endpoint that gave tokens."""
        return [json.loads(line) for line in self._issued.read_text().splitlines()]

    def secrets(self) -> set[str]:
        """What nobody but the provider and the leading coordinator may have seen."""
        names = ("access_token", "refresh_token", "id_token")
        return {SECRET} | {str(each[name]) for each in self.issued() for name in names if name in each}

    def _answers(self) -> bool:
        assert self._process.poll() is None, (self._directory / "provider.log").read_text()[-2000:]
        try:
            with urlopen(f"{self.issuer}/.well-known/openid-configuration", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False
