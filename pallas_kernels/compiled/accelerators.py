"""The accelerators that are compiled for.  Imports no JAX."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Card:
    """What the compiler has to know of an NVIDIA GPU (from its data sheet).

    Attributes:
      name: as the driver reports it.
      capability: compute capability, major and minor.
      cores: streaming multiprocessors.
      shared: bytes of shared memory per multiprocessor, and most that one block of
        threads may have.
      memory: bytes.
      bandwidth: bytes per second.
      cache: bytes of the second-level cache.
      clock: GHz.
    """

    name: str
    capability: tuple[int, int]
    cores: int
    shared: tuple[int, int]
    memory: int
    bandwidth: int
    cache: int
    clock: float

    @property
    def description(self) -> str:
        """The target description that XLA reads, a text proto."""
        major, minor = self.capability
        # Hopper and later have instructions that exist on one generation alone.
        extension = "feature_extension: ACCELERATED_FEATURES" if major >= 9 else ""
        return f"""
            gpu_device_info {{
              threads_per_block_limit: 1024
              threads_per_warp: 32
              threads_per_core_limit: 2048
              shared_memory_per_block: 49152
              shared_memory_per_core: {self.shared[0]}
              shared_memory_per_block_optin: {self.shared[1]}
              registers_per_core_limit: 65536
              registers_per_block_limit: 65536
              core_count: {self.cores}
              fpus_per_core: 128
              block_dim_limit_x: 2147483647
              block_dim_limit_y: 65535
              block_dim_limit_z: 65535
              memory_bandwidth: {self.bandwidth}
              l2_cache_size: {self.cache}
              clock_rate_ghz: {self.clock}
              device_memory_size: {self.memory}
              cuda_compute_capability {{ major: {major} minor: {minor} {extension} }}
            }}
            runtime_version: {{ major: 13 minor: 0 patch: 0 }}
            dnn_version_info {{ major: 9 minor: 12 patch: 0 }}
            platform_name: "CUDA"
            device_description_str: "{self.name}"
        """


TPUS = {"v5e": "v5e:2x2", "v5p": "v5p:2x2x1", "v6e": "v6e:2x2", "7x": "tpu7x:2x2x1"}
"""TPU generations and the smallest topology of each."""

GPUS = {
    "a100": Card(
        "NVIDIA A100-SXM4-80GB",
        (8, 0),
        108,
        (167_936, 166_912),
        80 << 30,
        2_039_000_000_000,
        40 << 20,
        1.41,
    ),
    "h200": Card(
        "NVIDIA H200",
        (9, 0),
        132,
        (233_472, 232_448),
        141 << 30,
        4_800_000_000_000,
        50 << 20,
        1.98,
    ),
    "b200": Card(
        "NVIDIA B200",
        (10, 0),
        148,
        (233_472, 232_448),
        180 << 30,
        8_000_000_000_000,
        126 << 20,
        1.85,
    ),
}


def platform_of(target: str) -> str:
    """``"tpu"`` or ``"cuda"``.

    Raises:
      ValueError: for a target that is neither.
    """
    if target in TPUS:
        return "tpu"
    if target in GPUS:
        return "cuda"
    raise ValueError(
        f"There is no target {target!r}; expected one of {', '.join((*TPUS, *GPUS))}."
    )
