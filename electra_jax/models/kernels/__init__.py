"""GPU kernels: Triton for every GPU that Pallas knows, Mosaic for Hopper."""
