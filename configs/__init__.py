"""Config files: the default, and one for each workload.

In place of `selsync`, `FILE:bsp`, `local_sgd`, `fedavg` or `diloco` trains with
that method, and `FILE:METHOD,smoke` is a variant for a laptop.

Import them as `selsync_jax.configs.NAME`, from a config file of your own too.
`selsync_jax/configs` is a link to this folder; a wheel has the files there.
"""
