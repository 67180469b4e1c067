"""Packages that consume what ortune writes, and real programs that it tunes: each test needs its own of them."""
