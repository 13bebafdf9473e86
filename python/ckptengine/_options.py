"""The options of an engine. Written by scripts/python_options.py from `ckptctl options`: do not edit."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(kw_only=True)
class Options:
    """Options of an Engine or Checkpointer. Sizes are bytes, or text as "64MiB".

    None leaves an option to the environment (CKPTENGINE_<OPTION>), then to the file that `config` names, then to its
    default. Values are checked when the engine is created.
    """

    job: str | os.PathLike[str] | None = None
    """Name of the training run. A restarted job finds its checkpoints by this name. Required."""
    rank: int | None = None
    """Number of this training process within the job, from 0. Required."""
    world_size: int | None = None
    """Number of training processes in the job. Required."""
    node: str | os.PathLike[str] | None = None
    """Name of this machine within the job. Several agents on one machine need different names. Default: the host
    name."""
    shard: str | os.PathLike[str] | None = None
    """Name of this rank's main shard. Ranks with identical state give the same name. Default: rank<rank>."""
    agent: Literal["auto", "attach"] | None = None
    """`auto`: start the node's agent if none runs. `attach`: the agent must already run. Default: auto."""
    ckptd: str | os.PathLike[str] | None = None
    """Path of the agent program. Default: beside the library, then `PATH`."""
    arena_dir: str | os.PathLike[str] | None = None
    """Directory in a tmpfs that holds the checkpoints in memory. Default: /dev/shm/ckptengine-<uid>."""
    arena_bytes: int | str | None = None
    """Upper limit for the memory of the node's arena. 0: as much as the file system has. Default: 0."""
    coordination: str | os.PathLike[str] | None = None
    """The coordination store, through which agents find each other: a directory, or etcd as
    `etcd://host:port,host:port/prefix` (`etcds://` with TLS). The same on all nodes of the job. Default:
    /tmp/ckptengine-<uid>."""
    etcd_user: str | os.PathLike[str] | None = None
    """User name for etcd, if etcd asks for one. Default: none."""
    etcd_password_file: str | os.PathLike[str] | None = None
    """File with that user's password. Its mode must be 0600 or 0400. Default: none."""
    etcd_ca_file: str | os.PathLike[str] | None = None
    """File with the certificates (PEM) of the authorities that sign etcd's certificates. Default: the system's."""
    etcd_cert_file: str | os.PathLike[str] | None = None
    """File with the client certificate (PEM) for etcd. Default: none."""
    etcd_key_file: str | os.PathLike[str] | None = None
    """File with the private key (PEM) of that certificate. Default: none."""
    copies: int | None = None
    """How many nodes hold each shard, its own node included. Short for `protection=copies(m)`. Default: 2."""
    protection: str | os.PathLike[str] | None = None
    """How shards survive the loss of nodes: `copies(m)`; `xor(n)`, parity in groups of n nodes, which survives one
    lost node per group; `rs(n,p)`, which survives p; or copies and parity, as in `copies(2)+xor(8)`.
    `recompute(m)` is `copies(m)`, but nodes repeat updates where they can, instead of fetching their results
    (docs/mechanisms.md). Overrides `copies`. Default: copies(<copies>)."""
    placement: Literal["auto", "group", "ring", "mixed", "cover", "sharded", "sharded+copy"] | None = None
    """Which nodes hold which pieces (docs/protection.md). `auto`: the nodes of a group hold each other's copies; a
    shard that several ranks name is cut into parts. Or `group`, `ring`, `mixed`, `cover`, `sharded`,
    `sharded+copy`. Default: auto."""
    domain: str | os.PathLike[str] | None = None
    """Failure domain of this node, outermost level first, as in `row2/rack7`. Default: none."""
    standby: bool | None = None
    """`true`: this node is a standby node. It has no rank and holds nothing until it replaces a lost node. Default:
    false."""
    member_hook: str | os.PathLike[str] | None = None
    """Command or http(s) URL that the leader calls when a node is lost, replaced, back, or no longer used
    (docs/operations.md). Default: none."""
    storage: str | os.PathLike[str] | None = None
    """Where checkpoints go that must survive the loss of memory: a directory that all nodes see, or
    `nfs://server/export/path`. Default: none."""
    storage_every: int | None = None
    """A checkpoint goes to storage every so many iterations. 0: only `storage_interval_s` decides. Default: 0."""
    storage_interval_s: int | None = None
    """A checkpoint goes to storage every so many seconds. 0: only `storage_every` decides. Default: 300."""
    storage_keep_last: int | None = None
    """How many of the newest checkpoints stay on storage. Default: 2."""
    storage_keep_every: int | None = None
    """Checkpoints whose iteration is a multiple of this number stay on storage for good. 0: none. Default: 0."""
    storage_bytes_per_s: int | str | None = None
    """Most bytes per second that a node writes to storage. 0: no limit. Default: 0."""
    storage_depth: int | None = None
    """Number of transfers to or from storage that are in flight at the same time. Default: 16."""
    storage_block_bytes: int | str | None = None
    """Size of one transfer to or from storage. Default: 1MiB."""
    storage_timeout_ms: int | None = None
    """Time after which one storage operation counts as failed. Default: 30000."""
    slot_bytes: int | str | None = None
    """Minimum size of a main shard's slot, for state that will grow. State that outgrows its slots gets larger ones,
    which takes memory for both for a moment. 0: the size of the registered state. Default: 0."""
    own_slots: int | None = None
    """Slots that a rank of this node starts with. Each holds one snapshot. With `storage`, the rank gets one more. 2
    suffice if each checkpoint is committed before the next `before_update()`. If a rank's captures often wait
    longer for replication, the agent adds a slot. Default: 2."""
    copy_threads: int | None = None
    """Threads that copy and digest tensors in host memory. Default: 1."""
    layered_capture: bool | None = None
    """When a capture copies tensors (docs/mechanisms.md). `false`: at once, as fast as it can. `true`: first while
    training waits for other ranks, and what is left beside computation, at a limited rate. With tensors on a GPU,
    the host may then wait in `before_update()`. Default: false."""
    gpu_staging_bytes: int | str | None = None
    """GPU memory through which tensors are copied. If it is as large as the main shard, the next update can start as
    soon as the state is copied within the GPU. The engine takes less if less is free. Default: 128MiB."""
    replication: Literal["host", "gpu"] | None = None
    """How main shards go to other nodes. `host`: from host memory to host memory. `gpu`: from GPU to GPU with NCCL,
    if the tensors are on GPUs and the nodes form groups (docs/gpu.md); parity is then made on the GPU. Otherwise
    as with `host`. The same on all ranks. Default: host."""
    gpu_replication_bytes: int | str | None = None
    """GPU memory for chunks that go from GPU to GPU, with `replication` = `gpu`. The engine takes less if the ranks'
    state needs less. Default: 128MiB."""
    schedule: Literal["idle", "immediate"] | None = None
    """When checkpoints cross the network. `idle`: while training leaves the network idle, as its communication hooks
    show. `immediate`: as soon as there is something to send. Default: idle."""
    profile_iterations: int | None = None
    """Number of iterations from which the agent learns when the network is idle. Until then it sends checkpoints
    whenever no communication runs. With `layered_capture`, the engine learns bubbles from as many. Default: 20."""
    chunk_bytes: int | str | None = None
    """Largest size of one transfer between nodes. Default: 2MiB."""
    chunk_ms: int | None = None
    """Longest time for which one transfer may occupy the network while training may use it, too. A transfer of 64KiB
    may take longer. Default: 10."""
    sub_buffers: int | None = None
    """How many transfers of one piece may wait for verification at the receiver. More are not sent until one is
    verified. Default: 4."""
    transport: str | os.PathLike[str] | None = None
    """How agents talk to each other: `tcp`; `shm`, which is `tcp` but reads the memory of agents on the same machine
    directly; or UCX, by a list as for UCX_TLS, e.g. `rc,ud` or `all`. The same on all nodes. Default: tcp."""
    interface: str | os.PathLike[str] | None = None
    """Network interface on which the agent listens and whose address it publishes, e.g. `eth0`. With UCX: a list of
    devices as for UCX_NET_DEVICES. The agent then listens on the first that has an address. Default: the one that
    others most likely reach."""
    port: int | None = None
    """TCP port of the agent's listener. UCX also uses the seven ports after it. 0: any free ports. Default: 0."""
    token_file: str | os.PathLike[str] | None = None
    """File with the job's token, the same on all nodes. Its mode must be 0600 or 0400. `ckptctl token FILE` makes
    one. Default: the token is a record of `coordination`."""
    heartbeat_ms: int | None = None
    """Time between the heartbeats of an agent. Default: 250."""
    node_timeout_ms: int | None = None
    """A node counts as dead after this time without a sign from it. At least three times `heartbeat_ms`. Default:
    2000."""
    relay_from: int | None = None
    """In jobs with at least so many nodes, agents report to the leader in groups, each through a relay. Default:
    256."""
    lease_ms: int | None = None
    """How long the leader's term lasts without renewal. 200 to 30000. Default: 2000."""
    node_wait_ms: int | None = None
    """How long a restore waits for missing nodes. Default: 5000."""
    unprotected_after_ms: int | None = None
    """A job that commits nothing for this time, and for four times the time between captures of main shards, is *not
    protected* (docs/protection.md). Default: 5000."""
    hang_floor_ms: int | None = None
    """Shortest time without progress after which a rank is suspected to hang (docs/jit.md). Default: 2500."""
    hang_factor: int | None = None
    """A rank is suspected to hang if a communication, the computing between two, or all computing of an iteration
    takes this many times as long as the longest in the last 32 iterations. A rank that computes this many times
    as long as the others is a straggler (docs/jit.md). Default: 3."""
    on_suspicion: Literal["report", "halt"] | None = None
    """What happens once a rank is suspected to hold the others up. `report`: it is named. `halt`: all ranks freeze,
    and the state that they have is captured (docs/jit.md). The same on all ranks and nodes. Default: report."""
    capture: Literal["every", "jit", "auto"] | None = None
    """When main shards are captured. `every`: as `capture_every` says, by default in every iteration. `jit`: every
    30 iterations by default, because after a failure they are captured late, from ranks on other nodes that have
    the same shard. `auto`: `jit` if ranks on two nodes or more have each main shard of the job, and in every
    iteration otherwise (docs/jit.md). The same on all ranks and nodes. Default: every."""
    capture_every: int | None = None
    """Main shards are captured every so many (N) iterations only, private shards in every iteration. Without a
    successful halt, a failure costs up to N iterations (docs/jit.md). The same on all ranks and nodes. Default:
    1, or 30 with `capture=jit` or `auto`."""
    restore_timeout_ms: int | None = None
    """Longest time for a whole restore. Default: 60000."""
    claim_timeout_ms: int | None = None
    """How long a new trainer waits for an earlier process of its rank to end. Default: 5000."""
    close_timeout_ms: int | None = None
    """How long closing the engine may wait until the last snapshot is committed. Default: 2000."""
    log_file: str | os.PathLike[str] | None = None
    """The log of the agent. Default: `ckptd.log` in the node's arena."""
    config: str | os.PathLike[str] | None = None
    """JSON file with options: one object of keys and values. Default: none."""

    def given(self) -> dict[str, Any]:
        """Returns the options that are not None, by name."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: value for name, value in values.items() if value is not None}
