"""Members speak with coordinators: frames, connections, the serving side, the client, the view they keep."""
