"""Another instance of the scheduler service in place of the chart's, with options of a test."""

from collections.abc import Iterator
from contextlib import contextmanager

from stack import SYSTEM, Stack, eventually

__all__ = ["instead"]


@contextmanager
def instead(stack: Stack, name: str, *options: str) -> Iterator[None]:
    """Another instance of the service leads while this lasts."""
    for process in stack.pod_of("scheduler"):
        process.stop()
    try:
        stack.start_scheduler_service(name, *options)
        mine = stack.instances[name][0]
        eventually("the other instance leads", lambda: stack.leader() == mine)
        eventually("it is ready", stack.ready)
        yield
    finally:
        if name in stack.plane.processes:
            for process in stack.pod_of(name):
                process.stop()
                # Gone for good: tests that restart every process must not bring it back.
                del stack.plane.processes[process.name]
        if stack.instances.pop(name, None):
            stack.plane.call(
                "DELETE", f"/api/v1/namespaces/{SYSTEM}/pods/{name}?gracePeriodSeconds=0"
            )
        for process in stack.pod_of("scheduler"):
            process.start()
        first = stack.instances["scheduler"][0]
        eventually("the first instance leads again", lambda: stack.leader() == first)
