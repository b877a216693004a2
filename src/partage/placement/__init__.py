"""Pure functions over a ledger view: fit, group, score, pick."""
