"""The decision engine: events in, decisions out; a pure state machine."""
