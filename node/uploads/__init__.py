"""An upload across nodes: its holder, the chain of members, takeover, the acts at its end."""
