"""Reports of runs and checks in the store, and the rules for alarms about backups of labs."""
