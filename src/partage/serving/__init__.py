"""What every HTTP service needs: limits, credentials, TLS with reload, and a fast way in."""
