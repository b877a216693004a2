"""Checks that kube-scheduler asks us, about every pod and every node, and that no other program decides."""

from collections.abc import Collection, Iterator
from typing import Any, Final

from partage.doctor.finding import ClusterFacts, Finding, Object, error, named, ours, warning

_VERBS: Final = ("filterVerb", "prioritizeVerb", "bindVerb", "preemptVerb")
_RIVALS: Final = (
    "hami-scheduler",
    "koord-scheduler",
    "vgpu-scheduler",
    "gpushare-sche-extender",
    "qgpu-scheduler",
)
_GATES: Final = {
    "ValidatingAdmissionPolicy": "records could be forged",
    "AdmissionWebhookMatchConditions": "every pod would depend on the webhook",
    "DevicePluginCDIDevices": "containers would not get their devices by CDI",
    "KubeletPodResources": "the agent could not know which pod has which device",
}
"""Feature gates that must not be off, and the effect if one is."""
_SHOWN: Final = 5
_LONG: Final = 400
_STUCK: Final = frozenset(
    {
        "CrashLoopBackOff",
        "CreateContainerConfigError",
        "CreateContainerError",
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "RunContainerError",
    }
)
"""A kubelet's reasons for a waiting container that waiting alone does not solve."""


def _asks_us(extender: Object) -> bool:
    """Whether an extender's entry is ours: the service's path, with a bind verb."""
    return str(extender.get("urlPrefix", "")).rstrip("/").endswith("/scheduler") and bool(
        extender.get("bindVerb")
    )


def has_plugin(config: Object) -> bool:
    """Whether a profile of the configuration has Partage's plugin."""
    return any(enabled(profile, "multiPoint") for profile in config.get("profiles") or ())


def enabled(profile: Object, point: str) -> list[Object]:
    """The entries of Partage's plugin at an extension point of a profile."""
    found = ((profile.get("plugins") or {}).get(point) or {}).get("enabled") or ()
    return [one for one in found if one.get("name") == "Partage"]


def _ours(facts: ClusterFacts) -> Iterator[tuple[str, Object, Object]]:
    for where, config in facts.schedulers.items():
        for one in config.get("extenders") or ():
            if _asks_us(one):
                yield where, config, one


def extender(facts: ClusterFacts) -> Iterator[Finding]:
    """An extender entry exists, for all pods with devices, with all verbs; or the plugin instead."""
    found = list(_ours(facts))
    if not found and not any(map(has_plugin, facts.schedulers.values())):
        yield _missing(facts)
    for where, config, one in found:
        yield from _managed(where, config, one)
        missing = [verb for verb in _VERBS if not one.get(verb)]
        if missing or one.get("ignorable"):
            wrong = f"{', '.join(missing)} missing" if missing else "ignorable is true"
            yield error(
                "extender-incomplete",
                where,
                f"the extender needs all four verbs and must not be ignorable; {wrong}",
                "print the configuration with partage scheduler's chart (ConfigMap "
                "partage-kube-scheduler) and apply it",
            )


def _managed(where: str, config: Object, extender: Object) -> Iterator[Finding]:
    """Whether the extender's managed names include all device names, and which device pods use none of them."""
    managed = {entry.get("name", "") for entry in extender.get("managedResources") or ()}
    if not managed:
        return
    left = {
        name
        for profile in config.get("profiles") or ()
        for plugin in profile.get("pluginConfig") or ()
        for name in (plugin.get("args") or {}).get("ignoredResources") or ()
    }
    lacking = sorted(left - managed)
    if lacking or not left:
        yield error(
            "managed-resources",
            where,
            f"the extender must see every pod with devices; managedResources lacks {', '.join(lacking) or 'them'}, "
            "so pods that ask by these names are bound without a record",
            "remove managedResources from the extender, or name there every resource that ignoredResources names, and restart "
            "kube-scheduler",
        )
        return
    yield warning(
        "managed-resources",
        where,
        "managedResources cannot name kubernetes.io/*: pods of Koordinator v1.4 are bound without a record",
        "remove managedResources from the extender where such pods may come; use Koordinator's names of today in "
        "their place",
    )


def _missing(facts: ClusterFacts) -> Finding:
    """The finding for a missing entry; pods bound meanwhile show whether there once was one."""
    bare = [
        named(pod)
        for pod in facts.pods
        if _component(pod) == "kube-scheduler"
        and not any(
            option(one, "--config", "given") for one in pod.get("spec", {}).get("containers", ())
        )
    ]
    lost = bool(bare) and any(
        "partage.io/allocation" in pod.get("metadata", {}).get("annotations", {})
        for pod in facts.pods
    )
    thing = ", ".join(bare) or "kube-scheduler"
    if lost:
        return error(
            "extender-lost",
            thing,
            "pods were placed by Partage, yet kube-scheduler runs without --config: an upgrade of "
            "the control plane overwrote its static pod",
            "add --config and its volume to /etc/kubernetes/manifests/kube-scheduler.yaml again, "
            "or install the chart's own kube-scheduler, which no upgrade touches",
        )
    return error(
        "extender-not-configured",
        thing,
        "a KubeSchedulerConfiguration must have an extender whose urlPrefix ends with /scheduler, or "
        f"Partage's plugin; {len(facts.schedulers)} were found, none has",
        "install the chart's kube-scheduler, or add the extender; where the configuration is a "
        "file, or in another namespace than kube-system and Partage's, name it with --scheduler-config",
    )


def sampling(facts: ClusterFacts) -> Iterator[Finding]:
    """kube-scheduler examines every node."""
    for where, config, _ in _ours(facts):
        percent = config.get("percentageOfNodesToScore", 0)
        if percent != 100:  # percent
            yield warning(
                "sampling",
                where,
                f"percentageOfNodesToScore must be 100, and is {percent or 'left to the default'}: "
                "kube-scheduler shows Partage a part of the nodes only, so the policy packs large "
                "clusters worse than it could, and a pod waits for room on nodes that were left out",
                "set percentageOfNodesToScore: 100 and restart kube-scheduler, unless speed on "
                "thousands of nodes matters more",
            )


def unrecorded(facts: ClusterFacts) -> Iterator[Finding]:
    """No other scheduler has bound a pod with devices."""
    if facts.unrecorded:
        some = ", ".join(facts.unrecorded[:_SHOWN])
        yield error(
            "bound-without-record",
            some,
            f"{len(facts.unrecorded)} bound pods ask for devices and have no record: another scheduler "
            "bound them, and their nodes' devices are closed",
            "make sure that each of their scheduler names has a profile beside the extender, then "
            "delete these pods and create them again",
        )


def parts(facts: ClusterFacts) -> Iterator[Finding]:
    """No program of the chart fails repeatedly, or waits for an image."""
    for pod in facts.pods:
        status = pod.get("status", {})
        for one in status.get("containerStatuses") or () if ours(pod) and not _over(pod) else ():
            waits = (one.get("state") or {}).get("waiting") or {}
            ended = (one.get("lastState") or {}).get("terminated") or {}
            why = waits.get("reason", "") if waits.get("reason") in _STUCK else ""
            if not why and not one.get("ready") and ended.get("exitCode"):
                why = f"ended with {ended['exitCode']}"
            if why:
                space, name = pod["metadata"].get("namespace"), pod["metadata"].get("name")
                told = str(waits.get("message") or ended.get("message") or "")[:_LONG]
                yield error(
                    "part-failing",
                    named(pod),
                    f"every program of Partage's must run, and container {one.get('name')} does not: {why}"
                    + (f" ({told})" if told else ""),
                    f"kubectl -n {space} logs {name} -c {one.get('name')} --previous; for an image, image.repository and "
                    "image.tag of the chart",
                )


def others(facts: ClusterFacts) -> Iterator[Finding]:
    """No second scheduler allocates the same cards."""
    for pod in facts.pods:
        if _over(pod) or ours(pod):
            continue
        images = " ".join(c.get("image", "") for c in pod.get("spec", {}).get("containers", ()))
        text = f"{images} {pod.get('metadata', {}).get('name', '')}"
        rival = next((name for name in _RIVALS if name in text), "")
        if rival:
            yield error(
                "other-scheduler",
                named(pod),
                f"{rival} still runs beside Partage, and both allocate the same cards",
                "scale its Deployment to 0; its scheduler name stays valid, Partage has a profile for it",
            )


def gates(facts: ClusterFacts) -> Iterator[Finding]:
    """No feature that Partage needs is switched off."""
    for pod in facts.pods:
        for gate in switched_off(pod, _GATES):
            yield error(
                "feature-gate",
                named(pod),
                f"feature gate {gate} must be on, and is off: {_GATES[gate]}",
                f"remove {gate}=false from --feature-gates",
            )


def switched_off(pod: Object, gates: Collection[str]) -> list[str]:
    """Those of the feature gates that a pod's options switch off."""
    given = {
        part
        for one in pod.get("spec", {}).get("containers") or ()
        for text in (*(one.get("command") or ()), *(one.get("args") or ()))
        if str(text).startswith("--feature-gates=")
        for part in str(text).partition("=")[2].split(",")
    }
    return sorted(gate for gate in gates if f"{gate}=false" in given)


def rights(facts: ClusterFacts) -> Iterator[Finding]:
    """The service's account has the rights that the service needs."""
    if facts.denied:
        yield error(
            "rights",
            "the scheduler's service account",
            f"it may not {'; '.join(facts.denied)}",
            "apply the chart's ClusterRole and ClusterRoleBinding again",
        )


def _over(pod: Object) -> bool:
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def _component(pod: Object) -> str:
    meta: Any = pod.get("metadata", {})
    return str((meta.get("labels") or {}).get("component", ""))


def option(container: Object, name: str, bare: str = "") -> str:
    """The text after `name=` in a container's command; `bare` without such text, empty without the option."""
    for text in (*(container.get("command") or ()), *(container.get("args") or ())):
        key, _, value = str(text).partition("=")
        if key == name:
            return value or bare
    return ""
