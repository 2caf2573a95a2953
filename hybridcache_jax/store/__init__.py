"""Prefixes on disk: what is written, under which names, and where."""
