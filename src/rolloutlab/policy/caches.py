"""What a batch remembers of the tokens that it has read, layer by layer: rows are chosen, joined and trimmed here.

Attention remembers keys and values of every position, padded on the left; convolutions and recurrent layers remember a
state of fixed size, which padding never enters.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer, LinearAttentionLayer

from rolloutlab.errors import PolicyError


def empty_cache(model: Any) -> DynamicCache:
    """A cache for a model that has read nothing.

    Layers with a sliding window keep every position too: their mask hides the old ones, and all layers are trimmed
    alike.
    """
    cache = DynamicCache(config=getattr(model, "config", None))
    if not any(isinstance(layer, LinearAttentionLayer) for layer in cache.layers):
        return DynamicCache()
    whole: Any = DynamicLayer
    cache.layers = [whole() if type(each) is DynamicSlidingWindowLayer else each for each in cache.layers]
    return cache


def select(cache: DynamicCache, which_B: Tensor) -> None:
    """Keep these rows, in this order; a row may be there several times."""
    for layer in cache.layers:
        _apply(layer, lambda keys: keys[which_B], lambda state: state.index_select(0, which_B))


def trim(cache: DynamicCache, unused: int) -> None:
    """Forget the first positions."""
    for layer in cache.layers:
        _apply(layer, lambda keys: keys[:, :, unused:], lambda state: state)


def joined(first: DynamicCache, second: DynamicCache, length: int) -> DynamicCache:
    """The rows of both, with `length` positions; neither is changed."""
    whole = copy.copy(first)
    whole.layers = [_joined(a, b, length) for a, b in zip(first.layers, second.layers, strict=True)]
    return whole


def _joined(a: Any, b: Any, length: int) -> Any:
    """A layer with the rows of both."""
    layer = copy.copy(a)
    if _is_attention(a) and _is_attention(b):
        layer.keys = torch.cat([_left(a.keys, length), _left(b.keys, length)])
        layer.values = torch.cat([_left(a.values, length), _left(b.values, length)])
        return layer
    for name in ("conv_states", "recurrent_states"):
        mine, others = getattr(a, name), getattr(b, name)
        setattr(layer, name, {i: s if s is None else torch.cat([s, others[i]]) for i, s in mine.items()})
    return layer


def _apply(layer: Any, to_positions: Callable[[Tensor], Tensor], to_state: Callable[[Tensor], Tensor]) -> None:
    """Change what a layer remembers, its positions or its state."""
    if _is_attention(layer):
        layer.keys, layer.values = to_positions(layer.keys), to_positions(layer.values)
        return
    for name in ("conv_states", "recurrent_states"):
        setattr(layer, name, {i: s if s is None else to_state(s) for i, s in getattr(layer, name).items()})


def _is_attention(layer: object) -> bool:
    """Whether a layer remembers positions, and not a state; PolicyError where neither is known of its kind."""
    if type(layer) is DynamicLayer and layer.keys is not None:
        return True
    if type(layer) is LinearAttentionLayer:
        return False
    raise PolicyError(f"a policy with {type(layer).__name__} cannot be sampled here yet")


def _left(states: Tensor, length: int) -> Tensor:
    """Keys or values (B, heads, T, size) padded on the left."""
    return pad(states, (0, 0, length - states.shape[2], 0))
