"""Where the time of the traced steps goes, by operation.

    python experiments/step_profile.py RUN_DIR [ROWS]

Reads the newest trace that `train --profile_steps=N` wrote. Times are summed over all threads, so
they are processor time; what runs inside another operation (a loop, a call) is taken off it.
"""

import collections
import os
import pathlib
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from tensorflow.tsl.profiler.protobuf import xplane_pb2


def self_times(space: xplane_pb2.XSpace) -> collections.Counter[str]:
    """Picoseconds of each kind of operation, without what ran inside it."""
    times: collections.Counter[str] = collections.Counter()
    for plane in space.planes:
        if plane.name != "/host:CPU":
            continue
        names = {key: value.name for key, value in plane.event_metadata.items()}
        for line in plane.lines:
            # (name, end) of the events that the current one lies in.
            open_events: list[tuple[str, int]] = []
            for event in sorted(line.events, key=lambda e: (e.offset_ps, -e.duration_ps)):
                while open_events and open_events[-1][1] <= event.offset_ps:
                    open_events.pop()
                if open_events:
                    times[open_events[-1][0]] -= event.duration_ps
                kind = kind_of(names[event.metadata_id])
                times[kind] += event.duration_ps
                open_events.append((kind, event.offset_ps + event.duration_ps))
    return times


def kind_of(name: str) -> str:
    """The operation's type: events of the executor are named "node:Type"."""
    return name.rpartition(":")[2].split("#")[0] or name


def main() -> None:
    run_dir = pathlib.Path(sys.argv[1])
    rows = int(sys.argv[2]) if len(sys.argv) > 2 else 25
    traces = sorted(run_dir.glob("tensorboard/plugins/profile/*/*.xplane.pb"))
    if not traces:
        sys.exit(f"error: {run_dir}: no trace; train with --profile_steps=N")
    space = xplane_pb2.XSpace.FromString(traces[-1].read_bytes())
    times = self_times(space)
    total = sum(times.values())
    print(f"{traces[-1]}: {total / 1e12:.2f} s of processor time")
    for kind, picoseconds in times.most_common(rows):
        print(f"{kind:40s} {picoseconds / 1e12:8.3f} s {100 * picoseconds / total:6.1f}%")


if __name__ == "__main__":
    main()
