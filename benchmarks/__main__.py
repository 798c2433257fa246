"""Command line: python -m benchmarks [MODELS] [--peers eager,compile] [--json F] [--plot F.png]."""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from .harness import run
from .measure import Protocol
from .models import CORE, ZOO
from .models.groups import GROUPS, expanded
from .peers import PEERS
from .report import publish, shown_progress


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    console = Console()
    peers = options.peers.split(",")
    protocol = Protocol.quick() if options.quick else Protocol()
    if options.prepare_limit is not None:
        protocol = replace(protocol, prepare_limit_s=options.prepare_limit)
    with shown_progress(console) as observe:
        record = run(
            expanded(options.models or CORE),
            peers,
            options.threads,
            preset=options.preset,
            batch=options.batch,
            protocol=protocol,
            observe=observe,
        )
    publish(record, console, options.json, options.plot)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Time the zoo on stretto and its peers."
    )
    models = (
        f"models to run (default: all but the sweep of rates): {', '.join(ZOO)}; "
        f"and groups: {', '.join(GROUPS)}"
    )
    parser.add_argument("models", nargs="*", metavar="MODEL", help=models)
    parser.add_argument(
        "--peers", default=",".join(PEERS), help="systems, by commas (default: %(default)s)"
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=1, help="instances per call, where it applies")
    parser.add_argument("--preset", default="full", choices=("full", "small"))
    parser.add_argument("--json", type=Path, help="write the record to this file")
    parser.add_argument("--plot", type=Path, help="draw the speed-ups into this PNG file")
    parser.add_argument("--quick", action="store_true", help="few runs: a check, not a measurement")
    parser.add_argument(
        "--prepare-limit",
        type=float,
        metavar="SECONDS",
        help="how long a system may prepare a model before it is skipped "
        f"(default: {Protocol().prepare_limit_s:g}, quick: {Protocol.quick().prepare_limit_s:g})",
    )
    return parser


if __name__ == "__main__":
    main()
