"""A communication hook for DistributedDataParallel that does what DDP does without one, bit for bit, but through
torch.distributed, where it can be seen.

DDP wants annotations as objects, so they are not postponed here."""

import weakref
from typing import Any

import torch
import torch.distributed as dist


def why_not_the_same(model: Any) -> str:
    """Why reduce_gradients() would not give the bits of DDP itself, "" where it does. DDP multiplies gradients that it
    copies to a bucket by the inverse of the number of ranks, and divides those that are in it already. With
    gradient_as_bucket_view it does either, of which a hook does not hear; for powers of two they are the same."""
    ranks = model.process_group.size()
    if model.gradient_as_bucket_view and ranks & (ranks - 1):
        return f"gradient_as_bucket_view with {ranks} ranks, no power of two, leaves open how gradients are divided"
    return ""


def reduce_gradients(state: weakref.ref, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """`state` refers to the model."""
    model = state()
    if model._join_config.enable and not model._divide_by_initial_world_size:
        raise RuntimeError(
            "join(divide_by_initial_world_size=False) divides gradients by a number that communication hooks are not "
            "told; give the Checkpointer communication=False"
        )
    gradients, ranks = bucket.buffer(), model.process_group.size()
    if gradients.is_sparse or getattr(model, "batched_grad_copy", False):
        gradients.div_(ranks)
    else:
        gradients.mul_(1.0 / ranks)
    work = dist.all_reduce(gradients, group=model.process_group, async_op=True)
    return work.get_future().then(lambda done: done.value()[0])
