"""Checks that kube-scheduler's plugin and its engine exist, reach each other, and are of one release."""

from collections.abc import Iterator
from typing import Final

from partage.doctor.finding import ClusterFacts, Finding, Object, error, named
from partage.doctor.scheduling import enabled, has_plugin, option
from partage.wire.plugin import SAME_RELEASE as _SAME_RELEASE

_WEIGHT: Final = 20
_SOCKET: Final = "PARTAGE_SOCKET"
_SHOWN: Final = 3
_ONE_RELEASE: Final = "install both images of the same release (image.tag and kubeScheduler.pluginImage.tag, or digest)"
_ALONE: Final = ("postFilter", "preBind", "bind")
"""Extension points that must name the plugin alone, so that it runs before kube-scheduler's own."""


def configuration(facts: ClusterFacts) -> Iterator[Finding]:
    """Every profile has the plugin with its weight and order, and no extender binds every pod."""
    for where, config in facts.schedulers.items():
        if not has_plugin(config):
            continue
        for one in config.get("extenders") or ():
            if one.get("bindVerb") and not one.get("managedResources"):
                yield error(
                    "plugin-and-extender",
                    where,
                    f"the extender {one.get('urlPrefix', '')} binds every pod, so the plugin could bind none; "
                    "with both, kube-scheduler does not start",
                    "remove the extender from extenders, or its bindVerb, and restart kube-scheduler",
                )
        for profile in config.get("profiles") or ():
            wrong = _wrong(profile)
            if wrong:
                name = profile.get("schedulerName", "default-scheduler")
                yield error(
                    "plugin-incomplete",
                    f"{where}, profile {name}",
                    f"every profile needs the plugin at multiPoint with weight {_WEIGHT}, and by "
                    f"itself at each of {', '.join(_ALONE)}; {wrong}",
                    "take the profile's plugins from the ConfigMap of partage scheduler's chart",
                )


def _wrong(profile: Object) -> str:
    weights = [one.get("weight") for one in enabled(profile, "multiPoint")]
    if not weights:
        return "multiPoint does not name it"
    if weights != [_WEIGHT]:
        return f"its weight is {weights[0]}"
    missing = [point for point in _ALONE if not enabled(profile, point)]
    return f"not named at {', '.join(missing)}" if missing else ""


def pods(facts: ClusterFacts) -> Iterator[Finding]:
    """Each kube-scheduler with the plugin has an engine beside it that listens, serves and understands it."""
    refused = [named(pod) for pod in facts.pods if _SAME_RELEASE in _waits(pod)]
    if refused:
        yield error(
            "plugin-version",
            ", ".join(refused[:_SHOWN]),
            "the plugin and the engine must be of one release; the engine refuses the plugin, so pods with "
            f"devices wait ({len(refused)} now)",
            _ONE_RELEASE,
        )
    for pod in facts.pods:
        for container in pod.get("spec", {}).get("containers", ()):
            given = {one.get("name"): one.get("value", "") for one in container.get("env") or ()}
            if _SOCKET in given and pod.get("status", {}).get("phase") == "Running":
                yield from _of(pod, container, given)


def _of(pod: Object, container: Object, given: dict[str, str]) -> Iterator[Finding]:
    path = given[_SOCKET]
    engines = [
        (one, value)
        for one in pod["spec"]["containers"]
        if one is not container and (value := option(one, "--plugin-socket"))
    ]
    if not engines:
        yield error(
            "plugin-socket",
            named(pod),
            "the engine must listen in the plugin's own pod; no other container has --plugin-socket",
            "install the chart with scheduler.seam: plugin, which puts both into one pod",
        )
        return
    engine, listens = engines[0]
    shared = _volume(container, path)
    if listens != path or not shared or shared != _volume(engine, path):
        yield error(
            "plugin-socket",
            named(pod),
            f"the plugin looks for the engine at {path}, in a volume of both; the engine listens at {listens}",
            f"give --plugin-socket and {_SOCKET} one path, and mount one emptyDir there in both",
        )
    mine, theirs = _tag(container), _tag(engine)
    if mine and theirs and mine != theirs:
        yield error(
            "plugin-version",
            named(pod),
            f"the plugin and the engine must be of one release; the images are of {mine} "
            f"and {theirs}, and the engine refuses a plugin of another protocol version",
            _ONE_RELEASE,
        )
    ready = {
        one.get("name"): one.get("ready", False)
        for one in pod.get("status", {}).get("containerStatuses") or ()
    }
    if ready.get(container.get("name")) and not ready.get(engine.get("name")):
        yield error(
            "engine-away",
            named(pod),
            "kube-scheduler runs and its engine does not serve: pods with devices wait",
            f"read the log of its container {engine.get('name')}; with another replica ready, "
            "leadership moves by itself",
        )


def _waits(pod: Object) -> str:
    """kube-scheduler's reason why a pod waits; empty if it does not."""
    conditions = pod.get("status", {}).get("conditions") or ()
    return next(
        (
            str(one.get("message", ""))
            for one in conditions
            if one.get("type") == "PodScheduled" and one.get("status") == "False"
        ),
        "",
    )


def _volume(container: Object, path: str) -> str:
    """The name of the volume that holds a path; empty if none is mounted there."""
    folder = path.rpartition("/")[0]
    mounts = container.get("volumeMounts") or ()
    return next((str(one.get("name")) for one in mounts if one.get("mountPath") == folder), "")


def _tag(container: Object) -> str:
    """The tag of its image; empty for an image by its digest alone, which names no release."""
    image = str(container.get("image", "")).partition("@")[0]
    return image.rpartition("/")[2].partition(":")[2]
