"""One table a protocol family: names, units, shape, rules."""
