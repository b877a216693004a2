"""What the genuine server fills in for the built-in kinds, and what it refuses."""
