"""What a coordinator keeps on its disk: the log, the state, snapshots, and the checks of all three."""
