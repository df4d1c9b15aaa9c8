"""Config files: the default, and one for each workload.

Import them as `selsync_jax.configs.NAME`, from a config file of your own too.
`selsync_jax/configs` is a link to this folder; a wheel has the files there.
"""
