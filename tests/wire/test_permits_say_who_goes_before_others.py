"""`permits` of `partage-config`: operators' rules for what pods wish, what is written of them, and what is read back."""

import json
from typing import Any

import pytest
from manifests import card, cluster, config_map, container, device, documents, node, only, pod

from partage.model.errors import InvalidDocument
from partage.model.permit import Permit, Wish
from partage.scheduler.facts import fact_of
from partage.sim.offline import PodOutcome, schedule
from partage.vendors import names
from partage.wire import permit
from partage.wire.config import translate_config
from partage.wire.context import Context
from partage.wire.translation import Translation

HALF = {
    "koordinator.sh/gpu.shared": "1",
    "koordinator.sh/gpu-core": "50",
    "koordinator.sh/gpu-memory": "4Gi",
}
WHOLE = {"koordinator.sh/gpu": "100"}
RULES = """
- name: shop
  namespaces: [shop]
  serviceAccounts: [web]
  online: true
  onlinePods: 1
  policy: bs
- {name: quiet, namespaces: [quiet, labs], policy: fixed-share}
- {name: rest, namespaces: ["*"], online: true, onlineCards: 50%}
"""
SHOP = Wish(online=True, rule="shop", pods=1, policy="burst-share")


def _pod(
    name: str = "web",
    namespace: str = "shop",
    account: str = "web",
    limits: Any = HALF,
    **annotations: str,
) -> Any:
    said = {key.replace("_", "-"): value for key, value in annotations.items()}
    named = {
        names.QGPU_APP_CLASS: said.pop("app", "online"),
        **({names.COMPUTE_POLICY: said["policy"]} if "policy" in said else {}),
    }
    meta = {"namespace": namespace, "uid": f"uid-{name}", "annotations": named}
    return pod(name, container(limits=limits), meta=meta, serviceAccountName=account)


def _placed(*pods: Any, rules: str = RULES) -> list[PodOutcome]:
    found = schedule(
        cluster(
            config_map("partage-config", permits=rules),
            node("n1", labels={names.GPU_VENDOR: "nvidia"}),
            device("n1", card(0), card(1), meta={"labels": {names.GPU_VENDOR: "nvidia"}}),
            *pods,
        )
    )
    return list(found.pods)


def _wish(manifest: Any, rules: str = RULES) -> Wish | None:
    return only(config_map("partage-config", permits=rules), manifest).pod.wish


def test_the_first_rule_that_names_a_pod_decides() -> None:
    """Rules name namespace and service account; another account of the namespace does not get the same."""
    assert _wish(_pod()) == SHOP
    assert _wish(_pod(namespace="labs")) == Wish(
        online=True,
        rule="quiet",
        denied="online is not granted by rule quiet",
        policy="fixed-share",
    )
    other = _wish(_pod(account="cron"))
    assert other == Wish(online=True, rule="rest", cards_milli=500)
    without = _wish(_pod(account="cron"), rules=RULES.partition("- {name: rest")[0])
    assert without is not None
    assert without.rule == ""
    assert without.denied == (
        "online is not granted: no rule names service account cron of namespace shop "
        "(permits of partage-config)"
    )


def test_an_account_that_is_not_named_is_kubernetes_default() -> None:
    """The API server fills it in."""
    manifest = _pod()
    del manifest["spec"]["serviceAccountName"]
    rules = "[{name: d, namespaces: [shop], serviceAccounts: [default], online: true}]"

    assert _wish(manifest, rules) == Wish(online=True, rule="d")


def test_pods_of_one_template_are_not_taken_for_each_other() -> None:
    """A live service reads pods of equal specs once; account and namespace are part of what is equal."""
    config = translate_config(documents(config_map("partage-config", permits=RULES)))
    translation = Translation(Context.of(config.settings, cluster(_pod()).context.families))
    for manifest, rule in (
        (_pod(), "shop"),
        (_pod(), "shop"),
        (_pod(account="cron"), "rest"),
        (_pod(namespace="labs"), "quiet"),
    ):
        (document,) = documents(manifest)
        wish = translation.read(document).pod.wish
        assert wish is not None
        assert wish.rule == rule


@pytest.mark.parametrize(
    ("manifest", "online"),
    [
        (_pod(), True),
        (_pod(app="offline"), False),
        (_pod(app=""), False),
        (_pod(app="", limits={"nvidia.com/gpumem": "100", "nvidia.com/priority": "0"}), True),
        (_pod(app="", limits={"nvidia.com/gpumem": "100", "nvidia.com/priority": "1"}), False),
        (
            _pod(app="offline", limits={"nvidia.com/gpumem": "1", "nvidia.com/priority": "0"}),
            False,
        ),
    ],
)
def test_wishes_are_read_as_nodes_read_them(manifest: Any, *, online: bool) -> None:
    """The annotation goes before HAMi's resource."""
    wish = _wish(manifest)

    assert wish is not None
    assert wish.online is online


def test_there_is_nothing_to_wish_without_a_share_or_without_rules() -> None:
    """Whole cards have no neighbours; a cluster without rules is as before."""
    assert _wish(_pod(limits=WHOLE)) is None
    assert _wish(_pod(), rules="") is None
    (outcome,) = _placed(_pod(), rules="[]")
    assert outcome.rendering is not None
    assert names.PERMIT not in outcome.rendering.annotations


def test_what_is_given_stands_beside_the_record_and_comes_back() -> None:
    """One of two pods at once; the other runs as an ordinary one and reads why. Both come back as they were."""
    first, second = _placed(_pod("a"), _pod("b", policy="best-effort"))
    assert first.rendering is not None
    assert second.rendering is not None
    said = [json.loads(one.rendering.annotations[names.PERMIT]) for one in (first, second)]  # type: ignore[union-attr]
    why = "online is not granted: 1 of 1 pods of namespace shop are online already (rule shop)"

    assert said == [
        {"v": 1, "uid": "uid-a", "rule": "shop", "online": True, "policy": "burst-share"},
        {"v": 1, "uid": "uid-b", "rule": "shop", "policy": "burst-share", "why": why},
    ]
    assert list(second.notes)[-2:] == [
        "policy best-effort is cut down to burst-share by rule shop",
        why,
    ]
    assert not first.notes

    bound = []
    for outcome, manifest in ((first, _pod("a")), (second, _pod("b", policy="best-effort"))):
        manifest["metadata"]["annotations"] |= outcome.rendering.annotations  # type: ignore[union-attr]
        manifest["spec"]["nodeName"] = "n1"
        bound.append(manifest)
    again = _placed(*bound, _pod("c"))
    assert [one.allocation for one in again[:2]] == [first.allocation, second.allocation]
    third = again[2].allocation
    assert third is not None
    assert third.permit == Permit("shop", policy="burst-share", why=why)


def test_a_record_of_before_means_what_it_meant() -> None:
    """Without the annotation there is no permit, and nothing is closed."""
    (outcome,) = _placed(_pod(), rules="[]")
    manifest = _pod()
    manifest["metadata"]["annotations"] |= outcome.rendering.annotations  # type: ignore[union-attr]
    manifest["spec"]["nodeName"] = "n1"
    (now, after) = _placed(manifest, _pod("next"))

    allocation, suspicion = fact_of(now.pod.pod)
    assert suspicion is None
    assert allocation.permit is None
    assert after.allocation is not None
    assert after.allocation.permit == Permit("shop", online=True, policy="burst-share")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[" * 10_000,
        '{"v":1}',
        '{"v":2,"uid":"u","online":true}',
        '{"v":1,"uid":"another","online":true}',
        '{"v":1,"uid":"u","online":true,"more":1}',
        '{"v":1,"uid":"u","online":"true"}',
    ],
)
def test_what_cannot_be_trusted_gives_nothing(text: str) -> None:
    """Copies, other versions and nonsense; a pod is not even without a permit then."""
    found = permit.read({names.PERMIT: text}, "u")

    assert found is not None
    assert not found.online
    assert found.why
    assert permit.read({}, "u") is None
    good = Permit("shop", online=True, policy="fixed-share")
    assert permit.read({names.PERMIT: permit.encode(good, "u")}, "u") == good


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ("- {name: a}", "namespaces"),
        ("- {name: a, namespaces: []}", "0 names, 1 to 256 do"),
        ("- {name: A!, namespaces: [x]}", "'A!' is no name"),
        ("- {name: a, namespaces: ['x y']}", "'x y' is no object's name"),
        ("- {name: a, namespaces: [x], serviceAccounts: ['*']}", "'[*]' is no object's name"),
        ("- {name: a, namespaces: [x], onlinePods: 1}", "count nothing without online"),
        ("- {name: a, namespaces: [x], online: true, onlinePods: -1}", "-1 is not 0 to"),
        ("- {name: a, namespaces: [x], online: true, onlineCards: 25}", "onlineCards"),
        ("- {name: a, namespaces: [x], online: true, onlineCards: 101%}", "'101%' is no percent"),
        ("- {name: a, namespaces: [x], online: 'yes'}", "online"),
        ("- {name: a, namespaces: [x], policy: fast}", "'fast' is not one of best-effort, be,"),
        ("- {name: a, namespaces: [x], onlien: true}", "onlien"),
        (
            "- {name: a, namespaces: [x]}\n- {name: a, namespaces: [y]}",
            "field .1..name: a is the name",
        ),
        ("\n".join(f"- {{name: a{n}, namespaces: [x]}}" for n in range(65)), "65 rules, and 64"),
        ("name: a", "array"),
    ],
)
def test_a_rule_that_cannot_be_meant_is_an_error(rules: str, said: str) -> None:
    """It names ConfigMap, key, rule and field; what was in force before stays."""
    with pytest.raises(InvalidDocument, match=said) as caught:
        translate_config(documents(config_map("partage-config", permits=rules)))

    assert "partage-config" in str(caught.value)
    assert "data[permits]" in str(caught.value)
