"""Benchmarks: `make bench`. Figures are compared by ratio within one run; the machine may be noisy."""
