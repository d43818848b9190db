"""The same encoders with their products in 8-bit integers, run by onnxruntime."""
