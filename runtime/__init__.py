"""What every process of both roles needs: configuration, life and end, logs, metrics, wording."""
