"""Reads over the keys near the query: sliding windows and chunks."""
