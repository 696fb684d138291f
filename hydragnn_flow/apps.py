"""Parsl scripts: a user's own apps and campaigns on the same blocks of a site."""

from __future__ import annotations

import atexit
import base64
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from parsl import python_app

from hydragnn_flow.campaign import CampaignSummary, load_campaign, run_campaign
from hydragnn_flow.config import RunConfig
from hydragnn_flow.config.objective import ObjectiveConfig
from hydragnn_flow.errors import CampaignStopped, InputError
from hydragnn_flow.execution import Site, sole_driver
from hydragnn_flow.execution.jobs import Jobs, Sending, Task
from hydragnn_flow.execution.parsl_internals import (
    IN_A_THREAD,
    FilesystemRadio,
    InvalidResourceSpecification,
    ParslExecutor,
    deserialize,
    pack_apply_message,
)
from hydragnn_flow.execution.pools.pool import Pool
from hydragnn_flow.execution.pools.shared import Share, SharedPool
from hydragnn_flow.placement import place
from hydragnn_flow.segment import Call, Sender

_RUNS = "hydragnn_flow.execution.workers.app:run"
_AGAIN = "start the script again"
_logger = logging.getLogger(__name__)


class SiteExecutor(ParslExecutor):
    """Parsl executor on the GCDs of a site, which runs apps and shares its nodes with campaigns.

    Load it by `parsl.load`. An app has one GCD to itself, as on a `HighThroughputExecutor` with
    `available_accelerators`. Apps have half of the nodes while campaigns need the others, which
    these get in the order of their starts.

    An app is sent again if its node is lost. `retries` of the `parsl.Config` are for its errors.

    Parameters
    ----------
    site
        Site that runs the apps, from :func:`.load_site`.
    directory
        Directory for the batch jobs' scripts and logs, visible to the nodes. A script that is
        started again with the same directory cancels the jobs that its killed predecessor left.
    label
        Name of the executor in the `parsl.Config`.
    """

    def __init__(self, site: Site, directory: str | Path, label: str = "gcds") -> None:
        super().__init__()
        self.label, self.remote_monitoring_radio = label, FilesystemRadio()
        self._site, self._directory = site, Path(directory).absolute()
        self._shared: SharedPool | None = None
        self._open = ExitStack()
        self._asked: SimpleQueue[tuple[Task, Future[Any]]] = SimpleQueue()
        self._answers: dict[int, Future[Any]] = {}
        self._closing, self._lock = threading.Event(), threading.Lock()
        self._why: Exception = CampaignStopped(f"executor {label}: was shut down; {_AGAIN}")
        self._number = 0

    @property
    def site(self) -> Site:
        """Site whose workers are this executor's; campaigns there share its nodes."""

        def share(directory: Path) -> Any:
            if self._shared is None:
                raise InputError(
                    f"executor {self.label}: is not started; load its Config by parsl.load first"
                )
            return self._shared.share(directory)

        return replace(self._site, shared=share)

    def start(self) -> None:
        """Start the executor; batch jobs are submitted when there is work.

        Raises
        ------
        InputError
            If another script uses the directory, or the site cannot have workers.
        """
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        parsl = self._directory / "parsl"
        with ExitStack() as stack:
            self._token = stack.enter_context(sole_driver(self._directory))
            pool = stack.enter_context(Pool(self._site, parsl))
            self._shared = SharedPool(pool, len(self._site.node.gcds))
            share = stack.enter_context(self._shared.share(parsl))
            self._open = stack.pop_all()
        atexit.register(self.shutdown)  # a script may end without Parsl's clean-up
        self._thread = threading.Thread(target=self._work, args=(share,), daemon=True)
        self._thread.start()

    def submit(
        self,
        func: Callable[..., Any],
        resource_specification: Mapping[str, Any],
        *args: Any,
        **kwargs: Any,
    ) -> Future[Any]:
        """Call a function on a GCD of the site; return a future of its result.

        Parameters
        ----------
        func, *args, **kwargs
            Function, and its arguments.
        resource_specification
            Empty: each app has one GCD.

        Raises
        ------
        InvalidResourceSpecification
            If resources are specified.
        """
        if resource_specification:
            raise InvalidResourceSpecification(
                {*resource_specification}, "each app has one GCD of the site"
            )
        message = pack_apply_message(func, args, kwargs)
        self._number += 1
        spec = Call(
            kind="call",
            number=self._number,
            directory=str(self._directory / "apps" / f"{self._number:06d}"),
            driver=Sender(
                run_directory=str(self._directory),
                token=self._token,
                site_gcds=self._site.gcds,
            ),
            function=_RUNS,
            argument={"task": base64.b64encode(message).decode()},
            what=f"app {self._number} ({getattr(func, '__name__', 'function')})",
        )
        answer: Future[Any] = Future()
        answer.set_running_or_notify_cancel()  # a task cannot be cancelled
        with self._lock:
            if self._closing.is_set():
                raise type(self._why)(*self._why.args)
            self._asked.put((Task(spec=spec), answer))
        return answer

    def monitor_resources(self) -> bool:
        """Return False: Parsl's monitoring sees apps, but forks no process beside each."""
        return False

    def shutdown(self, block: bool = True) -> None:
        """Give back all nodes, and end all apps and campaigns that run there.

        ``block`` is ignored: the call waits.
        """
        del block
        self._closing.set()
        if self._shared is not None:
            self._shared.close()
            self._thread.join()
        self._open.close()
        atexit.unregister(self.shutdown)
        super().shutdown()

    def _work(self, share: Share) -> None:
        """Send apps to GCDs and collect their results until the executor is shut down."""
        jobs, ready = Jobs[Task](share, self._site), list[Task]()
        try:
            while not self._closing.is_set():
                while not self._asked.empty():
                    task, answer = self._asked.get()
                    self._answers[task.spec.number] = answer
                    ready.append(task)
                jobs.request_workers(len(ready))
                first, ready = ready[: jobs.fleet.free], ready[jobs.fleet.free :]
                placed, rest = place(first, jobs.fleet, jobs.now, may_join=False)
                ready = [*rest, *ready]
                for placement in placed:
                    jobs.send(placement)
                finished = jobs.finished(0.1)  # then looks for new apps
                jobs.judge_nodes(finished)
                ready += [again for sending in finished if (again := self._take(sending))]
        except Exception as error:
            if not self._closing.is_set():
                told = f"apps end: {type(error).__name__}: {error}; {_AGAIN}"
                known = isinstance(error, InputError | CampaignStopped)
                self._why = error if known else CampaignStopped(told)
                _logger.error("%s", told)
        share.end()
        with self._lock:
            self._closing.set()
        while not self._asked.empty():
            task, answer = self._asked.get()
            self._answers[task.spec.number] = answer
        for answer in self._answers.values():
            answer.set_exception(type(self._why)(*self._why.args))  # a traceback of its own

    def _take(self, sending: Sending[Task]) -> Task | None:
        """Pass on the result of an app; return the app if it is to be sent again."""
        task, end = sending.task, sending.result
        if end.status == "ok":
            answer = self._answers.pop(task.spec.number)
            try:
                result = deserialize(base64.b64decode(end.answer["answer"]))
                raised = result.get_exception() if "raised" in end.answer else None
            except Exception as unreadable:
                raised = unreadable
            if raised is None:
                answer.set_result(result)
            else:
                answer.set_exception(raised)
            return None
        task = task.again(end, self._site.nodes)
        if not task.retries.is_hopeless:
            _logger.info("%s is sent again (%s): %s", task, task.retries, end.reason)
            return task
        reason = f"{task} failed {task.retries.total} times: {end.reason}"
        self._answers.pop(task.spec.number).set_exception(CampaignStopped(reason))
        return None


@python_app(executors=[IN_A_THREAD])
def campaign_app(
    config: str | Path | RunConfig | ObjectiveConfig,
    site: Site,
    run_directory: str | Path | None = None,
    *,
    data: str | Path | None = None,
    inputs: Sequence[Any] = (),
) -> CampaignSummary:
    """Parsl app that runs a campaign, or continues it; its future is of a `CampaignSummary`.

    It takes the place of :func:`.run_campaign` in a script with apps, and waits for these.

    Parameters
    ----------
    config
        Configuration of the campaign, or the path of its file, which is read once all ``inputs``
        are there.
    site
        Site that runs the campaign: :attr:`SiteExecutor.site`.
    run_directory
        Run directory; ``runs/<name>`` by default.
    data
        Directory of the source's data files; overrides the file's ``data.path``.
    inputs
        Futures that the campaign waits for, as Parsl's `inputs`.
    """
    del inputs
    if site.shared is None:
        raise InputError(
            f"site {site.name}: has batch jobs of its own, which the script could not stop; give "
            "the `site` of a SiteExecutor, or start the campaign by run_campaign"
        )
    whole = load_campaign(config, data=data) if isinstance(config, str | Path) else config
    return run_campaign(whole, site, run_directory)
