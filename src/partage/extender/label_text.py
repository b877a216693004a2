"""How a value stands in a label of Prometheus' text format."""


def label_text(value: str) -> str:
    """The value, escaped."""
    if "\\" in value or '"' in value or "\n" in value:
        return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return value
