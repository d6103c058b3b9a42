"""People in the state machine: their groups, invitations and sessions."""
