"""Trains a model: `python train.py --config=...`, or `selsync train`."""

import sys

from selsync_jax import __main__ as door

if __name__ == '__main__':
  door.own_process('train.py')
  with door.command('train.py'):
    from selsync_jax.commands import train

    train.main(sys.argv[1:])
