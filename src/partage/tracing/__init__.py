"""Traces of pods, from admission to the container: values, and their senders."""
