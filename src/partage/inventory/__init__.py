"""The ledger: device state as columns, changed by apply and undo only."""
