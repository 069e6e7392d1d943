"""`python -m tests.floods [--kind embedded|redis-postgresql|redis-sqlite] [--quick]`.

Every flood, one after the other on each deployment, as a table.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence

from tests.floods.floods import Measured, each
from tests.floods.stand import KINDS, deployment

QUICK = 0.05
HEAD = ("flood", "took, s", "meanwhile p50 / p99 / max, ms", "true at the end", "MiB before / peak / after")


def main() -> None:
    """The command line above."""
    parser = argparse.ArgumentParser(prog="python -m tests.floods", description=__doc__)
    parser.add_argument("--kind", choices=KINDS, action="append", help="may be repeated; by default all of them")
    parser.add_argument("--scale", type=float, default=1.0, help="which part of the full size")
    parser.add_argument("--quick", action="store_const", const=QUICK, dest="scale", help="a twentieth of it")
    options = parser.parse_args()
    for name in options.kind or KINDS:
        print(f"\n### {name}\n\nLoad of the machine before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores.\n")
        print(_line(HEAD), _line(["---"] * len(HEAD)), sep="\n", flush=True)
        began = time.monotonic()
        with deployment(KINDS[name]) as stack:
            for measured in each(stack, options.scale):
                print(row(measured), flush=True)
        print(f"\nAll of it: {time.monotonic() - began:.0f} s.")


def row(measured: Measured) -> str:
    """One line of the table."""
    took = "<br>".join(f"{name} {seconds:.2f}" for name, seconds in measured.took.items())
    calls = "<br>".join(f"{call} {_spread(seconds)}" for call, seconds in measured.probed.seconds.items())
    facts = "<br>".join(f"{number:,} {what}" for what, number in measured.facts.items())
    courses = measured.gauge.courses if measured.gauge else {}
    held = "<br>".join(f"{name} {c.before:.0f} / {c.peak:.0f} / {c.after:.0f}" for name, c in courses.items())
    return _line([measured.name, took, calls, facts, held])


def _spread(seconds: Sequence[float]) -> str:
    points = (seconds[len(seconds) // 2], seconds[min(len(seconds) - 1, len(seconds) * 99 // 100)], seconds[-1])
    return " / ".join(f"{point * 1e3:.0f}" for point in points)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
