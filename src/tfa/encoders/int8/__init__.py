"""The same encoders with their matrix products in 8-bit integers, run by onnxruntime.

In: RGB images. Out: tokens close to the float32 ones. May see: the weights; no calibration photos are needed.
"""
