"""Campaigns of random, mostly wrong inputs. Each part gets the same time.

usage: python -m tests.fuzz --seconds 600                    # all parts
       python -m tests.fuzz --seconds 60 --only headers,load --seed 7
       python -m tests.fuzz --only load --inputs 10000 --headers FOLDER --seconds 7200
       python -m tests.fuzz --only load --replay load-1-42.bin

headers: `pair-check` on changed GGUF headers. load: the engine on such headers, with weights of zeros.
http: raw requests and bodies. grammars: JSON schemas and grammars. templates: chat templates. protocol,
engine: lines between front and engine. rpc: the probe of RPC workers. images: image files. projectors: their
headers. lossless: texts with random sampling, drafts and slots, against plain decoding alone.

An input fails if it raises what is not documented, crashes or hangs its process, or takes more time or memory
than its part allows. Inputs that fail are made shorter where that is cheap, and saved; the exit code is then
1. The same seed makes the same inputs. Prints one JSON object a part. Needs the packages of the tests
(scripts/test installs them).
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.fuzz import campaign
from tests.fuzz.part import Part
from tests.fuzz.parts import table
from tests.fuzz.parts.headers import BUILT_IN
from tests.support.campaigns import command_parser


def main() -> int:
    parser = command_parser("tests.fuzz", __doc__)
    parser.add_argument("--seconds", type=int, default=600, help="of the whole campaign")
    parser.add_argument("--inputs", type=int, default=10**9, help="of a part, at most")
    parser.add_argument("--first", type=int, default=0, help="number of the first input")
    parser.add_argument("--only", default=",".join(table.PARTS), help="parts")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--headers", type=Path, help="a folder of GGUF files, besides the embedded pair")
    parser.add_argument("--out", type=Path, help="a folder for inputs that fail; by default a new one")
    parser.add_argument("--replay", type=Path, nargs="+", default=[], help="run saved inputs of one part")
    args = parser.parse_args()
    names = args.only.split(",")
    if unknown := set(names) - set(table.PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(table.PARTS)}")
    more = sorted(args.headers.glob("*.gguf")) if args.headers else []
    headers = [*BUILT_IN[:1], *more]
    if args.replay:
        return replay(table.make(names[0], headers), args.replay)
    out = args.out or Path(tempfile.mkdtemp(prefix="specllama-fuzz-"))
    out.mkdir(parents=True, exist_ok=True)
    n_failures = 0
    for name in names:

        def save(failure: campaign.Failure, name: str = name) -> None:
            path = out / f"{name}-{args.seed}-{failure.index}.bin"
            path.write_bytes(failure.data)
            print(f"{path}: {failure.reason}", file=sys.stderr, flush=True)

        part = table.make(name, headers)
        result = campaign.run(part, args.seed, args.seconds / len(names), args.inputs, save, args.first)
        print(json.dumps(result.to_dict()), flush=True)
        n_failures += len(result.failures)
    return bool(n_failures)


def replay(part: Part, files: Sequence[Path]) -> int:
    """Run saved inputs, each in a process of its own."""
    part.set_up()
    try:
        found = [campaign.alone(part, file.read_bytes()) for file in files]
    finally:
        part.close()
    for file, reason in zip(files, found, strict=True):
        print(f"{file}: {reason or 'in order'}")
    return any(found)


if __name__ == "__main__":
    sys.exit(main())
