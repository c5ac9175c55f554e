"""torch lives here and nowhere else: the policy, its sampler and its trainer."""
