"""Which node and which card: cases of the originals' own tables, through the real command.

Each row stands in docs/compatibility. Pods come in the order in which they are written.
"""

import pytest
from original_manifests import JOINT, asks, outcomes, places, records, registered, slice_, switched

from published.parts import join, node, pod

NODES, CARDS = "hami.io/node-scheduler-policy", "hami.io/gpu-scheduler-policy"
QGPU = "tke.cloud.tencent.com/qgpu-"


@pytest.mark.parametrize("policy", ["partage", "spread", "binpack", "first-fit", "fgd"])
def test_a_share_goes_to_a_switch_in_use_under_every_policy(policy: str) -> None:
    """Koordinator's tree: card 3 is taken, so a share goes beside it and the other pair stays whole."""
    tree = switched(gpus={0: "0", 1: "0", 2: "1", 3: "1"})
    taken = asks("full", gpu="100")
    pair = {
        "scheduling.koordinator.sh/device-allocate-hint": '{"gpu":{"requiredTopologyScope":"PCIe"}}'
    }
    found = outcomes(
        join(tree, taken, asks("share", gpu="50"), asks("pair", pair, gpu="200")),
        "--policy",
        policy,
    )

    assert found == {"full": "gpu0", "share": "gpu1", "pair": "gpu2 gpu3"}


def test_shares_of_other_protocols_go_by_the_policy_alone() -> None:
    """HAMi knows no switch: under spread each share goes to an idle card, of any switch."""
    tree = switched(gpus={0: "0", 1: "0", 2: "1", 3: "1"})
    shares = [slice_(f"s{n}", gpu="1", gpumem="1000") for n in range(3)]

    found = outcomes(join(tree, *shares), "--policy", "spread")

    assert set(found.values()) == {"gpu0", "gpu1", "gpu2"}


@pytest.mark.parametrize(
    ("nics", "asked", "expected"),
    [
        pytest.param({1: "0", 2: "1", 3: "0"}, "200", "gpu0 rdma1 rdma3", id="same-switch-first"),
        pytest.param({1: "0", 2: "1", 3: "0"}, "300", "gpu0 rdma1 rdma3 rdma2", id="then-others"),
        pytest.param(
            {1: "0", 2: "7", 3: "1", 4: "0"}, "300", "gpu0 rdma1 rdma4 rdma3", id="then-this-numa"
        ),
        pytest.param({1: "1", 2: "1"}, "100", "gpu0 rdma1", id="none-near"),
    ],
)
def test_network_cards_come_from_the_primarys_switches(
    nics: dict[int, str], asked: str, expected: str
) -> None:
    """Koordinator's joint allocation; switches 0 to 3 are on NUMA node 0, the others on 1."""
    together = {JOINT: '{"deviceTypes":["gpu","rdma"]}'}

    found = outcomes(
        join(switched(gpus={0: "0"}, nics=nics), asks("p", together, gpu="100", rdma=asked))
    )

    assert found == {"p": expected}


def test_network_cards_of_several_switches_are_taken_in_turn() -> None:
    """Two cards on two switches and four network cards: one of each switch, then the next of each."""
    documents = switched(gpus={0: "0", 1: "1"}, nics={1: "0", 2: "0", 3: "0", 4: "1", 5: "1"})
    together = {JOINT: '{"deviceTypes":["gpu","rdma"]}'}

    found = outcomes(join(documents, asks("p", together, gpu="200", rdma="400")))

    assert found == {"p": "gpu0 gpu1 rdma1 rdma4 rdma2 rdma5"}


@pytest.mark.parametrize("count", [20, 10, 3])
@pytest.mark.parametrize("described", [False, True], ids=["registered", "with a Device object"])
def test_as_many_share_a_card_as_were_registered(count: int, described: bool) -> None:  # noqa: FBT001
    """HAMi's plugin registers `count`; no ConfigMap says otherwise."""
    machine = registered({"count": count}, described=described)
    pods = [slice_(f"p{n:02}", gpu="1", gpumem="100") for n in range(count + 1)]

    found = outcomes(join(machine, *pods))

    assert [found[name] for name in sorted(found)] == ["gpu0"] * count + ["InsufficientSlots"]


def test_containers_of_one_pod_share_a_card_as_registered() -> None:
    """Twelve containers on a card that was registered for twenty sharers."""
    part = "\n".join(
        f"    - name: c{n}\n      resources:\n        limits: {{nvidia.com/gpu: 1, nvidia.com/gpumem: 100}}"
        for n in range(12)
    )
    crowd = (
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: p\nspec:\n"
        f"  schedulerName: hami-scheduler\n  containers:\n{part}\n"
    )

    assert outcomes(join(registered({"count": 20}), crowd))["p"] == " ".join(["gpu0"] * 12)


def _sharers(*nodes: str) -> list[str]:
    """Four tenants of 1000 MiB on one card, and one of 8000 MiB on the other, of one node or of two."""
    small, large = nodes[0], nodes[-1]
    pinned = {"nvidia.com/use-gpuuuid": f"{small}-0"}
    other = {"nvidia.com/use-gpuuuid": f"{large}-{0 if len(nodes) > 1 else 1}"}
    return [
        *(slice_(f"small-{n}", pinned, gpu="1", gpumem="1000") for n in range(4)),
        slice_("large", other, gpu="1", gpumem="8000"),
    ]


@pytest.mark.parametrize(("wish", "expected"), [("spread", "gpu1"), ("binpack", "gpu0")])
def test_sharers_count_between_hamis_cards(wish: str, expected: str) -> None:
    """HAMi adds the parts used of sharers, compute and memory with equal weights."""
    asked = slice_("p", {CARDS: wish}, gpu="1", gpumem="1000")

    found = outcomes(join(registered({}, {}, name="n"), *_sharers("n"), asked))

    assert found["p"] == expected


@pytest.mark.parametrize(("wish", "expected"), [("spread", "b"), ("binpack", "a")])
def test_sharers_count_between_hamis_nodes(wish: str, expected: str) -> None:
    """The same between nodes, in both orders."""
    for first, second in (("a", "b"), ("b", "a")):
        nodes = [registered({}, name=name) for name in (first, second)]
        asked = slice_("p", {NODES: wish}, gpu="1", gpumem="1000")

        found = places(join(*nodes, *_sharers("a", "b"), asked))

        assert found["p"] == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("spread", "gpu1"),
        ("binpack", "gpu0"),
        ("", "gpu1"),
        ("unheard-of", "gpu1"),
        ("mutex", "gpu1"),
        ("topology-aware", "gpu1"),
        ("unheard-of,binpack", "gpu0"),
    ],
)
def test_a_card_policy_without_a_known_order_is_spread(text: str, expected: str) -> None:
    """One of two cards is used; HAMi orders cards by spread unless the annotation names another order."""
    used = slice_("used", gpu="1", gpumem="1000")
    asked = slice_("p", {CARDS: text}, gpu="1", gpumem="1000")

    assert outcomes(join(registered({}, {}), used, asked))["p"] == expected


@pytest.mark.parametrize("text", ["", "unheard-of", "binpack"])
def test_a_node_policy_that_is_not_spread_is_binpack(text: str) -> None:
    """HAMi's default between nodes, against a policy in force that is spread."""
    nodes = [registered({}, name=name) for name in ("a", "b")]
    used = slice_("used", {"nvidia.com/use-gpuuuid": "a-0"}, gpu="1", gpumem="1000")
    asked = slice_("p", {NODES: text}, gpu="1", gpumem="1000")

    assert places(join(*nodes, used, asked), "--policy", "spread")["p"] == "a"


def test_hamis_own_policy_puts_small_pods_on_different_cards() -> None:
    """Nodes by binpack, cards by spread, as its chart has them and our profile."""
    pods = [slice_(name, gpu="1", gpumem="1000") for name in ("p", "q")]

    found = outcomes(join(registered({}, {}), *pods), "--policy", "binpack/spread")

    assert sorted(found.values()) == ["gpu0", "gpu1"]


def test_qgpu_spreads_to_the_node_with_more_left() -> None:
    """Eight cards with one share on them have more left than one idle card (the qGPU document)."""
    nodes = [
        node(
            name,
            {f"{QGPU}core": str(100 * cards), f"{QGPU}memory": str(32 * cards)},
            labels={"qgpu-device-enable": "enable"},
        )
        for name, cards in (("small", 1), ("large", 8))
    ]
    asked = {f"{QGPU}core": "20", f"{QGPU}memory": "4"}
    pods = [pod(name, asked) for name in ("first", "second")]

    found = places(join(*nodes, *pods), "--policy", "spread")

    assert found == {"first": "large", "second": "large"}


@pytest.mark.parametrize(
    ("amounts", "record"),
    [
        ({"gpu": "1", "gpumem": "0"}, "GPU-0,NVIDIA,40960,0:;"),
        ({"gpu": "1", "gpumem-percentage": "0"}, "GPU-0,NVIDIA,40960,0:;"),
        ({"gpu": "1"}, "GPU-0,NVIDIA,40960,100:;"),
        ({"gpu": "1", "gpumem-percentage": "100"}, "GPU-0,NVIDIA,40960,100:;"),
        ({"gpu": "1", "gpumem": "3000", "gpumem-percentage": "100"}, "GPU-0,NVIDIA,3000,100:;"),
        ({"gpu": "1", "gpumem": "3000"}, "GPU-0,NVIDIA,3000,0:;"),
    ],
)
def test_compute_is_claimed_where_hami_claims_it(amounts: dict[str, str], record: str) -> None:
    """HAMi's webhook sets 100 cores where no memory is named, or 100 percent; the names decide, not 0."""
    limits = {f"nvidia.com/{name}": value for name, value in amounts.items()}

    output = records(join(registered({}), pod("p", limits, scheduler="hami-scheduler")))

    assert output["p"]["hami.io/vgpu-devices-allocated"] == record
