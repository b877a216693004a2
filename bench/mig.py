"""One decision on an instance over 1,000 cards, against a plain loop over the same cards.

Cards are filled and partly emptied at random, so that they are in many states. Each decision is carried out. After a
refusal, and after every second placement on average, a random instance is removed, as in a busy pool. The plain loop
asks the same tables card by card. Both must choose the same card, and the ratio is valid on any machine.

Then it measures the whole engine with its books: nodes of eight cards, and pods that ask by memory.

    python bench/mig.py [--cards 1000] [--decisions 20000] [--model A100-80GB]
"""

import argparse
import gc
import random
import time
from collections import deque

import numpy as np

from partage.model.cutting import Cutting
from partage.model.device import Device, DeviceType, SliceMode
from partage.model.mig import MigSlice
from partage.model.node import Node
from partage.model.pod import Pod
from partage.model.policy import Policy
from partage.model.request import ContainerAsk, DeviceRequest, PodRequest, RequestGroup
from partage.placement.layouts import NOWHERE, Layouts, tabulate
from partage.scheduler.engine import Engine
from partage.scheduler.events import NodeSeen, Placement, PodGone
from partage.vendors.mig import MIG_CARDS

ASKED_P99 = 200.0


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--cards", type=int, default=1000)
    options.add_argument("--decisions", type=int, default=20_000)
    options.add_argument("--model", default="A100-80GB")
    given = options.parse_args()
    began = time.perf_counter()
    layouts = tabulate(MIG_CARDS[given.model].axis)
    made = time.perf_counter() - began
    print(f"tables of {given.model}: {len(layouts.masks)} states, made in {made:.2f} s")
    times, plain, placed = run(layouts, given.cards, given.decisions)
    p50, p99, worst = (float(np.percentile(times, q)) / 1e3 for q in (50, 99, 100))
    print(f"{placed} of {given.decisions} placed on {given.cards} cards")
    print(f"one decision: p50 {p50:.1f} us, p99 {p99:.1f} us, longest {worst:.1f} us")
    print(
        f"plain loop: p50 {np.percentile(plain, 50) / 1e3:.1f} us; "
        f"{np.median(plain) / np.median(times):.0f} times as long"
    )
    print(f"asked: p99 at most {ASKED_P99:.0f} us: {'met' if p99 <= ASKED_P99 else 'NOT met'}")
    whole(given.model, given.cards, given.decisions)


def whole(model: str, cards: int, decisions: int) -> None:
    engine = filled(model, cards)
    times, used, placed = decided(engine, model, decisions)
    for what, measured in (("wall clock", times), ("CPU time", used)):
        p50, p99, p999 = (float(np.percentile(measured, q)) / 1e3 for q in (50, 99, 99.9))
        print(f"whole engine, {what}: p50 {p50:.1f} us, p99 {p99:.1f} us, p99.9 {p999:.1f} us")
    print(f"{placed} of {decisions} placed; from the second half, when the states are known")


def filled(model: str, cards: int) -> Engine:
    """An engine over nodes of eight cards in mode mig."""
    axis = MIG_CARDS[model].axis
    plain = frozenset(profile.name for profile in axis.profiles if profile.plain)
    memory = max(profile.memory_bytes for profile in axis.profiles)
    engine = Engine(Policy())
    for number in range(cards // 8):
        devices = tuple(
            Device(
                DeviceType.GPU,
                minor,
                f"GPU-{number}-{minor}",
                "nvidia",
                model,
                memory_bytes=memory,
                mode=SliceMode.MIG,
                cutting=Cutting(axis, plain),
                slots=10,
            )
            for minor in range(8)
        )
        engine.handle(NodeSeen(Node(f"n{number}", devices=devices)))
    return engine


def decided(engine: Engine, model: str, decisions: int) -> tuple[list[int], list[int], int]:
    chance = random.Random(1)  # noqa: S311
    profiles = [p for p in MIG_CARDS[model].axis.profiles if p.plain]
    weights = [1.0 / profile.size for profile in profiles]
    asks = [
        RequestGroup(
            "hami",
            DeviceRequest(DeviceType.GPU, memory_bytes=p.memory_bytes, instances=True),
            (ContainerAsk("main"),),
        )
        for p in profiles
    ]
    running: list[str] = []
    times, used, placed = [], [], 0
    gc.disable()
    for number in range(2 * decisions):
        (ask,) = chance.choices(asks, weights)
        pod = Pod(f"u{number}", "default", f"p{number}", request=PodRequest((ask,)))
        wall, cpu = time.perf_counter_ns(), time.thread_time_ns()
        found = engine.schedule(pod, reasons=False)
        cpu, wall = time.thread_time_ns() - cpu, time.perf_counter_ns() - wall
        if number >= decisions:
            times.append(wall)
            used.append(cpu)
            placed += isinstance(found, Placement)
        if isinstance(found, Placement):
            running.append(pod.uid)
        if running and (not isinstance(found, Placement) or chance.random() < 0.5):
            gone = running.pop(chance.randrange(len(running)))
            engine.handle(PodGone(gone))
    gc.enable()
    return times, used, placed


def run(layouts: Layouts, cards: int, decisions: int) -> tuple[list[int], list[int], int]:
    chance = random.Random(1)  # noqa: S311
    wishes = [(p.name,) for p in layouts.axis.profiles if p.plain]
    weights = [1.0 / layouts.axis.profile(wish[0]).size for wish in wishes]
    states = np.zeros(cards, np.int32)
    running: deque[tuple[int, MigSlice]] = deque()
    times, plain, placed = [], [], 0
    for number in range(decisions):
        (wish,) = chance.choices(wishes, weights)
        began = time.perf_counter_ns()
        found = layouts.cheapest(states, layouts.column(wish))
        times.append(time.perf_counter_ns() - began)
        if number % 100 == 0:
            began = time.perf_counter_ns()
            same = loop(layouts, states.tolist(), wish)
            plain.append(time.perf_counter_ns() - began)
            if same != (None if found is None else found[:2]):
                raise SystemExit(f"the plain loop disagrees: {same}, {found}")
        placed += keep(states, running, found)
        if found is None or chance.random() < 0.5:
            running.rotate(-chance.randrange(len(running) or 1))
            card, one = running.popleft()
            states[card] = layouts.without(int(states[card]), one)
    return times, plain, placed


def keep(
    states: np.ndarray,
    running: deque[tuple[int, MigSlice]],
    found: tuple[int, MigSlice, int] | None,
) -> int:
    if found is None:
        return 0
    card, one, states[found[0]] = found
    running.append((card, one))
    return 1


def loop(
    layouts: Layouts, states: list[int], wish: tuple[str, ...]
) -> tuple[int, MigSlice] | None:
    costs, positions = layouts.column(wish).cost.tolist(), layouts.column(wish).position.tolist()
    best, where = NOWHERE, -1
    for card, state in enumerate(states):
        if costs[state] < best:
            best, where = costs[state], card
    return None if where < 0 else (where, layouts.positions[positions[states[where]]])


if __name__ == "__main__":
    main()
