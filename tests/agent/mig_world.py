"""A node with one card whose agent may be killed at any effect, and whose driver may lie."""

from collections.abc import Sequence

from fakes.nvml import FakeNvml, Trouble
from partage.agent.mig.cdi import Numbers, Spec
from partage.agent.mig.journal import CardJournal, Stage
from partage.agent.mig.nvml import GpuInstance
from partage.agent.mig.plan import Wanted
from partage.agent.mig.runner import Node, Outcome, Runner
from partage.model.mig import MigSlice

CARD = "GPU-0"
ROUNDS = 200


class Killed(BaseException):
    """The agent ends here, at once."""


class World:
    """Driver, journal and specifications, with a count of everything that changes them.

    Attributes:
        kill: (number of an effect, whether after it); the agent is killed there, once each.
        troubles: number of a driver's call to what goes wrong with it.
        effects: how many there have been.
        calls: how many of them were the driver's.
        log: what happened, for a test that fails.
    """

    def __init__(self, model: str = "A100-80GB", *, on: bool = True) -> None:
        self.nvml = FakeNvml(model, on=on)
        self.nvml.before = self._called
        self.journal = CardJournal(CARD)
        self.specs: dict[int, bytes] = {}
        self.kill: set[tuple[int, bool]] = set()
        self.troubles: dict[int, Trouble] = {}
        self.effects = self.calls = 0
        self.now = 0.0
        self.log: list[str] = []
        self.runner = self.restarted()

    def restarted(self) -> Runner:
        """A new process: it knows nothing but what is kept."""
        epoch = lambda: str(self.nvml.epoch)  # noqa: E731 # a two-word function
        node = Node(self.nvml, self, self, epoch, self.numbers)
        self.runner = Runner(self.nvml.cards()[0], node)
        return self.runner

    def reboot(self) -> None:
        """The machine boots again; the specifications were in memory."""
        self.nvml.restart()
        self.specs.clear()

    # --- what can be counted ------------------------------------------------------------------

    def _effect(self, what: str) -> int:
        number = self.effects
        self.effects += 1
        self.log.append(what)
        self._maybe(number, after=False)
        return number

    def _maybe(self, number: int, *, after: bool) -> None:
        if (number, after) in self.kill:
            self.kill.discard((number, after))
            raise Killed

    def _called(self, call: str) -> Trouble | None:
        self._maybe(self.effects - 1, after=True)
        self._effect(call)
        self.calls += 1
        return self.troubles.get(self.calls - 1)

    def load(self, card: str) -> CardJournal:
        """The journal; also where a kill after the driver's last call strikes."""
        self._maybe(self.effects - 1, after=True)
        return self.journal

    def save(self, journal: CardJournal) -> None:
        """Keep a journal."""
        number = self._effect("journal")
        self.journal = journal
        self._maybe(number, after=True)

    def present(self, card: str) -> tuple[Spec, ...]:
        """Specifications on disk."""
        return tuple(
            Spec(start, text.split(b'"name": "')[1].split(b'"')[0].decode())
            for start, text in sorted(self.specs.items())
        )

    def write(self, card: str, start: int, content: bytes) -> None:
        """Write a specification."""
        number = self._effect("write spec")
        self.specs[start] = content
        self._maybe(number, after=True)

    def remove(self, card: str, start: int) -> None:
        """Remove a specification."""
        number = self._effect("remove spec")
        self.specs.pop(start, None)
        self._maybe(number, after=True)

    def numbers(self) -> Numbers:
        """Capabilities of what is on the card."""
        minors = {"gpu0/gi0/access": 3}
        for one in self.nvml.instances(CARD):
            minors[f"gpu0/gi{one.id}/access"] = 10 * one.id
            for compute in one.computes:
                minors[f"gpu0/gi{one.id}/ci{compute.id}/access"] = 10 * one.id + compute.id + 1
        return Numbers(195, 510, 511, minors)

    # --- runs ---------------------------------------------------------------------------------

    def converge(self, wanted: Sequence[Wanted], *, reboots: bool = False) -> Outcome:
        """Run until nothing is left to do or only an operator can help; a killed agent is started again."""
        for _ in range(ROUNDS):
            try:
                outcome = self.runner.settle(wanted, self.now)
            except Killed:
                if reboots:
                    self.reboot()
                self.restarted()
                continue
            if outcome.again is None or all(
                h.obstacle != "Driver" for h in outcome.hindrances
            ) & bool(outcome.hindrances):
                return outcome
            self.now = max(self.now, outcome.again)
        raise AssertionError(f"does not converge: {outcome}\n{self.log[-40:]}")

    def ours(self) -> set[GpuInstance]:
        """Instances on the card that the journal has."""
        numbers = {entry.gpu for entry in self.journal.entries}
        return {one for one in self.nvml.instances(CARD) if one.id in numbers}

    def check(self, wanted: Sequence[Wanted], foreign: Sequence[GpuInstance] = ()) -> None:
        """Books equal the device: what is wanted is there, ready, specified; others' is as it was."""
        there = self.nvml.instances(CARD)
        assert {one for one in there if one not in self.ours()} == set(foreign), self.log
        names = {profile.id: profile.name for profile in self.nvml.axis(CARD).profiles}
        made = {MigSlice(names[one.profile], one.start, one.size) for one in self.ours()}
        assert made == {one.instance for one in wanted}, self.log
        entries = {(entry.instance, entry.owner): entry for entry in self.journal.entries}
        assert set(entries) == {(one.instance, one.owner) for one in wanted}, self.log
        uuids = {one.id: one.computes[0].uuid for one in self.ours()}
        for entry in entries.values():
            assert entry.stage is Stage.READY, self.log
            assert entry.gpu is not None
            assert uuids[entry.gpu] == entry.uuid, self.log
        assert {(spec.start, spec.uuid) for spec in self.present(CARD)} == {
            (entry.instance.start, entry.uuid) for entry in entries.values()
        }, self.log


def want(world: World, profile: str, start: int, owner: str = "pod-a") -> Wanted:
    """An instance that a pod's record has."""
    return Wanted(world.nvml.axis(CARD).profile(profile).at(start), owner)
