"""A job of two ranks on one node, by the installed package alone: rank 1 is killed, all restart, the state is restored.

job.py          the whole story; the last line is "restored iteration K on 2 of 2 ranks"
job.py RANK     a rank (what the story starts)
"""

import signal
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

import ckptengine

RANKS, SIZE_BYTES, KILLED_AT, ITERATIONS = 2, 1 << 20, 5, 9
DEADLINE_S = 120


def content(rank, iteration):
    return bytes([(rank * 100 + iteration) % 256]) * SIZE_BYTES


def train(rank, job, folder):
    state = bytearray(SIZE_BYTES)
    options = {"job": job, "rank": rank, "world_size": RANKS, "copies": 1, "arena_dir": f"{folder}/arena"}
    with ckptengine.Engine(**options, coordination=f"{folder}/coordination") as engine:
        engine.register("state", state)
        restored = engine.restore()
        if restored.found:
            assert state == content(rank, restored.iteration), "the bytes are not those of the iteration"
        print("started", restored.iteration, flush=True)
        for iteration in range(restored.next_iteration, ITERATIONS):
            state[:] = content(rank, iteration)
            ticket = engine.snapshot(iteration)
            assert ticket.taken, ticket.message
            engine.before_update()
            if iteration == KILLED_AT and not restored.found:
                # What both ranks have committed is there after the kill.
                assert ticket.wait(ckptengine.Stage.COMMITTED, DEADLINE_S * 1000), ticket.message
                print("committed", iteration, flush=True)
                sys.stdin.readline()
            else:
                assert ticket.wait(ckptengine.Stage.COMMITTED, DEADLINE_S * 1000), ticket.message


def start(job, folder):
    return [
        subprocess.Popen(
            [sys.executable, __file__, str(rank), job, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for rank in range(RANKS)
    ]


def said(rank, word):
    line = rank.stdout.readline().split()
    assert line[:1] == [word], f"a rank said {line}, not {word}"
    return int(line[1])


def story():
    job = f"wheel-{uuid.uuid4().hex[:12]}"
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        try:
            ranks = start(job, folder)
            assert [said(rank, "started") for rank in ranks] == [-1] * RANKS
            assert [said(rank, "committed") for rank in ranks] == [KILLED_AT] * RANKS
            ranks[1].send_signal(signal.SIGKILL)
            ranks[0].kill()
            for rank in ranks:
                rank.wait(DEADLINE_S)
            ranks = start(job, folder)
            restored = [said(rank, "started") for rank in ranks]
            assert [rank.wait(DEADLINE_S) for rank in ranks] == [0] * RANKS
        finally:
            where = ["--job", job, "--arena-dir", f"{folder}/arena"]
            subprocess.run(["ckptctl", "stop", *where], check=True, timeout=DEADLINE_S)
    assert restored == [KILLED_AT] * RANKS, restored
    assert Path(ckptengine.load_library().path).is_relative_to(Path(ckptengine.__file__).parent)
    print(f"restored iteration {KILLED_AT} on {RANKS} of {RANKS} ranks")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        train(int(sys.argv[1]), *sys.argv[2:])
    else:
        story()
