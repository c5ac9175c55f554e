"""From rewards to what each token weighs in the loss: pure, no torch.

The notebook's preview, the pre-flight check and the trainer call the same functions, so what is shown is what trains.
"""
