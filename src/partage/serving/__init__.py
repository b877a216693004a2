"""The parts that every HTTP service needs: limits, credentials, and TLS with reload."""
