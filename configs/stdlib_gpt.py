r"""A small LLaMA-style decoder on the source of Python's library, byte by byte.

  python train.py --config=configs/stdlib_gpt.py:selsync
  python train.py --config=configs/stdlib_gpt.py:selsync,middle
  python train.py --config=configs/stdlib_gpt.py:selsync,smoke
  python train.py --config=configs/stdlib_gpt.py:selsync,by_source

Not from a paper: a decoder with pre-norm, RMSNorm, rotary positions and SwiGLU,
trained with AdamW, warmup and cosine decay, on text that every machine has. The
learning rate matters more here than the method. To compare methods, give each
the best learning rate of the same grid:

  python compare.py --config=configs/stdlib_gpt.py:smoke \
    --methods=bsp,selsync --lrs=0.012,0.024,0.048 --config.seed=10

In `by_source`, which has the size of `middle`, each of four workers reads
another kind of text: packages of the library, tests, C headers, documentation.

Needs 4 accelerators. 10.8 million parameters.

Measured, on 2 cores of an AMD EPYC, jax 0.10.2: the full workload was not run.
The smoke variant, seed 0: perplexity per byte 6.07 on validation and 5.86 on
test, at LSSR 0.910; its 600 steps take about 20 s. The command above gives, at
the best learning rate of both (0.024), perplexity on validation (mean and
deviation of 3 seeds): BSP 5.761 +- 0.047, SelSync 5.974 +- 0.074 at LSSR 0.910
with 9.0 % of BSP's bytes.
"""

from selsync_jax.configs import base

# Synchronize at large changes, and at the latest after 12 steps.
SMALL = {'selsync': dict(delta=0.5, max_period=12)}


def get_config(argument: str = 'selsync'):
  method, variant = base.split(argument, ('smoke', 'middle', 'by_source'))
  config = base.get_config(method, SMALL if variant else base.NO_OVERRIDES)
  config.update(workers=4, epochs=10.0, batch_size=16)
  config.data.update(name='stdlib_text', bptt=256)
  config.model.update(
    name='decoder',
    num_layers=6,
    embed_dim=384,
    num_heads=6,
    mlp_dim=1024,
    dropout=0.1,
    dtype='bfloat16',
    attention='auto',  # A GPU's fused kernel, if there is no dropout.
    remat=False,  # True recomputes activations, to save memory.
  )
  base.set_optimizer(
    config,
    name='adamw',
    learning_rate=1e-3,
    b2=0.95,
    weight_decay=0.1,
    decayed='matrices',
    clip_norm=1.0,
  )
  config.schedule.update(name='cosine', warmup_epochs=0.5)
  if variant:
    base.shrink(config)
    config.batch_size = 8
    config.data.bptt = 64
    config.model.update(num_heads=4, dropout=0.0)
  if variant == 'smoke':
    config.steps = 600
    config.model.update(num_layers=2, embed_dim=64, mlp_dim=172)
    config.schedule.warmup_epochs = 0.03  # 56 of the 600 steps.
    config.eval.every_epochs = 0.064  # Five times.
    base.set_optimizer(config, learning_rate=0.012)
  if variant in ('middle', 'by_source'):
    config.steps = 3000
    config.model.update(num_layers=4, embed_dim=128, mlp_dim=344)
    config.schedule.warmup_epochs = 0.15  # 280 of the 3,000 steps.
    config.eval.every_epochs = 0.32  # Five times.
    base.set_optimizer(config, learning_rate=0.006)
  if variant == 'by_source':
    config.data.update(
      name='python_text', partition='by_label', labels_per_worker=1
    )
    config.eval.every_epochs = 0.74  # Five times; the text is shorter.
  return config
