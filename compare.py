"""Compares methods: `python compare.py --methods=...`, or `selsync compare`."""

import sys

from selsync_jax import __main__ as door

if __name__ == '__main__':
  door.own_process('compare.py')
  with door.command('compare.py'):
    from selsync_jax.commands import compare

    compare.main(sys.argv[1:])
