"""Rules of containers and their parts."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final

from partage.apiserver.problems import Problems

_HANDLERS: Final = ("exec", "grpc", "httpGet", "tcpSocket")


def check_image(image: Any, field: str, problems: Problems) -> None:
    """Reports a missing image, and blanks around one."""
    if not image:
        problems.required(field)
    elif image != image.strip():
        problems.invalid(field, image, "must not have leading or trailing whitespace")


def check_variable(one: Mapping[str, Any], field: str, problems: Problems) -> None:
    """Reports problems of an environment variable."""
    name, source = one.get("name", ""), one.get("valueFrom")
    if not name:
        problems.required(f"{field}.name")
    elif "=" in name or not name.isascii() or not name.isprintable():
        problems.invalid(
            f"{field}.name",
            name,
            "a valid environment variable name must consist only of printable ASCII characters "
            "other than '='",
        )
    if source is not None and one.get("value"):
        problems.invalid(
            f"{field}.valueFrom", "", "may not be specified when `value` is not empty"
        )
    if source is not None and len(source) != 1:
        problems.invalid(
            f"{field}.valueFrom",
            "",
            "may not have more than one field specified at a time"
            if source
            else "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef` or "
            "`secretKeyRef`",
        )


def check_probe(probe: Mapping[str, Any], field: str, problems: Problems) -> None:
    """Reports problems of a probe."""
    handlers = [name for name in _HANDLERS if name in probe]
    if not handlers:
        problems.required(field, "must specify a handler type")
    for extra in handlers[1:]:
        problems.forbidden(f"{field}.{extra}", "may not specify more than 1 handler type")
    if "exec" in probe and not probe["exec"].get("command"):
        problems.required(f"{field}.exec.command")
    if not field.endswith("readinessProbe") and probe.get("successThreshold", 1) != 1:
        problems.invalid(f"{field}.successThreshold", probe["successThreshold"], "must be 1")


def check_mounts(
    container: Mapping[str, Any], field: str, volumes: AbstractSet[str], problems: Problems
) -> None:
    """Reports problems of mounts, which may use the names in `volumes`."""
    paths: set[str] = set()
    for index, mount in enumerate(container.get("volumeMounts") or ()):
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
        problems.once(where, f"{port.get('protocol')}/{port.get('hostIP', '')}/{host}", taken)


def check_claims(
    container: Mapping[str, Any], field: str, known: AbstractSet[str], problems: Problems
) -> None:
    """Reports claims of a container that its pod does not have."""
    seen: set[str] = set()
    for index, one in enumerate((container.get("resources") or {}).get("claims") or ()):
        pair = (one.get("name", ""), one.get("request", ""))
        problems.once(f"{field}[{index}]", "/".join(filter(None, pair)), seen)
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
