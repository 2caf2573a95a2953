"""Random operations on the whole façade, in step with a slow oracle in plain Python."""
