"""Config files: the default, and one for each workload.

`FILE:METHOD` trains with a method of docs/methods.md. Most files also take
`FILE:METHOD,smoke`, a variant for a laptop; a file's first lines list all of
its variants.

Import them as `selsync_jax.configs.NAME`, also from custom config files.
`selsync_jax/configs` is a link to this folder; a wheel has the files there.
"""
