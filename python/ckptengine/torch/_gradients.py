"""A communication hook for DistributedDataParallel that does what DDP does without one, bit for bit, and tells those
who listen when it communicates.

DDP wants annotations as objects, so they are not postponed here."""

import weakref
from typing import Any

import torch
import torch.distributed as dist


class _Of:
    """The model that a hook was placed in. A copy of the model has no hook, whatever it was told, so this is None
    there."""

    def __init__(self, model: Any) -> None:
        self.model = weakref.ref(model)
        self.listeners: weakref.WeakSet = weakref.WeakSet()

    def __reduce__(self) -> tuple:
        return type(None), ()


def place(model: Any, listener: Any = None) -> str:
    """Places the hook, once. `listener`, a Communication, is told from then on. Returns why the model is left as it is,
    "" where it is not. Whoever registers a hook after this is refused by DDP, which takes one."""
    others = [hook for hook, _ in model._comm_hooks if hook is not reduce_gradients]
    for _, state in model._comm_hooks:
        if isinstance(state, _Of) and state.model() is model:
            if listener is not None:
                state.listeners.add(listener)
            return ""
    why_not = "it has a communication hook already" if others else _why_not_the_same(model)
    if not why_not:
        state = _Of(model)
        if listener is not None:
            state.listeners.add(listener)
        try:
            model.register_comm_hook(state, reduce_gradients)
        except (RuntimeError, TypeError, ValueError) as error:
            why_not = str(error).splitlines()[0]
    return why_not


def _why_not_the_same(model: Any) -> str:
    """Why reduce_gradients() would not give the bits of DDP itself. DDP multiplies gradients that it copies to a bucket
    by the inverse of the number of ranks, and divides those that are in it already. With gradient_as_bucket_view it
    does either, of which a hook does not hear; for powers of two they are the same."""
    ranks = model.process_group.size()
    if model.gradient_as_bucket_view and ranks & (ranks - 1):
        return f"gradient_as_bucket_view with {ranks} ranks, no power of two, leaves open how gradients are divided"
    if getattr(model, "_use_python_reducer", False):
        return "it reduces them in compiled code"
    return ""


def reduce_gradients(state: _Of, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    model = state.model()
    if model._join_config.enable and not model._divide_by_initial_world_size:
        raise RuntimeError(
            "join(divide_by_initial_world_size=False) divides gradients by a number that communication hooks are not "
            "told; give the Checkpointer communication=None"
        )
    gradients, ranks = bucket.buffer(), model.process_group.size()
    if gradients.is_sparse or getattr(model, "batched_grad_copy", False):
        gradients.div_(ranks)
    else:
        gradients.mul_(1.0 / ranks)
    opened = [listener.begin(model.process_group, gradients) for listener in state.listeners]
    try:
        reduced = dist.all_reduce(gradients, group=model.process_group, async_op=True).get_future()
    except BaseException:
        for communication in opened:
            communication.end()
        raise
    for communication in opened:
        reduced.add_done_callback(communication.end)
    return reduced.then(lambda done: done.value()[0])
