"""Arguments of ``hybridcache store``; kept light, for ``--help`` reads them."""

import argparse


def add_store(commands) -> None:
    """Adds the command to the subparsers of ``hybridcache``."""
    store = commands.add_parser(
        "store",
        help="look after stored prefixes: ls, show, verify, gc, du, export, import",
        description="Looks after a store of prefixes: a folder, gs://bucket/prefix or "
        "s3://bucket/prefix. Every command may run while servers read and write.",
    )
    actions = store.add_subparsers(dest="action", required=True, metavar="ACTION")
    _action(
        actions,
        "ls",
        "list records",
        "Lists records: key, range of tokens, forms, bytes, the tick at which each was "
        "written and last of use, namespace. A tick passes with every gc. Packs that "
        "several records share count for each. What cannot be read is listed with the "
        "reason.",
    )
    show = _action(
        actions,
        "show",
        "show what the manifest of a record says",
        "Shows everything a manifest says of its record; tokens and blocks are "
        "summarised. Exit code 2 if no record has the key.",
    )
    show.add_argument("key", metavar="KEY", help="of the record, or how it begins")
    verify = _action(
        actions,
        "verify",
        "read everything and compare it with what was written",
        "Reads every manifest and every pack, computes names, keys, sizes and digests "
        "again, and lists every problem. Exit code 1 if something is damaged. What "
        "waits for another record, what is of a later format and what is not the "
        "library's is listed, and is no damage.",
    )
    verify.add_argument(
        "--quarantine",
        action="store_true",
        help="move what is damaged into the store's folder quarantine, where nobody "
        "looks for it; delete that folder when you are done with it",
    )
    gc = _action(
        actions,
        "gc",
        "drop unused records, and packs that nothing needs",
        "Drops records by the rules that are given, then deletes packs that the run "
        "before found unused and that still are, and notes those that are unused now "
        "for the next run. A record that is being written is safe unless that takes "
        "the whole time between two runs. Without a rule no record goes. What killed "
        "writers left half written goes, of snapshots too, which stay. Exit code 1 "
        "if the quota cannot be kept, or if no pack may go because a manifest cannot "
        "be read.",
    )
    gc.add_argument(
        "--keep-ticks",
        type=int,
        metavar="N",
        help="drop records that were neither written nor used within the last N runs",
    )
    gc.add_argument(
        "--quota",
        metavar="SIZE",
        help="drop the longest unused records until the others fit, e.g. 500GiB",
    )
    gc.add_argument(
        "--dry-run", action="store_true", help="say what would go, change nothing"
    )
    _action(
        actions,
        "du",
        "count bytes",
        "Counts bytes: per form, with what several records share counted once; of "
        "manifests and packs; of packs that no record names; of what was moved out of "
        "the way or is not the library's; of snapshots.",
    )
    export = _action(
        actions,
        "export",
        "write records into one file",
        "Writes records and all that they need into one file, a plain tar archive. "
        "Exit code 1 if something among the records could not be read.",
    )
    export.add_argument("file", metavar="FILE", help="to write")
    export.add_argument(
        "key",
        nargs="?",
        metavar="KEY",
        help="of one record, which comes with those that it goes on from; or how the "
        "key begins (default: all records)",
    )
    taken = _action(
        actions,
        "import",
        "take records out of a file",
        "Takes records out of a file that export wrote. Every digest and key is "
        "checked; records that are there already are left alone, so it may be run "
        "again. Exit code 1 if something in the file was refused.",
    )
    taken.add_argument("file", metavar="FILE", help="to read")
    taken.add_argument(
        "--largest",
        default="1GiB",
        metavar="SIZE",
        help="refuse larger objects, default 1GiB",
    )


def _action(actions, name: str, short: str, long: str) -> argparse.ArgumentParser:
    parser = actions.add_parser(name, help=short, description=long)
    parser.add_argument(
        "store",
        metavar="STORE",
        help="the store's path: a folder, gs://bucket/prefix or s3://bucket/prefix",
    )
    parser.add_argument(
        "--endpoint", metavar="URL", help="of an S3-compatible server that is not AWS"
    )
    parser.add_argument("--region", metavar="NAME", help="of an s3:// bucket")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser
