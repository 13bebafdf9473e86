"""A rank under ckptrun whose job may be halted: ckptrun_halt_rank.py FOLDER LIBRARY [rejoin]. The environment has the
options. With `rejoin`, a rank that is interrupted rejoins the job in its process.

All ranks have the same parameters. They wait for each other in FOLDER/places, which has each rank's incarnation and
iteration. Files make a rank do something in the forward pass: FOLDER/die-RANK kills its process once all have ended the
iteration before, FOLDER/stop-RANK stops it, and FOLDER/spin-RANK makes it compute without end and hold the interpreter
lock. With FOLDER/raise-RANK-ITERATION it raises in that iteration. A rank appends what it restores to
FOLDER/restored-RANK. After the iteration that FOLDER/end names, it ends.
"""

import mmap
import os
import re
import signal
import sys
import time
from pathlib import Path

import numpy as np
from ckptengine import Engine, Halted, Status

COMPUTING_S = 0.03
ITERATIONS_MAX = 1_000_000
PARAMETERS = 50_000

folder, library = Path(sys.argv[1]), sys.argv[2]
rank = int(os.environ["RANK"])
rejoins = "rejoin" in sys.argv


def is_asked(name: str) -> bool:
    command = folder / f"{name}-{rank}"
    if not command.exists():
        return False
    command.unlink()
    return True


def train(engine: Engine, parameters: np.ndarray, places: np.ndarray) -> int:
    """Trains from what it restores. Returns the iteration that follows the last."""
    start = engine.restore()
    with (folder / f"restored-{rank}").open("a") as file:
        file.write(f"{os.getpid()} {start.iteration}\n")
    iteration, end = start.next_iteration, folder / "end"
    while not end.exists() or iteration <= int(end.read_text()):
        if is_asked("die"):
            while any(int(one.read_text() or -1) < iteration - 1 for one in folder.glob("done-*")):
                time.sleep(0.001)
            os.kill(os.getpid(), signal.SIGKILL)
        if (folder / f"raise-{rank}-{iteration}").exists():
            raise ValueError("no luck")
        if is_asked("stop"):
            os.kill(os.getpid(), signal.SIGSTOP)
        if is_asked("spin"):
            re.match(r"(a+)+b", "a" * 100)  # takes for ever, and lets no other thread in
        time.sleep(COMPUTING_S)
        with engine.communication():
            places[rank] = start.incarnation * ITERATIONS_MAX + iteration
            while (places < places[rank]).any():
                time.sleep(0.002)
                if rejoins and (halt := engine.wait_halt(0)) is not None:
                    raise Halted(Status.HALTED, halt.text)
        engine.before_update()
        parameters += iteration
        engine.snapshot(iteration)
        (folder / f"done-{rank}").write_text(str(iteration))
        iteration += 1
    return iteration


def main() -> None:
    with (folder / "places").open("r+b") as file:
        places = np.frombuffer(mmap.mmap(file.fileno(), 0), np.int64)
    parameters = np.zeros(PARAMETERS)
    with Engine(shard="model", library=library) as engine:
        engine.register("parameters", parameters)
        while True:
            try:
                iteration = train(engine, parameters, places)
                break
            except Halted:
                if not rejoins:
                    raise
                engine.rejoin()
    assert (parameters == iteration * (iteration - 1) // 2).all(), parameters


if __name__ == "__main__":
    main()
