#!/usr/bin/env python3
"""Let clients ask a server for a while, rightly and wrongly, leave it, and kill its engine; say what broke.

    -m scripts.soak                            # half an hour, eight clients
    -m scripts.soak --minutes 3 --clients 4
    -m scripts.soak --minutes 120 -- -np 8     # what is behind -- goes to `specllama serve`

Serves the embedded pair on loopback. Every accepted request must end in text or in a clean error, no slot may
be left over, memory must not grow while one engine process lives (it is killed in the first third and at the
end), and /health must answer at once, and say within a second that there is no engine. One JSON object on
stdout, words on stderr; the exit code is 1 where something of this did not hold. Needs the project installed
with what its tests need (scripts/test does that).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from scripts.soak.soak import Soak


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1, help="of what the clients ask")
    parser.add_argument("flags", nargs="*", help="for `specllama serve`")
    given = parser.parse_args()
    if not 0.5 <= given.minutes <= 10_000 or not 1 <= given.clients <= 1000:
        parser.error("--minutes must be 0.5 or more, --clients from 1 to 1000")
    with tempfile.TemporaryDirectory() as home:
        say = lambda text: print(text, file=sys.stderr, flush=True)  # noqa: E731
        soak = Soak(Path(home), 60 * given.minutes, given.clients, given.seed, flags=given.flags, say=say)
        found = soak.run()
    print(json.dumps(found, indent=2))
    for violation in found["violations"]:
        say(f"violation: {violation}")
    say("passed" if not found["violations"] else "failed")
    return bool(found["violations"])


if __name__ == "__main__":
    sys.exit(main())
