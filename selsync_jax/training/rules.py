"""To be replaced by `settings`."""

from selsync_jax.training.settings import check as check_config  # noqa: F401
