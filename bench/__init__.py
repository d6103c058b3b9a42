"""Benchmarks: each prints a table and one JSON line, beside yardsticks of the same run on the same
machine.
"""
