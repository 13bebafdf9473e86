"""All ways to checkpoint that are compared: which packages each needs, and which settings it gets."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    name: str  # the name for --only
    title: str  # the name in the table
    module: str
    type: str
    settings: str
    requirements: tuple[str, ...] = ()  # besides torch, in an environment of its own
    copies: bool = True  # True: it copies the state
    flushes: bool = False  # True: ranks that survive write their copies to files when they are stopped
    on_storage: bool = False  # True: its files are on storage, which is not lost with a node

    @property
    def package(self) -> str:
        """Whose version the table names, besides torch's."""
        return self.requirements[0].partition("==")[0].partition("[")[0] if self.requirements else ""


WAYS = [
    Entry("ours", "ckptengine", "ours", "Ours", "defaults: `copies=2`, an agent per node"),
    Entry(
        "stager",
        "DCP `async_save`, `DefaultStager`",
        "dcp",
        "Stager",
        "staging in a thread, buffers kept; no pinned memory, which needs a GPU",
        on_storage=True,
    ),
    Entry("async-thread", "DCP `async_save`, thread", "dcp", "AsyncThread", "defaults", on_storage=True),
    Entry(
        "async-process",
        "DCP `async_save`, process",
        "dcp",
        "AsyncProcess",
        "`DefaultStager` in shared memory, staging in a thread",
        on_storage=True,
    ),
    Entry("dcp-save", "`dcp.save`", "dcp", "Dcp", "defaults", on_storage=True),
    Entry(
        "torch-save",
        "`torch.save`",
        "torch_save",
        "TorchSave",
        "a file per rank, renamed when whole; loaded with `mmap=True`",
        on_storage=True,
    ),
    Entry(
        "lm-resiliency",
        "lm-resiliency",
        "lm_resiliency",
        "LmResiliency",
        "`save_tensors`, replication to the peer, `verify_integrity=True`; flushes to tmpfs that both nodes see",
        ("lm-resiliency==0.2.0",),
        flushes=True,
    ),
    Entry(
        "nvrx",
        "NVRx local",
        "nvrx",
        "Nvrx",
        "replication to the peer; adapted to host tensors; synchronous, since its asynchronous form needs a GPU",
        ("nvidia-resiliency-ext==0.4.1",),
    ),
    Entry(
        "dlrover",
        "dlrover",
        "dlrover",
        "Dlrover",
        "`StorageType.MEMORY`, an agent per node; no replicas, with which a save of 32 MiB took 7 s",
        ("dlrover[k8s,torch]==0.6.1",),
    ),
    Entry(
        "torchft",
        "torchft, HTTP",
        "torchft",
        "Torchft",
        "`HTTPTransport`, no chunks; the same state on both ranks, fetched from the live peer",
        ("torchft==0.2.0",),
        copies=False,
    ),
]
