"""Stands for the module pynvml: GPUs as dictionaries of what each function answers.

A function that a GPU does not list raises `NVMLError_NotSupported`, as a driver does.
"""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any


class NVMLError(Exception):
    """The base of every error of NVML."""


class NVMLError_LibraryNotFound(NVMLError):
    """No driver."""


class NVMLError_NotSupported(NVMLError):
    """This GPU has no such thing."""


H200: Mapping[str, Any] = {
    "nvmlDeviceGetName": "NVIDIA H200",
    "nvmlDeviceGetUUID": "GPU-11111111-2222-3333-4444-555555555555",
    "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=150_754_820_096),
    "nvmlDeviceGetCudaComputeCapability": (9, 0),
    "nvmlDeviceGetEnforcedPowerLimit": 700_000,
    "nvmlDeviceGetMaxClockInfo": {1: 1980, 2: 3201},
    "nvmlDeviceGetMaxPcieLinkGeneration": 5,
    "nvmlDeviceGetMaxPcieLinkWidth": 16,
    "nvmlDeviceGetCurrPcieLinkWidth": 16,
    "nvmlDeviceGetEccMode": [1, 1],
    "nvmlDeviceGetMigMode": [0, 0],
    "nvmlDeviceGetPersistenceMode": 1,
    "nvmlDeviceGetClockInfo": {1: 1755, 2: 3201},
    "nvmlDeviceGetPowerUsage": 412_000,
    "nvmlDeviceGetTemperature": {0: 61},
    "nvmlDeviceGetCurrentClocksEventReasons": 1,
    "nvmlDeviceGetComputeRunningProcesses": [],
}


class FakeNvml:
    """What `importlib.import_module("pynvml")` gives; `driver=False` is a machine without one."""

    NVMLError = NVMLError

    def __init__(
        self,
        gpus: Sequence[Mapping[str, Any]] = (),
        *,
        driver: bool = True,
        cuda: int = 13000,
        version: str | bytes = "580.95.05",
    ) -> None:
        self._gpus, self._driver, self._cuda, self._version = gpus, driver, cuda, version
        self.open = 0

    def nvmlInit(self) -> None:
        if not self._driver:
            raise NVMLError_LibraryNotFound
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlSystemGetDriverVersion(self) -> str | bytes:
        return self._version

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return self._cuda

    def nvmlDeviceGetCount(self) -> int:
        return len(self._gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Mapping[str, Any]:
        return self._first(lambda at, gpu: at == index)

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Mapping[str, Any]:
        return self._first(lambda at, gpu: gpu.get("nvmlDeviceGetUUID") == uuid)

    def nvmlDeviceGetHandleByPciBusId(self, bus: str) -> Mapping[str, Any]:
        return self._first(lambda at, gpu: gpu.get("bus") == bus)

    def nvmlDeviceGetIndex(self, handle: Mapping[str, Any]) -> int:
        return list(self._gpus).index(handle)

    def __getattr__(self, function: str) -> Any:
        if not function.startswith("nvmlDevice"):
            raise AttributeError(function)

        def answer(handle: Mapping[str, Any], *arguments: Any) -> Any:
            if function not in handle:
                raise NVMLError_NotSupported
            value = handle[function]
            if isinstance(value, dict):
                return value[arguments[0]]
            return value(*arguments) if callable(value) else value

        return answer

    def _first(self, wanted: Any) -> Mapping[str, Any]:
        for at, gpu in enumerate(self._gpus):
            if wanted(at, gpu):
                return gpu
        raise NVMLError_NotSupported
