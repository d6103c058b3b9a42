"""What the cluster agrees on: commands, the replicated log, the state machine, and the RPC to reach them."""
