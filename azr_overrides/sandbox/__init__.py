"""Execution of model-written programs in disposable, confined processes."""

from azr_overrides.sandbox.executor import IsolationTooWeak, Sandbox, SandboxError
from azr_overrides.sandbox.types import (
    IsolationLevel,
    IsolationReport,
    RunRequest,
    RunResult,
    SandboxConfig,
    Status,
)

__all__ = [
    "IsolationLevel",
    "IsolationReport",
    "IsolationTooWeak",
    "RunRequest",
    "RunResult",
    "Sandbox",
    "SandboxConfig",
    "SandboxError",
    "Status",
]
