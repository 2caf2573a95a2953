"""The small DeepSeek-V4-style byte model that the library ships.

Trained by ``examples/train_tiny_v4.py`` and saved with Orbax; a few megabytes, no
download.  It has every form that a V4 cache has, and it has learnt something, so a
corrupted cache shows in what it writes.
"""

from pathlib import Path

import jax
import jax.numpy as jnp

from hybridcache_jax.configs.deepseek_v4 import DeepseekV4Config
from hybridcache_jax.configs.json_file import read_json
from hybridcache_jax.errors import CheckpointError
from hybridcache_jax.models.byte_tokenizer import ByteTokenizer
from hybridcache_jax.models.checkpoint import OnProgress, digest_files
from hybridcache_jax.models.deepseek_v4 import DeepseekV4
from hybridcache_jax.models.load import LoadedModel
from hybridcache_jax.models.parameters import from_params, parameter_structs

NAME = "tiny-v4"
"""What the commands call it."""

FOLDER = Path(__file__).parent / "tiny_v4_checkpoint"
"""Where its ``config.json`` and its Orbax checkpoint ``params`` lie."""

_DIGEST = "params.sha256"
_MEND = "Install the library anew, or train the model with examples/train_tiny_v4.py."


def load_tiny_v4(
    *,
    folder: Path = FOLDER,
    cache_format: str = "float32",
    on_progress: OnProgress | None = None,
) -> LoadedModel:
    """Loads the shipped model, parameters in float32.

    Args:
      folder: a folder that ``examples/train_tiny_v4.py`` wrote.
      cache_format: what ``layers`` stores entries in.
      on_progress: told about bytes hashed.

    Raises:
      CheckpointError: if the folder is missing, damaged, or of another model.
    """
    config = DeepseekV4Config.from_hf(read_json(folder / "config.json"))
    digest = _verified(folder, on_progress)
    tokenizer = ByteTokenizer()
    return LoadedModel(
        config=config,
        model=from_params(DeepseekV4, config, _restore(folder, config)),
        tokenizer=tokenizer,
        layers=config.layers(cache_format),
        param_dtype="float32",
        weights_digest=digest,
        config_digest=config.digest,
        tokenizer_digest=tokenizer.digest,
        source=folder,
    )


def params_digest(folder: Path, on_progress: OnProgress | None = None) -> str:
    """SHA-256 over the files of the parameters, in the order of their names."""
    files = (folder / "params").rglob("*")
    return digest_files(sorted(f for f in files if f.is_file()), on_progress)


def write_digest(folder: Path) -> None:
    """Writes what :func:`load_tiny_v4` checks the parameters against."""
    (folder / _DIGEST).write_text(params_digest(folder) + "\n", encoding="ascii")


def _restore(folder: Path, config: DeepseekV4Config) -> dict[str, jax.Array]:
    """The parameters by name, in the bfloat16 they are stored in."""
    import orbax.checkpoint as ocp

    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    wanted = {
        name: jax.ShapeDtypeStruct(struct.shape, jnp.bfloat16, sharding=device)
        for name, struct in parameter_structs(DeepseekV4, config).items()
    }
    try:
        with ocp.StandardCheckpointer() as checkpointer:
            return checkpointer.restore((folder / "params").resolve(), wanted)
    # Orbax raises a bare Exception for what TensorStore cannot read.
    except Exception as error:
        raise CheckpointError(
            f"Cannot read the parameters in {folder}: {error}. {_MEND}"
        ) from error


def _verified(folder: Path, on_progress: OnProgress | None) -> str:
    """The digest of the parameters' files, checked: Orbax sees no flipped bit."""
    path = folder / _DIGEST
    try:
        expected = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"Cannot read {path}: {error}. {_MEND}") from error
    found = params_digest(folder, on_progress)
    if found != expected:
        raise CheckpointError(
            f"The files below {folder / 'params'} have SHA-256 {found}, expected "
            f"{expected}. {_MEND}"
        )
    return found
