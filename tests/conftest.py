"""How hard the laws are tried: `ci` by default, `soak` with HYPOTHESIS_PROFILE=soak."""

import os

from hypothesis import HealthCheck, settings

_SLOW = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)

settings.register_profile(
    "ci",
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=120,
    suppress_health_check=_SLOW,
)
settings.register_profile(
    "soak",
    deadline=None,
    max_examples=int(os.environ.get("HYPOTHESIS_EXAMPLES", "5000")),
    print_blob=True,
    suppress_health_check=_SLOW,
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
