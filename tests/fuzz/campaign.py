"""Runs a part's inputs in child processes: a crash, a hang or an exception costs one input only."""

from __future__ import annotations

import collections
import json
import os
import random
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fuzz.part import Part

_WALL = 6  # times the processor time that an input may take, as other programs run too
_MINIMISE_SECONDS = 10.0
_LARGE = 1 << 16  # bytes, above which an input is not minimised


@dataclass(frozen=True)
class Failure:
    """An input that did what is not documented. index: of the input. reason: its first line says what."""

    index: int
    reason: str
    data: bytes


@dataclass
class Result:
    """The figures of a campaign. seconds: of wall time. slowest: seconds of processor time of one input.
    n_bytes: of memory that a process has gained. outcomes: how often each occurred.
    """

    part: str
    n: int = 0
    seconds: float = 0.0
    slowest: float = 0.0
    n_bytes: int = 0
    outcomes: collections.Counter[str] = field(default_factory=collections.Counter)
    failures: list[Failure] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        failures = [{"input": f.index, "reason": f.reason} for f in self.failures]
        found = {"part": self.part, "inputs": self.n, "seconds": round(self.seconds, 1)}
        return found | {
            "slowest": round(self.slowest, 3), "gained_mb": self.n_bytes >> 20,
            "outcomes": dict(self.outcomes.most_common()), "failures": failures,
        }  # fmt: skip


def input_of(part: Part, seed: int, index: int) -> bytes:
    """The input with this number."""
    return part.make(random.Random(f"{seed}/{part.name}/{index}"))


def run(
    part: Part, seed: int, seconds: float, most: int, save: Callable[[Failure], None], first: int = 0
) -> Result:
    """Run inputs of a part until `seconds` have passed or `most` were run. save: called with each failure."""
    result, began, index = Result(part.name), time.monotonic(), first
    part.set_up()
    try:
        while index < first + most and time.monotonic() - began < seconds:
            n = min(part.batch, first + most - index)
            done, reason = _batch(part, seed, index, n, began + seconds, result)
            index += done
            if reason:
                failure = Failure(index, reason, _minimised(part, input_of(part, seed, index), reason))
                result.failures.append(failure)
                result.n += 1
                save(failure)
                index += 1
            result.seconds = time.monotonic() - began
    finally:
        part.close()
    return result


def _batch(part: Part, seed: int, first: int, n: int, ends: float, result: Result) -> tuple[int, str]:
    """Run inputs in a process of their own. Returns how many were in order, and why the next was not."""
    reader, writer, pid = _forked(lambda send: _work(part, seed, first, n, ends, send))
    os.close(writer)
    done, reason, ended = 0, "", False
    lines = _lines(reader, part.seconds * _WALL)
    for line in lines:
        if line is None:
            reason = f"hangs: no result after {part.seconds * _WALL:.0f} s"
            break
        found = json.loads(line)
        if found.get("end"):
            ended = True
            break
        result.slowest = max(result.slowest, found["seconds"])
        result.n_bytes = max(result.n_bytes, found["n_bytes"])
        if found["reason"]:
            reason = found["reason"]
            break
        result.outcomes[found["outcome"]] += 1
        result.n += 1
        done += 1
    os.close(reader)
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    if not ended and not reason:
        code = os.waitstatus_to_exitcode(status)
        reason = f"crashes: {signal.Signals(-code).name}" if code < 0 else f"exits with code {code}"
    return done, reason


def _forked(work: Callable[[Callable[[dict[str, Any]], None]], None]) -> tuple[int, int, int]:
    """(reading end, writing end, process) of a child that does `work`."""
    reader, writer = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return reader, writer, pid
    code = 1
    try:
        os.close(reader)
        null = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(null, number)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        work(lambda line: _write(writer, json.dumps(line).encode() + b"\n"))
        code = 0
    finally:
        os._exit(code)


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _work(
    part: Part, seed: int, first: int, n: int, ends: float, send: Callable[[dict[str, Any]], None]
) -> None:
    """In the child: run inputs, and send a line about each."""
    before = _peak()
    for index in range(first, first + n):
        if time.monotonic() > ends:
            break
        data = input_of(part, seed, index)
        found = judged(part, data, before)
        send(found)
        if found["reason"]:
            return
    send({"end": True})


def judged(part: Part, data: bytes, before: int = 0) -> dict[str, Any]:
    """What an input did: its outcome, seconds of processor time, and why that is a failure, or "". before:
    the peak of this process's memory earlier, in bytes; 0 if memory does not matter.
    """
    began, outcome, reason = time.process_time(), "", ""
    try:
        outcome = part.run(data)
    except BaseException as error:  # noqa: BLE001 - whatever it raises is what is sought
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = " ".join(str(error).split())[:300]
        reason = f"{type(error).__name__} at {Path(where.filename).name}:{where.lineno}: {text}"
    seconds, n_bytes = time.process_time() - began, _peak() - before if before else 0
    if not reason and seconds > part.seconds:
        reason = f"takes {seconds:.1f} s of processor time, more than {part.seconds:g}"
    if not reason and n_bytes > part.n_bytes:
        reason = f"takes {n_bytes >> 20} MB, more than {part.n_bytes >> 20}"
    return {"outcome": outcome, "seconds": seconds, "n_bytes": n_bytes, "reason": reason}


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _lines(fd: int, seconds: float) -> Any:
    """The lines of a pipe; None if the next one takes longer than `seconds`."""
    rest, due = b"", time.monotonic() + seconds
    while True:
        ready, _, _ = select.select([fd], [], [], max(0.0, due - time.monotonic()))
        if not ready:
            yield None
            return
        data = os.read(fd, 65536)
        if not data:
            return
        *lines, rest = (rest + data).split(b"\n")
        if lines:
            due = time.monotonic() + seconds
        yield from lines


def _minimised(part: Part, data: bytes, reason: str) -> bytes:
    """A shorter input with the same kind of failure, if pieces of this one can be left out."""
    kind, ends, step = _kind(reason), time.monotonic() + _MINIMISE_SECONDS, len(data) // 2
    if len(data) > _LARGE or not kind.endswith(("Error", "Exception", "crashes")):
        return data
    while step and time.monotonic() < ends:
        at = 0
        while at < len(data) and time.monotonic() < ends:
            shorter = data[:at] + data[at + step :]
            if _kind(alone(part, shorter)) == kind:
                data = shorter
            else:
                at += step
        step //= 2
    return data


def alone(part: Part, data: bytes) -> str:
    """Why an input, in a process of its own, is a failure; "" if it is none."""
    reader, writer, pid = _forked(lambda send: send(judged(part, data)))
    os.close(writer)
    line = next(iter(_lines(reader, part.seconds * _WALL)), b"")
    os.close(reader)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    if not line:
        return "hangs" if line is None else "crashes"
    return str(json.loads(line)["reason"])


def _kind(reason: str) -> str:
    """The name of an exception, or the first word of another reason."""
    return reason.split(":")[0].split(" at ")[0]
