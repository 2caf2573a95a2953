"""What a snapshot says of itself: its plan, who claims what, and what each leaf is.

JSON under a digest of its own.  Orbax gives back flipped bits and other dtypes without
a word; so nothing is built of a snapshot before every leaf is what this says.

Any change of what is said, or of how leaves are named, is a new ``FORMAT``; a reader
refuses every format but its own.
"""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from blake3 import blake3

from hybridcache_jax._version import __version__
from hybridcache_jax.capacity import CapacityPlan
from hybridcache_jax.codes import Provenance
from hybridcache_jax.contents import ContentId
from hybridcache_jax.identity import Identity
from hybridcache_jax.rollout import Key, Scope
from hybridcache_jax.saved_claims import SavedClaims
from hybridcache_jax.store.prefix_store import StoreError
from hybridcache_jax.store.snapshot_arrays import Record

FORMAT = 1
"""Version of the format."""


class SnapshotError(StoreError):
    """A snapshot cannot be saved, or is not what was saved; nothing was built of it."""


@dataclasses.dataclass(frozen=True)
class Said:
    """What was said of one snapshot, as it was when it was saved.

    Attributes:
      library: version that wrote it.
      plan: :func:`described` of the plan.
      leaves: by item, the record of every leaf by its name.
      keys: keys of the claims, in order.
      marks: per key, how often its producer's records had been given up.
      versions: ids of identities in the facts.
      contents: content ids by content key.
    """

    library: str
    plan: dict[str, Any]
    leaves: dict[str, dict[str, Record]]
    keys: tuple[Key, ...]
    marks: tuple[int, ...]
    versions: dict[Identity, int]
    contents: dict[int, ContentId]


def described(plan: CapacityPlan) -> dict[str, Any]:
    """Everything a cache's arrays and facts depend on, as JSON data."""
    fields = {f.name: getattr(plan, f.name) for f in dataclasses.fields(plan)}
    fields["spec"] = plan.spec.fingerprint
    fields["retention"] = [[form.name, str(kept)] for form, kept in plan.retention]
    fields["blocks"] = list(plan.blocks)
    return fields


def plan_differences(plan: CapacityPlan, said: Mapping[str, Any]) -> list[str]:
    """Fields of a plan that are not those of a snapshot; empty if all are.

    Args:
      plan: where the snapshot would go.
      said: :func:`described` of the plan it comes from.
    """
    mine = described(plan)
    return [
        f"{name} is {mine.get(name)!r}, the snapshot has {said.get(name)!r}"
        for name in sorted(mine.keys() | said.keys())
        if mine.get(name) != said.get(name)
    ]


def encode(
    plan: CapacityPlan,
    claims: SavedClaims,
    marks: tuple[int, ...],
    leaves: Mapping[str, Mapping[str, Record]],
) -> dict[str, Any]:
    """The metadata of a snapshot, as JSON data.

    Args:
      plan: of its cache.
      claims: what was claimed.
      marks: per key, how often its producer's records had been given up.
      leaves: by item, records by name.
    """
    body = {
        "library": __version__,
        "plan": described(plan),
        "leaves": leaves,
        "keys": [dataclasses.asdict(key) for key in claims.keys],
        "marks": marks,
        "versions": [
            [dataclasses.asdict(identity), version]
            for identity, version in claims.versions.items()
        ],
        "contents": [
            [key, *_content_text(content)] for key, content in claims.contents.items()
        ],
    }
    # As JSON has them: numbers of enums, lists for tuples.
    body = json.loads(json.dumps(body))
    return {"format": FORMAT, "blake3": _digest(FORMAT, body), "body": body}


def decode(data: Any) -> Said:
    """What the metadata of a snapshot says, whole and as it was written.

    Args:
      data: as JSON was read.

    Raises:
      SnapshotError: if anything of it is not as it was written, or its format is not
        the one that is read.
    """
    if not isinstance(data, dict) or data.keys() != {"format", "blake3", "body"}:
        raise SnapshotError("its metadata are none of a snapshot of this library")
    number, body = data["format"], data["body"]
    if _digest(number, body) != data["blake3"]:
        raise SnapshotError("its metadata are not those that were written")
    if number != FORMAT:
        raise SnapshotError(f"it has format {number}; this library reads {FORMAT}")
    try:
        return Said(
            library=body["library"],
            plan=body["plan"],
            leaves=body["leaves"],
            keys=tuple(map(_key, body["keys"])),
            marks=tuple(body["marks"]),
            versions={Identity(**fields): n for fields, n in body["versions"]},
            contents={key: _content(*text) for key, *text in body["contents"]},
        )
    except (TypeError, KeyError, ValueError) as error:
        raise SnapshotError(f"its metadata cannot be read: {error!r}") from error


def _digest(number: Any, body: Any) -> str:
    text = json.dumps([number, body], sort_keys=True)
    return blake3(text.encode()).hexdigest()


def _key(fields: dict[str, Any]) -> Key:
    return Key(
        identity=Identity(**fields["identity"]),
        scope=Scope(fields["scope"]),
        owner=fields["owner"],
        generation=fields["generation"],
        provenance=Provenance(fields["provenance"]),
    )


def _content_text(content: ContentId) -> tuple[str, str]:
    if isinstance(content, bytes):
        return "bytes", content.hex()
    return type(content).__name__, str(content)


def _content(kind: str, text: str) -> ContentId:
    if kind == "bytes":
        return bytes.fromhex(text)
    return int(text) if kind == "int" else text
