"""What people type; the only place that reads environment, clock and files."""
