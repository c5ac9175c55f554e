"""Dictionaries that are no searches: by the rule they break, with the path of the error, a word of it, and its hint."""

# ruff: noqa: E501 - a table

from typing import Any

BEST = {"$min_k": {"keys": ["#score"], "k": 1}}
KNN = {"$knn": {"query": "paris"}}


def where(condition: Any) -> dict[str, Any]:
    return {"where": condition}


def rank(expression: Any) -> dict[str, Any]:
    return {"rank": expression}


def knn(query: Any = "paris", **options: Any) -> dict[str, Any]:
    return rank({"$knn": {"query": query, **options}})


def grouped(keys: Any = ("model",), aggregate: Any = BEST) -> dict[str, Any]:
    return {"rank": KNN, "group_by": {"keys": list(keys), "aggregate": aggregate}}


WRONG: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "an unknown key": ({"limt": 3}, "limt", "unknown key", "limit"),
    "a key that is like none": ({"top_k": 3}, "top_k", "unknown key", "where, filter, rank, group_by, limit, select"),
    "a condition in place of a search": ({"reward": {"$gt": 1}}, "reward", "unknown key", '{"where": {"reward": {"$gt": 1}}}'),
    "a rank in place of a search": (KNN, "$knn", "unknown key", '{"rank": {"$knn": {"query": "paris"}}}'),
    "an offset by itself": ({"offset": 3}, "offset", "unknown key", '{"limit": {"offset": 3}}'),
    "where and filter": (
        {"where": {"a": 1}, "filter": {"b": 2}}, "the search", "two names", '{"where": {"$and": ["...", "..."]}}',
    ),
    "a condition that is no object": (where("reward > 1"), "where", "object", '{"reward": {"$gt": 0.5}}'),
    "no condition": (where({}), "where", "no condition", '{"reward": {"$gt": 0.5}}, or leave it out'),
    "a text above": (where({"reward": {"$gt": "0.5"}}), "where.reward.$gt", "only numbers have an order", '{"reward": {"$gt": 0.5}}'),
    "true above": (where({"reward": {"$lte": True}}), "where.reward.$lte", "only numbers have an order", '{"reward": {"$lte": 1.0}}'),
    "a text above, further inside": (
        where({"$and": [{"step": 1}, {"reward": {"$gt": "x"}}]}),
        "where.$and[1].reward.$gt", "only numbers have an order", '{"reward": {"$gt": 0.5}}',
    ),
    "two operators on a field": (
        where({"reward": {"$gt": 0, "$lt": 1}}), "where.reward", "exactly one",
        '{"$and": [{"reward": {"$gt": 0}}, {"reward": {"$lt": 1}}]}',
    ),
    "unknown operator on a field": (where({"reward": {}}), "where.reward", "exactly one", '{"reward": {"$eq": 0.5}}'),
    "an unknown operator": (where({"reward": {"$ge": 1}}), "where.reward.$ge", "unknown operator", "$gte"),
    "an operator without its dollar": (where({"reward": {"gt": 1}}), "where.reward.gt", "unknown operator", "$gt"),
    "a field inside a field": (where({"reward": {"exact": 1}}), "where.reward.exact", "unknown operator", '{"reward.exact": 1}'),
    "an operator without a field": (where({"$gt": 1}), "where", "needs a field", '{"reward": {"$gt": 1}}'),
    "not": (
        where({"$not": {"a": 1}}), "where.$not", "unknown operator",
        "$ne, $nin, $not_contains or $not_regex; $lte for what is not $gt",
    ),
    "an unknown name with #": (where({"#docment": {"$contains": "a"}}), "where.#docment", "not a field here", "#document"),
    "a condition on the score": (
        where({"#score": {"$lt": 1}}), "where.#score", "not a field here", "#id or #document or the name of a metadata field",
    ),
    "a field without a name": (
        where({"": 1}), 'where[""]', "not a field here", "#id or #document or the name of a metadata field",
    ),
    "null as a value": (where({"reward": None}), "where.reward", "null is not a value", '{"reward": {"$eq": 0.5}}'),
    "null in a list": (where({"model": {"$in": ["a", None]}}), "where.model.$in[1]", "null is not a value", '"a"'),
    "a list as a value": (where({"model": ["a", "b"]}), "where.model", "one value", '{"model": {"$in": ["a", "b"]}}'),
    "an object as a value": (where({"a": {"$eq": {"b": 1}}}), "where.a.$eq", "a value must be", '{"a": {"$eq": 0.5}}'),
    "a number that is not finite": (
        where({"a": {"$eq": 10**400}}), "where.a.$eq", "infinity", '{"a": {"$eq": 0.5}}',
    ),
    "an empty list of values": (
        where({"model": {"$in": []}}), "where.model.$in", "at least 1", '{"model": {"$in": ["a", "b"]}}',
    ),
    "a text as a list of values": (
        where({"model": {"$nin": "a"}}), "where.model.$nin", "a list", '{"model": {"$nin": ["a", "b"]}}',
    ),
    "values of several types": (
        where({"model": {"$in": ["a", 1]}}), "where.model.$in", "texts and numbers",
        '{"$or": [{"model": {"$in": ["a"]}}, {"model": {"$in": [1]}}]}',
    ),
    "true among numbers": (
        where({"a": {"$nin": [True, 1]}}), "where.a.$nin", "truth values and numbers",
        '{"$and": [{"a": {"$nin": [true]}}, {"a": {"$nin": [1]}}]}',
    ),
    "an expression on a field": (
        where({"model": {"$regex": "a+"}}), "where.model.$regex", "#document and reasoning_text only",
        '{"#document": {"$regex": "a+"}}',
    ),
    "an expression that is none": (
        where({"#document": {"$regex": "a("}}), "where.#document.$regex", "not a regular expression",
        '{"#document": {"$regex": "a\\\\("}}',
    ),
    "an expression that is empty": (
        where({"#document": {"$regex": ""}}), "where.#document.$regex", "non-empty", '{"#document": {"$regex": "Par.s"}}',
    ),
    "a text that is equal": (
        where({"#document": "paris"}), "where.#document", "what it contains", '{"#document": {"$contains": "paris"}}',
    ),
    "a text among texts": (
        where({"#document": {"$in": ["a", "b"]}}), "where.#document.$in", "what it contains",
        '{"$or": [{"#document": {"$contains": "a"}}, {"#document": {"$contains": "b"}}]}',
    ),
    "a text that contains nothing": (
        where({"#document": {"$contains": ""}}), "where.#document.$contains", "non-empty",
        '{"#document": {"$contains": "text"}}',
    ),
    "an id that is a number": (where({"#id": 3}), "where.#id", "an id is a text", '{"#id": {"$eq": "3"}}'),
    "an id in an order": (where({"#id": {"$gt": "a"}}), "where.#id.$gt", "no order", '{"#id": {"$eq": "a"}}'),
    "an id that contains": (where({"#id": {"$contains": "a"}}), "where.#id.$contains", "a whole", '{"#id": {"$eq": "a"}}'),
    "and of nothing": (
        where({"$and": []}), "where.$and", "at least 1", '[{"reward": {"$gt": 0.5}}, {"model": "lab/practice"}]',
    ),
    "or of no list": (
        where({"$or": {"a": 1}}), "where.$or", "a list", '[{"reward": {"$gt": 0.5}}, {"model": "lab/practice"}]',
    ),
    "a text as rank": (rank("paris"), "rank", "one operator", '{"$knn": {"query": "paris"}}'),
    "true as rank": (rank(True), "rank", "one operator", '{"$knn": {"query": "text"}}'),
    "a list as rank": (rank([1, 2]), "rank", "one operator", '{"$sum": [{"$knn": {"query": "text"}}, 0.5]}'),
    "unknown operator in a rank": (rank({}), "rank", "exactly one", '{"$sum": [{"$knn": {"query": "text"}}, 1]}'),
    "two operators in a rank": (
        rank({"$val": 1, "$knn": {"query": "a"}}), "rank", "exactly one", '{"$sum": [{"$knn": {"query": "text"}}, 1]}',
    ),
    "an unknown operator in a rank": (rank({"$divide": 1}), "rank.$divide", "unknown operator", "$div"),
    "a number that is too large for a rank": (rank({"$val": 1e39}), "rank.$val", "finite", "0.5"),
    "one operand": (rank({"$sum": [KNN]}), "rank.$sum", "at least 2", '[{"$knn": {"query": "text"}}, 0.5]'),
    "one operand of mul": (rank({"$mul": [1]}), "rank.$mul", "at least 2", '[{"$knn": {"query": "text"}}, 0.5]'),
    "one operand of max": (rank({"$max": [1]}), "rank.$max", "at least 2", '[{"$knn": {"query": "text"}}, 0.5]'),
    "no operand of min": (rank({"$min": []}), "rank.$min", "at least 2", '[{"$knn": {"query": "text"}}, 0.5]'),
    "a pair without names": (rank({"$sub": [1, 2]}), "rank.$sub", "an object", '{"left": 1, "right": 2}'),
    "half a pair": (rank({"$div": {"left": 1}}), "rank.$div", "'right'", '{"left": 1, "right": {"$knn": {"query": "text"}}}'),
    "a list in place of one operand": (rank({"$exp": [1]}), "rank.$exp", "one operator", '{"$knn": {"query": "text"}}'),
    "a knn without a query": (rank({"$knn": {"key": "a"}}), "rank.$knn", "'query'", '{"query": "text"}'),
    "an unknown key of a knn": (knn(limt=3), "rank.$knn.limt", "unknown key", "limit"),
    "a query that is blank": (knn(" "), "rank.$knn.query", "non-empty", '"text"'),
    "a query that is a number": (knn(3), "rank.$knn.query", "a query is", '"text"'),
    "an empty vector": (knn([]), "rank.$knn.query", "at least 1", "[0.1, 0.2]"),
    "a vector of vectors": (knn([[1, 2]]), "rank.$knn.query", "one vector", "[1, 2]"),
    "a vector with a text": (knn([1, "a"]), "rank.$knn.query[1]", "a number", "0.5"),
    "a vector with true": (knn([True]), "rank.$knn.query[0]", "a number", "0.5"),
    "unequal lengths of a sparse vector": (
        knn({"indices": [1], "values": [1, 2]}), "rank.$knn.query", "1 indices and 2 values",
        '{"indices": [1], "values": [1.0]}',
    ),
    "an index twice": (
        knn({"indices": [1, 1], "values": [1, 2]}), "rank.$knn.query", "more than once",
        '{"indices": [3, 17], "values": [0.5, 1.5]}',
    ),
    "an index below 0": (knn({"indices": [-1], "values": [1]}), "rank.$knn.query.indices[0]", "at least 0", "3"),
    "an empty sparse vector": (knn({"indices": [], "values": []}), "rank.$knn.query.indices", "at least 1", "[3, 17]"),
    "another type of vector": (
        knn({"#type": "dense", "indices": [1], "values": [1]}), "rank.$knn.query.#type", "one type", '"sparse_vector"',
    ),
    "a knn by the score": (knn(key="#score"), "rank.$knn.key", "not a field here", "#embedding or the name of a metadata field"),
    "a knn of none": (knn(limit=0), "rank.$knn.limit", "at least 1", "16"),
    "a knn of true": (knn(limit=True), "rank.$knn.limit", "an integer", "16"),
    "a knn of one and a half": (knn(limit=1.5), "rank.$knn.limit", "an integer", "16"),
    "a default that is a text": (knn(default="1"), "rank.$knn.default", "a number", "1"),
    "return_rank that is a number": (knn(return_rank=1), "rank.$knn.return_rank", "true or false", "true"),
    "a field term that is a text": (rank({"$field": "reward"}), "rank.$field", "an object", '{"key": "reward"}'),
    "a field term of the score": (
        rank({"$field": {"key": "#score"}}), "rank.$field.key", "not a field here", "the name of a metadata field",
    ),
    "groups by score without a rank": (
        {"group_by": {"keys": ["a"], "aggregate": BEST}}, "group_by", "no rank", '{"rank": {"$knn": {"query": "text"}}}',
    ),
    "groups by nothing": (grouped(keys=[]), "group_by.keys", "at least 1", '["model"]'),
    "groups by the score": (grouped(keys=["#score"]), "group_by.keys[0]", "not a field here", "the name of a metadata field"),
    "no aggregate": (
        {"rank": KNN, "group_by": {"keys": ["a"]}}, "group_by", "'aggregate'",
        '{"keys": ["model"], "aggregate": {"$min_k": {"keys": ["#score"], "k": 1}}}',
    ),
    "an unknown aggregate": (grouped(aggregate={"$mink": {}}), "group_by.aggregate.$mink", "unknown operator", "$min_k"),
    "two aggregates": (
        grouped(aggregate={**BEST, "$max_k": {"keys": ["a"], "k": 1}}), "group_by.aggregate", "exactly one",
        '{"$min_k": {"keys": ["#score"], "k": 1}}',
    ),
    "the best none": (
        grouped(aggregate={"$min_k": {"keys": ["a"], "k": 0}}), "group_by.aggregate.$min_k.k", "at least 1", "1",
    ),
    "the best by the id": (
        grouped(aggregate={"$min_k": {"keys": ["#id"], "k": 1}}), "group_by.aggregate.$min_k.keys[0]", "not a field here",
        "#score or the name of a metadata field",
    ),
    "the best by nothing": (
        grouped(aggregate={"$min_k": {"keys": [], "k": 1}}), "group_by.aggregate.$min_k.keys", "at least 1", '["#score"]',
    ),
    "a negative limit": ({"limit": -1}, "limit", "at least 0", '{"limit": 10, "offset": 0}'),
    "true as limit": ({"limit": {"limit": True}}, "limit.limit", "an integer", "10"),
    "a negative offset": ({"limit": {"offset": -1}}, "limit.offset", "at least 0", "0"),
    "an unknown key of a limit": ({"limit": {"ofset": 1}}, "limit.ofset", "unknown key", "offset"),
    "a text as select": ({"select": "reward"}, "select", "a list", '["#document", "#score", "reward"]'),
    "select without keys": ({"select": {}}, "select", "'keys'", '{"keys": ["#document", "#score", "reward"]}'),
    "an unknown # key": ({"select": ["#scor"]}, "select[0]", "not a field here", "#score"),
    "an empty key": ({"select": [""]}, "select[0]", "the name of a field", '"#score"'),
    "a key that is a number": ({"select": [3]}, "select[0]", "the name of a field", '"#score"'),
}  # fmt: skip
