"""KV caches and recurrent states of a batch: keep, select, join and trim rows.

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

Pair = tuple[Tensor, Tensor]
"""Keys and values (B, heads, T, size)."""

_STATES = ("conv_states", "recurrent_states")
_ROOM = 32
"""Positions that a layer makes room for when it has no room left; the sampler's limit does not count them."""
_KEPT_ROWS = 0.75
"""The smallest share of the allocated rows in use before the rest is freed; the limit does not count the rest."""


class AttentionLayer(DynamicLayer):  # type: ignore[misc]
    """Keys and values (B, heads, T, size) of all positions, allocated with room for more positions and rows.

    transformers' own layer copies everything at each step, and again for each row that joins or leaves. With short
    answers (128 completions of ten tokens, the practice policy) that took more than half of the time.

    keys, values: views of the rows and positions in use, into the larger tensors `_roomy`. `add` and `keep` write into
    these tensors. `select` makes new ones instead, because another cache may read the old ones.
    """

    keys: Tensor
    values: Tensor
    _roomy: tuple[Tensor, Tensor] | None = None
    _begin = 0

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append positions; return all keys and values."""
        if not self.is_initialized or not self.keys.numel():  # a prompt: it needs no room unless it is continued
            whole: tuple[Tensor, Tensor] = super().update(key_states, value_states, *args, **kwargs)
            return whole
        rows, _, length, _ = self.keys.shape
        count = key_states.shape[2]
        if self._roomy is None or self._begin + length + count > self._roomy[0].shape[2]:
            self.take_parts([(self.keys, self.values)], length, count)
        assert self._roomy
        end = self._begin + length
        for roomy, states in zip(self._roomy, (key_states, value_states), strict=True):
            roomy[:rows, :, end : end + count] = states
        self._set_view(rows, self._begin, length + count)
        return self.keys, self.values

    def take_parts(self, parts: Sequence[Pair], length: int, count: int = 0) -> None:
        """Hold the rows of all parts, padded on the left to `length` positions, with room for at least `count` more."""
        rows, capacity = sum(len(keys) for keys, _ in parts), length + count + _ROOM
        keys, values = (each.new_empty(rows, each.shape[1], capacity, each.shape[3]) for each in parts[0])
        self._roomy = keys, values
        self._write(parts, 0, 0, length)
        self._set_view(rows, 0, length)

    def add(self, parts: Sequence[Pair], length: int) -> None:
        """Append the rows of all parts to the layer's own; all are padded on the left to `length` positions."""
        rows, _, own, _ = self.keys.shape
        all_rows, begin = rows + sum(len(keys) for keys, _ in parts), self._begin + own - length
        if self._roomy is None or all_rows > len(self._roomy[0]) or begin < 0:
            self.take_parts([(self.keys, self.values), *parts], length)
            return
        for roomy in self._roomy:
            roomy[:rows, :, begin : self._begin] = 0
        self._write(parts, rows, begin, length)
        self._set_view(all_rows, begin, length)

    def keep(self, order: Sequence[int]) -> None:
        """Keep as many rows as `order` has: row i becomes the row `order[i]`, which is i or a row after those kept."""
        count, length = len(order), self.keys.shape[2]
        if self._roomy is None or count < _KEPT_ROWS * len(self._roomy[0]):  # copied, so that the other rows are freed
            index_B = torch.tensor(order, dtype=torch.long, device=self.keys.device)
            self.take_parts([(self.keys[index_B], self.values[index_B])], length)
            return
        if moved := [i for i, row in enumerate(order) if i != row]:
            for each in (self.keys, self.values):
                each[moved] = each[[order[i] for i in moved]]
        self._set_view(count, self._begin, length)

    def select(self, index_B: Tensor) -> None:
        """Hold a copy of these rows, in this order; an index may be repeated."""
        self.keys, self.values = self.keys[index_B], self.values[index_B]
        self._roomy = None

    def trim(self, unused: int) -> None:
        """Drop the first `unused` positions."""
        if self._roomy is None:
            self.keys, self.values = self.keys[:, :, unused:], self.values[:, :, unused:]
        else:
            self._set_view(len(self.keys), self._begin + unused, self.keys.shape[2] - unused)

    def _write(self, parts: Sequence[Pair], first: int, begin: int, length: int) -> None:
        """Write the rows of all parts, from row `first` on, into `length` positions, padded on the left."""
        assert self._roomy
        for pair in parts:
            last, before = first + len(pair[0]), begin + length - pair[0].shape[2]
            for roomy, part in zip(self._roomy, pair, strict=True):
                roomy[first:last, :, begin:before] = 0  # masked, but the memory may hold NaN, and 0 * NaN is NaN
                roomy[first:last, :, before : begin + length] = part
            first = last

    def _set_view(self, rows: int, begin: int, length: int) -> None:
        assert self._roomy
        self._begin = begin
        self.keys, self.values = (roomy[:rows, :, begin : begin + length] for roomy in self._roomy)


def empty_cache(model: Any) -> DynamicCache:
    """Make an empty cache for a model.

    Sliding-window layers keep every position too, so that all layers are trimmed alike. Their mask hides the positions
    outside the window.
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


def keep(cache: DynamicCache, order: Sequence[int]) -> None:
    """Keep as many rows as `order` has: row i becomes the row `order[i]`, which is i or a row after those kept."""
    layers: list[Any] = cache.layers
    for layer in layers:
        if _is_attention(layer):
            layer.keep(order)
        else:
            _select_states(layer, torch.tensor(order, dtype=torch.long))


def select_rows(cache: DynamicCache, index_B: Tensor) -> DynamicCache:
    """Copy these rows into a new cache, in this order; an index may be repeated."""
    copied = copy.copy(cache)
    copied.layers = [copy.copy(layer) for layer in cache.layers]
    layers: list[Any] = copied.layers
    for layer in layers:
        if _is_attention(layer):
            layer.select(index_B)
        else:
            _select_states(layer, index_B)
    return copied


def trim(cache: DynamicCache, unused: int) -> None:
    """Drop the first `unused` positions of the attention layers."""
    layers: list[Any] = cache.layers
    for layer in layers:
        if _is_attention(layer):
            layer.trim(unused)


def join_rows(caches: Sequence[DynamicCache], length: int) -> DynamicCache:
    """Return a cache with the rows of all caches and `length` positions, which takes over the tensors of the first.

    If this fails, the first cache is still usable. The others are not changed.
    """
    whole = copy.copy(caches[0])
    whole.layers = [_join_layers(layers, length) for layers in zip(*(cache.layers for cache in caches), strict=True)]
    return whole


def _join_layers(layers: Sequence[Any], length: int) -> Any:
    layer = copy.copy(layers[0])
    if all(_is_attention(each) for each in layers):
        layer.add([(each.keys, each.values) for each in layers[1:]], length)
        return layer
    for name in _STATES:
        states = [getattr(each, name) for each in layers]
        first = states[0].items()
        setattr(layer, name, {i: s if s is None else torch.cat([each[i] for each in states]) for i, s in first})
    return layer


def _select_states(layer: Any, index_B: Tensor) -> None:
    for name in _STATES:
        states = getattr(layer, name).items()
        setattr(layer, name, {i: s if s is None else s.index_select(0, index_B.to(s.device)) for i, s in states})


def _is_attention(layer: object) -> bool:
    """Whether a layer caches positions, not a state. Raises PolicyError for unknown kinds of layers."""
    if type(layer) is AttentionLayer and layer.is_initialized:
        return True
    if type(layer) is LinearAttentionLayer:
        return False
    raise PolicyError(f"a policy with {type(layer).__name__} is not supported")
