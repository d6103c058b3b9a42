"""One member of the group at work: Raft's core, its log and its state, driven by clocks and messages."""
