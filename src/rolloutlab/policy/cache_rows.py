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
"""Positions that a layer makes room for when it has none left; the sampler's limit does not count them."""
_KEPT_ROWS = 0.75
"""The share of the rows with room that are in use at least; nor does the limit count the others."""


class AttentionLayer(DynamicLayer):  # type: ignore[misc]
    """Keys and values (B, heads, T, size) of all positions, with room for more of them and for rows that left.

    transformers' own layer copies everything at each step, and again for each row that joins or leaves. Where answers
    are short that took more than half of the time: 128 completions of ten tokens, the practice policy.

    keys, values: views of the rows and positions in use, of tensors with more. `select` makes new tensors, so that none
    is written to that another cache reads; `add` and `keep` write into those of this cache.
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
        rows, _, length, _ = self.keys.shape
        count = key_states.shape[2]
        if self._roomy is None or self._begin + length + count > self._roomy[0].shape[2]:
            self.take_parts([(self.keys, self.values)], length, count)
        assert self._roomy
        end = self._begin + length
        for roomy, states in zip(self._roomy, (key_states, value_states), strict=True):
            roomy[:rows, :, end : end + count] = states
        self._show(rows, self._begin, length + count)
        return self.keys, self.values

    def take_parts(self, parts: Sequence[Pair], length: int, count: int = 0) -> None:
        """Hold the rows of all parts, padded on the left to `length` positions, with room for `count` and more."""
        rows, capacity = sum(len(keys) for keys, _ in parts), length + count + _ROOM
        keys, values = (each.new_empty(rows, each.shape[1], capacity, each.shape[3]) for each in parts[0])
        self._roomy = keys, values
        self._write(parts, 0, 0, length)
        self._show(rows, 0, length)

    def add(self, parts: Sequence[Pair], length: int) -> None:
        """Hold the rows of all parts behind its own; all are padded on the left to `length` positions."""
        rows, _, own, _ = self.keys.shape
        all_rows, begin = rows + sum(len(keys) for keys, _ in parts), self._begin + own - length
        if self._roomy is None or all_rows > len(self._roomy[0]) or begin < 0:
            self.take_parts([(self.keys, self.values), *parts], length)
            return
        for roomy in self._roomy:
            roomy[:rows, :, begin : self._begin] = 0
        self._write(parts, rows, begin, length)
        self._show(all_rows, begin, length)

    def keep(self, order: Sequence[int]) -> None:
        """Row i is to be that of `order[i]`, which is i, or one behind those that are kept."""
        count, length = len(order), self.keys.shape[2]
        if self._roomy is None or count < _KEPT_ROWS * len(self._roomy[0]):  # so that the rest is freed
            index_B = torch.tensor(order, dtype=torch.long, device=self.keys.device)
            self.take_parts([(self.keys[index_B], self.values[index_B])], length)
            return
        if moved := [i for i, row in enumerate(order) if i != row]:
            for each in (self.keys, self.values):
                each[moved] = each[[order[i] for i in moved]]
        self._show(count, self._begin, length)

    def select(self, index_B: Tensor) -> None:
        """Hold a copy of these rows, in this order; an index may be repeated."""
        self.keys, self.values = self.keys[index_B], self.values[index_B]
        self._roomy = None

    def trim(self, unused: int) -> None:
        """Drop the first positions."""
        if self._roomy is None:
            self.keys, self.values = self.keys[:, :, unused:], self.values[:, :, unused:]
        else:
            self._show(len(self.keys), self._begin + unused, self.keys.shape[2] - unused)

    def _write(self, parts: Sequence[Pair], first: int, begin: int, length: int) -> None:
        """Rows of all parts, from a row on, into `length` positions of which theirs are the last."""
        assert self._roomy
        for pair in parts:
            last, before = first + len(pair[0]), begin + length - pair[0].shape[2]
            for roomy, part in zip(self._roomy, pair, strict=True):
                roomy[first:last, :, begin:before] = 0  # masked, but a product with NaN would be NaN
                roomy[first:last, :, before : begin + length] = part
            first = last

    def _show(self, rows: int, begin: int, length: int) -> None:
        assert self._roomy
        self._begin = begin
        self.keys, self.values = (roomy[:rows, :, begin : begin + length] for roomy in self._roomy)


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


def keep(cache: DynamicCache, order: Sequence[int]) -> None:
    """Row i is to be that of `order[i]`, which is i, or one behind those that are kept."""
    layers: list[Any] = cache.layers
    for layer in layers:
        if _is_attention(layer):
            layer.keep(order)
        else:
            _select_states(layer, torch.tensor(order, dtype=torch.long))


def selected(cache: DynamicCache, index_B: Tensor) -> DynamicCache:
    """A copy of these rows, in this order; an index may be repeated."""
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
    """Drop the first positions."""
    layers: list[Any] = cache.layers
    for layer in layers:
        if _is_attention(layer):
            layer.trim(unused)


def joined(caches: Sequence[DynamicCache], length: int) -> DynamicCache:
    """A cache with the rows of all and `length` positions, which takes over the room of the first.

    Where it fails, the first can go on as it was. The others are not changed.
    """
    whole = copy.copy(caches[0])
    whole.layers = [_joined(layers, length) for layers in zip(*(cache.layers for cache in caches), strict=True)]
    return whole


def _joined(layers: Sequence[Any], length: int) -> Any:
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
    """Whether a layer caches positions, not a state; PolicyError for unknown kinds of layers."""
    if type(layer) is AttentionLayer and layer.is_initialized:
        return True
    if type(layer) is LinearAttentionLayer:
        return False
    raise PolicyError(f"a policy with {type(layer).__name__} is not supported")
