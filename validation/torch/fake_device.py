"""An accelerator that holds no data: device "gpu" of fake tensors, in a world of any size, on a machine without a GPU.

PyTorch's autograd engine wants a device guard of the tensors' device and cannot get CUDA's without a driver. A backend written in Python
(PyTorch 2.14 can) has one; FSDP, DTensor and the optimizers treat it as they treat CUDA.
"""

from __future__ import annotations

import contextlib
import types
from typing import Any, Iterator

import torch
import torch.distributed as dist

DEVICE = "gpu"
SMALLEST_BLOCK = 512  # bytes; c10/cuda/CUDACachingAllocator.cpp kMinBlockSize


class Unavailable(RuntimeError):
    """This PyTorch cannot hold fake tensors of an accelerator that is not there."""


class Event:
    """An event of a device that is never behind."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def record(self, *_: Any) -> "Event":
        return self

    def wait(self, *_: Any) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def query(self) -> bool:
        return True


class Stream:
    """A queue of a device that is never behind."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def wait_stream(self, _stream: "Stream") -> None:
        pass

    def wait_event(self, _event: Event) -> None:
        pass

    def record_event(self, event: Event | None = None) -> Event:
        return event or Event()

    def synchronize(self) -> None:
        pass


_current = Stream()


def _device_module() -> types.ModuleType:
    module = types.ModuleType(f"torch.{DEVICE}")
    module.Stream = Stream
    module.Event = Event
    module.current_stream = lambda *_: _current
    module.default_stream = lambda *_: _current
    module.stream = lambda *_: contextlib.nullcontext()
    module.device = lambda *_: contextlib.nullcontext()
    module.current_device = lambda: 0
    module.set_device = lambda *_: None
    module.device_count = lambda: 1
    module.is_available = lambda: True
    module.is_initialized = lambda: True
    module.is_bf16_supported = lambda: True
    module.synchronize = lambda *_: None
    module._is_in_bad_fork = lambda: False
    module.manual_seed_all = lambda *_: None
    module.get_rng_state = lambda *_: torch.empty(0, dtype=torch.uint8)
    module.set_rng_state = lambda *_: None
    module.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]
    return module


def register() -> None:
    """Makes the device known to PyTorch. Errors: Unavailable, with the version that is needed."""
    try:
        from torch.utils.backend_registration import _setup_privateuseone_for_python_backend as set_up
    except ImportError:
        raise Unavailable(f"fake accelerators need a newer PyTorch (2.14 is known to do); this is {torch.__version__}") from None

    class Hooks(torch._C._acc.PrivateUse1Hooks):
        def is_available(self) -> bool:
            return True

        def has_primary_context(self, _device: int) -> bool:
            return False

        def is_built(self) -> bool:
            return True

    # The autograd engine starts a thread for every device that it knows at its first backward; this device cannot have one.
    torch.ones(1, requires_grad=True).backward()
    torch.Tensor.record_stream = lambda self, stream: None  # nothing is ever reused here
    set_up(DEVICE, backend_module=_device_module(), hook=Hooks())


@contextlib.contextmanager
def fake_world(ranks: int) -> Iterator[None]:
    """A default process group of `ranks` ranks, of which this process is rank 0; collectives move nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    try:
        yield
    finally:
        dist.destroy_process_group()


@contextlib.contextmanager
def real_meshes() -> Iterator[None]:
    """FSDP2 makes the mesh of an integer `reshard_after_forward` itself; ranks must be real numbers there too."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily
    from torch.distributed.fsdp._fully_shard import _fully_shard

    original = _fully_shard._get_post_forward_mesh_info

    def outside_fake_mode(*args: Any) -> Any:
        with unset_fake_temporarily():
            return original(*args)

    _fully_shard._get_post_forward_mesh_info = outside_fake_mode
    try:
        yield
    finally:
        _fully_shard._get_post_forward_mesh_info = original


def count_memory_in_blocks() -> None:
    """Lets PyTorch's memory trackers round sizes to allocator blocks, as they do for CUDA."""
    from torch.distributed._tools.mem_tracker import _WeakRefInfo

    def in_blocks(info: Any) -> int:
        size = info.size * info.element_size
        return -(-size // SMALLEST_BLOCK) * SMALLEST_BLOCK

    _WeakRefInfo._calculate_mem_consumed = in_blocks
