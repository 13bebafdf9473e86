"""A rank under ckptrun that uses torch.distributed: ckptrun_torch_rank.py FOLDER.

The first processes form a group, sum their ranks and leave it. A process that starts anew reads what they have left in
the store. Each appends a line to FOLDER/story-RANK, and waits for FOLDER/end.
"""

import os
import sys
import time
from pathlib import Path

had_torch = "torch" in sys.modules

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

folder, rank = Path(sys.argv[1]), os.environ["RANK"]

store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    dist.init_process_group("gloo")
    total = torch.tensor([float(rank)])
    dist.all_reduce(total)
    store.set(f"left-{rank}", str(int(total)))
    dist.barrier()
    story = f"{os.getpid()} sum {int(total)}"
else:
    story = f"{os.getpid()} found {store.get('left-0').decode()}, torch was {'there' if had_torch else 'not there'}"
with (folder / f"story-{rank}").open("a") as file:
    file.write(f"{story}\n")
while not (folder / "end").exists():
    time.sleep(0.01)
