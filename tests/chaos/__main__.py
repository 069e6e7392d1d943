"""`python -m tests.chaos`: storms over deployments, and the table of what they broke; exit 1 where ours broke one."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from tests.chaos.deployment import KINDS
from tests.chaos.report import examples, faults, problems, table, timeline
from tests.chaos.run import Outcome, Storm, blow


def main() -> int:
    """Run what the arguments name."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("kinds", nargs="*", default=list(KINDS), metavar="KIND", help=f"of {', '.join(KINDS)}")
    parser.add_argument("--seconds", type=float, default=600.0, help="how long the faults last (600)")
    parser.add_argument("--seed", type=int, default=1, help="the same jobs and, as far as time allows, the same faults")
    parser.add_argument("--timeout", type=float, default=6.0, help="T in seconds (6)")
    parser.add_argument("--rate", type=float, default=8.0, help="submits a second (8)")
    parser.add_argument("--keep", type=Path, help="a folder where the logs and the journal of each storm stay")
    options = parser.parse_args()
    for kind in set(options.kinds) - set(KINDS):
        parser.error(f"{kind!r} is none of {', '.join(KINDS)}")
    outcomes = [_storm(kind, options) for kind in options.kinds]
    print(f"\n{faults(outcomes)}\n\n{table(outcomes)}", flush=True)
    return int(any(sum(problems(each).values()) for each in outcomes if each.storm.kind != "minimal"))


def _storm(kind: str, options: argparse.Namespace) -> Outcome:
    folder = Path(tempfile.mkdtemp(prefix=f"celery-jobs-chaos-{kind}-"))
    try:
        storm = Storm(kind, options.seconds, timeout=options.timeout, per_second=options.rate, seed=options.seed)
        print(f"{kind}: {options.seconds:g} s of faults", flush=True)
        outcome = blow(storm, folder)
        print(f"{table([outcome])}\nsettled after {outcome.settled_seconds:.1f} s\n{examples(outcome)}", flush=True)
        (folder / "timeline").write_text(timeline(outcome), encoding="utf-8")
        return outcome
    finally:
        if options.keep is not None:
            shutil.copytree(folder, options.keep / kind, dirs_exist_ok=True)
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
