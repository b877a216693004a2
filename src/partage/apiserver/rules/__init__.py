"""The genuine server's defaults and validation of the built-in kinds."""
