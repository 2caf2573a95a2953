"""Reads the JSON files that come with a checkpoint."""

import json
from pathlib import Path
from typing import Any

from hybridcache_jax.errors import CheckpointError


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
      CheckpointError: if the file is missing or does not hold an object.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(
            f"Cannot read {path}: {error.strerror}. Give a folder that holds it."
        ) from error
    except ValueError as error:
        raise CheckpointError(
            f"{path} is not valid JSON ({error}). Fetch it anew."
        ) from error
    if not isinstance(content, dict):
        raise CheckpointError(
            f"{path} holds a {type(content).__name__}, expected a JSON object. Fetch "
            "it anew."
        )
    return content
