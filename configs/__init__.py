"""Config files: the default, and one for each workload.

`FILE:METHOD` trains with a method of docs/methods.md. Most also take
`FILE:METHOD,smoke`, a variant for a laptop; a file's first lines name them all.

Import them as `selsync_jax.configs.NAME`, from a config file of your own too.
`selsync_jax/configs` is a link to this folder; a wheel has the files there.
"""
