"""The replicated metadata of the cluster: commands, the log, the state machine, and the RPC to reach them."""
