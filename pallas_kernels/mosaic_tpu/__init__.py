"""What the TPU kernels share."""
