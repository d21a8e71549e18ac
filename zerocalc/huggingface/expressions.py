"""Small expressions over a config's keys, such as ``head_dim or hidden_size //
num_attention_heads``: how a family's file gives tensors' sizes.

Only arithmetic, comparisons, ``and``/``or``/``not``/``if``, names, ``table.key``, ``list[index]``
and a few functions; nothing else of Python is reachable from them.
"""

from __future__ import annotations

import ast
import functools
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

from zerocalc.spec.implementation import UNKNOWN


class ExpressionError(ValueError):
    """An expression that cannot be evaluated: ``key`` is the config's key to blame, where there is
    one.
    """

    def __init__(self, text: str, key: str | None = None) -> None:
        super().__init__(text)
        self.key = key


LARGEST = 10**18
LONGEST = 400

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
}
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
}


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


ACTIVATIONS = {
    **dict.fromkeys(("gelu", "hardswish", "leaky_relu", "mish", "relu6"), "gelu"),
    **dict.fromkeys(("gelu_pytorch_tanh", "gelu_tanh"), "gelu_tanh"),
    **dict.fromkeys(("gelu_new", "gelu_accurate"), "gelu_new"),
    **dict.fromkeys(("silu", "swish"), "silu"),
    **{
        name: name
        for name in ("gelu_fast", "quick_gelu", "relu", "relu2", "sigmoid", "tanh", "xielu")
    },
}
"""What transformers calls an activation, and which of ours keeps the same: all that are one kernel
and keep their input are alike.
"""


def activation(name: object) -> str:
    """Our word for an activation of transformers (5.24.0, activations.py): ``unknown`` where it is
    not known what it keeps.
    """
    return ACTIVATIONS.get(name, UNKNOWN) if isinstance(name, str) else UNKNOWN


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "activation": activation,
    "ceil_div": lambda number, divisor: -(-number // divisor),
    "round_up": _round_up,
    "int": int,
    "round": round,
    "bool": bool,
    "len": len,
    "max": max,
    "min": min,
    "sum": sum,
    "isqrt": math.isqrt,
    "kinds": lambda values: len({value for value in values if value}),
    "is_list": lambda value: isinstance(value, list),
    "get": lambda table, key, default=None: default if table is None else table.get(key, default),
}


@functools.lru_cache(maxsize=4096)
def parse(text: str) -> ast.expr:
    """The tree of an expression; the same few texts are read for every layer."""
    if len(text) > LONGEST:
        raise ExpressionError(f"expression too long: {text[:60]}…")
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError):
        raise ExpressionError(f"not an expression: {text}") from None


def names_in(text: str) -> set[str]:
    """The names that an expression reads, and the keys of tables in it."""
    nodes = list(ast.walk(parse(text)))
    names = {node.id for node in nodes if isinstance(node, ast.Name)} | {
        node.attr for node in nodes if isinstance(node, ast.Attribute)
    }
    return (
        names
        | {
            node.value
            for node in nodes
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
    ) - FUNCTIONS.keys()


def evaluate(expression: object, names: Mapping[str, Any]) -> Any:
    """The value of an expression over ``names``; what is not a text stands for itself.

    Raises `ExpressionError` where a name is missing or a value does not go with an operation.
    """
    if not isinstance(expression, str):
        return expression
    try:
        value = _value(parse(expression), names)
    except ExpressionError:
        raise
    except (ArithmeticError, TypeError, ValueError, IndexError, KeyError, AttributeError) as error:
        raise ExpressionError(f"{expression}: {error}", _first_name(expression, names)) from None
    if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) > LARGEST:
        raise ExpressionError(f"{expression} is too large", _first_name(expression, names))
    return value


def _first_name(expression: str, names: Mapping[str, Any]) -> str | None:
    """The first name in an expression: most likely the key whose value does not fit."""
    return next(
        (
            node.id
            for node in ast.walk(parse(expression))
            if isinstance(node, ast.Name) and node.id not in FUNCTIONS
        ),
        None,
    )


# One case for each kind of node.
def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:  # noqa: PLR0911, PLR0912
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        if node.id not in names:
            raise ExpressionError(f"{node.id} is missing", node.id)
        return names[node.id]
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        return _BINARY[type(node.op)](_number(node.left, names), _number(node.right, names))
    if isinstance(node, ast.BoolOp):
        return _logic(node, names)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return not _value(node.operand, names)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_number(node.operand, names)
    if isinstance(node, ast.IfExp):
        return _value(node.body if _value(node.test, names) else node.orelse, names)
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        return _COMPARE[type(node.ops[0])](
            _value(node.left, names), _value(node.comparators[0], names)
        )
    if isinstance(node, ast.Attribute):
        table = _value(node.value, names)
        if table is None:
            return None
        if not isinstance(table, Mapping):
            raise ExpressionError(f"{ast.unparse(node.value)} is not a table", _root(node))
        if node.attr not in table:
            raise ExpressionError(f"{ast.unparse(node)} is missing", _root(node))
        return table[node.attr]
    if isinstance(node, ast.Subscript):
        return _value(node.value, names)[_value(node.slice, names)]
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_value(element, names) for element in node.elts]
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in FUNCTIONS
        and not node.keywords
    ):
        return FUNCTIONS[node.func.id](*(_value(argument, names) for argument in node.args))
    raise ExpressionError(f"{ast.unparse(node)} is not allowed in an expression")


def _logic(node: ast.BoolOp, names: Mapping[str, Any]) -> Any:
    value: Any = None
    for part in node.values:
        value = _value(part, names)
        if bool(value) is isinstance(node.op, ast.Or):
            return value
    return value


def _number(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """A number, or a text only where texts are multiplied by nothing: arithmetic on texts and lists
    is a slip.
    """
    value = _value(node, names)
    if isinstance(value, bool):
        return int(value)
    if not isinstance(value, (int, float)):
        name = _root(node)
        raise ExpressionError(f"{ast.unparse(node)} is not a number", name)
    return value


def _root(node: ast.expr) -> str | None:
    return next((inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)), None)
