"""Every field of a run once, with its unit or its consequence.

A workload's config starts from this one and changes what it must. Fields of a
method exist only for that method: `--config=configs/digits.py:bsp` picks it.
"""

from ml_collections import config_dict

from selsync_jax.config import ConfigError


def _methods() -> dict[str, dict]:
  """The fields of each method."""
  return {
    'selsync': dict(
      delta=0.3,  # Threshold on the relative gradient change; 0 is BSP.
      smoothing=config_dict.placeholder(float),  # In (0, 1]; None: N / 100.
      quorum=config_dict.placeholder(float),  # Share of votes; None: one.
      aggregate='params',  # Or 'grads': replicas never meet again.
    ),
    'bsp': dict(),  # Gradients averaged at every step.
    'local_sgd': dict(period=8),  # Steps from one average to the next.
    'fedavg': dict(
      fraction=1.0,  # C, share of workers that make the average.
      epochs=0.25,  # E, from one average to the next.
    ),
    'diloco': dict(
      period=50,  # Steps from one outer step to the next.
      # Any optimizer of optax and its arguments, on the mean movement.
      outer=dict(name='sgd', learning_rate=0.7, momentum=0.9, nesterov=True),
    ),
  }


def get_config(method: str) -> config_dict.ConfigDict:
  """The defaults, with the fields of one method."""
  methods = _methods()
  if method not in methods:
    raise ConfigError(
      f'config.sync.method={method!r} is none of {", ".join(methods)}'
    )
  return config_dict.ConfigDict(
    dict(
      workers=4,  # N. Under pmap one accelerator each.
      mapper='pmap',  # 'vmap': all workers on one device.
      seed=0,  # Of weights, shuffles, dropout and draws.
      epochs=config_dict.placeholder(float),  # Length of the run. One is
      # one data set's worth of examples over all workers together.
      steps=config_dict.placeholder(int),  # Length if set, in steps.
      batch_size=32,  # Examples per worker and step.
      sync=dict(method=method, **methods[method]),
      data=dict(
        name='digits',
        partition='seldp',  # Or 'defdp': each worker keeps its part.
        dir=config_dict.placeholder(str),  # None: TFDS's own default.
      ),
      model=dict(name='convnet'),  # And the model's own fields.
      optimizer=dict(
        name='sgd',  # Any optimizer of optax, and its arguments:
        learning_rate=0.1,  # The schedule's peak.
        momentum=config_dict.placeholder(float),
        nesterov=config_dict.placeholder(bool),
        weight_decay=config_dict.placeholder(float),
        clip_norm=config_dict.placeholder(float),  # Global L2 norm.
      ),
      schedule=dict(
        name='constant',  # Or 'cosine', to 0 at the end of the run.
        warmup_epochs=0.0,  # Linear rise from 0.
      ),
      eval=dict(
        every_epochs=1.0,  # Between evaluations of the consensus.
        batch_size=128,  # Examples per worker; costs memory only.
      ),
      on_nonfinite='stop',  # Or 'skip': drop that worker's update, count it.
      check_replicas=100,  # Compare replicas at every so manieth
      # synchronisation, bit for bit; 0 is never.
      checkpoint=dict(
        every=500,  # Steps.
        keep=3,  # Newest; the best one is kept besides.
        resize='mean',  # Optimizer state for another number of workers; or
        # 'clone': each new worker takes an old one's.
      ),
      log=dict(
        every=1,  # Steps from one line to the next.
        fetch_every=10,  # Steps whose metrics leave the device together.
      ),
    )
  )
