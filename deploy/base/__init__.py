"""What every command needs: where the cluster is, options, addresses, the terminal."""
