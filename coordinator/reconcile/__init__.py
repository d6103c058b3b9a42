"""The leader's work to give every blob its replicas, and no node more than it should have.

Each reconciler compares the log with what is wanted, and acts by ordinary commands and by orders to nodes
(`coordinator.rpc.node_client`). Its plans are pure functions of facts; its results are in the log at once, so
that the next leader continues from there. Nothing here deletes: the log marks a replica for deletion, its
node reads that and acts.
"""
