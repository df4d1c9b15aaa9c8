"""Data that tf.data pipelines read, some of them prepared by TFDS.

Modules outside this folder do not import TensorFlow or TFDS at their top level;
a few functions of `sources` do when they are called.
"""

import tensorflow as tf

# TensorFlow only reads data; leave the GPUs to JAX.
tf.config.set_visible_devices([], 'GPU')
