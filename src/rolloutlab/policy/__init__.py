"""The policy: model, sampler and trainer; the only package that imports torch."""
