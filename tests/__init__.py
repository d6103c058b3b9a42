"""The tests: `unit` by rooms of the product, whole clusters, and the long suites."""
