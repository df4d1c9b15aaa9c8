"""Data read by TensorFlow: fed by tf.data pipelines, some prepared by TFDS.

No module outside this folder imports TensorFlow or TFDS when it is imported; a
few functions of `sources` do when they are called.
"""

import tensorflow as tf

# TensorFlow only reads data; the accelerators are JAX's.
tf.config.set_visible_devices([], 'GPU')
