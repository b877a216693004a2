"""Virtual time and traces over the real engine."""
