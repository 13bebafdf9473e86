"""A rank for tests of ckptrun: ckptrun_rank.py FOLDER [WORDS...]. It needs no torch and no engine.

It appends a line of JSON to FOLDER/started-RANK when it starts. Then it waits for FOLDER/end, and obeys files on the
way: FOLDER/raise-RANK makes it raise, FOLDER/anew-RANK raise what starts all ranks anew, FOLDER/child-RANK start a
child process that sleeps. It appends the name of each SIGUSR1 and SIGTERM to FOLDER/signals-RANK. With the word
`stubborn` SIGTERM does not end it.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

NAMES = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "MASTER_ADDR",
         "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE",
         "OMP_NUM_THREADS"]

folder, rank = Path(sys.argv[1]), os.environ["RANK"]


class NothingStored(Exception):
    ckptrun_status = 75


def signalled(number, frame):
    with (folder / f"signals-{rank}").open("a") as file:
        file.write(f"{signal.Signals(number).name}\n")
    if number == signal.SIGTERM and "stubborn" not in sys.argv:
        sys.exit(3)


def append(name: str, line: str) -> None:
    with (folder / f"{name}-{rank}").open("a") as file:
        file.write(f"{line}\n")


def main() -> None:
    for number in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(number, signalled)
    preloaded = "preloaded_for_tests" in sys.modules
    values = {name: os.environ[name] for name in NAMES if name in os.environ}
    append("started", json.dumps({"pid": os.getpid(), "preloaded": preloaded, "words": sys.argv[2:]} | values))
    print(f"rank {rank} is here")
    while not (folder / "end").exists():
        if (folder / f"raise-{rank}").exists():
            raise ValueError(f"no luck with {time.monotonic_ns():x}" if "odd" in sys.argv else "no luck")
        if (folder / f"anew-{rank}").exists():
            (folder / f"anew-{rank}").unlink()
            raise NothingStored("nothing is stored")
        if (folder / f"child-{rank}").exists():
            (folder / f"child-{rank}").unlink()
            append("children", str(subprocess.Popen(["sleep", "600"]).pid))
        time.sleep(0.005)


if __name__ == "__main__":
    main()
