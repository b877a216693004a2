"""Selectors, affinity, taints and tolerations mean what they mean in Kubernetes."""

import pytest

from partage.model.selector import (
    NodeConstraint,
    NodeTerm,
    Operator,
    Requirement,
    Selector,
    Taint,
    Toleration,
)

LABELS = {"zone": "a", "cards": "8", "empty": "", "odd": "1_000", "big": "9" * 30}


@pytest.mark.parametrize(
    ("key", "operator", "values", "expected"),
    [
        ("zone", Operator.IN, ("a", "b"), True),
        ("zone", Operator.IN, ("b",), False),
        ("zone", Operator.IN, (), False),
        ("none", Operator.IN, ("",), False),
        ("empty", Operator.IN, ("",), True),
        ("zone", Operator.NOT_IN, ("b",), True),
        ("zone", Operator.NOT_IN, ("a",), False),
        ("none", Operator.NOT_IN, ("a",), True),
        ("empty", Operator.EXISTS, (), True),
        ("none", Operator.EXISTS, (), False),
        ("none", Operator.DOES_NOT_EXIST, (), True),
        ("zone", Operator.DOES_NOT_EXIST, (), False),
        ("cards", Operator.GT, ("7",), True),
        ("cards", Operator.GT, ("8",), False),
        ("cards", Operator.LT, ("9",), True),
        ("cards", Operator.LT, ("8",), False),
        ("cards", Operator.GT, ("x",), False),
        ("cards", Operator.GT, (), False),
        ("zone", Operator.GT, ("1",), False),
        ("none", Operator.LT, ("1",), False),
        ("empty", Operator.LT, ("1",), False),
        ("cards", Operator.GT, ("-1",), True),
        ("odd", Operator.GT, ("1",), False),
        ("cards", Operator.GT, (" 1",), False),
        ("cards", Operator.GT, ("\u0663",), False),
        ("big", Operator.GT, ("1",), False),
    ],
)
def test_requirements(
    key: str, operator: Operator, values: tuple[str, ...], *, expected: bool
) -> None:
    """Each operator on labels that are there, absent, empty, or no number."""
    assert Requirement(key, operator, values).matches(LABELS) is expected


def test_selectors_are_conjunctions() -> None:
    """All requirements must hold; none is always true."""
    zone = Requirement("zone", Operator.IN, ("a",))
    missing = Requirement("none", Operator.EXISTS)

    assert Selector().matches({})
    assert Selector((zone,)).matches(LABELS)
    assert not Selector((zone, missing)).matches(LABELS)


def test_terms_are_alternatives_and_an_empty_term_matches_nothing() -> None:
    """Required affinity needs one term, of labels and fields together."""
    zone = NodeTerm((Requirement("zone", Operator.IN, ("a",)),))
    name = NodeTerm(fields=(Requirement("metadata.name", Operator.IN, ("n",)),))
    both = NodeTerm(zone.labels, name.fields)

    assert NodeConstraint().matches("n", LABELS)
    assert not NodeConstraint(terms=()).matches("n", LABELS)
    assert not NodeConstraint(terms=(NodeTerm(),)).matches("n", LABELS)
    assert NodeConstraint(terms=(NodeTerm(), zone)).matches("m", LABELS)
    assert NodeConstraint(terms=(both,)).matches("n", LABELS)
    assert not NodeConstraint(terms=(both,)).matches("m", LABELS)
    assert not NodeConstraint(Selector((Requirement("x", Operator.EXISTS),))).matches("n", LABELS)


@pytest.mark.parametrize(
    ("toleration", "expected"),
    [
        (Toleration(), False),
        (Toleration(operator="Exists"), True),
        (Toleration("gpu", "Exists"), True),
        (Toleration("gpu", "Exists", effect="NoSchedule"), True),
        (Toleration("gpu", "Exists", effect="NoExecute"), False),
        (Toleration("other", "Exists"), False),
        (Toleration("gpu", "Equal", "yes"), True),
        (Toleration("gpu", "", "yes"), True),
        (Toleration("gpu", "Equal", "no"), False),
        (Toleration("", "Equal", "yes"), False),
        (Toleration("gpu", "Gt", "yes"), False),
        (Toleration("gpu", "exists", "yes"), False),
    ],
    ids=str,
)
def test_tolerations(toleration: Toleration, expected: bool) -> None:  # noqa: FBT001
    """Key, value and effect must agree, or the toleration leaves them open."""
    assert toleration.tolerates(Taint("gpu", "yes", "NoSchedule")) is expected


def test_taints_repel_by_effect_and_print_as_kubectl_does() -> None:
    """PreferNoSchedule only asks."""
    assert [
        Taint("k", "v", e).repels for e in ("NoSchedule", "NoExecute", "PreferNoSchedule")
    ] == [
        True,
        True,
        False,
    ]
    assert str(Taint("k", "v", "NoSchedule")) == "k=v:NoSchedule"
    assert str(Taint("k", "", "NoExecute")) == "k:NoExecute"


@pytest.mark.parametrize(
    ("operator", "values", "text"),
    [
        (Operator.IN, ("a",), "zone=a"),
        (Operator.IN, ("a", "b"), "zone in (a, b)"),
        (Operator.NOT_IN, ("a",), "zone not in (a)"),
        (Operator.EXISTS, (), "zone"),
        (Operator.DOES_NOT_EXIST, (), "!zone"),
        (Operator.GT, ("5",), "zone > 5"),
        (Operator.LT, ("5",), "zone < 5"),
    ],
)
def test_requirements_print_as_people_write_them(
    operator: Operator, values: tuple[str, ...], text: str
) -> None:
    """The form is that of kubectl's selectors."""
    assert str(Requirement("zone", operator, values)) == text
