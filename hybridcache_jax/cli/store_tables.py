"""What ``hybridcache store`` shows to people.

Names, namespaces and reasons come from the store; whatever in them would move a
terminal's cursor or colour it is shown as text.
"""

import dataclasses
from collections.abc import Iterable, Sequence

from rich import box
from rich import table as rich_table
from rich.console import Console
from rich.markup import escape

from hybridcache_jax.byte_sizes import format_bytes
from hybridcache_jax.store.collection import Collection
from hybridcache_jax.store.exports import Export
from hybridcache_jax.store.imports import Import
from hybridcache_jax.store.inventory import Inventory
from hybridcache_jax.store.usage import Usage
from hybridcache_jax.store.verification import Verification

# Lines of one kind.
_SHOWN = 20


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows under headings, and lines below them.

    Attributes:
      headings: of the columns; those that begin with ``>`` hold numbers.
      rows: texts.
      lines: texts.
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    lines: Sequence[str]


def show(table: Table) -> None:
    """Prints a table and its lines to standard output."""
    console = Console(highlight=False)
    if table.rows:
        drawn = rich_table.Table(box=box.SIMPLE_HEAD)
        for heading in table.headings:
            right = heading.startswith(">")
            drawn.add_column(
                heading.lstrip(">"),
                justify="right" if right else "left",
                no_wrap=right or heading == "key",
                overflow="fold",
            )
        for row in table.rows:
            drawn.add_row(*map(_plain, row))
        console.print(drawn)
    for line in table.lines:
        console.print(_plain(line), soft_wrap=True)


def listing(found: Inventory) -> Table:
    """Of ``ls``."""
    rows = [
        (
            record.key.hex()[:12],
            str(record.start),
            str(record.stop),
            ", ".join(f.lower() for f, size in record.form_bytes.items() if size),
            format_bytes(sum(record.form_bytes.values()) + record.manifest_bytes),
            str(record.written),
            str(record.used),
            str(record.identity.get("namespace") or ""),
        )
        for record in found.records
    ]
    lines = [f"{len(rows)} records at tick {found.tick}"]
    lines += [f"{each.name}: {each.reason}" for each in found.unread]
    lines += _foreign(found.foreign)
    lines += [f"{len(found.quarantined)} objects in quarantine"] * bool(
        found.quarantined
    )
    heads = ("key", ">from", ">to", "forms", ">bytes", ">written", ">used", "namespace")
    return Table(heads, rows, lines)


def described(records: Sequence[dict]) -> Table:
    """Of ``show``."""
    lines = []
    for record in records:
        for field, value in record.items():
            if field == "tokens":
                first, last = (" ".join(map(str, value[k])) for k in ("first", "last"))
                lines.append(f"tokens: {value['count']}: {first} ... {last}")
            elif field == "pools":
                lines += [_pool(pool) for pool in value]
            elif isinstance(value, dict):
                lines += [f"{field}.{name}: {each}" for name, each in value.items()]
            else:
                lines.append(f"{field}: {value}")
        lines.append("")
    return Table((), (), lines[:-1])


def verification(found: Verification) -> Table:
    """Of ``verify``."""
    rows = [
        ("damaged" if problem.damage else "listed", problem.name, problem.reason)
        for problem in found.problems
    ]
    read = f"{found.records} records and {found.packs} packs were read"
    lines = [f"{read}, {format_bytes(found.nbytes)}"]
    lines += _some([f"moved to quarantine: {name}" for name in found.moved])
    lines.append("nothing is damaged" if found.sound else "the store has damage")
    return Table(("", "object", "what is wrong"), rows, lines)


def collection(done: Collection, half_written: int, dry_run: bool) -> Table:
    """Of ``gc``; the second is how many files killed writers had left."""
    would = "would be " if dry_run else ""
    lines = [f"{half_written} half-written files removed"] * bool(half_written)
    lines += _some([f"{would}dropped: {name}" for name in done.dropped])
    lines += _some([f"{would}deleted: {name}" for name in done.swept])
    lines += [f"not read, stays: {each.name}: {each.reason}" for each in done.unread]
    lines += _foreign(done.foreign)
    lines.append(
        f"tick {done.tick}: {len(done.dropped)} records {would}dropped, "
        f"{_packs(done.swept)} {would}deleted, {_packs(done.noted)} {would}noted for "
        f"the next run; {done.kept} records stay"
        + ("" if done.kept_bytes is None else f", {format_bytes(done.kept_bytes)}")
    )
    if not done.fits:
        lines.append("that is more than the quota; nothing more may go")
    if done.unread:
        lines.append(
            "no pack may go while a manifest cannot be read: it may name it. "
            "verify --quarantine moves damaged ones out of the way"
        )
    return Table((), (), lines)


def usage(found: Usage) -> Table:
    """Of ``du``."""
    rows = [(form.lower(), format_bytes(n)) for form, n in found.form_bytes.items()]
    amounts = (
        (f"{found.packs} packs that records name", found.pack_bytes),
        (f"{found.records} manifests", found.manifest_bytes),
        (f"{found.leftovers[0]} packs that no record names", found.leftovers[1]),
        (f"{found.unread[0]} manifests that cannot be read", found.unread[1]),
        (f"{found.quarantined[0]} objects in quarantine", found.quarantined[1]),
        (f"{found.foreign[0]} objects of others", found.foreign[1]),
        (f"{found.snapshots[0]} files of snapshots", found.snapshots[1]),
        ("all", found.total_bytes),
    )
    lines = [f"{what}: {format_bytes(size)}" for what, size in amounts]
    shared = format_bytes(found.shared_bytes)
    lines.append(f"saved by what records share: {shared}")
    return Table(("form", ">bytes"), rows, lines)


def exported(done: Export, file: str) -> Table:
    """Of ``export``."""
    lines = _some([f"not read, left out: {name}" for name in done.unread])
    lines += _some([f"given up, left out: {name}" for name in done.given_up])
    lines.append(
        f"{len(done.records)} records and {done.packs} packs in {file}, "
        f"{format_bytes(done.nbytes)}"
    )
    return Table((), (), lines)


def imported(done: Import) -> Table:
    """Of ``import``."""
    lines = [f"refused: {name}: {why}" for name, why in done.refused]
    lines.append(
        f"{len(done.records)} records and {done.packs} packs written, "
        f"{len(done.present)} records were there already, {len(done.refused)} objects "
        "refused"
    )
    return Table((), (), lines)


def _foreign(names: Iterable[str]) -> list[str]:
    return _some([f"not the library's, stays: {name}" for name in names])


def _some(lines: list[str]) -> list[str]:
    """As many of them as somebody reads."""
    more = len(lines) - _SHOWN
    return lines if more <= 0 else [*lines[:_SHOWN], f"... and {more} more; see --json"]


def _packs(packs: dict[str, int]) -> str:
    return f"{len(packs)} packs ({format_bytes(sum(packs.values()))})"


def _pool(pool: dict) -> str:
    planes = ", ".join(
        f"{plane['name']} {plane['dtype']}{list(plane['shape'])}"
        for plane in pool["planes"]
    )
    blocks = pool["blocks"]
    which = f"{blocks[0]} to {blocks[-1]}" if blocks else "none"
    return (
        f"pool {pool['pool']}: {pool['form'].lower()}, {len(blocks)} blocks of "
        f"{pool['block_tokens']} tokens ({which}) of {planes}; in "
        f"{' '.join(pool['packs'])}"
    )


def _plain(text: str) -> str:
    """A text without markup and without characters that steer a terminal."""
    return escape("".join(c if c.isprintable() else ascii(c)[1:-1] for c in text))
