"""Where the time of the traced steps goes, by operation.

    python experiments/step_profile.py RUN_DIR [ROWS]

Reads the newest trace that `train --profile_steps=N` wrote. An operation's time is that between
its begin and its end, without what ran inside it on the same thread (a loop, a call), summed over
the threads that carry operations out; work it hands to other threads is not counted twice.
"""

import collections
import os
import pathlib
import re
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from tensorflow.tsl.profiler.protobuf import xplane_pb2


def self_times(space: xplane_pb2.XSpace) -> collections.Counter[str]:
    """Picoseconds of each kind of operation, without what ran inside it."""
    times: collections.Counter[str] = collections.Counter()
    for plane in space.planes:
        if plane.name != "/host:CPU":
            continue
        kinds = {key: kind_of(value.name) for key, value in plane.event_metadata.items()}
        for line in plane.lines:
            # (kind, end) of the operations that the current one lies in.
            around: list[tuple[str, int]] = []
            operations = [event for event in line.events if kinds[event.metadata_id]]
            for event in sorted(operations, key=lambda e: (e.offset_ps, -e.duration_ps)):
                while around and around[-1][1] <= event.offset_ps:
                    around.pop()
                if around:
                    times[around[-1][0]] -= event.duration_ps
                kind = kinds[event.metadata_id]
                times[kind] += event.duration_ps
                around.append((kind, event.offset_ps + event.duration_ps))
    return times


def kind_of(name: str) -> str:
    """The type of an operation, whose event is named "node:Type"; "" for other events."""
    found = re.fullmatch(r"[^:]+:(\w+)(#.*)?", name)
    return found[1] if found else ""


def main() -> None:
    run_dir = pathlib.Path(sys.argv[1])
    rows = int(sys.argv[2]) if len(sys.argv) > 2 else 25
    traces = sorted(run_dir.glob("tensorboard/plugins/profile/*/*.xplane.pb"))
    if not traces:
        sys.exit(f"error: {run_dir}: no trace; train with --profile_steps=N")
    space = xplane_pb2.XSpace.FromString(traces[-1].read_bytes())
    times = self_times(space)
    total = sum(times.values())
    print(f"{traces[-1]}: {total / 1e12:.2f} s in operations")
    for kind, picoseconds in times.most_common(rows):
        print(f"{kind:40s} {picoseconds / 1e12:8.3f} s {100 * picoseconds / total:6.1f}%")


if __name__ == "__main__":
    main()
