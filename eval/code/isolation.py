"""How well model code is confined, found out by trying: the sandbox's own attempts, run the way solutions are run."""

import ast
import asyncio

from azr_overrides.sandbox import probe
from azr_overrides.sandbox.types import IsolationLevel, IsolationReport, RunRequest, RunResult, Status
from eval.code.runner import CodeRunner, RunStatus
from eval.types import UsageError

_STATUSES = {
    RunStatus.OK: Status.OK,
    RunStatus.EXCEPTION: Status.EXCEPTION,
    RunStatus.POLICY: Status.POLICY,
    RunStatus.TIMEOUT: Status.TIMEOUT,
}


def measure(runner: CodeRunner) -> IsolationReport:
    """Run every attempt of ``azr_overrides.sandbox.probe`` in this runner."""

    async def run(request: RunRequest) -> tuple[RunResult, ...]:
        arguments = list(ast.literal_eval(f"({request.inputs[0]},)"))
        result = runner.run_calls(request.program, request.function, [arguments], [10.0], lambda *_: True)
        status = _STATUSES.get(result.status, Status.CRASH)
        return (RunResult(status, error_type=result.detail.split(" ")[0], message=result.detail),)

    return asyncio.run(probe.measure(run, runner.layers))


def require(report: IsolationReport, minimum: str) -> None:
    """Raises UsageError when the measured level is below ``minimum``."""
    if report.level < IsolationLevel(minimum):
        raise UsageError(
            f"model code would run below isolation {minimum!r}: {report.summary()}. Grade on a machine with landlock "
            f"and seccomp, or accept the risk with --min-isolation {report.level.value}"
        )
