"""Variables that compilers for absent accelerators read.  Imports no JAX."""

ENVIRONMENT = {
    # The accelerators are not here: everything runs on the CPU.
    "JAX_PLATFORMS": "cpu",
    # Else a lock file makes a second process fail.
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    # Else libtpu asks the network what machine this is.
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_LOG_DIR": "disabled",
    "TPU_STDERR_LOG_LEVEL": "3",
}
"""What has to be set before JAX is imported."""
