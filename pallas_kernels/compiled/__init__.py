"""Kernels compiled for accelerators that are not here.

XLA's whole compiler, Mosaic included, runs on a machine without the accelerator: for
TPUs through the topologies of ``libtpu``, for NVIDIA GPUs through the CUDA plugin and a
description of the card.  ``python -m pallas_kernels.compiled`` prints what compiles,
and what it would take.
"""
