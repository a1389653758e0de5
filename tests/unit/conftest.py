"""Hypothesis settings for busy machines: a slow example is not a failure."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "reliq", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("reliq")
