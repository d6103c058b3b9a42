"""Several processes of one node: who starts them, how they find each other, one set of numbers."""
