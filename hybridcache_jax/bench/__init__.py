"""Benches: each measures something, names a floor, and gives the ratio of the two."""
