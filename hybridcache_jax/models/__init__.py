"""Models that run on the cache, and what it takes to load them.

The package imports nothing by itself: ``models.load`` and ``models.gemma3`` need
Flax, ``models.tokenizer`` and ``models.gguf_file`` their own optional packages,
and each is imported only by those who ask for it.
"""
