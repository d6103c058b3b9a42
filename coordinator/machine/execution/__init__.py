"""What every command and query of the state machine needs: who asks, the rules in force, replies, pages."""
