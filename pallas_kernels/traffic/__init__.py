"""What the kernels move, in bytes, against what any read must.

``python -m pallas_kernels.traffic`` counts it from what the kernels hand to Pallas: the
blocks that the grid of a TPU kernel fetches, the copies that a GPU kernel starts.
Nothing is compiled and nothing of a pool is read.
"""
