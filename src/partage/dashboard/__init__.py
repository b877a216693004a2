"""Read-only pages."""
