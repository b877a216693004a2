"""The node side: discovery, device plugin, injection."""
