"""What ckptrun is asked to do: its command line."""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
from dataclasses import dataclass

DESCRIPTION = """\
Starts the ranks of a training job on this node, and restarts ranks that die. The others keep running: use it with
training scripts whose ranks can rejoin (docs/operations.md). Run one ckptrun on each node, all with the same options
and each with its own --node-rank. Options that torchrun has mean the same as there."""

EPILOG = """\
Exit status: 0 if all ranks of the job ended with 0, 1 if the job failed, 2 for a mistake in the command line, 128 + N
if signal N ended the job. SIGINT, SIGTERM, SIGHUP and SIGQUIT end the job on all nodes. A second such signal kills it
at once. SIGUSR1 and SIGUSR2 are passed on to the ranks."""


@dataclass(frozen=True)
class Settings:
    """The command line. Times are in seconds."""

    nodes: int
    ranks_per_node: int
    node_rank: int | None  # None: this launcher stands by
    host: str  # where the launcher of node 0 listens
    port: int
    master_addr: str
    master_port: int  # 0: any free one
    run_id: str
    spares: int
    preload: str
    restarts_all: bool
    max_restarts: int
    restart_window_s: float
    shutdown_timeout_s: float
    halt_grace_s: float
    node_timeout_s: float
    join_timeout_s: float
    replace_timeout_s: float
    kind: str  # "script", "module" or "program"
    words: list[str]

    @property
    def world_size(self) -> int:
        return self.nodes * self.ranks_per_node

    @property
    def hosts_job(self) -> bool:
        return self.node_rank == 0


def _parser() -> argparse.ArgumentParser:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "ckptrun", description=DESCRIPTION, epilog=EPILOG, formatter_class=form, allow_abbrev=False
    )

    def both(name: str) -> list[str]:  # torchrun takes both spellings
        return [f"--{name}", f"--{name.replace('-', '_')}"]

    def seconds(name: str, default: float, text: str) -> None:
        parser.add_argument(
            f"--{name}", type=float, default=default, metavar="S", help=f"{text} (default: {default:g})"
        )

    parser.add_argument("--nnodes", type=int, default=1, metavar="N", help="number of nodes (default: 1)")
    parser.add_argument(
        *both("nproc-per-node"), type=int, default=1, metavar="M", help="ranks on each node (default: 1)"
    )
    parser.add_argument(*both("node-rank"), type=int, metavar="R", help="this node's number, from 0")
    parser.add_argument("--standby", action="store_true", help="wait until a node is lost, and take its place")
    parser.add_argument(
        *both("rdzv-endpoint"), "--rendezvous", metavar="HOST:PORT", dest="endpoint",
        help="where the launcher of node 0 listens for the others; needed with several nodes",
    )  # fmt: skip
    parser.add_argument(*both("rdzv-id"), metavar="ID", dest="run_id", help="name of the job (default: CKPTENGINE_JOB)")
    parser.add_argument(
        *both("master-addr"), metavar="HOST", help="MASTER_ADDR of the ranks (default: HOST of --rdzv-endpoint)"
    )
    parser.add_argument(
        *both("master-port"),
        type=int,
        default=0,
        metavar="PORT",
        help="MASTER_PORT of the ranks (default: any free port)",
    )
    parser.add_argument(
        "--spares", type=int, default=1, metavar="S",
        help="spare processes on this node, which have imported --preload and wait to become a rank. With --standby, "
        "at least one for each rank of a node, unless S is 0 (default: 1)",
    )  # fmt: skip
    parser.add_argument(
        "--preload",
        default="torch,torch._dynamo",  # an optimizer imports the second, which takes seconds
        metavar="A,B",
        help="modules that spare processes import, if they exist (default: torch,torch._dynamo)",
    )
    parser.add_argument(
        "--restart", choices=["dead", "all"], default="dead",
        help="which ranks are restarted after a failure. Use all for scripts whose ranks cannot rejoin (default: dead)",
    )  # fmt: skip
    parser.add_argument(
        *both("max-restarts"), type=int, default=3, metavar="N",
        help="the job ends if a rank fails again after N restarts within --restart-window (default: 3)",
    )  # fmt: skip
    seconds("restart-window", 3600, "time within which restarts count")
    seconds("shutdown-timeout", 30, "time between SIGTERM and SIGKILL when the job ends")
    seconds("halt-grace", 5, "time that ranks have to end or rejoin once a halt is over, before they are killed")
    seconds("node-timeout", 15, "silence after which a launcher counts as lost")
    seconds("join-timeout", 600, "time for all nodes to join")
    seconds("replace-timeout", 300, "time for another launcher to take the place of one that was lost")
    group = parser.add_mutually_exclusive_group()
    group.add_argument("-m", "--module", action="store_true", help="SCRIPT is a module, as in `python -m`")
    group.add_argument(*both("no-python"), action="store_true", help="SCRIPT is a program of any kind; no spares then")
    parser.add_argument("script", metavar="SCRIPT", help="the training script, which each rank runs")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGUMENTS", help="passed on to SCRIPT")
    return parser


def _host_and_port(parser: argparse.ArgumentParser, endpoint: str) -> tuple[str, int]:
    host, _, port = endpoint.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        parser.error(f"--rdzv-endpoint is {endpoint}, but must be HOST:PORT, with a port from 1 to 65535")
    return host.strip("[]"), int(port)


def parse(arguments: list[str] | None = None) -> Settings:
    """Parses the command line. Prints help or a mistake and exits (status 0 or 2), as argparse does."""
    parser = _parser()
    given = parser.parse_args(arguments)
    for name in ("nnodes", "nproc_per_node"):
        if getattr(given, name) < 1:
            parser.error(f"--{name.replace('_', '-')} is {getattr(given, name)}, but must be 1 or more")
    for name in ("spares", "max_restarts"):
        if getattr(given, name) < 0:
            parser.error(f"--{name.replace('_', '-')} is {getattr(given, name)}, but must be 0 or more")
    if given.standby and given.node_rank is not None:
        parser.error(
            "give --standby or --node-rank, not both: a standby launcher gets the number of the node it replaces"
        )
    if given.node_rank is None and not given.standby:
        if given.nnodes > 1:
            parser.error("with several nodes, give each launcher its own --node-rank (or --standby)")
        given.node_rank = 0
    if given.node_rank is not None and not 0 <= given.node_rank < given.nnodes:
        parser.error(f"--node-rank is {given.node_rank}, but must be from 0 to {given.nnodes - 1}")
    if given.endpoint is None and (given.nnodes > 1 or given.standby):
        parser.error("with several nodes, give --rdzv-endpoint HOST:PORT, with the host of node 0")
    if not given.module and shutil.which(given.script) is None and not os.path.exists(given.script):
        parser.error(f"{given.script} is neither a file nor a program; give the path of the training script")
    host, port = _host_and_port(parser, given.endpoint) if given.endpoint else ("127.0.0.1", 0)
    return Settings(
        nodes=given.nnodes,
        ranks_per_node=given.nproc_per_node,
        node_rank=given.node_rank,
        host=host,
        port=port,
        master_addr=given.master_addr or host,
        master_port=given.master_port,
        run_id=given.run_id or os.environ.get("CKPTENGINE_JOB") or ("none" if given.endpoint else secrets.token_hex(8)),
        spares=0 if given.no_python else given.spares,
        preload=given.preload or "-",
        restarts_all=given.restart == "all",
        max_restarts=given.max_restarts,
        restart_window_s=given.restart_window,
        shutdown_timeout_s=given.shutdown_timeout,
        halt_grace_s=given.halt_grace,
        node_timeout_s=given.node_timeout,
        join_timeout_s=given.join_timeout,
        replace_timeout_s=given.replace_timeout,
        kind="module" if given.module else "program" if given.no_python else "script",
        words=[given.script, *given.arguments],
    )
