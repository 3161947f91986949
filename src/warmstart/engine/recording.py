"""Recorded programs: lists of ATen operations that can be simplified and cut in two."""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import torch
from torch import fx

aten = torch.ops.aten
_RESHAPES = {aten.view.default, aten._unsafe_view.default, aten.expand.default, aten.squeeze.dims}
_POWERS = {aten.mul.Scalar, aten.pow.Tensor_Scalar}  # by one, they do nothing
_FILLED: dict[Any, int] = {aten.ones_like.default: 1, aten.zeros_like.default: 0}
_VIEWS = {*_RESHAPES, aten.transpose.int, aten.t.default, aten.unsqueeze.default, aten.permute.default}


def mutates(target: Any) -> bool:
    return isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable


def simplify(program: fx.GraphModule) -> fx.GraphModule:
    """Drop operations that do nothing and compute equal ones once. All of them are pure."""
    seen: dict[Any, fx.Node] = {}
    for node in program.graph.nodes:
        if node.op != "call_function" or node.target is operator.getitem:
            continue
        _fold(node)
        same = _same(node)
        if same is None:
            same = seen.setdefault((node.target, _freeze(node.args), _freeze(node.kwargs)), node)
        if same is not node:
            node.replace_all_uses_with(same)
    program.graph.eliminate_dead_code()
    program.recompile()
    return program


def _fold(node: fx.Node) -> None:
    """-x times c is x times -c."""
    source = node.args[0] if node.args else None
    if node.target is aten.mul.Scalar and isinstance(source, fx.Node) and source.target is aten.neg.default:
        node.args = (source.args[0], -node.args[1])  # type: ignore[operator]


def _same(node: fx.Node) -> fx.Node | None:
    """A node that holds the value of this one, where a rule knows one."""
    source, others = node.args[0] if node.args else None, node.args[1:]
    found: list[Any] = []
    if node.target in _RESHAPES or (node.target in _POWERS and others[0] == 1):
        found = [source]
    elif node.target is aten.mul.Tensor:
        found = [one for one, other in (node.args, node.args[::-1]) if _constant(other) == 1]
    elif node.target is aten.add.Tensor and not node.kwargs:
        found = [one for one, other in (node.args, node.args[::-1]) if _constant(other) == 0]
    elif node.target is aten.transpose.int and isinstance(source, fx.Node) and source.target is node.target:
        found = [source.args[0]] if set(others) == set(source.args[1:]) else []
    return next((one for one in found if isinstance(one, fx.Node) and _shape(one) == _shape(node)), None)


def _constant(value: Any) -> Any:
    """The number that fills a tensor, where the program says so; a plain number is one already."""
    if not isinstance(value, fx.Node):
        return value
    if value.target in _VIEWS:
        return _constant(value.args[0])
    if value.target is aten.pow.Tensor_Scalar and value.args[1] == 0:
        return 1
    return _FILLED.get(value.target)


def _shape(node: fx.Node) -> Any:
    return node.meta["val"].shape, node.meta["val"].dtype


def _freeze(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(_freeze(part) for part in value)
    if isinstance(value, dict):
        return tuple((name, _freeze(part)) for name, part in value.items())
    return (type(value), value)


class Halves(NamedTuple):
    forward: fx.GraphModule  # inputs -> results, then the values that backward needs
    backward: fx.GraphModule  # kept inputs, values, cotangents -> cotangents of inputs
    kept: list[int]  # which inputs backward needs


def cut(joint: fx.GraphModule, inputs: int, results: int) -> Halves:
    """Cut a program (inputs, cotangents) -> (results, pulled back) into one before and one after
    the cotangents are known. Views are taken again on the other side rather than handed over."""
    nodes = list(joint.graph.nodes)
    holders = [node for node in nodes if node.op == "placeholder"]
    outputs = list(nodes[-1].args[0])
    late = set(holders[inputs:])
    for node in nodes:
        if any(source in late for source in node.all_input_nodes):
            late.add(node)
    handed: dict[fx.Node, None] = {}
    again: set[fx.Node] = set()

    def need(node: fx.Node) -> None:
        if node in late or node in again:
            return
        if node.op == "get_attr" or node.target in _VIEWS:
            again.add(node)
            for source in node.all_input_nodes:
                need(source)
        else:
            handed[node] = None

    for node in nodes[:-1]:
        if node in late:
            for source in node.all_input_nodes:
                need(source)
    for node in outputs[results:]:
        need(node)
    kept = [i for i, node in enumerate(holders[:inputs]) if node in handed]
    values = [node for node in handed if node.op != "placeholder"]

    early = [node for node in nodes[:-1] if node not in late]
    forward = _program(joint, holders[:inputs], early, outputs[:results] + values)
    given = [holders[i] for i in kept] + values + holders[inputs:]
    rest = [node for node in nodes[:-1] if node in again or (node in late and node.op != "placeholder")]
    return Halves(forward, _program(joint, given, rest, outputs[results:]), kept)


def _program(root: fx.GraphModule, given: list[fx.Node], body: list[fx.Node], outputs: list[fx.Node]) -> fx.GraphModule:
    graph = fx.Graph()
    new: dict[fx.Node, fx.Node] = {}
    for node in given:
        new[node] = graph.placeholder(node.name)
        new[node].meta = dict(node.meta)
    for node in body:
        if node not in new:
            new[node] = graph.node_copy(node, lambda old: new[old])
    graph.output([new[node] for node in outputs])
    graph.eliminate_dead_code()
    return fx.GraphModule(root, graph)
