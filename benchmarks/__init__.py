"""Benchmarks: `python -m benchmarks.rounds`, `python -m benchmarks.startup`, `python -m benchmarks.report`."""
