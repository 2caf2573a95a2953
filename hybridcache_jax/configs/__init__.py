"""Published model configs: from ``config.json`` to settings and layer records.

One file per family of models.  Nothing here needs Flax or weights.
"""
