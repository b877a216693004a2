"""What one container may say."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final

from partage.apiserver import naming
from partage.apiserver.problems import Problems
from partage.apiserver.rules.resources import check_requirements

_PULL: Final = ("Always", "IfNotPresent", "Never")
_PROTOCOLS: Final = ("SCTP", "TCP", "UDP")
_HANDLERS: Final = ("exec", "grpc", "httpGet", "tcpSocket")


def check_container(
    container: Mapping[str, Any], field: str, volumes: AbstractSet[str], problems: Problems
) -> None:
    """Reports what is wrong with a container whose mounts may use the names in `volumes`."""
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
    if container.get("imagePullPolicy") not in _PULL:
        problems.unsupported(f"{field}.imagePullPolicy", container.get("imagePullPolicy"), _PULL)
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
        if port.get("protocol") not in _PROTOCOLS:
            problems.unsupported(f"{where}.protocol", port.get("protocol"), _PROTOCOLS)
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
    numbers = ("initialDelaySeconds", "timeoutSeconds", "periodSeconds", "failureThreshold")
    problems.negative(probe, field, *numbers)
