"""The consensus, the log and the state machine on simulated time."""
