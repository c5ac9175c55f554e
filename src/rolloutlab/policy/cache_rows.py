"""KV caches and recurrent states of a batch: select, join and trim rows.

Attention layers cache keys and values of every position, padded on the left; convolutions and recurrent layers have a
state of fixed size, which padding never enters.
"""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer, LinearAttentionLayer

from rolloutlab.errors import PolicyError

_STATES = ("conv_states", "recurrent_states")
_ROOM = 32
"""Positions that a layer makes room for when it has none left; the sampler's limit does not count them."""


class AttentionLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """Keys and values (B, heads, T, size) of all positions, with room for more behind them.

    transformers' own layer copies all positions at each step: 3 % of one of 64 completions of a 50M policy.

    keys, values: views of the positions in use, of tensors with more. Every way to take rows makes new tensors, so none
    is written to that another cache reads.
    """

    keys: Tensor
    values: Tensor
    _roomy: tuple[Tensor, Tensor] | None = None
    _begin = 0

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append positions; all keys and values."""
        if not self.is_initialized or not self.keys.numel():  # a prompt, whose cache may be kept as it is
            whole: tuple[Tensor, Tensor] = super().update(key_states, value_states, *args, **kwargs)
            return whole
        length, count = self.keys.shape[2], key_states.shape[2]
        end = self._begin + length
        if self._roomy is None or end + count > self._roomy[0].shape[2]:
            self.take_parts([(self.keys, self.values)], length, count)
            end = length
        assert self._roomy
        for roomy, states in zip(self._roomy, (key_states, value_states), strict=True):
            roomy[:, :, end : end + count] = states
        self._show(self._begin, length + count)
        return self.keys, self.values

    def take_parts(self, parts: Sequence[tuple[Tensor, Tensor]], length: int, count: int = 0) -> None:
        """Hold the rows of all parts, padded on the left to `length` positions, with room for `count` and more."""
        capacity = length + count + _ROOM
        self._roomy = (
            _in_room([k for k, _ in parts], length, capacity),
            _in_room([v for _, v in parts], length, capacity),
        )
        self._show(0, length)

    def select(self, index_B: Tensor) -> None:
        """Keep these rows, in this order; an index may be repeated."""
        if self._roomy is None:
            self.keys, self.values = self.keys[index_B], self.values[index_B]
            return
        keys, values = self._roomy
        length = self.keys.shape[2]
        self._roomy = keys[index_B], values[index_B]
        self._show(self._begin, length)

    def trim(self, unused: int) -> None:
        """Drop the first positions."""
        if self._roomy is None:
            self.keys, self.values = self.keys[:, :, unused:], self.values[:, :, unused:]
        else:
            self._show(self._begin + unused, self.keys.shape[2] - unused)

    def _show(self, begin: int, length: int) -> None:
        assert self._roomy
        self._begin = begin
        self.keys, self.values = (roomy[:, :, begin : begin + length] for roomy in self._roomy)


def _in_room(parts: Sequence[Tensor], length: int, capacity: int) -> Tensor:
    """The rows of all parts in a tensor of so many positions, of which they end at `length`."""
    _, heads, _, size = parts[0].shape
    roomy = parts[0].new_empty(sum(map(len, parts)), heads, capacity, size)
    first = 0
    for part in parts:
        before, last = length - part.shape[2], first + len(part)
        roomy[first:last, :, :before] = 0  # masked, but a product with NaN would be NaN
        roomy[first:last, :, before:length] = part
        first = last
    return roomy


def empty_cache(model: Any) -> DynamicCache:
    """An empty cache for a model.

    Sliding-window layers keep every position too, so that all layers are trimmed alike; their mask hides old ones.
    """
    cache = DynamicCache(config=getattr(model, "config", None))
    if not any(isinstance(layer, LinearAttentionLayer) for layer in cache.layers):
        cache = DynamicCache()
        cache.layer_class_to_replicate = AttentionLayer
        return cache
    whole: Any = AttentionLayer
    attention = (DynamicLayer, DynamicSlidingWindowLayer)
    cache.layers = [whole() if type(each) in attention else each for each in cache.layers]
    return cache


def select(cache: DynamicCache, index_B: Tensor) -> None:
    """Keep these rows, in this order; an index may be repeated."""
    layers: list[Any] = cache.layers
    for layer in layers:
        if _is_attention(layer):
            layer.select(index_B)
            continue
        for name in _STATES:
            states = getattr(layer, name).items()
            setattr(layer, name, {i: s if s is None else s.index_select(0, index_B) for i, s in states})


def selected(cache: DynamicCache, index_B: Tensor) -> DynamicCache:
    """A copy of these rows."""
    copied = copy.copy(cache)
    copied.layers = [copy.copy(layer) for layer in cache.layers]
    select(copied, index_B)
    return copied


def trim(cache: DynamicCache, unused: int) -> None:
    """Drop the first positions."""
    layers: list[Any] = cache.layers
    for layer in layers:
        if _is_attention(layer):
            layer.trim(unused)


def joined(caches: Sequence[DynamicCache], length: int) -> DynamicCache:
    """A cache with the rows of all and `length` positions; none is changed."""
    whole = copy.copy(caches[0])
    whole.layers = [_joined(layers, length) for layers in zip(*(cache.layers for cache in caches), strict=True)]
    return whole


def _joined(layers: Sequence[Any], length: int) -> Any:
    layer = copy.copy(layers[0])
    if all(_is_attention(each) for each in layers):
        layer.take_parts([(each.keys, each.values) for each in layers], length)
        return layer
    for name in _STATES:
        states = [getattr(each, name) for each in layers]
        first = states[0].items()
        setattr(layer, name, {i: s if s is None else torch.cat([each[i] for each in states]) for i, s in first})
    return layer


def _is_attention(layer: object) -> bool:
    """Whether a layer caches positions, not a state; PolicyError for unknown kinds of layers."""
    if type(layer) is AttentionLayer and layer.is_initialized:
        return True
    if type(layer) is LinearAttentionLayer:
        return False
    raise PolicyError(f"a policy with {type(layer).__name__} is not supported")
