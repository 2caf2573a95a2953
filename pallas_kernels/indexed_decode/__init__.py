"""Reads of single entries that were selected from the history."""
