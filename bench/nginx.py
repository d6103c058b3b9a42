"""nginx from the distribution as a yardstick: one worker that serves a directory, plain and over TLS 1.3.

It takes PUT into that directory too, where asked to, and neither hashes nor syncs what comes. Its
configuration and everything that it writes lie in a directory of ours; nothing of /etc/nginx is read but its
modules.
"""

import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

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
    sendfile on;
    tcp_nopush on;
    keepalive_requests 1000000000;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    server {{
        listen {address}:{plain_port};
        listen {address}:{tls_port} ssl;
        ssl_protocols TLSv1.3;
        ssl_certificate {directory}/certificate.pem;
        ssl_certificate_key {directory}/key.pem;
        root {root};
        {more}
    }}
}}
"""
_TAKES_PUT = f"""
        client_body_buffer_size 512k;
        client_max_body_size {BODY_BYTES_MAX};
        location / {{ dav_methods PUT; }}
"""


def why_absent(*, takes_put: bool = False) -> str:
    """What is missing for this yardstick, "" for nothing."""
    if shutil.which("nginx") is None:
        return "nginx is not installed (Debian: apt install nginx-light)"
    told = subprocess.run(["nginx", "-V"], capture_output=True, text=True, check=False).stderr
    if takes_put and "http_dav_module" not in told:
        return "this nginx takes no PUT (Debian: apt install nginx-light)"
    return ""


class Nginx:
    """One process, from `with` to its end. `root` is there already."""

    def __init__(self, directory: Path, root: Path, *, takes_put: bool = False) -> None:
        directory.mkdir()
        self.root = root
        self._directory = directory
        self.plain_port, self.tls_port = free_ports(2)
        write_certificate(directory)
        self._configuration = directory / "nginx.conf"
        self._configuration.write_text(
            _CONFIGURATION.format(
                directory=directory,
                address=LOOPBACK,
                plain_port=self.plain_port,
                tls_port=self.tls_port,
                root=root,
                more=_TAKES_PUT if takes_put else "",
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


def write_certificate(directory: Path) -> None:
    """`key.pem` of the kind that nodes have, and `certificate.pem`, which nobody verifies."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "yardstick")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    encoding = serialization.Encoding.PEM
    plain, traditional = serialization.NoEncryption(), serialization.PrivateFormat.TraditionalOpenSSL
    (directory / "certificate.pem").write_bytes(certificate.public_bytes(encoding))
    (directory / "key.pem").write_bytes(key.private_bytes(encoding, traditional, plain))
