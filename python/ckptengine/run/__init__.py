"""`ckptrun`, a launcher that restarts only the ranks that have died. docs/operations.md explains it.

One launcher runs on each node: `ckptrun --nproc-per-node 8 train.py`, or `python -m ckptengine.run`. It needs no torch.

- `_main`: one launcher: signals, and what the job asks of it
- `_job`: what launcher 0 decides for all nodes
- `_restarts`, `_halts`: when a rank starts anew, and which ranks are left behind after a halt
- `_node`, `_process`, `_output`: ranks and spares of a node, one process, its lines
- `_worker`: what runs in each process: it waits for its rank, then runs the script
- `_link`, `_store`, `_loop`: connections between launchers, torch's store, the event loop
"""

from ._main import main

__all__ = ["main"]
