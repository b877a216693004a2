"""The real driver's class over a library that answers as nvidia-ml-py does."""

# ruff: noqa: D102 # the functions are those of the library

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from fakes.nvml import FakeNvml
from partage.agent.mig.driver import NvidiaDriver
from partage.agent.mig.nvml import Failure, GpuInstance, Mode, NvmlFailed
from partage.model.errors import InvalidValue

CARD = "GPU-0"
CODES = {
    "NVML_ERROR_INVALID_ARGUMENT": 2,
    "NVML_ERROR_NOT_SUPPORTED": 3,
    "NVML_ERROR_NO_PERMISSION": 4,
    "NVML_ERROR_NOT_FOUND": 6,
    "NVML_ERROR_FUNCTION_NOT_FOUND": 13,
    "NVML_ERROR_GPU_IS_LOST": 15,
    "NVML_ERROR_RESET_REQUIRED": 16,
    "NVML_ERROR_IN_USE": 19,
    "NVML_ERROR_INSUFFICIENT_RESOURCES": 23,
}
BY_FAILURE = {
    Failure.INVALID_ARGUMENT: 2,
    Failure.NOT_SUPPORTED: 3,
    Failure.NOT_FOUND: 6,
    Failure.RESET_REQUIRED: 16,
    Failure.IN_USE: 19,
    Failure.INSUFFICIENT: 23,
    Failure.OTHER: 999,
}


class NVMLError(Exception):
    """As the library raises it."""

    def __init__(self, value: int) -> None:
        super().__init__(f"code {value}")
        self.value = value


class Placement(ctypes.Structure):
    """`nvmlGpuInstancePlacement_t`."""

    _fields_ = (("start", ctypes.c_uint), ("size", ctypes.c_uint))


class Library:
    """The functions of pynvml that are used, over the fake driver; handles are plain numbers."""

    NVMLError = NVMLError
    NVML_GPU_INSTANCE_PROFILE_COUNT = 0x12
    NVML_COMPUTE_INSTANCE_PROFILE_COUNT = 9
    NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED = 0
    NVML_DEVICE_ARCH_AMPERE = 7
    c_nvmlGpuInstancePlacement_t = Placement  # noqa: N815 # the library's own names
    c_nvmlGpuInstance_t = ctypes.c_uint  # noqa: N815
    c_nvmlComputeInstance_t = ctypes.c_uint  # noqa: N815

    def __init__(self, fake: FakeNvml) -> None:
        self.fake = fake
        self.activation = 0
        for name, code in CODES.items():
            setattr(self, name, code)

    def __getattr__(self, name: str) -> Any:
        """Everything else of NVML is a call, spelled here without its prefix."""
        function = getattr(self, name.removeprefix("nvml").lower())

        def call(*arguments: Any) -> Any:
            try:
                return function(*arguments)
            except NvmlFailed as error:
                raise NVMLError(BY_FAILURE[error.failure]) from None

        return call

    def init(self) -> None: ...

    def shutdown(self) -> None: ...

    def systemgetdriverversion(self) -> str:
        return "580.1"

    def devicegetcount(self) -> int:
        return 1

    def devicegethandlebyindex(self, index: int) -> str:
        return CARD

    def devicegethandlebyuuid(self, uuid: bytes) -> str:
        return self.fake.card(uuid.decode()).facts.uuid

    def devicegetpciinfo(self, device: str) -> SimpleNamespace:
        return SimpleNamespace(pciDeviceId=0x20B210DE)

    def devicegetarchitecture(self, device: str) -> int:
        return 7

    def devicegetuuid(self, device: Any) -> str:
        return str(device)

    def devicegetminornumber(self, device: str) -> int:
        return 0

    def devicegetname(self, device: str) -> bytes:
        return b"NVIDIA A100-SXM4-80GB"

    def devicegetmigmode(self, device: str) -> list[int]:
        mode = self.fake.mode(device)
        return [int(mode.current), int(mode.pending)]

    def devicesetmigmode(self, device: str, mode: int) -> int:
        return self.activation

    def devicegetgpuinstanceprofileinfo(self, device: str, kind: int) -> SimpleNamespace:
        for profile in self.fake.axis(device).profiles:
            if profile.kind == kind and profile.engines is not None:
                copy, dec, enc, jpeg, ofa = profile.engines.counts
                return SimpleNamespace(
                    id=profile.id,
                    name=f"MIG {profile.name}".encode(),
                    sliceCount=profile.compute,
                    instanceCount=profile.count,
                    multiprocessorCount=14 * profile.compute,
                    memorySizeMB=profile.memory_bytes >> 20,
                    copyEngineCount=copy,
                    decoderCount=dec,
                    encoderCount=enc,
                    jpegCount=jpeg,
                    ofaCount=ofa,
                )
        raise NVMLError(2 if kind > 0xC else 3)

    def devicegetgpuinstancepossibleplacements(
        self, device: str, profile: int, room: Any, count: Any
    ) -> None:
        own = next(p for p in self.fake.axis(device).profiles if p.id == profile)
        for number, start in enumerate(own.starts):
            room[number] = Placement(start, own.size)
        count._obj.value = len(own.starts)

    def devicecreategpuinstancewithplacement(self, device: str, profile: int, place: Any) -> None:
        self.fake.make_gpu_instance(device, profile, place._obj.start, place._obj.size)

    def devicegetgpuinstances(self, device: str, profile: int, room: Any, count: Any) -> None:
        found = [one.id for one in self.fake.instances(device) if one.profile == profile]
        room[: len(found)] = found
        count._obj.value = len(found)

    def devicegetgpuinstancebyid(self, device: str, number: int) -> int:
        if number not in self.fake.card(device).instances:
            raise NVMLError(6)
        return number

    def gpuinstancegetinfo(self, instance: int) -> SimpleNamespace:
        one = self.fake.card().instances[instance]
        return SimpleNamespace(
            id=one.id, profileId=one.profile, placement=Placement(one.start, one.size)
        )

    def gpuinstancegetcomputeinstanceprofileinfo(
        self, instance: int, kind: int, engine: int
    ) -> SimpleNamespace:
        slices = {0: 1, 1: 2, 2: 3, 3: 4, 4: 7}.get(kind)
        if slices is None:
            raise NVMLError(3)
        return SimpleNamespace(id=kind, sliceCount=slices)

    def gpuinstancegetcomputeinstances(
        self, instance: int, profile: int, room: Any, count: Any
    ) -> None:
        one = self.fake.card().instances[instance]
        found = [100 * instance + c.id for c in one.computes] if profile == 1 else []
        room[: len(found)] = found
        count._obj.value = len(found)

    def gpuinstancegetcomputeinstancebyid(self, instance: int, number: int) -> int:
        return 100 * instance + number

    def computeinstancegetinfo(self, instance: int) -> SimpleNamespace:
        number, compute = divmod(instance, 100)
        there = self.fake.card().instances[number].computes
        uuid = next(c.uuid for c in there if c.id == compute)
        return SimpleNamespace(id=compute, device=uuid)

    def gpuinstancecreatecomputeinstance(self, instance: int, profile: int) -> None:
        assert profile == 1  # two slices: that of the GPU instance of these tests
        self.fake.make_compute_instance(CARD, instance)

    def computeinstancedestroy(self, instance: int) -> None:
        self.fake.end_compute_instance(CARD, *divmod(instance, 100))

    def gpuinstancedestroy(self, instance: int) -> None:
        self.fake.end_gpu_instance(CARD, instance)


@pytest.fixture
def fake() -> FakeNvml:
    """The card behind the library."""
    return FakeNvml()


def test_profiles_and_places_read_as_the_table_has_them(fake: FakeNvml) -> None:
    """Names without their prefix, starts, memory, engines and attributes."""
    driver = NvidiaDriver(Library(fake))

    (facts,) = driver.cards()
    axis = driver.axis(CARD)

    assert (facts.pci, facts.keeps_mode, facts.minor) == ("20B2", True, 0)
    for profile, known in zip(
        sorted(axis.profiles, key=lambda p: p.kind),
        sorted(fake.axis(CARD).profiles, key=lambda p: p.kind),
        strict=True,
    ):
        for name in (
            "name",
            "compute",
            "size",
            "starts",
            "memory_bytes",
            "count",
            "engines",
            "id",
            "kind",
            "attributes",
        ):
            assert getattr(profile, name) == getattr(known, name), (known.name, name)


def test_a_lost_card_hides_no_other(
    fake: FakeNvml, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It has no identity; another failure may pass, so the agent starts again."""
    library = Library(fake)
    driver = NvidiaDriver(library)
    code = 15

    def handle(index: int) -> str:
        if index == 0:
            raise NVMLError(code)
        return CARD

    monkeypatch.setattr(library, "devicegetcount", lambda: 2)
    monkeypatch.setattr(library, "devicegethandlebyindex", handle)

    assert [card.uuid for card in driver.cards()] == [CARD]
    assert "NVIDIA card 0 gets no instances" in caplog.text
    code = 999
    with pytest.raises(NvmlFailed):
        driver.cards()


def test_an_instance_is_made_found_and_ended(fake: FakeNvml) -> None:
    """Every changing call, and the UUID from the compute instance."""
    driver = NvidiaDriver(Library(fake))
    driver.make_gpu_instance(CARD, 14, 2, 2)
    driver.make_compute_instance(CARD, 1)

    assert driver.instances(CARD) == fake.instances(CARD)
    assert driver.instances(CARD)[0].computes[0].uuid == "MIG-1"
    driver.end_compute_instance(CARD, 1, 0)
    assert driver.instances(CARD) == (GpuInstance(1, 14, 2, 2),)
    driver.end_gpu_instance(CARD, 1)
    assert driver.instances(CARD) == ()
    driver.close()


def test_refusals_are_told_apart(fake: FakeNvml) -> None:
    """Codes become reasons; the message names the call."""
    driver = NvidiaDriver(Library(fake))
    fake.foreign("7g.80gb", 0)

    with pytest.raises(NvmlFailed, match="WithPlacement: insufficient") as found:
        driver.make_gpu_instance(CARD, 14, 2, 2)
    assert found.value.failure is Failure.INSUFFICIENT
    with pytest.raises(NvmlFailed) as found:
        driver.end_gpu_instance(CARD, 1)
    assert found.value.failure is Failure.IN_USE
    with pytest.raises(NvmlFailed) as found:
        driver.end_gpu_instance(CARD, 7)
    assert found.value.failure is Failure.NOT_FOUND


@pytest.mark.parametrize("call", ["devicegetmigmode", "devicegetgpuinstances"])
def test_a_question_that_the_driver_does_not_understand_is_no_empty_card(
    fake: FakeNvml, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Others' instances would be unseen, and their places free."""
    library = Library(fake)
    driver = NvidiaDriver(library)
    fake.foreign("7g.80gb", 0)

    def refused(*_arguments: Any) -> None:
        raise NVMLError(2)

    monkeypatch.setattr(library, call, refused)
    with pytest.raises(NvmlFailed, match="invalid argument"):
        driver.instances(CARD)


@pytest.mark.parametrize("code", ["NVML_ERROR_NOT_SUPPORTED", "NVML_ERROR_FUNCTION_NOT_FOUND"])
def test_a_card_or_a_driver_without_mig_has_no_instances(
    fake: FakeNvml, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    """A driver from before MIG answers that it lacks the function, as discovery reads it too."""

    def without(_library: Library, _device: str) -> list[int]:
        raise NVMLError(CODES[code])

    monkeypatch.setattr(Library, "devicegetmigmode", without)
    driver = NvidiaDriver(Library(fake))

    assert driver.mode(CARD) == Mode(current=False, pending=False)
    assert driver.instances(CARD) == ()
    assert driver.axis(CARD).profiles == ()


def test_a_driver_that_lacks_a_later_function_has_no_empty_card(
    fake: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With MIG on, what is on the card is unknown."""

    def without(_library: Library, _device: str, _kind: int) -> SimpleNamespace:
        raise NVMLError(CODES["NVML_ERROR_FUNCTION_NOT_FOUND"])

    monkeypatch.setattr(Library, "devicegetgpuinstanceprofileinfo", without)
    driver = NvidiaDriver(Library(fake))

    for ask in (driver.axis, driver.instances):
        with pytest.raises(NvmlFailed):
            ask(CARD)


def test_a_mode_that_is_not_activated_is_a_refusal(fake: FakeNvml) -> None:
    """The call succeeds, its activation status does not."""
    library = Library(fake)
    driver = NvidiaDriver(library)
    driver.set_mode(CARD, on=True)
    library.activation = 16

    with pytest.raises(NvmlFailed) as found:
        driver.set_mode(CARD, on=True)

    assert found.value.failure is Failure.RESET_REQUIRED
    assert driver.mode(CARD) == Mode(current=True, pending=True)


def test_the_genuine_library_has_every_name() -> None:
    """What the class asks for exists in nvidia-ml-py, where it is installed."""
    library = pytest.importorskip("pynvml", reason="nvidia-ml-py (extra nvidia) is not installed")
    calls = [name for name in vars(Library) if name.islower() and not name.startswith("_")]
    there = {name.lower() for name in dir(library)}

    assert [name for name in calls if f"nvml{name}" not in there] == []
    for name in (
        *CODES,
        "NVML_GPU_INSTANCE_PROFILE_COUNT",
        "NVML_DEVICE_ARCH_AMPERE",
        "NVML_COMPUTE_INSTANCE_PROFILE_COUNT",
        "c_nvmlGpuInstancePlacement_t",
        "NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED",
        "c_nvmlGpuInstance_t",
        "c_nvmlComputeInstance_t",
    ):
        assert hasattr(library, name), name


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node without nvidia-ml-py gets a sentence."""
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)

    with pytest.raises(InvalidValue, match="extra `nvidia`"):
        NvidiaDriver.open()
