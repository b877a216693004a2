"""Compares policies: the same engine places all pods again from nothing under another policy.

Nodes, quotas and tables are those of the live books. What these have not learnt, the default policy and FGD get from
the known requests. Pods are placed by priority and then by age, as if all had just been created. No pod is
moved. The devices of ResourceClaims stay where they are, because kube-scheduler allocates them. The engines are thrown away afterwards, and between two pods the event loop serves others. Pods that are hard to
place are searched for until the search of a policy is used up: any user may make thousands of them, and others' pods
wait for their decisions meanwhile.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from partage.dashboard.fragments import KINDS, fragments_of, shapes_of, usual
from partage.dashboard.overview import sums
from partage.dashboard.roster import merged
from partage.dashboard.workloads import waiting_pods
from partage.extender.books import Books
from partage.model.device import DeviceType
from partage.model.pod import Pod
from partage.model.policy import Policy, Strategy
from partage.model.reason import Refusal
from partage.placement.card import FEW, Work
from partage.placement.card import MOST as MOST_WORK
from partage.placement.fragmentation import Shape, Workload
from partage.placement.learning import Arrivals, asks_of, in_sight
from partage.placement.mix import Stock
from partage.placement.tables import Tables
from partage.scheduler.engine import Engine
from partage.scheduler.events import NodeSeen, PodSeen, QuotasChanged, TablesChanged

MOST: Final = 3000
"""Most pods of a comparison beside live decisions."""
SEARCHED: Final = 20 * MOST_WORK
"""Units of work beyond those of ordinary pods that the search under one policy may take."""
_NODES: Final = 32
"""Nodes read before other tasks run."""
_ASKS: Final = 4
"""Pods whose asks are computed before other tasks run: each may have hundreds of conditions on nodes, as no other has."""
_PODS: Final = 512
"""Pods listed before other tasks run."""


async def comparison_document(books: Books, most: int = MOST) -> dict[str, Any]:
    """The cluster's present state and its state under each policy, unless it has more pods than `most`."""
    waiting = [books.waiting.get(entry.pod.uid) for entry in waiting_pods(books)]
    pods, workload = await _pods(books)
    codes = Counter(one.refusal.code.value if one else "" for one in waiting)
    today = await _row(books.engine, len(pods) - len(waiting), codes, workload)
    rows = [today | {"policy": str(books.engine.policy), "now": True}]
    policies = _policies(books.engine.policy) if len(pods) <= most else []
    tables = await _tables(books.engine, pods) if policies else books.engine.tables
    rows += [await _row_under(policy, books, tables, pods, workload) for policy in policies]
    claimants = books.cluster_cache.claimants
    by_claims = {"placed": claimants.count(placed=True), "waiting": claimants.count()}
    return {"pods": len(pods), "by_claims": by_claims, "most": most, "rows": rows}


def _policies(current: Policy) -> list[Policy]:
    """The policy in force first, then popular ones."""
    usual = (Strategy.PARTAGE, Strategy.BINPACK, Strategy.SPREAD, Strategy.FGD)
    found = [current, *(Policy(strategy, strategy) for strategy in usual)]
    return list({str(policy): policy for policy in found}.values())


async def _pods(books: Books) -> tuple[list[Pod], Workload]:
    """Every pod that has not ended, as if just created, in order of turns; and their usual requests."""
    runs: list[list[tuple[int, str, int, Pod]]] = []
    shapes: Counter[Shape] = Counter()
    entries = list(enumerate(books.cluster_cache.pods.values()))
    for start in range(0, len(entries), _PODS):
        run = []
        for number, entry in entries[start : start + _PODS]:
            pod = entry.pod
            if pod.finished or not pod.request.groups:
                continue
            turn = -pod.priority, books.cluster_cache.born(pod.uid) or "", number
            run.append((*turn, replace(pod, node=None, record=None)))
            shapes.update(shapes_of(pod))
        runs.append(sorted(run))
        await asyncio.sleep(0)
    return [one[-1] for one in await merged(runs)], await usual(shapes)


async def _tables(live: Engine, pods: Sequence[Pod]) -> Tables:
    """The default policy's tables, or those that it would have in force."""
    seen = Arrivals()
    for number, ask in enumerate(asks_of(pods, live.ledger, live.accepting)):
        seen.add((ask,))
        if not number % _ASKS:
            await asyncio.sleep(0)
    stock = Stock.of(node for node in live.ledger.nodes if node is not None)
    await asyncio.sleep(0)
    tables = in_sight(live.tables, seen, stock)
    # FGD's first decision measures every node against each kind, in one step.
    return replace(tables, workload=tables.workload.cut(KINDS))


async def _row_under(
    policy: Policy, books: Books, tables: Tables, pods: Sequence[Pod], workload: Workload
) -> dict[str, Any]:
    live, engine = books.engine, Engine(policy)
    engine.handle(TablesChanged(tables))
    engine.handle(QuotasChanged(live.quotas.quotas))
    for number, node in enumerate(list(live.ledger.nodes)):
        if node is not None:
            engine.handle(NodeSeen(node))
        if not number % _NODES:
            await asyncio.sleep(0)
    for fact in books.cluster_cache.claims.facts():
        engine.handle(PodSeen(fact))
    codes: Counter[str] = Counter()
    left = SEARCHED
    for pod in pods:
        work = Work() if left > 0 else Work(FEW)
        decision = engine.schedule(pod, work=work)
        left -= max(0, work.taken - FEW)
        if isinstance(decision, Refusal):
            codes[decision.code.value] += 1
        await asyncio.sleep(0)
    row = await _row(engine, len(pods) - sum(codes.values()), codes, workload)
    return row | {"policy": str(policy), "now": False}


async def _row(
    engine: Engine, placed: int, codes: Counter[str], workload: Workload
) -> dict[str, Any]:
    plane = engine.ledger.planes[DeviceType.GPU]
    return {
        "placed": placed,
        "waiting": sum(codes.values()),
        "waiting_by_code": [{"code": code, "pods": n} for code, n in codes.most_common()],
        **sums(plane, plane.kind > 0),
        "fragmentation": await fragments_of(engine.ledger, workload),
    }
