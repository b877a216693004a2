"""Validation of Deployments, replica sets, stateful sets, daemon sets, jobs and autoscalers."""

from collections.abc import Mapping
from typing import Any, Final

from partage.apiserver import naming
from partage.apiserver.problems import Problems
from partage.apiserver.rules.defaults import fill
from partage.apiserver.rules.objects import fixed
from partage.apiserver.rules.pods import check_spec
from partage.apiserver.selectors import parse_labels

_STATEFUL: Final = (
    "replicas",
    "ordinals",
    "template",
    "updateStrategy",
    "revisionHistoryLimit",
    "persistentVolumeClaimRetentionPolicy",
    "minReadySeconds",
)
"""Mutable fields of a StatefulSet's spec."""
_UID_LABELS: Final = ("batch.kubernetes.io/controller-uid", "controller-uid")
_NAME_LABELS: Final = ("batch.kubernetes.io/job-name", "job-name")


def check_autoscaler(value: Mapping[str, Any], problems: Problems) -> None:
    """Reports bounds that allow no number of replicas, and a target without a kind or a name."""
    spec = value.get("spec") or {}
    least, most = spec.get("minReplicas", 1), spec.get("maxReplicas", 0)
    if least < 1:
        problems.invalid("spec.minReplicas", least, "must be greater than or equal to 1")
    if most == 0:
        problems.required("spec.maxReplicas", "must be set and greater than 0")
    elif most < 0:
        problems.invalid("spec.maxReplicas", most, "must be greater than or equal to 1")
    if most < least:
        why = "must be greater than or equal to `minReplicas`"
        problems.invalid("spec.maxReplicas", most, why)
    target = spec.get("scaleTargetRef") or {}
    for name in ("kind", "name"):
        if not target.get(name):
            problems.required(f"spec.scaleTargetRef.{name}")
    version = target.get("apiVersion", "")
    if "/" not in version:
        why = "apiVersion must specify API group"
        problems.invalid("spec.scaleTargetRef.apiVersion", version, why)


def own_job(value: dict[str, Any]) -> None:
    """Sets a new Job's selector and template labels, which distinguish its pods from others'."""
    spec, metadata = value["spec"], value["metadata"]
    if spec.get("manualSelector"):
        return
    template = spec["template"].setdefault("metadata", {})
    labels = {
        **dict.fromkeys(_UID_LABELS, metadata["uid"]),
        **dict.fromkeys(_NAME_LABELS, metadata["name"]),
    }
    template["labels"] = {**(template.get("labels") or {}), **labels}
    metadata.setdefault("labels", dict(template["labels"]))
    fill(spec, "selector", "matchLabels")[_UID_LABELS[0]] = metadata["uid"]


def check_workload(value: Mapping[str, Any], problems: Problems) -> None:
    """Reports problems of a Deployment, ReplicaSet, StatefulSet or DaemonSet."""
    spec = value["spec"]
    selector = spec.get("selector")
    labels = (spec["template"].get("metadata") or {}).get("labels") or {}
    if selector is None:
        problems.required("spec.selector")
    elif not selector.get("matchLabels") and not selector.get("matchExpressions"):
        problems.invalid(
            "spec.selector", selector, f"empty selector is invalid for {value['kind'].lower()}"
        )
    elif not parse_labels(selector).matches(labels):
        problems.invalid(
            "spec.template.metadata.labels",
            labels,
            "`selector` does not match template `labels`",
        )
    _check_template(spec["template"], problems)
    policy = spec["template"]["spec"].get("restartPolicy")
    if policy != "Always":
        problems.unsupported("spec.template.spec.restartPolicy", policy, ["Always"])
    deadline = "activeDeadlineSeconds" in spec["template"]["spec"]
    if deadline and value["kind"] in {"Deployment", "ReplicaSet"}:
        problems.forbidden(
            "spec.template.spec.activeDeadlineSeconds",
            "activeDeadlineSeconds in ReplicaSet is not Supported",
        )


def check_deployment(spec: Mapping[str, Any], _field: str, problems: Problems) -> None:
    """Reports an impossible strategy or deadline in a Deployment's spec."""
    strategy = spec["strategy"]
    rolling = strategy.get("rollingUpdate")
    if strategy["type"] not in ("Recreate", "RollingUpdate"):
        problems.unsupported("spec.strategy", strategy, ("Recreate", "RollingUpdate"))
    elif strategy["type"] == "Recreate" and rolling:
        problems.forbidden(
            "spec.strategy.rollingUpdate",
            "may not be specified when strategy `type` is 'Recreate'",
        )
    elif rolling and all(rolling[key] in (0, "0%") for key in ("maxSurge", "maxUnavailable")):
        problems.invalid(
            "spec.strategy.rollingUpdate.maxUnavailable", 0, "may not be 0 when `maxSurge` is 0"
        )
    deadline = spec.get("progressDeadlineSeconds", 2**31)
    if deadline <= spec.get("minReadySeconds", 0):
        problems.invalid(
            "spec.progressDeadlineSeconds", deadline, "must be greater than minReadySeconds"
        )


def _check_template(
    template: Mapping[str, Any], problems: Problems, field: str = "spec.template"
) -> None:
    metadata = template.get("metadata") or {}
    naming.check_labels(metadata.get("labels"), f"{field}.labels", problems)
    naming.check_annotations(metadata.get("annotations"), f"{field}.annotations", problems)
    check_spec(template["spec"], f"{field}.spec", problems)


def check_workload_update(
    new: Mapping[str, Any], old: Mapping[str, Any], problems: Problems
) -> None:
    """Reports changes of immutable fields."""
    before, after = ({**value["spec"], **dict.fromkeys(_STATEFUL)} for value in (old, new))
    selector = new["spec"].get("selector")
    if new["kind"] == "StatefulSet" and after != before:
        *others, last = (f"'{name}'" for name in _STATEFUL)
        problems.forbidden(
            "spec",
            f"updates to statefulset spec for fields other than {', '.join(others)} and {last} "
            "are forbidden",
        )
    elif new["kind"] != "StatefulSet" and selector != old["spec"].get("selector"):
        problems.invalid("spec.selector", selector, "field is immutable")


def check_job(value: Mapping[str, Any], problems: Problems) -> None:
    """Reports problems of a Job."""
    spec = value["spec"]
    template = spec["template"]
    policy = template["spec"].get("restartPolicy")
    if policy is None:
        problems.required("spec.template.spec.restartPolicy", 'valid values: "OnFailure", "Never"')
    elif policy == "Always":
        problems.unsupported("spec.template.spec.restartPolicy", policy, ["OnFailure", "Never"])
    _check_template(template, problems)


def check_job_update(new: Mapping[str, Any], old: Mapping[str, Any], problems: Problems) -> None:
    """Reports changes of immutable fields; a suspended job's template may change."""
    template = [] if old["spec"].get("suspend") else ["spec.template"]
    fixed("spec.selector", "spec.completionMode", *template)(new, old, problems)
    counts = [spec["spec"].get("completions") for spec in (new, old)]
    if counts[0] != counts[1] and new["spec"].get("completionMode") != "Indexed":
        problems.invalid("spec.completions", counts[0], "field is immutable")


def check_cron_job(value: Mapping[str, Any], problems: Problems) -> None:
    """Reports problems of a CronJob."""
    spec = value["spec"]
    if not spec.get("schedule"):
        problems.required("spec.schedule")
    elif len(spec["schedule"].split()) != 5 and not spec["schedule"].startswith("@"):
        words = spec["schedule"].split()
        found = f"expected exactly 5 fields, found {len(words)}: [{' '.join(words)}]"
        problems.invalid("spec.schedule", spec["schedule"], found)
    template = spec["jobTemplate"]["spec"]["template"]
    policy = template["spec"].get("restartPolicy")
    if policy not in ("OnFailure", "Never"):
        problems.required(
            "spec.jobTemplate.spec.template.spec.restartPolicy",
            'valid values: "OnFailure", "Never"',
        )
    _check_template(template, problems, "spec.jobTemplate.spec.template")
