"""Reads over the whole history of a sequence, through its block table."""
