"""A GNS3 server that speaks https with a certificate of its own: trusted when it is named, and only then."""

import secrets
from pathlib import Path

import pytest

from tests.cluster.harness import Cluster
from tests.gns3.installed import gns3server
from tests.gns3.lab_server import LabServer
from tests.gns3.operator import Operator
from tests.web_certificates import write_pair

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


def test_server_with_a_certificate_of_its_own_is_trusted_by_ca_alone(store: Cluster, tmp_path: Path) -> None:
    pair = write_pair(tmp_path / "pair", (), addresses=("127.0.0.1",))
    other = write_pair(tmp_path / "other", (), addresses=("127.0.0.1",))
    operator = Operator(store, tmp_path / "operator")
    with LabServer(gns3server(), tmp_path / "labs", pair=pair) as labs:
        login = ("login", labs.url, "--name", "safe", "--password-file", str(labs.password_file))
        for trusted in ((), ("--ca", str(other.certificate))):
            code, out, err = operator.run(*login, *trusted)
            assert (code, out) == (6, ""), (code, out, err)
            assert "safe" in err
            assert "certificate" in err
            assert "Traceback" not in err
        assert operator.json("servers") == []
        operator.do(*login, "--ca", str(pair.certificate))
        name = f"safe {secrets.token_hex(3)}"
        project_id = labs.make_project(name, {"project-files/vpcs/a/startup.vpc": b"ip 10.0.0.1\n"})
        assert operator.backup(name, "--server", "safe") == {name: "stored"}
        restored = operator.json("restore", name, "--to", "safe", "--name", f"{name} again")[0]
        assert labs.files_of(restored["project_id"]) == labs.files_of(project_id)
