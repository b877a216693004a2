"""What every HTTP service needs: limits, credentials, and TLS with reload."""
