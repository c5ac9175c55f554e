"""KV caches and recurrent states of a batch: select, join and trim rows.

Attention layers cache keys and values of every position, padded on the left; convolutions and recurrent layers have a
state of fixed size, which padding never enters.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer, LinearAttentionLayer

from rolloutlab.errors import PolicyError


def empty_cache(model: Any) -> DynamicCache:
    """An empty cache for a model.

    Sliding-window layers keep every position too, so that all layers are trimmed alike; their mask hides old ones.
    """
    cache = DynamicCache(config=getattr(model, "config", None))
    if not any(isinstance(layer, LinearAttentionLayer) for layer in cache.layers):
        return DynamicCache()
    whole: Any = DynamicLayer
    cache.layers = [whole() if type(each) is DynamicSlidingWindowLayer else each for each in cache.layers]
    return cache


def select(cache: DynamicCache, index_B: Tensor) -> None:
    """Keep these rows, in this order; an index may be repeated."""
    for layer in cache.layers:
        _apply(layer, lambda keys: keys[index_B], lambda state: state.index_select(0, index_B))


def selected(cache: DynamicCache, index_B: Tensor) -> DynamicCache:
    """A copy of these rows."""
    copied = copy.copy(cache)
    copied.layers = [copy.copy(layer) for layer in cache.layers]
    select(copied, index_B)
    return copied


def trim(cache: DynamicCache, unused: int) -> None:
    """Drop the first positions."""
    for layer in cache.layers:
        _apply(layer, lambda keys: keys[:, :, unused:], lambda state: state)


def joined(caches: Sequence[DynamicCache], length: int) -> DynamicCache:
    """A cache with the rows of all and `length` positions; none is changed."""
    whole = copy.copy(caches[0])
    whole.layers = [_joined(layers, length) for layers in zip(*(cache.layers for cache in caches), strict=True)]
    return whole


def _joined(layers: Sequence[Any], length: int) -> Any:
    layer = copy.copy(layers[0])
    if all(_is_attention(each) for each in layers):
        layer.keys = torch.cat([_left(each.keys, length) for each in layers])
        layer.values = torch.cat([_left(each.values, length) for each in layers])
        return layer
    for name in ("conv_states", "recurrent_states"):
        states = [getattr(each, name) for each in layers]
        first = states[0].items()
        setattr(layer, name, {i: s if s is None else torch.cat([each[i] for each in states]) for i, s in first})
    return layer


def _apply(layer: Any, to_positions: Callable[[Tensor], Tensor], to_state: Callable[[Tensor], Tensor]) -> None:
    if _is_attention(layer):
        layer.keys, layer.values = to_positions(layer.keys), to_positions(layer.values)
        return
    for name in ("conv_states", "recurrent_states"):
        setattr(layer, name, {i: s if s is None else to_state(s) for i, s in getattr(layer, name).items()})


def _is_attention(layer: object) -> bool:
    """Whether a layer caches positions, not a state; PolicyError for unknown kinds of layers."""
    if type(layer) is DynamicLayer and layer.keys is not None:
        return True
    if type(layer) is LinearAttentionLayer:
        return False
    raise PolicyError(f"a policy with {type(layer).__name__} is not supported")


def _left(states: Tensor, length: int) -> Tensor:
    """Keys or values (B, heads, T, size) padded on the left."""
    return pad(states, (0, 0, length - states.shape[2], 0))
