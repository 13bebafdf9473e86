"""nvidia-resiliency-ext: local checkpoints in files in tmpfs, copied to the peer before each save."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from nvidia_resiliency_ext.checkpointing.local.basic_state_dict import BasicTensorAwareStateDict
from nvidia_resiliency_ext.checkpointing.local.ckpt_managers.local_manager import LocalCheckpointManager
from nvidia_resiliency_ext.checkpointing.local.replication.group_utils import GroupWrapper
from nvidia_resiliency_ext.checkpointing.local.replication.strategies import CliqueReplicationStrategy

from .way import Nodes, State, Way, copy_into


class HostState(BasicTensorAwareStateDict):
    """Allows host tensors. The original demands tensors on a GPU."""

    def __init__(self, state_dict: dict[str, Any]) -> None:
        self.state_dict = state_dict
        self._is_hollow = False

    def restore_tensor_device(self, non_blocking: bool = True) -> None:
        pass


class HostGroup(GroupWrapper):
    """Sends and receives host memory. The original moves it through a GPU."""

    def isend_state_dict(self, state_dict: HostState, dst: int) -> dict[str, float]:
        tensors = state_dict.pop_tensors()
        self.send_object(state_dict, dst)
        for tensor in tensors:
            dist.send(tensor, dst, group=self.group)
        state_dict.insert_tensors(tensors)
        return {"data_sent": sum(tensor.nbytes for tensor in tensors)}

    def irecv_state_dict(self, src: int) -> tuple[HostState, dict[str, float]]:
        found = self.recv_object(src)
        found.init_tensors()
        for tensor in found.tensors:
            dist.recv(tensor, src, group=self.group)
        return found, {"data_recv": sum(tensor.nbytes for tensor in found.tensors)}


class Nvrx(Way):
    def __init__(self, nodes: Nodes, rank: int, state: State) -> None:
        super().__init__(nodes, rank, state)
        replication = CliqueReplicationStrategy(HostGroup(dist.group.WORLD), target_device="cpu")
        self._manager = LocalCheckpointManager(self.place.node(rank), repl_strategy=replication)

    def save(self, iteration: int) -> None:
        self._manager.save(HostState({"state": dict(self.state)}), iteration)

    def restore(self) -> int | None:
        iteration = self._manager.find_latest()
        if iteration < 0:
            return None
        found, _ = self._manager.load()
        copy_into(self.state, found.state_dict["state"])
        return iteration
