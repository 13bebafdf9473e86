"""torch.distributed.checkpoint: save, and async_save in its forms. Each checkpoint has a folder. The older one is
removed once the newer one is whole."""

from __future__ import annotations

import shutil
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

from .way import Way

PREFIX = "iteration-"
METADATA = ".metadata"  # the file that is written last


class Dcp(Way):
    """dcp.save."""

    def save(self, iteration: int) -> None:
        dcp.save(self._named(), storage_writer=self._writer(iteration))
        self._remove_older(iteration)

    def restore(self) -> int | None:
        found = [iteration for iteration, folder in self._folders() if (folder / METADATA).exists()]
        if not found:
            return None
        dcp.load(self._named(), checkpoint_id=self._folder(max(found)))
        return max(found)

    def _named(self) -> dict[str, Any]:
        return {f"rank{self.rank}.{name}": tensor for name, tensor in self.state.items()}

    def _writer(self, iteration: int) -> dcp.FileSystemWriter:
        return dcp.FileSystemWriter(self._folder(iteration))

    def _folder(self, iteration: int) -> Path:
        return self.place.shared / f"{PREFIX}{iteration}"

    def _folders(self) -> list[tuple[int, Path]]:
        return [(int(path.name.removeprefix(PREFIX)), path) for path in self.place.shared.glob(f"{PREFIX}*")]

    def _remove_older(self, iteration: int) -> None:
        if self.rank == 0:
            for other, folder in self._folders():
                if other < iteration:
                    shutil.rmtree(folder)


class AsyncThread(Dcp):
    """dcp.async_save in a thread, with its default arguments. The call copies the state."""

    kind = AsyncCheckpointerType.THREAD
    stager: DefaultStager | None = None

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._staged: Future | None = None
        self._stored: Future | None = None
        self._iteration = 0

    def save(self, iteration: int) -> None:
        self._iteration = iteration
        answer = dcp.async_save(
            self._named(),
            storage_writer=self._writer(iteration),
            async_checkpointer_type=self.kind,
            async_stager=self.stager,
        )
        self._staged = getattr(answer, "staging_completion", None)
        self._stored = getattr(answer, "upload_completion", answer)

    def before_update(self) -> None:
        if self._staged is not None:
            self._staged.result()
            self._staged = None

    def wait(self) -> None:
        if self._stored is not None:
            self._stored.result()
            self._stored = None
            self._remove_older(self._iteration)

    def close(self) -> None:
        if self.stager is not None:
            self.stager.close()


class Stager(AsyncThread):
    """dcp.async_save with a DefaultStager, which copies the state in a thread into memory that it keeps."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.stager = DefaultStager(StagingOptions(False, False, True, False))  # pinned memory needs a GPU


class AsyncProcess(AsyncThread):
    """dcp.async_save in a process of its own, through a DefaultStager in shared memory."""

    kind = AsyncCheckpointerType.PROCESS

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.stager = DefaultStager(StagingOptions(False, True, True, False))
