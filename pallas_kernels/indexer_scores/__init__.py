"""Ranking the history by its index keys, with streaming top-k."""
