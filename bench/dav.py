"""nginx as a yardstick for uploads: one worker that takes PUT into a directory, plain and over TLS 1.3.

It neither hashes nor syncs what comes. Its configuration and everything that it writes lie in a directory of
ours, beside the data of what it is compared with; nothing of /etc/nginx is read but its module.
"""

import shutil
import subprocess
from pathlib import Path
from typing import Self

from deploy.processes import LOOPBACK, Child, free_ports, wait_until

START_TIMEOUT_S = 10.0
BODY_BYTES_MAX = 2 << 30
_CONFIGURATION = """
daemon off;
master_process off;
pid {directory}/nginx.pid;
error_log {directory}/error.log;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    client_body_temp_path {directory}/body;
    client_body_buffer_size 512k;
    client_max_body_size {body_bytes};
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    server {{
        listen {address}:{plain_port};
        listen {address}:{tls_port} ssl;
        ssl_protocols TLSv1.3;
        ssl_certificate {credential};
        ssl_certificate_key {credential};
        root {root};
        location / {{ dav_methods PUT; }}
    }}
}}
"""


def why_absent() -> str:
    """What is missing for this yardstick, "" for nothing."""
    if shutil.which("nginx") is None:
        return "nginx is not installed (Debian: apt install nginx-light)"
    told = subprocess.run(["nginx", "-V"], capture_output=True, text=True, check=False).stderr
    if "http_dav_module" not in told:
        return "this nginx takes no PUT (Debian: apt install nginx-light)"
    return ""


class Dav:
    """One process, from `with` to its end. `credential` is a file with key and certificates."""

    def __init__(self, directory: Path, credential: Path) -> None:
        self.root = directory / "root"
        self.root.mkdir(parents=True)
        self._directory = directory
        self.plain_port, self.tls_port = free_ports(2)
        self._configuration = directory / "nginx.conf"
        self._configuration.write_text(
            _CONFIGURATION.format(
                directory=directory,
                address=LOOPBACK,
                plain_port=self.plain_port,
                tls_port=self.tls_port,
                body_bytes=BODY_BYTES_MAX,
                credential=credential,
                root=self.root,
            )
        )

    @property
    def pid(self) -> int:
        """Of the one process."""
        return self._child.process.pid

    def __enter__(self) -> Self:
        log = self._directory / "error.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                ["nginx", "-p", str(self._directory), "-c", str(self._configuration)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        self._child = Child("nginx", process, log)
        wait_until(
            lambda: (self._directory / "nginx.pid").exists(),
            what="nginx",
            timeout_s=START_TIMEOUT_S,
            watched=[self._child],
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._child.process.terminate()
        self._child.process.wait()
