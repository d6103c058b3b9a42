"""The client side: connections to coordinators, the view of the cluster, health of nodes."""
