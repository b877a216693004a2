"""Admission: defaulting and validation."""
