"""Commands that measure: each prints one table and writes one JSON.

`python -m benchmarks.NAME`, from the repository's root. What TensorFlow and JAX
read when they start is set here, as in train.py.
"""

import os

os.environ.setdefault('PJRT_NPROC', '16')
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')
os.environ.setdefault('TF_ENABLE_ONEDNN_OPTS', '0')
