"""Soak test of a server: valid requests, invalid requests, dropped connections and killed engines.

usage: python -m tests.soak                            # half an hour, eight clients
       python -m tests.soak --minutes 3 --clients 4
       python -m tests.soak --minutes 120 -- -np 8     # arguments after -- go to `specllama serve`
       python -m tests.soak --costly 2                 # two of the clients send the costliest bodies

Serves the embedded pair on loopback. Every accepted request must end in text or in a clean error, no slot may
stay occupied, memory must not grow while an engine process lives (it is killed in the first third and at the
end), and /health must answer at once and report a missing engine within a second. With --costly no engine is
killed: one more client streams, and its stream may not stand still for more than a second. Prints one JSON
object on stdout and progress on stderr; the exit code is 1 if a requirement is violated. Needs the packages
of the tests (scripts/test installs them).
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from tests.soak.soak import Soak
from tests.support.campaigns import command_parser


def main() -> int:
    parser = command_parser("tests.soak", __doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--costly", type=int, default=0, help="clients among them that send costly bodies")
    parser.add_argument("--seed", type=int, default=1, help="of the requests")
    parser.add_argument("flags", nargs="*", help="arguments of `specllama serve`")
    args = parser.parse_args()
    if not 0.5 <= args.minutes <= 10_000 or not 1 <= args.clients <= 1000:
        parser.error("--minutes must be 0.5 or more, --clients from 1 to 1000")
    if not 0 <= args.costly < args.clients:
        parser.error("--costly must be fewer than --clients")
    flags = args.flags or (["-np", str(args.clients + 1)] if args.costly else [])
    with tempfile.TemporaryDirectory() as home:
        soak = Soak(
            Path(home),
            60 * args.minutes,
            args.clients,
            args.seed,
            args.costly,
            flags=flags,
            progress=progress,
        )
        report = soak.run()
    print(json.dumps(report, indent=2))
    for violation in report["violations"]:
        progress(f"violation: {violation}")
    progress("passed" if not report["violations"] else "failed")
    return bool(report["violations"])


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
