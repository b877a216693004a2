"""Another instance of the scheduler service in place of the chart's, with options of a test."""

from collections.abc import Iterator
from contextlib import contextmanager

from stack import SYSTEM, Stack, eventually

__all__ = ["instead"]


@contextmanager
def instead(stack: Stack, name: str, *options: str) -> Iterator[None]:
    """Another instance of the service leads while this lasts."""
    stack.plane.processes["scheduler"].stop()
    try:
        stack.start_scheduler_service(name, *options)
        mine = stack.instances[name][0]
        eventually("the other instance leads", lambda: stack.leader() == mine)
        eventually("it is ready", stack.ready)
        yield
    finally:
        if name in stack.plane.processes:
            # Gone for good: tests that restart every process must not bring it back.
            stack.plane.processes.pop(name).stop()
        if stack.instances.pop(name, None):
            stack.plane.call(
                "DELETE", f"/api/v1/namespaces/{SYSTEM}/pods/{name}?gracePeriodSeconds=0"
            )
        stack.plane.processes["scheduler"].start()
        first = stack.instances["scheduler"][0]
        eventually("the first instance leads again", lambda: stack.leader() == first)
