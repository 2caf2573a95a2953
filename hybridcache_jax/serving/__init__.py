"""A serving loop over the cache: buckets, the compiled step, sampling, the engine."""
