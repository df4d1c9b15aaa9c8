"""Stress tests: `python -m stress.NAME`, from the repository's root.

Each looks for a rare failure, prints what it finds and writes one JSON file.
Its exit code is 1 if something is wrong. The environment variables that
TensorFlow and JAX read when they start are set here, as in train.py.
"""

import os

os.environ.setdefault('PJRT_NPROC', '16')
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')
os.environ.setdefault('TF_ENABLE_ONEDNN_OPTS', '0')
