"""Trackers of experiments that take the numbers of runs: TensorBoard, Trackio, and Weights & Biases."""
