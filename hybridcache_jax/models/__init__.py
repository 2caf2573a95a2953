"""Models that run on the cache, and what it takes to load them.

The package imports nothing by itself: ``models.load`` and the models need Flax,
``models.tokenizer`` and ``models.gguf_file`` their own optional packages, and each
is imported only by those who ask for it; ``models.registry`` says which model is where.
"""
