"""Takes the decisions of a record again, with the real engine, and reports the differences.

A record holds the engine's events and questions, in order. The same engine with the same events and questions must give
the same answers. Under another policy it gives that policy's answers, while the cluster's reports of its pods stay as
recorded.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from partage.model.errors import InvalidDocument, LedgerError
from partage.model.policy import Policy
from partage.model.reason import ReasonCode, Refusal
from partage.placement.card import FEW, MOST, Work
from partage.scheduler.engine import Engine
from partage.scheduler.events import Placement, PolicyChanged
from partage.scheduler.journal import EngineState, among_of, resumed
from partage.wire.journal import Header, Line, Question


@dataclass(frozen=True, slots=True)
class Compared:
    """One decision, as it was taken then and as it is taken now.

    Attributes:
        id: `instance/engine-number`; logs contain it too.
        question: with the answer of then.
        now: the answer of now.
    """

    id: str
    question: Question
    now: Placement | Refusal

    @property
    def same(self) -> bool:
        """Whether both are equal in every card, reason and number."""
        return self.question.decision == self.now


def rerun(lines: Iterable[Header | Line], policy: Policy | None = None) -> Iterator[Compared]:
    """Every decision of a record, taken again in order.

    `lines`: of one file or of several consecutive ones. `policy`: in force instead of the recorded ones. Raises
    `InvalidDocument`: the recording does not begin with a state.
    """
    engines: dict[str, Engine] = {}
    for line in lines:
        if isinstance(line, Header):
            continue
        entry = line.entry
        if isinstance(entry, EngineState):
            engines[line.engine] = resumed(replace(entry, policy=policy or entry.policy))
            continue
        engine = engines.get(line.engine)
        if engine is None:
            raise InvalidDocument(
                "the recording does not begin with a state, so its beginning is missing: replay the "
                "file from its first line"
            )
        if isinstance(entry, Question):
            yield Compared(f"{line.engine}-{entry.number}", entry, _answer(engine, entry))
        elif not (policy is not None and isinstance(entry, PolicyChanged)):
            engine.handle(entry)


def _answer(engine: Engine, asked: Question) -> Placement | Refusal:
    try:
        if asked.verb == "hold":
            work = Work(FEW if asked.few else MOST)
            work.done = asked.spent
            work.go_on()
            alone = replace(asked.pod, host={}) if asked.alone else None
            return engine.hold(asked.pod, among_of(engine, asked.among), work, alone)
        return engine.place_on(asked.pod, asked.node)
    except LedgerError as error:
        # Under another policy a pod may already have its place from another decision.
        return Refusal(ReasonCode.CARD_NOT_IDLE, str(error))
