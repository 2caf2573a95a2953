"""The ``hybridcache`` command.

Parsing is kept apart from the commands, so that ``--help`` answers without loading
JAX.  A command returns its exit code: 0, 1 if what it checks did not hold, 2 for
input it cannot use.
"""

import argparse
import importlib
import sys
from collections.abc import Sequence

from hybridcache_jax.cli.store_arguments import add_store

# testing.toy_models.SOAKED, which is not loaded for --help.
_SOAKED = ("fine", "csa", "sparse", "recurrent", "ends", "thrifty")
# pallas_kernels.choice.WANTED, likewise.
_KERNELS = ("auto", "xla", "mosaic_tpu", "mosaic_gpu", "interpret")
_BENCHES = (
    "cache-write",
    "decode-context",
    "index-memory",
    "match",
    "resume",
    "store",
    "validation",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Args:
      argv: arguments without the program's name; None for those of the process.

    Returns:
      The exit code.
    """
    arguments = _parser().parse_args(argv)
    command = importlib.import_module(f"hybridcache_jax.cli.{arguments.command}")
    from hybridcache_jax.errors import HybridCacheError

    try:
        return command.run(arguments)
    except (HybridCacheError, ValueError, OSError, OverflowError) as error:
        print(f"hybridcache: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("hybridcache: interrupted", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hybridcache",
        description="A KV cache for hybrid-attention models that proves a prefix can "
        "be resumed.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    demo = commands.add_parser(
        "demo",
        help="serve one long document with several questions and show every verdict",
        description="Serves a long shared document with several questions on a real "
        "hybrid model: cold, warm, two at once, repeated, with evicted windows, with "
        "changed weights, and in another process that resumes the document from disk. "
        "Every answer is compared with a cold run. Exit code 1 if a token differed.",
    )
    _add_model(demo)
    demo.add_argument("--prompt-file", help="the document, UTF-8 text")
    _add_length(demo, default=16)
    demo.add_argument(
        "--store",
        metavar="DIR",
        help="where the document is saved for the restart (default: a temporary "
        "folder, which is removed)",
    )
    # What the demo calls as its second process.
    demo.add_argument("--restarted", action="store_true", help=argparse.SUPPRESS)
    generate = commands.add_parser("generate", help="continue one prompt")
    _add_model(generate)
    source = generate.add_mutually_exclusive_group(required=True)
    source.add_argument("--prompt", help="the prompt itself")
    source.add_argument("--prompt-file", help="a file with the prompt, UTF-8 text")
    _add_length(generate, default=64)
    generate.add_argument(
        "--temperature", type=float, default=0.0, help="0 is greedy (default)"
    )
    generate.add_argument(
        "--top-p", type=float, default=1.0, help="nucleus mass, default 1"
    )
    generate.add_argument("--seed", type=int, default=0, help="sampling seed")
    parity = commands.add_parser(
        "parity",
        help="compare a model over the cache with a reference, in every way of running",
        description="For a folder with config.json, model.safetensors and "
        "expected.safetensors (tokens [B, T] and logits [B, T, V] of a reference "
        "implementation, float32): prints the largest logit difference one-shot, token "
        "by token, in ragged chunks, stopped and continued, in unequal batches, and "
        "resumed at every legal point, audited grid + window tokens past each. Exit "
        "code 1 if one is past the tolerance.",
    )
    parity.add_argument("folder", metavar="DIR", help="the checkpoint's folder")
    parity.add_argument(
        "--tolerance",
        type=float,
        metavar="X",
        help="largest difference allowed, default 1e-4; 2e-3 with recurrent layers",
    )
    parity.add_argument(
        "--block-tokens",
        type=int,
        default=4,
        metavar="N",
        help="tokens per block, default 4; small blocks give many resume points",
    )
    _add_kernels(parity)
    parity.add_argument("--json", action="store_true", help="print one JSON object")
    doctor = commands.add_parser(
        "doctor",
        help="what backend is here, and what would read each form of a model's cache",
        description="Prints what backend is here, and for every form of a model's "
        "cache which implementation would read it, why, and how that was verified: on "
        "hardware, compiled for accelerators that were not there, or interpreted.",
    )
    doctor.add_argument(
        "--model",
        metavar="PATH",
        help="a config.json or its folder, no weights needed (default: tiny-v4)",
    )
    doctor.add_argument(
        "--cache-format",
        default="bfloat16",
        metavar="NAME",
        help="dtype of the entries, or a format of the model such as fp8; default "
        "bfloat16",
    )
    doctor.add_argument(
        "--block-tokens", type=int, metavar="N", help="tokens per block"
    )
    doctor.add_argument(
        "--backend",
        choices=("cpu", "gpu", "tpu"),
        help="the backend to answer for, default the one here",
    )
    _add_kernels(doctor)
    doctor.add_argument("--json", action="store_true", help="print one JSON object")
    bench = commands.add_parser(
        "bench",
        help="measure, against a floor",
        description="Prints what was measured, the floor it is compared with, and "
        "the ratio of the two.",
    )
    bench.add_argument(
        "name", choices=_BENCHES, metavar="NAME", help=", ".join(_BENCHES)
    )
    bench.add_argument("--json", action="store_true", help="print one JSON object")
    bench.add_argument(
        "--check", action="store_true", help="exit with 1 if a goal is missed"
    )
    soak = commands.add_parser(
        "soak",
        help="run random operations against a plain oracle",
        description="Runs random operations on the whole façade (match, acquire, step, "
        "publish, release, fork, rewind, evict, offload, load, crash, recover, shadow "
        "runs, ...) over small integer models and compares every verdict, every fact "
        "and every read with a slow oracle in plain Python. Episodes run by turns "
        "without an outer tier, with a tight one and with a roomy one. With --store "
        "each has a store, too: prefixes are saved, processes end and others find what "
        "they saved, objects are damaged, house-keeping runs. The same seed gives the "
        "same operations; a failing episode is made short and printed. Exit code 1 if "
        "something differed.",
    )
    soak.add_argument(
        "--model",
        choices=_SOAKED,
        metavar="NAME",
        help=f"one of {', '.join(_SOAKED)} (default: all, one after the other)",
    )
    soak.add_argument(
        "--operations",
        type=int,
        default=10_000,
        metavar="N",
        help="operations per model, default 10000",
    )
    soak.add_argument("--seed", type=int, default=0, help="seed of the run")
    soak.add_argument(
        "--episode-length",
        type=int,
        default=2000,
        metavar="N",
        help="operations drawn from each empty cache, default 2000",
    )
    soak.add_argument(
        "--store", action="store_true", help="with a store that outlives the process"
    )
    soak.add_argument(
        "--replay", metavar="FILE", help="run the failures of a --json report again"
    )
    soak.add_argument("--json", action="store_true", help="print one JSON object")
    add_store(commands)
    return parser


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model",
        metavar="PATH",
        help="a folder with config.json and safetensors of a supported model, a Gemma "
        "3 .gguf file, or tiny-v4, the model that comes with the library (default: "
        "Gemma 3 270M of the 'gemma' extra if it is installed, else tiny-v4)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--metrics", action="store_true", help="show what was counted at the end"
    )


def _add_kernels(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--kernels",
        default="auto",
        choices=_KERNELS,
        help="what reads the cache, default auto; interpret runs the TPU kernels in "
        "Pallas' interpreter, slowly",
    )


def _add_length(parser: argparse.ArgumentParser, default: int) -> None:
    parser.add_argument(
        "--max-new-tokens",
        type=int,
        default=default,
        metavar="N",
        help=f"tokens to generate per answer, default {default}",
    )
