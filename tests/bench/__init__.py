"""Benchmarks, run by `make bench-…`, and the yardsticks that they measure against."""
