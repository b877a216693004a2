"""The long-running services: their watches, ports, leadership and shutdown."""
