"""The families themselves; none knows another."""
