"""Command line: python3 -m benchmarks.gpu --out DIR [--part NAME] [--dry-run]."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from .constants import proposal_lines
from .gpu import Gpu, NoGpu, look, why_no_gpu
from .precompile import precompile, precompile_graphs
from .results import read_part
from .suite import TOTAL_S, Choice, is_good, run
from .summary import PARTS, keep, section, table


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if options.compile_only:
        folder = options.cache or options.out / "programs"
        compile_all = precompile_graphs if options.part == ["graphs"] else precompile
        compile_all(folder, tuple(options.models))
        return 0
    if options.section:
        print(section(options.out), end="")
        return 0
    if options.keep is not None:
        keep(options.out, options.keep)
        return 0
    try:
        gpu = None if options.dry_run else _gpu()
    except NoGpu as reason:
        print(f"No GPU, nothing is measured: {reason}. --dry-run tries the suite without one.")
        return 0
    choice = Choice(
        options.out,
        tuple(part for part in PARTS if not options.part or part in options.part),
        options.dry_run,
        options.force,
        options.commit,
        options.cache,
        tuple(options.models),
        options.limit,
        gpu,
    )
    records = run(choice)
    ceilings = read_part(options.out, "ceilings")
    if ceilings is not None:
        print("== constants by these measurements (now -> measured)")
        print("\n".join(f"  {line}" for line in proposal_lines(ceilings)))
    print(table(options.out), flush=True)
    return 0 if is_good(records) else 1


def _gpu() -> Gpu:
    if reason := why_no_gpu():
        raise NoGpu(reason)
    return look()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python3 -m benchmarks.gpu", description="Check and measure stretto on an NVIDIA GPU."
    )
    parser.add_argument("--out", type=Path, default=Path("gpu-results"), help="folder of results")
    parser.add_argument(
        "--part", action="append", choices=PARTS, help="only this part; may be given again"
    )
    parser.add_argument("--dry-run", action="store_true", help="tiny, emulated, without a GPU")
    parser.add_argument("--force", action="store_true", help="also parts that have results")
    parser.add_argument("--models", nargs="*", default=(), metavar="MODEL", help="only these")
    parser.add_argument(
        "--cache", type=Path, help="keep compiled programs here, for a next run (default: nowhere)"
    )
    parser.add_argument("--commit", help="for the record, where git does not know it")
    parser.add_argument(
        "--limit", type=float, default=TOTAL_S, help="seconds (default: %(default)g)"
    )
    parser.add_argument(
        "--compile-only",
        action="store_true",
        help="compile the zoo, or with `--part graphs` the programs of that part, for an H200 "
        "into --cache; needs no GPU",
    )
    parser.add_argument(
        "--section", action="store_true", help="print results as a section of the README"
    )
    parser.add_argument("--keep", type=Path, metavar="FILE", help="write all results to one file")
    return parser


if __name__ == "__main__":
    sys.exit(main())
