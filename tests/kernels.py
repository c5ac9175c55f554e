"""Kernels of tests, reached through files.

A kernel's ports are chosen before it starts and bound a second later. Beside tests that open thousands of connections
another process has taken one of the five now and then, and the kernel ends with "Address already in use".
"""

from tempfile import TemporaryDirectory
from typing import Any

from jupyter_client.blocking import BlockingKernelClient
from jupyter_client.manager import KernelManager


class FileKernelManager(KernelManager):
    """A manager whose kernel listens on sockets in a folder of its own."""

    def __init__(self, **options: Any) -> None:
        self._folder = TemporaryDirectory(prefix="kernel-")
        super().__init__(transport="ipc", ip=f"{self._folder.name}/socket", **options)

    def cleanup_ipc_files(self) -> None:
        super().cleanup_ipc_files()
        self._folder.cleanup()


def start_kernel(environment: dict[str, str]) -> tuple[KernelManager, BlockingKernelClient]:
    """Start a kernel, and wait until it answers."""
    manager = FileKernelManager(kernel_name="python3")
    manager.start_kernel(env=environment)
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=240)
    return manager, client
