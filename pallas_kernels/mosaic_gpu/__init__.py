"""What the GPU kernels share.

None of them has run on a GPU yet, so nothing is known of their speed.  What was checked
without one, in ``tests/kernels/test_mosaic_gpu_*.py``:

- compiled to machine code: every kernel, for H200 and B200, with JAX 0.10 and 0.12, in
  bfloat16, float32 and scaled float8;
- interpreted (JAX 0.12), against float64: every kernel's copies, barriers, shared
  memory, masks and sums, with races and uninitialised memory as errors;
- by arithmetic: which parts of blocks are copied; and where ``mma`` and ``movmatrix``,
  which no interpreter runs, want their operands, from PTX's tables.
"""
