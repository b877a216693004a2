"""What devices a node has, found through vendors' libraries, sysfs, vendors' files, or simulated."""
