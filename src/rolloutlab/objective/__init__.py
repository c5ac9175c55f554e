"""Rewards to advantages and token weights, training options and pre-flight checks; pure functions without torch.

The notebook's preview and the trainer call the same functions, so that the preview is exact.
"""
