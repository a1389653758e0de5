"""Hypothesis, on machines that are busy: what is slow is not wrong."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "reliq", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("reliq")
