"""The long suite: `make contract`. Exit code 1 when an answer broke the document.

Every operation gets EXAMPLES requests a seed: two thirds of them from an admin, the rest from a user who owns
what is aimed at. Each seed has a cluster of its own.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from api.documentation import DOCUMENT_PATH
from tests.cluster.harness import Cluster
from tests.contract.fuzzing import Report, operations_of, session_of, try_operation
from tests.contract.targets import Targets

EXAMPLES = 300
SEEDS = (1, 2, 3)
SOURCE = "127.77.77.77"


def main() -> int:
    """Run the seeds that the command line names; tell what was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.contract", description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--examples", type=int, default=EXAMPLES, help="requests per operation and seed")
    parser.add_argument("--only", nargs="+", default=(), help="ids of operations")
    chosen = parser.parse_args()
    found = 0
    for seed_number in chosen.seeds:
        started_s = time.monotonic()
        report = run_seed(seed_number, chosen.examples, frozenset(chosen.only))
        for finding in report.findings:
            print(f"\n{finding}")
        took_s = time.monotonic() - started_s
        print(
            f"seed {seed_number}: {report.requests} requests, {len(report.findings)} findings, {took_s:.0f} s"
        )
        print(f"  statuses: {report.statuses()}", flush=True)
        found += len(report.findings)
    return 1 if found else 0


def run_seed(seed_number: int, examples: int, only: frozenset[str]) -> Report:
    """One cluster, every operation (or `only` some)."""
    report = Report()
    with tempfile.TemporaryDirectory() as directory, Cluster(Path(directory) / "cluster") as cluster:
        document = cluster.get(DOCUMENT_PATH, token=None).json
        owner = f"contract-{seed_number}"
        user_token = cluster.user_token(owner)
        targets = Targets(cluster, owner, user_token)
        for token, share in ((cluster.admin_token, examples * 2 // 3), (user_token, examples // 3)):
            with session_of(cluster.ca, token, SOURCE) as session:
                for operation in operations_of(document):
                    name = operation.definition.raw["operationId"]
                    if only and name not in only:
                        continue
                    print(f"\r{seed_number} {name:40}", end="", file=sys.stderr, flush=True)
                    try_operation(
                        operation,
                        url=cluster.nodes[0].url,
                        session=session,
                        targets=targets,
                        report=report,
                        seed_number=seed_number,
                        examples=share,
                    )
        print("\r", end="", file=sys.stderr)
    return report


if __name__ == "__main__":
    sys.exit(main())
