"""The sandbox as the trainer sees it: an asynchronous queue of programs before a few template processes."""

import asyncio
import logging
import marshal
from collections import deque
from itertools import count
from time import monotonic

from azr_overrides.sandbox import probe
from azr_overrides.sandbox.metrics import Statistics
from azr_overrides.sandbox.template import protocol
from azr_overrides.sandbox.template.zygote import MAX_EXTENSIONS
from azr_overrides.sandbox.types import (
    IsolationLevel,
    IsolationReport,
    RunRequest,
    RunResult,
    SandboxConfig,
    Status,
)
from azr_overrides.sandbox.worker import Job, TemplateFailed, Worker

logger = logging.getLogger(__name__)

MAX_CONSECUTIVE_LOSSES = 6  # templates that end without having finished one program
_HUNG_AFTER_S = 30.0  # beyond every limit that the template itself enforces


class SandboxError(RuntimeError):
    """The sandbox can't be used; the text says why and what to do."""


class IsolationTooWeak(SandboxError):
    """The isolation measured at start is below ``min_isolation``."""


class Sandbox:
    """Runs model-written programs, many at once, each in its own disposable confined process.

    Belongs to the event loop in which it was started. Use ``async with``, or ``start`` and ``close``.

        async with Sandbox(SandboxConfig()) as sandbox:
            (result,) = await sandbox.run(RunRequest("def f(x): return x + 1", ("41",)))
    """

    def __init__(self, config: SandboxConfig) -> None:
        self._config = config
        self._workers: list[Worker] = []
        self._queues: dict[int | None, deque[Job]] = {None: deque(), 0: deque(), 1: deque()}  # by interpreter
        self._numbers = count(1)
        self._statistics = Statistics()
        self._report: IsolationReport | None = None
        self._failure: str | None = None
        self._losses = 0
        self._open = False
        self._tasks: set[asyncio.Task] = set()

    @property
    def config(self) -> SandboxConfig:
        return self._config

    @property
    def isolation(self) -> IsolationReport:
        """What was measured at start. Raises SandboxError before that."""
        if self._report is None:
            raise SandboxError("the sandbox has not been started, so its isolation is unknown")
        return self._report

    @property
    def failure(self) -> str | None:
        """Why this sandbox has given up for good; None while it works."""
        return self._failure

    async def __aenter__(self) -> "Sandbox":
        await self.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Start the templates, then measure the isolation.

        Raises IsolationTooWeak if it is below ``config.min_isolation``, SandboxError if no template can be
        started.
        """
        if self._open:
            raise SandboxError("the sandbox has been started already")
        self._open = True
        capacity = -(-self._config.slots // self._config.workers)
        self._workers = [
            Worker(index, self._config, capacity, self._job_done, self._worker_lost)
            for index in range(self._config.workers)
        ]
        try:
            await asyncio.gather(*(worker.start() for worker in self._workers))
            self._spawn(self._watch())
            self._report = await probe.measure(self.run, self._workers[0].layers)
        except TemplateFailed as error:
            await self.close()
            raise SandboxError(f"a sandbox template process could not start: {error}") from error
        except BaseException:
            await self.close()
            raise
        logger.info("%s", self._report.summary())
        if self._report.level < IsolationLevel(self._config.min_isolation):
            await self.close()
            raise IsolationTooWeak(_too_weak(self._report, self._config.min_isolation))
        self._statistics = Statistics()

    async def run(self, request: RunRequest) -> tuple[RunResult, ...]:
        """Run one program on its inputs, in one child; one result an input, in order.

        Never raises for what a program does. Raises SandboxError if the sandbox is not open or keeps failing.
        Cancelling the call kills the child.
        """
        if not self._open:
            raise SandboxError("the sandbox is not open")
        if self._failure:
            raise SandboxError(self._failure)
        if not request.inputs:
            return ()
        body = {
            "program": request.program,
            "function": request.function,
            "inputs": request.inputs,
            "max_chars": self._config.max_output_bytes,
        }
        text = marshal.dumps(body)
        job = Job(
            next(self._numbers),
            request,
            protocol.REQUEST_LENGTH.pack(len(text)) + text,
            asyncio.get_running_loop().create_future(),
            self._new_parser(request),
        )
        self._queues[request.interpreter].append(job)
        self._dispatch()
        try:
            return await job.future
        except asyncio.CancelledError:
            for worker in self._workers:
                if worker.jobs.get(job.number) is job:
                    worker.kill(job)
            raise

    def metrics(self, reset: bool = False) -> dict[str, float]:
        """Statistics since the start or the last reset: ``programs``, ``programs_per_s``, ``p50_ms`` and
        ``p99_ms`` of a child's life, ``retries``, ``respawns``, and the number of calls by status.
        """
        values = self._statistics.as_dict()
        if reset:
            self._statistics = Statistics()
        return values

    async def close(self) -> None:
        """End every process. Unfinished programs get the status CANCELLED. Can be called twice."""
        self._open = False
        unfinished = [
            *self._take_queued(),
            *(job for worker in self._workers for job in worker.jobs.values()),
        ]
        for job in unfinished:
            self._resolve(job, job.results(Status.CANCELLED), 0.0)
        tasks, self._tasks = self._tasks, set()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(worker.close() for worker in self._workers))
        self._workers = []

    def _new_parser(self, request: RunRequest) -> protocol.FrameParser:
        utf8_bytes = 4 * self._config.max_output_bytes
        return protocol.FrameParser(len(request.inputs), utf8_bytes)

    def _dispatch(self) -> None:
        """Give waiting jobs to free children: the oldest first among those whose interpreter has one."""
        free = self._config.slots - sum(len(worker.jobs) for worker in self._workers)
        while free > 0:
            best: tuple[Worker, deque[Job]] | None = None
            for interpreter, queue in self._queues.items():
                while queue and queue[0].future.done():  # cancelled
                    queue.popleft()
                if queue and (best is None or queue[0].number < best[1][0].number):
                    worker = self._freest_worker(interpreter)
                    best = (worker, queue) if worker else best
            if best is None:
                return
            worker, queue = best
            worker.launch(queue.popleft())
            free -= 1

    def _freest_worker(self, interpreter: int | None) -> Worker | None:
        candidates = [w for w in self._workers if w.free and interpreter in (None, w.index % 2)]
        return max(candidates, key=lambda worker: worker.free, default=None)

    def _job_done(self, worker: Worker, job: Job, missing: Status, cpu_s: float, wall_s: float, rss_kb: int) -> None:
        if missing is not Status.WORKER_LOST:
            self._losses = 0
        answered = job.parser.complete or job.forged
        if missing is Status.WORKER_LOST and not answered and job.retries == 0 and not self._failure:
            job.retries += 1
            job.parser = self._new_parser(job.request)
            self._statistics.retries += 1
            if self._open:
                self._queues[job.request.interpreter].appendleft(job)
        else:
            self._resolve(job, job.results(missing, cpu_s, wall_s, rss_kb), wall_s)
        self._dispatch()

    def _resolve(self, job: Job, results: tuple[RunResult, ...], wall_s: float) -> None:
        if not job.future.done():
            self._statistics.record(results, wall_s)
            job.future.set_result(results)

    def _worker_lost(self, worker: Worker) -> None:
        self._losses += 1
        if not self._open:
            return
        if self._losses >= MAX_CONSECUTIVE_LOSSES:
            self._fail("it ended")
        else:
            self._spawn(self._replace(worker))

    async def _replace(self, lost: Worker) -> None:
        """Start another template in the place of a lost one; one that dies while it starts is lost as well."""
        while True:
            await lost.close()
            fresh = Worker(lost.index, self._config, lost.capacity, self._job_done, self._worker_lost)
            self._workers[self._workers.index(lost)] = fresh
            try:
                await fresh.start()
                break
            except TemplateFailed as error:
                lost, reason = fresh, str(error)
                self._losses += 1
            if self._losses >= MAX_CONSECUTIVE_LOSSES:
                await lost.close()
                self._fail(reason)
                return
        self._statistics.respawns += 1
        self._dispatch()

    def _fail(self, last_reason: str) -> None:
        reason = (
            f"sandbox templates keep failing: {self._losses} in a row without finishing a program, the last one "
            f"because {last_reason}; look at the host's memory and at stderr"
        )
        logger.error("%s", reason)
        self._failure = reason
        for job in self._take_queued():
            if not job.future.done():
                job.future.set_exception(SandboxError(reason))

    def _take_queued(self) -> list[Job]:
        jobs = [job for queue in self._queues.values() for job in queue]
        for queue in self._queues.values():
            queue.clear()
        return jobs

    async def _watch(self) -> None:
        """Kill a template that does not enforce its own limits, for example because it was stopped."""
        while True:
            await asyncio.sleep(1.0)
            now = monotonic()
            for worker in self._workers:
                for job in worker.jobs.values():
                    wall = job.request.wall_s or self._config.wall_s
                    if now - job.started > wall * (1 + MAX_EXTENSIONS) + _HUNG_AFTER_S:
                        logger.warning("sandbox template %d is hung; replacing it", worker.index)
                        worker.destroy()
                        break

    def _spawn(self, coroutine) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _too_weak(report: IsolationReport, wanted: str) -> str:
    return (
        f"{report.summary()}; azr.sandbox.min_isolation asks for {wanted}, so model-written programs "
        "would not be held. Use a kernel with seccomp (and, for level full, landlock: Linux 5.13 or later "
        "with lsm=landlock), install libseccomp, allow both in the container's profile, or accept the risk "
        f"by setting azr.sandbox.min_isolation={report.level.value}."
    )
