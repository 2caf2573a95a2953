"""Where a store lies: the text of a path, made into what TensorStore opens.

No server is asked and nothing is written here.
"""

import pathlib
import re
from collections.abc import Mapping
from typing import Any

from hybridcache_jax._whole import whole

LONGEST_WAIT = 8.0
"""Seconds; waits between tries grow no longer."""

# By scheme, TensorStore's driver and what the names of its resources begin with.
_DRIVERS = {"gs": ("gcs", "gcs"), "s3": ("s3", "s3")}
# A scheme has two letters or more: one is a drive.  ``pathlib`` makes ``//`` one slash.
_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/(.*)", re.DOTALL)
# What every store, client and URL takes as it is; more than dots, which URLs resolve.
_PART = re.compile(r"(?!\.+$)[A-Za-z0-9_.=-]+")


def kvstore_spec(
    path: str | pathlib.Path,
    *,
    endpoint: str | None,
    region: str | None,
    credentials: Mapping[str, str] | None,
    tries: int,
    wait: float,
) -> dict[str, Any]:
    """What TensorStore opens for a path.

    TensorStore itself makes a request to a bucket again where the answer says that the
    error may pass (HTTP 408, 429, 5xx, and 409 of a write) or where the connection was
    lost, and only there.  This says how often.  It also gives every store requests of
    its own, so that none waits for those of a store that does not answer.

    Args:
      path: ``gs://bucket/prefix``, ``s3://bucket/prefix``, or of a folder.
      endpoint: URL of an S3-compatible server, for ``s3://`` alone.
      region: of the bucket, for ``s3://`` alone.
      credentials: TensorStore's ``aws_credentials``, for ``s3://`` alone.
      tries: how often a request is made at most, the first one included; those that a
        closed connection swallowed do not count.
      wait: seconds before the second try; doubled before every further one.

    Returns:
      A specification of a key-value store, as JSON.

    Raises:
      ValueError: for a path that is none of these, or an option that it does not take.
    """
    retries = _retries(tries, wait)
    given = {"endpoint": endpoint, "region": region, "credentials": credentials}
    options = [name for name, value in given.items() if value is not None]
    text = str(path)
    address = _ADDRESS.fullmatch(text)
    if options and (address is None or address[1] != "s3"):
        raise ValueError(
            f"{text!r} takes no {' and no '.join(options)}; only s3:// does."
        )
    if address is None:
        return _folder(text)
    scheme, bucket, prefix = _parts(text, address)
    driver, resource = _DRIVERS[scheme]
    spec: dict[str, Any] = {
        "driver": driver,
        "bucket": bucket,
        "path": prefix,
        f"{resource}_request_retries": retries,
        f"{resource}_request_concurrency": {"limit": 32},
    }
    if endpoint is not None:
        if not re.fullmatch(r"https?://[^/?#\s]+[^?#\s]*", endpoint):
            raise ValueError(
                f"endpoint must be a URL like https://s3.example.com, got {endpoint!r}."
            )
        spec["endpoint"] = endpoint.rstrip("/")
        # Left out, TensorStore asks the server for it once, without a second try, and
        # takes this one for good if that fails.
        region = region or "us-east-1"
    if region is not None:
        spec["aws_region"] = region
    if credentials is not None:
        spec["aws_credentials"] = dict(credentials)
    return spec


def _retries(tries: int, wait: float) -> dict[str, Any]:
    # TensorStore makes one try more than it counts, and counts from one.
    again = whole("tries", tries, least=2, most=100) - 1
    if not 0.001 <= wait <= LONGEST_WAIT:
        raise ValueError(
            f"wait must be 0.001 to {LONGEST_WAIT:g} seconds, got {wait!r}."
        )
    return {
        "max_retries": again,
        "initial_delay": f"{wait:.3f}s",
        "max_delay": f"{LONGEST_WAIT:g}s",
    }


def _folder(text: str) -> dict[str, Any]:
    path = pathlib.Path(text)
    if not text or "\0" in text or (path.exists() and not path.is_dir()):
        raise ValueError(
            f"{text!r} is no folder; give the path of one, gs://bucket/prefix or "
            "s3://bucket/prefix."
        )
    return {
        "driver": "file",
        "path": f"{path.absolute()}/",
        "context": {"file_io_locking": {"mode": "none"}},
    }


def _parts(text: str, address: re.Match[str]) -> tuple[str, str, str]:
    """Scheme, bucket and the prefix of all names."""
    scheme, rest = address[1], address[2]
    bucket, *parts = rest.removeprefix("/").removesuffix("/").split("/")
    if scheme not in _DRIVERS or not rest.startswith("/"):
        raise ValueError(
            f"{text!r} is no folder and no bucket; give gs://bucket/prefix, "
            "s3://bucket/prefix (as text) or the path of a folder."
        )
    wrong = [part for part in (bucket, *parts) if not _PART.fullmatch(part)]
    if wrong:
        raise ValueError(
            f"{wrong[0]!r} in {text!r} is no name of a bucket or part of a prefix; "
            "expected letters, digits, '_', '.', '=' and '-', and not only dots."
        )
    return scheme, bucket, "".join(part + "/" for part in parts)
