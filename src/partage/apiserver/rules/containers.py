"""Validation of one container."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final

from partage.apiserver import naming
from partage.apiserver.problems import Problems
from partage.apiserver.rules.resources import check_requirements

_HANDLERS: Final = ("exec", "grpc", "httpGet", "tcpSocket")


def check_container(
    container: Mapping[str, Any], field: str, volumes: AbstractSet[str], problems: Problems
) -> None:
    """Reports problems of a container whose mounts may use the names in `volumes`."""
    name = container.get("name", "")
    if not name:
        problems.required(f"{field}.name")
    elif found := naming.domain_label(name):
        problems.invalid(f"{field}.name", name, found[0])
    image = container.get("image", "")
    if not image:
        problems.required(f"{field}.image")
    elif image != image.strip():
        problems.invalid(f"{field}.image", image, "must not have leading or trailing whitespace")
    _check_ports(container.get("ports") or (), f"{field}.ports", problems)
    _check_env(container.get("env") or (), f"{field}.env", problems)
    _check_mounts(container.get("volumeMounts") or (), f"{field}.volumeMounts", volumes, problems)
    for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
        if probe in container:
            _check_probe(container[probe], f"{field}.{probe}", problems)
    check_requirements(container.get("resources") or {}, f"{field}.resources", problems)


def _check_ports(ports: Sequence[Any], field: str, problems: Problems) -> None:
    names: set[str] = set()
    for index, port in enumerate(ports):
        where = f"{field}[{index}]"
        if port.get("containerPort"):
            problems.port(f"{where}.containerPort", port["containerPort"])
        else:
            problems.required(f"{where}.containerPort")
        if port.get("name"):
            if port["name"] in names:
                problems.duplicate(f"{where}.name", port["name"])
            names.add(port["name"])


def _check_env(variables: Sequence[Any], field: str, problems: Problems) -> None:
    for index, one in enumerate(variables):
        where = f"{field}[{index}]"
        name = one.get("name", "")
        if not name:
            problems.required(f"{where}.name")
        elif "=" in name or not name.isascii() or not name.isprintable():
            problems.invalid(
                f"{where}.name",
                name,
                "a valid environment variable name must consist only of printable ASCII "
                "characters other than '='",
            )
        source = one.get("valueFrom")
        if source is not None:
            if one.get("value"):
                problems.invalid(
                    f"{where}.valueFrom", "", "may not be specified when `value` is not empty"
                )
            if len(source) != 1:
                problems.invalid(
                    f"{where}.valueFrom",
                    "",
                    "may not have more than one field specified at a time"
                    if source
                    else "must specify one of: `fieldRef`, `resourceFieldRef`, "
                    "`configMapKeyRef` or `secretKeyRef`",
                )


def _check_mounts(
    mounts: Sequence[Any], field: str, volumes: AbstractSet[str], problems: Problems
) -> None:
    paths: set[str] = set()
    for index, mount in enumerate(mounts):
        where = f"{field}[{index}]"
        if not mount.get("name"):
            problems.required(f"{where}.name")
        elif mount["name"] not in volumes:
            problems.absent(f"{where}.name", mount["name"])
        path = mount.get("mountPath", "")
        if not path:
            problems.required(f"{where}.mountPath")
        elif path in paths:
            problems.invalid(f"{where}.mountPath", path, "must be unique")
        paths.add(path)


def _check_probe(probe: Mapping[str, Any], field: str, problems: Problems) -> None:
    handlers = [name for name in _HANDLERS if name in probe]
    if not handlers:
        problems.required(field, "must specify a handler type")
    for extra in handlers[1:]:
        problems.forbidden(f"{field}.{extra}", "may not specify more than 1 handler type")
    if "exec" in probe and not probe["exec"].get("command"):
        problems.required(f"{field}.exec.command")
    if not field.endswith("readinessProbe") and probe.get("successThreshold", 1) != 1:
        problems.invalid(f"{field}.successThreshold", probe["successThreshold"], "must be 1")


def check_host_ports(
    container: Mapping[str, Any], field: str, taken: set[str], problems: Problems, *, same: bool
) -> None:
    """Reports ports of the host that a pod requests twice.

    `taken`: ports of the pod's containers before this one; receives this one's. `same`: whether a port of the host must
    equal the container's.
    """
    for index, port in enumerate(container.get("ports") or ()):
        host, where = port.get("hostPort", 0), f"{field}[{index}].hostPort"
        if not host:
            continue
        if same and host != port.get("containerPort"):
            problems.invalid(where, host, "must match `containerPort` when `hostNetwork` is true")
        text = f"{port.get('protocol')}/{port.get('hostIP', '')}/{host}"
        if text in taken:
            problems.duplicate(where, text)
        taken.add(text)


def check_claims(
    container: Mapping[str, Any], field: str, known: AbstractSet[str], problems: Problems
) -> None:
    """Reports claims of a container that its pod does not have."""
    seen: set[tuple[str, str]] = set()
    for index, one in enumerate((container.get("resources") or {}).get("claims") or ()):
        pair = (one.get("name", ""), one.get("request", ""))
        if pair in seen:
            problems.duplicate(f"{field}[{index}]", "/".join(filter(None, pair)))
        seen.add(pair)
        if one.get("name") not in known:
            among = " which is empty" if not known else ""
            problems.absent(
                f"{field}[{index}]",
                one.get("name", ""),
                f"must be one of the names in pod.spec.resourceClaims{among}",
            )


def check_once(container: Mapping[str, Any], field: str, problems: Problems) -> None:
    """Reports fields that a container which has to end may not have."""
    for key in ("lifecycle", "livenessProbe", "readinessProbe", "startupProbe"):
        if key in container:
            problems.forbidden(
                f"{field}.{key}",
                "may not be set for init containers without restartPolicy=Always",
            )
