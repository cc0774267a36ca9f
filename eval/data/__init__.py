"""Benchmark data: where it comes from, how it is checked, how it becomes problems."""
