"""Settings that all tests share."""

from hypothesis import HealthCheck, settings

# No deadlines: how long an example takes says nothing here, and the machines that run this differ.
settings.register_profile(
    "zerocalc",
    deadline=None,
    max_examples=100,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.register_profile("thorough", settings.get_profile("zerocalc"), max_examples=1000)
settings.load_profile("zerocalc")
