"""Peak performance of devices, from their makers' data sheets."""

# TFLOP/s of dense matrix products in bfloat16, and in XLA's default precision
# for float32 products (TF32 on a GPU, bfloat16 on a TPU), from the data sheets
# of NVIDIA (HGX B200; H200 SXM and NVL; H100 SXM, PCIe and NVL; A100; half of
# what they state "with sparsity") and Google Cloud. Keys are parts of JAX's
# device kinds; the first that fits counts.
PEAKS = {
  'B200': (2250, 1125),
  'H200 NVL': (835, 417),
  'H200': (989, 494),
  'H100 NVL': (835, 417),
  'H100 PCIe': (756, 378),
  'H100': (989, 494),
  'A100': (312, 156),
  'TPU v4': (275, 275),
  'TPU v5 lite': (197, 197),
  'TPU v5p': (459, 459),
  'TPU v6 lite': (918, 918),
}


def peak(device_kind: str, dtype: str) -> float | None:
  """A device's peak FLOP/s, or `None` if it is not known."""
  for kind, teraflops in PEAKS.items():
    if kind in device_kind:
      return 1e12 * teraflops[dtype == 'float32']
  return None
