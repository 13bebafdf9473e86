"""The options of an engine. Written by scripts/python_options.py from `ckptctl options`: do not edit."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(kw_only=True)
class Options:
    """Options of an Engine or Checkpointer. None leaves an option to the environment (CKPTENGINE_<OPTION>), then to the
    file that `config` names, then to its default. Values are checked when the engine is created. Sizes are bytes, or
    text as "64MiB"."""

    job: str | os.PathLike[str] | None = None
    """Name of the training run; its checkpoints are found again under it. Required."""
    rank: int | None = None
    """Number of this training process within the job, from 0. Required."""
    world_size: int | None = None
    """How many training processes the job has. Required."""
    node: str | os.PathLike[str] | None = None
    """Name of this machine within the job; agents of one machine need different ones. Default: the host name."""
    shard: str | os.PathLike[str] | None = None
    """Name of this rank's main shard; ranks that hold identical state give the same. Default: rank<rank>."""
    agent: Literal["auto", "attach"] | None = None
    """`auto`: start the node's agent where none runs; `attach`: it must be running. Default: auto."""
    ckptd: str | os.PathLike[str] | None = None
    """Path of the agent's program. Default: beside the library, then `PATH`."""
    arena_dir: str | os.PathLike[str] | None = None
    """Directory in a tmpfs under which checkpoints are held in memory. Default: /dev/shm/ckptengine-<uid>."""
    arena_bytes: int | str | None = None
    """Most memory the node's arena may take; 0: what the file system has. Default: 0."""
    coordination: str | os.PathLike[str] | None = None
    """Through what agents find each other, the same on all nodes of the job: a directory, or etcd as
    `etcd://host:port,host:port/prefix` (`etcds://` with TLS). Default: /tmp/ckptengine-<uid>."""
    etcd_user: str | os.PathLike[str] | None = None
    """User at etcd, where it has users. Default: none."""
    etcd_password_file: str | os.PathLike[str] | None = None
    """File with that user's password, of mode 0600. Default: none."""
    etcd_ca_file: str | os.PathLike[str] | None = None
    """File with the certificates (PEM) of those who may vouch for etcd's servers. Default: the system's."""
    etcd_cert_file: str | os.PathLike[str] | None = None
    """File with the certificate (PEM) that is shown to etcd. Default: none."""
    etcd_key_file: str | os.PathLike[str] | None = None
    """File with the key (PEM) of that certificate. Default: none."""
    copies: int | None = None
    """On how many nodes each shard is held, the own one included; short for `protection=copies(m)`. Default: 2."""
    protection: str | os.PathLike[str] | None = None
    """What survives the loss of nodes: `copies(m)`, `xor(n)` (parity in groups of n nodes, one of which may be
    lost), `rs(n,p)` (p of which may be), or copies and parity, as `copies(2)+xor(8)`. Counts before `copies`.
    Default: copies(<copies>)."""
    placement: Literal["auto", "group", "ring", "mixed", "cover", "sharded", "sharded+copy"] | None = None
    """Which nodes hold what: `auto` (groups; shards that several ranks name are cut among them), or `group`, `ring`,
    `mixed`, `cover`, `sharded`, `sharded+copy`. Default: auto."""
    domain: str | os.PathLike[str] | None = None
    """Failure domain of this node, outermost level first, as in `row2/rack7`. Default: none."""
    standby: bool | None = None
    """`true`: this node takes the place of one that is lost; until then no rank sits on it, and it holds nothing.
    Default: false."""
    member_hook: str | os.PathLike[str] | None = None
    """Command or http(s) URL that the leader calls when a node is lost, replaced, back, or no
    longer used (docs/operations.md). Default: none."""
    storage: str | os.PathLike[str] | None = None
    """Where checkpoints are kept when memory is gone: a directory that all nodes see, or `nfs://server/export/path`.
    Default: none."""
    storage_every: int | None = None
    """Every how many iterations a checkpoint goes to storage; 0: only as `storage_interval_s` says. Default: 0."""
    storage_interval_s: int | None = None
    """Every how many seconds a checkpoint goes to storage; 0: only as `storage_every` says. Default: 300."""
    storage_keep_last: int | None = None
    """How many of the newest checkpoints on storage are kept. Default: 2."""
    storage_keep_every: int | None = None
    """Checkpoints whose iteration is a multiple of it are kept on storage for good; 0: none. Default: 0."""
    storage_bytes_per_s: int | str | None = None
    """Most bytes that a node writes to storage in a second; 0: no limit. Default: 0."""
    storage_depth: int | None = None
    """Transfers to or from storage that are in flight at once. Default: 16."""
    storage_block_bytes: int | str | None = None
    """Size of one transfer to or from storage. Default: 1MiB."""
    storage_timeout_ms: int | None = None
    """How long storage may take for one operation before it is given up. Default: 30000."""
    slot_bytes: int | str | None = None
    """Least size of a slot of the main shard, for state that will grow; 0: as large as the state is at the first
    snapshot. Default: 0."""
    copy_threads: int | None = None
    """Threads that copy and digest host tensors. Default: 1."""
    gpu_staging_bytes: int | str | None = None
    """Memory of the GPU through which its tensors are copied; as much as the main shard lets the next update go on
    as soon as the state is copied within the GPU. Less is taken where less is free. Default: 128MiB."""
    replication: Literal["host", "gpu"] | None = None
    """How main shards go to other nodes: `host`: from memory to memory; `gpu`: from GPU to GPU, with NCCL, where
    their tensors lie there and the nodes of a group hold each other's copies (docs/gpu.md), else as with `host`.
    The same on all ranks. Default: host."""
    gpu_replication_bytes: int | str | None = None
    """Memory of the GPU for chunks that go from GPU to GPU, with `replication` = `gpu`; less is taken where the
    ranks' state needs no more. Default: 128MiB."""
    schedule: Literal["idle", "immediate"] | None = None
    """When checkpoints cross the network: `idle`: in moments in which training leaves it idle, as far as its
    communication hooks tell; `immediate`: as soon as there is something to send. Default: idle."""
    profile_iterations: int | None = None
    """From how many iterations the idle moments are learned; a job's first ones pass without checkpoint traffic.
    Default: 20."""
    chunk_bytes: int | str | None = None
    """Largest size of one transfer between nodes. Default: 2MiB."""
    chunk_ms: int | None = None
    """Longest that one transfer may keep the link while training uses it, too; 64KiB may always go. Default: 10."""
    sub_buffers: int | None = None
    """How many transfers of a piece may have arrived without being verified yet before the next one is sent.
    Default: 4."""
    transport: str | os.PathLike[str] | None = None
    """How agents reach each other: `tcp`; `shm`, which is tcp and reads the memory of agents on the same machine; or
    UCX, by a list as UCX_TLS takes it, e.g. `rc,ud` or `all`. The same on all nodes. Default: tcp."""
    interface: str | os.PathLike[str] | None = None
    """Network device that agents use, e.g. `eth0`; with UCX as UCX names it. Default: the first that is no loopback."""
    port: int | None = None
    """TCP port at which the agent lets others of its job in; UCX uses the seven after it, too. 0: any that are free.
    Default: 0."""
    token_file: str | os.PathLike[str] | None = None
    """File of mode 0600 with the job's token, the same on all nodes; `ckptctl token FILE` makes one. Default: the
    token is a record of `coordination`."""
    heartbeat_ms: int | None = None
    """How often agents say they live. Default: 250."""
    node_timeout_ms: int | None = None
    """Silence after which a node is taken for dead; three times `heartbeat_ms` or more. Default: 2000."""
    relay_from: int | None = None
    """From how many nodes on agents report to the leader in groups, each through one of its nodes.
    Default: 256."""
    lease_ms: int | None = None
    """How long the root's term holds without renewal; 200 to 30000. Default: 2000."""
    node_wait_ms: int | None = None
    """How long a restore waits for nodes that are missing. Default: 5000."""
    unprotected_after_ms: int | None = None
    """A job that commits nothing for so long, and for longer than four of its iterations, is *not protected*
    (docs/protection.md). Default: 5000."""
    restore_timeout_ms: int | None = None
    """How long a restore may take in all. Default: 60000."""
    claim_timeout_ms: int | None = None
    """How long a new trainer waits for an earlier one of its rank to be gone. Default: 5000."""
    close_timeout_ms: int | None = None
    """How long closing the engine may wait for a capture to end. Default: 2000."""
    log_file: str | os.PathLike[str] | None = None
    """Where the agent writes its log. Default: `ckptd.log` in the node's arena."""
    config: str | os.PathLike[str] | None = None
    """JSON file with options: one object, key to value. Default: none."""

    def given(self) -> dict[str, Any]:
        """What is not None, by name."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: value for name, value in values.items() if value is not None}
