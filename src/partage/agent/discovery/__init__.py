"""Discovers a node's devices through vendors' libraries, sysfs or vendors' files, or simulates them."""
