"""A communication hook for DistributedDataParallel (DDP). It computes what DDP computes without a hook, bit for bit,
and tells its listeners when it communicates.

DDP reads the hook's annotations as objects. So this file does not import annotations from __future__."""

import weakref
from typing import Any

import torch
import torch.distributed as dist


class _Of:
    """Refers to the model in which a hook was placed. In a copy of the model, None takes the place of this object,
    because the copy has no hook."""

    def __init__(self, model: Any) -> None:
        self.model = weakref.ref(model)
        self.listeners: weakref.WeakSet = weakref.WeakSet()

    def __reduce__(self) -> tuple:
        return type(None), ()


def place(model: Any, listener: Any = None) -> str:
    """Places the hook in `model`, once. From then on the hook tells `listener`, a Communication. Returns "" or the
    reason why the model did not get the hook. DDP takes one hook, so it refuses hooks that are registered later."""
    others = [hook for hook, _ in model._comm_hooks if hook is not reduce_gradients]
    for _, state in model._comm_hooks:
        if isinstance(state, _Of) and state.model() is model:
            if listener is not None:
                state.listeners.add(listener)
            return ""
    why_not = "the model has a communication hook already" if others else _why_not_the_same(model)
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
    """Returns why reduce_gradients() would not give the same bits as DDP. "" if it gives the same. DDP multiplies
    gradients that it copies to a bucket by the inverse of the number of ranks. It divides gradients that are in the
    bucket already. With gradient_as_bucket_view it does either, and a hook cannot know which. If the number of ranks is
    a power of two, the results are equal."""
    ranks = model.process_group.size()
    if model.gradient_as_bucket_view and ranks & (ranks - 1):
        return f"with gradient_as_bucket_view and {ranks} ranks, no power of two, a hook cannot round as DDP does"
    if getattr(model, "_use_python_reducer", False):
        return "the model reduces them in compiled code"
    return ""


def reduce_gradients(state: _Of, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    model = state.model()
    if model._join_config.enable and not model._divide_by_initial_world_size:
        raise RuntimeError(
            "the Checkpointer's communication hook cannot average gradients under "
            "join(divide_by_initial_world_size=False), because torch does not tell the hook the divisor. Leave out "
            "divide_by_initial_world_size=False. Or give the Checkpointer communication=None; then checkpoint traffic "
            "may run while the model communicates"
        )
    gradients, ranks = bucket.buffer(), model.process_group.size()
    if gradients.is_sparse or getattr(model, "batched_grad_copy", False):
        gradients.div_(ranks)
    else:
        gradients.mul_(1.0 / ranks)
    begun = [listener.begin(model.process_group, gradients) for listener in state.listeners]
    opened = [communication for communication in begun if communication is not None]
    try:
        reduced = dist.all_reduce(gradients, group=model.process_group, async_op=True).get_future()
    except BaseException:
        for communication in opened:
            communication.end()
        raise
    for communication in opened:
        reduced.add_done_callback(communication.end)
    return reduced.then(lambda done: done.value()[0])
