"""`--engine sharp`: an engine like `local` that always samples the likeliest token."""


def open_engine(policy, settings, *, least_seconds=None):
    from dataclasses import replace

    # these load torch, which a notebook must not import
    from rolloutlab.engines.local import LocalEngine
    from rolloutlab.policy.model import load_policy

    class SharpEngine(LocalEngine):
        name = "sharp"
        unsupported = {"temperature": "it always takes the likeliest token"}

        def sample(self, checkpoint, requests, on_token=None):
            return super().sample(checkpoint, [replace(each, temperature=0.0) for each in requests], on_token)

    return SharpEngine(load_policy(policy, settings), least_seconds=least_seconds)
