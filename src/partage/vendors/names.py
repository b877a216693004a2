"""Every key that Partage reads or writes: resource names, labels and annotations.

Nowhere else in the package is such a key spelled out. Sources: seeds 000 to 003; koordinator.md,
hami.md, qgpu-and-peers.md.
"""

from typing import Final

# --- Partage -------------------------------------------------------------------------------
ALLOCATION: Final = "partage.io/allocation"
NODE_POLICY: Final = "partage.io/node-policy"
CARD_POLICY: Final = "partage.io/card-policy"
ORIGINAL_REQUEST: Final = "partage.io/original-request"

# --- Kubernetes ----------------------------------------------------------------------------
HOSTNAME: Final = "kubernetes.io/hostname"

# --- Koordinator, and the vendors it adapts to ----------------------------------------------

# --- HAMi ----------------------------------------------------------------------------------

# --- Tencent qGPU --------------------------------------------------------------------------
