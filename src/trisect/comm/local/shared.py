"""`SharedFile`: anonymous memory that processes of one host map; it vanishes with the last that has it open."""

from __future__ import annotations

import mmap
import os

import numpy as np
import torch
from torch import Tensor


class SharedFile:
    """A mapped file without a name.

    Attributes:
        descriptor: by which other processes open it (`/proc/PROCESS/fd/DESCRIPTOR`); -1 once closed.
        address: where it is mapped in this process.
        view: its bytes.
    """

    def __init__(self, descriptor: int, *, populate: bool = False) -> None:
        self.descriptor = descriptor
        self._pages = mmap.mmap(descriptor, 0, mmap.MAP_SHARED | (mmap.MAP_POPULATE if populate else 0))
        self.view = memoryview(self._pages)
        array: np.ndarray = np.frombuffer(self._pages, dtype=np.uint8)
        self.address = int(array.ctypes.data)
        self._bytes = torch.from_numpy(array)

    @classmethod
    def create(cls, name: str, size: int, *, reserve: bool = True) -> SharedFile:
        """Make a file of `size` bytes, whose pages are there from the start or (`reserve=False`) when they are touched.

        Raises:
            OSError: there is no room.
        """
        descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
        try:
            if reserve:
                os.posix_fallocate(descriptor, 0, size)
            else:
                os.ftruncate(descriptor, size)
            return cls(descriptor, populate=reserve)
        except OSError:
            os.close(descriptor)
            raise

    @classmethod
    def of_process(cls, process: int, descriptor: int) -> SharedFile:
        """Map a file of another process.

        Raises:
            RuntimeError: the process is gone, or has closed it.
        """
        own = open_descriptor(process, descriptor)
        try:
            file = cls(own)
        finally:
            os.close(own)
        file.descriptor = -1
        return file

    def tensor(self, offset: int, elements: int, dtype: torch.dtype) -> Tensor:
        """Give a vector on the bytes from `offset` on."""
        return self._bytes[offset : offset + elements * dtype.itemsize].view(dtype)

    def close(self) -> None:
        """Close the descriptor. The mapping stays as long as something refers to it."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def __del__(self) -> None:
        if getattr(self, "descriptor", -1) >= 0:
            self.close()


def open_descriptor(process: int, descriptor: int) -> int:
    """Open a file by the descriptor that another process has for it."""
    try:
        return os.open(f"/proc/{process}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise RuntimeError(f"Connection closed by process {process} ({error.strerror})") from error
