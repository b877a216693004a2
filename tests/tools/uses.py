"""Which requests a program's source can send to the API server: verbs and resources, read from its calls of the client.

The modules are those that a program imports, wherever it does. The resource of a call is the one that it
names; where that is a variable, all resources that the module names count. So more may be listed than is ever sent, and
nothing that is sent is missing: what a role gives beyond this list, no program can use.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

__all__ = ["can_send"]

SOURCE = Path(__file__).parents[2] / "src"
VERBS = {
    "get": {"get"},
    "read": {"get", "list"},
    "list_all": {"list"},
    "pages": {"list"},
    "watch_stream": {"watch"},
    "create": {"create"},
    "update": {"update"},
    "patch": {"patch"},
    "delete": {"delete"},
}
"""The client's methods."""
WHOLE = {
    "bind": ("create", "pods/binding"),
    "evict": ("create", "pods/eviction"),
    "patch_pod_status": ("patch", "pods/status"),
}
"""Those that say by themselves what they are about."""
FOLLOWING = {"Informer", "Watched", "follow"}
"""Calls that list and then watch."""


def can_send(*entries: str) -> set[tuple[str, str]]:
    """Verb and resource, with group and subresource, of all that programs can send.

    Args:
        entries: the modules that they begin with.
    """
    waiting, seen = list(entries), set(entries)
    found: set[tuple[str, str]] = set()
    while waiting:
        sends, imports = read(waiting.pop())
        found |= sends
        for name in imports:
            if name not in seen and path_of(name):
                seen.add(name)
                waiting.append(name)
    return found


def path_of(module: str) -> Path | None:
    """Its file, if it is one of ours."""
    base = SOURCE.joinpath(*module.split("."))
    return next((p for p in (base.with_suffix(".py"), base / "__init__.py") if p.exists()), None)


@cache
def read(module: str) -> tuple[frozenset[tuple[str, str]], frozenset[str]]:
    """What a module can send, and what it imports; read once for all programs that have it."""
    path = path_of(module)
    assert path is not None, module
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(sent(tree)), frozenset(imported(tree))


def imported(tree: ast.Module) -> Iterator[str]:
    """What may be a module among what it imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("partage"):
            yield node.module or ""
            yield from (f"{node.module}.{one.name}" for one in node.names)
        elif isinstance(node, ast.Import):
            yield from (one.name for one in node.names if one.name.startswith("partage"))


@cache
def constants() -> dict[str, str]:
    """Names by which the source calls resources: each has one meaning wherever it stands."""
    found: dict[str, str] = {}
    for path in (SOURCE / "partage").rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            targets = (
                [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
            )
            value = getattr(node, "value", None)
            if len(targets) == 1 and isinstance(targets[0], ast.Name) and (told := literal(value)):
                assert found.setdefault(targets[0].id, told) == told, targets[0].id
    return found


def literal(node: ast.AST | None) -> str:
    """The resource of `Resource(...)` with its group; empty for anything else."""
    if not (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "Resource"
    ):
        return ""
    words = [one.value for one in node.args if isinstance(one, ast.Constant)]
    return f"{words[2]}.{words[0]}".rstrip(".") if len(words) > 2 else ""


def named(node: ast.AST) -> set[str]:
    """Resources that stand anywhere in an expression or module."""
    found = {literal(one) for one in ast.walk(node)}
    found |= {constants().get(one.id, "") for one in ast.walk(node) if isinstance(one, ast.Name)}
    # Of the registry of admission: two kinds by their names, which a function puts together.
    words = {one.value for one in ast.walk(node) if isinstance(one, ast.Constant)}
    found |= {
        f"{word}.admissionregistration.k8s.io"
        for word in words
        if isinstance(word, str) and word.endswith("webhookconfigurations")
    }
    return found - {""}


def sent(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """What a module's calls can send."""
    follows = any(isinstance(one, ast.Name) and one.id in FOLLOWING for one in ast.walk(tree))
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Name) and node.func.id == "Scope":
            for resource in named(node) or named(tree):
                yield from (
                    (verb, resource) for verb in (("list", "watch") if follows else ("list",))
                )
        if not isinstance(node.func, ast.Attribute) or node.func.attr not in VERBS | WHOLE:
            continue
        method, receiver = node.func.attr, ast.unparse(node.func.value)
        if not receiver.endswith("client"):
            continue
        if method in WHOLE:
            yield WHOLE[method]
        about = named(node.args[0]) if node.args else set()
        for resource in about or named(tree):
            for part in subresources(node):
                kind, dot, group = resource.partition(".")
                yield from ((verb, f"{kind}{part}{dot}{group}") for verb in VERBS.get(method, ()))


def subresources(call: ast.Call) -> Iterator[str]:
    """With a slash before; empty for the object itself. A variable may be either."""
    given = next((one.value for one in call.keywords if one.arg == "subresource"), None)
    if given is None or not isinstance(given, ast.Constant):
        yield ""
    if given is not None:
        yield f"/{given.value}" if isinstance(given, ast.Constant) else "/status"
