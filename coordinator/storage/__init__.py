"""The files of a coordinator: the log, the state, snapshots, and the checks of all three."""
