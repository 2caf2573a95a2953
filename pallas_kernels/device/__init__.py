"""Kernels run on the device that is here, against float64 and against XLA.

``python -m pallas_kernels.device`` checks every read and, on an accelerator, times it.
Without one the TPU kernels are interpreted, which is slow and says nothing of time.
"""
